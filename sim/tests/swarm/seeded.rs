//! Distributions from seeds: every survivor ends with the right bytes, or says that nobody has what it lacks.

use cool_sim::swarm::Distribution;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many seeds are run, unless `COOL_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 200;

fn number(name: &str, usually: u64) -> u64 {
    std::env::var(name).map_or(usually, |text| text.parse().expect("the variable is a number"))
}

/// Of all seeds: distributions, nodes that ended with everything, nodes that lacked what nobody had, and what went wrong.
type Total = (u64, u64, u64, Vec<String>);

fn run(seed: u64, total: &Mutex<Total>) {
    let ran = catch_unwind(AssertUnwindSafe(|| Distribution::of(seed).run()));
    let (runs, whole, bereft, wrong) = &mut *total.lock().expect("no thread panics while it adds up");
    *runs += 1;
    match ran {
        Ok(Ok(outcome)) => {
            *whole += outcome.done.iter().flatten().count() as u64;
            *bereft += outcome.bereft.len() as u64;
        }
        Ok(Err(error)) => {
            let what = Distribution::of(seed);
            wrong.push(format!("seed {seed}: {error} ({:?}, {:?})", what.code, what.order));
        }
        Err(_) => wrong.push(format!("seed {seed}: it panicked")),
    }
}

#[test]
fn many_seeded_distributions() {
    let first = number("COOL_SIM_FIRST_SEED", 0);
    let end = first + number("COOL_SIM_SEEDS", SEEDS);
    let (next, total) = (AtomicU64::new(first), Mutex::new(Total::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    run(seed, &total);
                }
            });
        }
    });
    let (runs, whole, bereft, wrong) = total.into_inner().expect("no thread panics while it adds up");
    println!(
        "{runs} distributions: {whole} nodes ended with everything, {bereft} lacked what no survivor had"
    );
    assert!(
        wrong.is_empty(),
        "{} wrong, the first:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(whole > 5 * runs / 2 && bereft > 0, "seeds show too little");
}
