//! Flags of `mpirun` with one dash and a word, which clap would parse as several short flags. For
//! example, `-np 4` would be `-n p`, and `-host h1` would print the help.

use clap::Command;
use std::ffi::{OsStr, OsString};

/// The flags, and those of `cool run` in place of them.
const REPLACED: [(&str, &str); 2] = [("-np", "--ranks"), ("-host", "--hosts")];

/// Replaces flags of `mpirun` in a command line of `cool run`, up to the program.
pub(crate) fn replace(command: &Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(run) = command.find_subcommand("run") else { return arguments };
    // The words before the name of the command may be flags of all commands.
    let mut at = 1;
    while let Some(words) = arguments.get(at).and_then(|word| flag_words(&[command], word)) {
        at += words;
    }
    if arguments.get(at).is_none_or(|word| word != "run") {
        return arguments;
    }
    at += 1;
    while let Some(word) = arguments.get(at) {
        if let Some((_, with)) = REPLACED.iter().find(|(flag, _)| word == flag) {
            arguments[at] = with.into();
            at += 2;
            continue;
        }
        match flag_words(&[run, command], word) {
            Some(words) => at += words,
            None => break,
        }
    }
    arguments
}

/// Returns the number of words of a flag, including its value; `None` if the word is not a flag.
fn flag_words(commands: &[&Command], word: &OsStr) -> Option<usize> {
    let word = word.to_str()?;
    if word == "--" || word == "-" {
        return None;
    }
    let mut args = commands.iter().flat_map(|command| command.get_arguments());
    let arg = if let Some(long) = word.strip_prefix("--") {
        if long.contains('=') {
            return Some(1);
        }
        args.find(|arg| {
            arg.get_long() == Some(long) || arg.get_all_aliases().unwrap_or_default().contains(&long)
        })
    } else {
        let mut flags = word.strip_prefix('-')?.chars();
        let short = flags.next()?;
        if flags.next().is_some() {
            // The value is attached to the flag.
            return Some(1);
        }
        args.find(|arg| {
            arg.get_short() == Some(short) || arg.get_all_short_aliases().unwrap_or_default().contains(&short)
        })
    };
    Some(1 + usize::from(arg.is_some_and(|arg| arg.get_action().takes_values())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let words = replace(&crate::command(), words);
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_of_mpirun_are_replaced_up_to_the_program() {
        for (line, expected) in [
            ("cool run -np 4 ./x -np 5", "cool run --ranks 4 ./x -np 5"),
            ("cool run -host h1,h2 -np 4 -- -np", "cool run --hosts h1,h2 --ranks 4 -- -np"),
            (
                "cool --controller a:1 run --survive -n 1 -np 2 x",
                "cool --controller a:1 run --survive -n 1 --ranks 2 x",
            ),
            ("cool run --env -np -x -np -H -np x", "cool run --env -np -x -np -H -np x"),
            (
                "cool run --workdir=/ -n4 --hosts h1 -np 2 x",
                "cool run --workdir=/ -n4 --hosts h1 --ranks 2 x",
            ),
            ("cool mpirun -np 4 ./x", "cool mpirun -np 4 ./x"),
            ("cool copy -np run", "cool copy -np run"),
            ("cool", "cool"),
        ] {
            assert_eq!(replaced(line), expected);
        }
    }
}
