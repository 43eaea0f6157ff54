//! The parts that make a fuzz target three programs: a target of libFuzzer, an ordinary test on
//! seeded bytes and on earlier findings, and a command that runs it on a file. The targets define
//! the properties that must hold.

mod file;
pub mod hostile_rank;
mod mutate;

use std::io::Read;
use std::path::Path;

pub use file::File;
use mutate::Mutator;

/// Number of inputs of an ordinary test, unless the target overrides it.
pub const TRIES: usize = 100_000;

/// Makes a fuzz target of a file with `fn check(&[u8])` and `fn seeds() -> Vec<Vec<u8>>`. The file
/// must start with `#![cfg_attr(fuzzing, no_main)]`. The ordinary test tries `TRIES` inputs, or the
/// given number.
#[macro_export]
macro_rules! target {
    () => {
        $crate::target!($crate::TRIES);
    };
    ($tries:expr) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay(check)
        }

        #[test]
        fn holds_for_seeded_random_and_mutated_bytes() {
            $crate::try_many(&seeds(), $tries, check);
        }

        #[test]
        fn holds_for_the_corpus() {
            $crate::try_corpus(env!("CARGO_BIN_NAME"), check).unwrap();
        }
    };
}

/// Runs `check` on the files given as arguments, or on standard input if there are none.
///
/// # Errors
/// If a file cannot be read.
pub fn replay(check: fn(&[u8])) -> std::io::Result<()> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        check(&bytes);
    }
    for file in files {
        check(&std::fs::read(file)?);
    }
    Ok(())
}

/// Runs `check` on the seeds, on mutations of them, and on random bytes. All runs use the same
/// inputs, because the random numbers have a fixed seed.
///
/// # Panics
/// If `check` panics, after printing the input; or if there are no seeds.
pub fn try_many(seeds: &[Vec<u8>], tries: usize, check: fn(&[u8])) {
    assert!(!seeds.is_empty(), "mutations need seeds");
    let mut mutator = Mutator::new(seeds);
    let mutated = std::iter::repeat_with(|| mutator.next_input());
    for input in seeds.iter().cloned().chain(mutated).take(seeds.len() + tries) {
        try_one(&input, check);
    }
}

/// Runs `check` on every file of a target's directory in `corpus/`, if it exists.
///
/// # Errors
/// If the directory or a file in it cannot be read.
///
/// # Panics
/// If `check` panics, after printing the input.
pub fn try_corpus(target: &str, check: fn(&[u8])) -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    if !directory.try_exists()? {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        try_one(&std::fs::read(entry?.path())?, check);
    }
    Ok(())
}

fn try_one(input: &[u8], check: fn(&[u8])) {
    let print_on_panic = PrintOnPanic(input);
    check(input);
    std::mem::forget(print_on_panic);
}

/// Prints an input when a check on it panics.
struct PrintOnPanic<'a>(&'a [u8]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("the input was {hex}");
    }
}
