//! WordCount: how often each word occurs in some texts.

use cool_map::{Error, Keyed, Options, Partitions, Sum};
use std::error::Error as Any;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "Usage: wordcount FILE...
Prints the words of text files with their numbers of occurrences, the most frequent first.";

/// Returns how often each word occurs in the files. Each file is a partition.
fn count(comm: cool::Comm, files: &[PathBuf]) -> Result<Keyed<String, Sum<u64>>, Error> {
    let mut texts = Partitions::new(files.len());
    cool_map::run(comm, Options::default(), |job| {
        job.deal(&mut texts, |file| {
            std::fs::read_to_string(&files[file])
                .map_err(|source| Error::File { path: files[file].clone(), source })
        })?;
        let words = job.map(&mut texts, &Keyed::new(), |text, words| {
            let letters = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
            letters.for_each(|word| words.add(word.to_lowercase(), Sum(1)));
            Ok::<_, Error>(())
        })?;
        job.combine(job.regroup(words)?)
    })
}

fn run(files: &[PathBuf]) -> Result<(), Box<dyn Any>> {
    let counts = cool::launch(|comm| {
        let driver = comm.rank() == 0;
        count(comm, files).map(|words| driver.then_some(words))
    })?;
    for words in counts {
        let mut words: Vec<_> = words?.into_iter().flatten().collect();
        words.sort_by(|(a, n), (b, m)| m.0.cmp(&n.0).then(a.cmp(b)));
        words.into_iter().for_each(|(word, n)| println!("{} {word}", n.0));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if arguments.iter().any(|argument| argument.as_os_str() == "-h" || argument.as_os_str() == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let done = match &arguments[..] {
        [] => Err(USAGE.into()),
        files => run(files),
    };
    done.map_or_else(
        |error| {
            eprintln!("wordcount: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_all_files_are_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let files: Vec<_> = (0..5).map(|i| directory.path().join(i.to_string())).collect();
        for (i, file) in files.iter().enumerate() {
            std::fs::write(file, format!("A rose is a rose; {}", "is a rose? ".repeat(i))).expect("written");
        }
        for words in cool::launch(|comm| count(comm, &files)).expect("agents start") {
            let counts: Vec<_> = words.expect("counted").into_iter().map(|(word, n)| (word, n.0)).collect();
            assert_eq!(counts, [("a".to_owned(), 20), ("is".to_owned(), 15), ("rose".to_owned(), 20)]);
        }
    }
}
