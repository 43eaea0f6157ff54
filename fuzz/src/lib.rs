//! What a fuzz target needs to be three programs: a target of libFuzzer, an ordinary test on seeded
//! bytes and on what fuzzing has found before, and a command that runs it on a file. What must hold is said by the
//! targets.

mod file;
mod mutate;

use std::io::Read;
use std::path::Path;

pub use file::File;
use mutate::Mutator;

/// How many inputs an ordinary test tries, unless its target says otherwise.
pub const TRIES: usize = 100_000;

/// Makes a file with `fn check(&[u8])` and `fn seeds() -> Vec<Vec<u8>>` a fuzz target. The file
/// begins with `#![cfg_attr(fuzzing, no_main)]`. As an ordinary test it tries `TRIES` inputs, or the number given.
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
        fn holds_for_what_fuzzing_has_found() {
            $crate::try_kept(env!("CARGO_BIN_NAME"), check).unwrap();
        }
    };
}

/// Runs `check` on the files named as arguments, or on standard input if there are none.
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

/// Runs `check` on the seeds as they are, on mutations of them, and on random bytes: the same on
/// every run.
///
/// # Panics
/// If `check` does; the input is printed. If there are no seeds.
pub fn try_many(seeds: &[Vec<u8>], tries: usize, check: fn(&[u8])) {
    assert!(!seeds.is_empty(), "mutations need seeds");
    let mut mutator = Mutator::new(seeds);
    let mutated = std::iter::repeat_with(|| mutator.next_input());
    for input in seeds.iter().cloned().chain(mutated).take(seeds.len() + tries) {
        try_one(&input, check);
    }
}

/// Runs `check` on every file of a target's folder in `corpus/`, if it has one.
///
/// # Errors
/// If the folder or a file of it cannot be read.
///
/// # Panics
/// If `check` does; the input is printed.
pub fn try_kept(target: &str, check: fn(&[u8])) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    if !folder.try_exists()? {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        try_one(&std::fs::read(entry?.path())?, check);
    }
    Ok(())
}

fn try_one(input: &[u8], check: fn(&[u8])) {
    let shown = Shown(input);
    check(input);
    std::mem::forget(shown);
}

/// Prints an input when a check on it panics.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("the input was {hex}");
    }
}
