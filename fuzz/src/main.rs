//! Runs one fuzz target: under libFuzzer the one that the environment variable `FUZZ_TARGET` names,
//! and otherwise the one named by the first argument, on the files of the further arguments.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzer {
    use cool_fuzz::{FuzzTarget, find};
    use std::sync::LazyLock;

    static TARGET: LazyLock<FuzzTarget> = LazyLock::new(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|why| panic!("FUZZ_TARGET: {why}"))
    });

    libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.check)(bytes));
}

#[cfg(not(fuzzing))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::io::Read;

    let mut arguments = std::env::args_os().skip(1);
    let target = cool_fuzz::find(&arguments.next().unwrap_or_default().to_string_lossy())?;
    let files: Vec<_> = arguments.collect();
    if files.is_empty() {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        (target.check)(&bytes);
    }
    for file in files {
        (target.check)(&std::fs::read(file)?);
    }
    Ok(())
}
