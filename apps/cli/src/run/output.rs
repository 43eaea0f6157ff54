//! Writes the output of ranks to files, one for each rank and stream.

use crate::error::Error;
use cool_proto::control::Output;
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Maximum number of files that are open at once, because a job may have thousands of ranks.
const OPEN_MAX: usize = 256;

/// The files of a job, which are created when ranks print. Files of earlier jobs are overwritten.
pub(super) struct OutputFiles {
    directory: PathBuf,
    open: HashMap<(u32, bool), File>,
    /// The files that this job has created.
    begun: HashSet<(u32, bool)>,
}

impl OutputFiles {
    /// Creates the directory if it does not exist.
    pub(super) fn new(directory: &Path) -> Result<OutputFiles, Error> {
        std::fs::create_dir_all(directory).map_err(|reason| failure(directory, reason))?;
        Ok(OutputFiles { directory: directory.to_owned(), open: HashMap::new(), begun: HashSet::new() })
    }

    /// Writes a line, or a piece of one, to the file of its rank and stream.
    pub(super) fn write(&mut self, output: &Output) -> Result<(), Error> {
        let key = (output.rank, output.stderr);
        let path =
            self.directory.join(format!("{}.{}", output.rank, if output.stderr { "err" } else { "out" }));
        if !self.open.contains_key(&key) {
            if self.open.len() >= OPEN_MAX {
                self.open.clear();
            }
            let mut options = OpenOptions::new();
            let first = self.begun.insert(key);
            let file = options.create(true).write(true).truncate(first).append(!first).open(&path);
            self.open.insert(key, file.map_err(|reason| failure(&path, reason))?);
        }
        let newline: &[u8] = if output.unterminated { b"" } else { b"\n" };
        let line = [&output.line, newline].concat();
        let file = self.open.get_mut(&key);
        file.map_or(Ok(()), |file| file.write_all(&line)).map_err(|reason| failure(&path, reason))
    }
}

fn failure(path: &Path, reason: std::io::Error) -> Error {
    Error::OutputFiles { path: path.display().to_string(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: u32, stderr: bool, text: &str) -> Output {
        Output { job: 3, rank, stderr, line: text.into(), ..Output::default() }
    }

    #[test]
    fn each_stream_of_each_rank_has_a_file_of_its_lines() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("a/b");
        for run in ["first", "second"] {
            let mut files = OutputFiles::new(&target).unwrap();
            // Twice for more files than are open at once.
            for text in ["one", "two"] {
                (0..OPEN_MAX as u32 + 9).for_each(|rank| files.write(&line(rank, false, text)).unwrap());
            }
            files.write(&line(1, true, run)).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(target.join(name)).unwrap();
        assert_eq!((read("0.out"), read("264.out")), ("one\ntwo\n".into(), "one\ntwo\n".into()));
        assert_eq!(read("1.err"), "second\n");
    }

    #[test]
    fn a_file_contains_exactly_the_bytes_that_its_rank_printed() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = OutputFiles::new(directory.path()).unwrap();
        for (text, unterminated) in [("a long ", true), ("line", false), ("no newline", true)] {
            files.write(&Output { unterminated, ..line(0, false, text) }).unwrap();
        }
        let read = std::fs::read_to_string(directory.path().join("0.out")).unwrap();
        assert_eq!(read, "a long line\nno newline");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = OutputFiles::new(Path::new("/dev/null/x")).err().unwrap().to_string();
        assert!(error.starts_with("--output: /dev/null/x: "), "{error}");
    }
}
