//! The seeds that tests run, in parallel on all CPUs.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of seeds after which progress is printed.
const PROGRESS: u64 = 10_000;

/// Returns `default_seeds` seeds from 0 on, unless `COOL_SIM_SEEDS` and `COOL_SIM_FIRST_SEED` give
/// their number and the first one.
pub(crate) fn seeds(default_seeds: u64) -> Range<u64> {
    let number = |name: &str, default_number| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
        Err(_) => default_number,
    };
    let first = number("COOL_SIM_FIRST_SEED", 0);
    first..first + number("COOL_SIM_SEEDS", default_seeds)
}

/// Checks a seed. Returns the error, which may be a panic.
pub(crate) fn on_seed(seed: u64, check: impl Fn(u64) -> Result<(), String>) -> Result<(), String> {
    let ran = catch_unwind(AssertUnwindSafe(|| check(seed)));
    let checked = ran.unwrap_or_else(|_| Err("it panicked".to_owned()));
    checked.map_err(|wrong| format!("seed {seed}: {wrong}"))
}

/// Checks every seed. Prints the progress, and of each error the command that repeats it. Returns
/// the errors.
pub(crate) fn on_every_seed(
    seeds: Range<u64>,
    check: impl Fn(u64) -> Result<(), String> + Sync,
) -> Vec<String> {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let simulation = test.rsplit("::").next().unwrap_or_default();
    let (next, all) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let checked = on_seed(seed, &check);
            let mut wrong = all.lock().expect("no thread panics while it holds the lock");
            if let Err(text) = checked {
                eprintln!("{text}\n  repeat it by: make seeds SEEDS={seed}:1 SIMULATION={simulation}");
                wrong.push(text);
            }
            let ran = seed + 1 - seeds.start;
            if ran.is_multiple_of(PROGRESS) {
                let whole = seeds.end - seeds.start;
                eprintln!("{simulation}: {ran} of {whole} seeds, {} wrong", wrong.len());
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // ThreadSanitizer detects only explicit joins.
        threads.into_iter().for_each(|thread| thread.join().expect("panics of checks are caught"));
    });
    all.into_inner().expect("no thread panics while it holds the lock")
}

/// Fails if there are errors.
///
/// # Panics
/// Panics if there are errors.
pub(crate) fn assert_none(wrong: &[String]) {
    let first = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "{} wrong, the first:\n{}", wrong.len(), first.join("\n"));
}
