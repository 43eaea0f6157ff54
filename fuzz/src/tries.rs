//! The ordinary tests of a target: on seeded bytes, and on its corpus.

use crate::mutate::Mutator;
use std::path::Path;

/// Number of inputs of a test, unless the target overrides it.
pub(crate) const TRIES: usize = 100_000;

/// Environment variables that replace the number of inputs and the start of the random numbers.
const TRIES_VARIABLE: &str = "FUZZ_TRIES";
const SEED_VARIABLE: &str = "FUZZ_SEED";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")))
}

/// Runs `check` on the seeds, on mutations of them, and on random bytes. All runs use the same
/// inputs, because the random numbers have a fixed seed.
///
/// # Panics
/// If `check` panics, after printing the input; or if there are no seeds.
pub(crate) fn try_many(seeds: &[Vec<u8>], tries: usize, check: fn(&[u8])) {
    assert!(!seeds.is_empty(), "mutations need seeds");
    let tries = number(TRIES_VARIABLE).map_or(tries, |tries| tries as usize);
    let mut mutator = Mutator::new(seeds, number(SEED_VARIABLE).unwrap_or_default());
    let mutated = std::iter::repeat_with(|| mutator.next_input());
    for (number, input) in seeds.iter().cloned().chain(mutated).take(seeds.len() + tries).enumerate() {
        try_one(&input, &format!("number {number}"), check);
    }
}

/// Runs `check` on every file of a target's directory in `corpus/`, if it exists.
///
/// # Errors
/// If the directory or a file in it cannot be read.
///
/// # Panics
/// If `check` panics, after printing the input.
pub(crate) fn try_corpus(module_path: &str, check: fn(&[u8])) -> std::io::Result<()> {
    let target = module_path.rsplit("::").next().unwrap_or_default();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    if !directory.try_exists()? {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        try_one(&std::fs::read(&path)?, &path.display().to_string(), check);
    }
    Ok(())
}

fn try_one(input: &[u8], name: &str, check: fn(&[u8])) {
    let print_on_panic = PrintOnPanic(input, name);
    check(input);
    std::mem::forget(print_on_panic);
}

/// Prints an input and its name when a check on it panics.
struct PrintOnPanic<'a>(&'a [u8], &'a str);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        let PrintOnPanic(bytes, name) = self;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("input {name} was {hex}");
    }
}
