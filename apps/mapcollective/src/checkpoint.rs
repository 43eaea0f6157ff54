//! The state of a job in a file. A new file replaces the old one only when it is completely on
//! disk, so the file is complete at any time. Its first line identifies the run, as JSON; the state
//! follows in postcard's encoding.

use crate::error::Error;
use crate::files::replace_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::PathBuf;

const FORMAT: &str = "cool-map checkpoint 1";

/// Where rank 0 stores the state after each iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The file. All ranks must be able to access it, because another rank becomes rank 0 if rank 0
    /// is lost.
    pub path: PathBuf,
    /// A text that identifies the run. It must contain everything on which the result depends:
    /// input, options and seed. A run can only resume from a file with the same text.
    pub run: String,
    /// Whether to resume from the file if it exists.
    pub resume: bool,
}

/// The state after a number of iterations, which a checkpoint contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct IterationState<S> {
    pub(crate) iterations: u64,
    pub(crate) state: S,
}

#[derive(Debug, Serialize, Deserialize)]
struct CheckpointHeader {
    format: String,
    run: String,
    /// Bytes of the state.
    bytes: usize,
    /// Hash of the state's bytes (FNV-1a).
    hash: u64,
}

impl Checkpoint {
    /// Returns the state that an earlier run reached, or `None` if there is no file or the run
    /// should not resume.
    pub(crate) fn resumed<S: DeserializeOwned>(&self) -> Result<Option<IterationState<S>>, Error> {
        if !self.resume {
            return Ok(None);
        }
        let bytes = match std::fs::read(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(Error::file(&self.path))?,
        };
        let wrong = |problem: String| Error::Checkpoint { path: self.path.clone(), problem };
        let not_a_checkpoint = || wrong(format!("it is not a \"{FORMAT}\""));
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(not_a_checkpoint)?;
        let header: CheckpointHeader =
            serde_json::from_slice(&bytes[..end]).map_err(|_| not_a_checkpoint())?;
        let state = &bytes[end + 1..];
        if header.format != FORMAT {
            return Err(not_a_checkpoint());
        }
        if header.run != self.run {
            return Err(wrong(format!("it belongs to {}, but this run is {}", header.run, self.run)));
        }
        if (header.bytes, header.hash) != (state.len(), hash(state)) {
            return Err(wrong("it is damaged".into()));
        }
        postcard::from_bytes(state).map(Some).map_err(|_| wrong("it belongs to another program".into()))
    }

    /// Replaces the file.
    pub(crate) fn write<S: Serialize>(&self, reached: &IterationState<S>) -> Result<(), Error> {
        let state = postcard::to_allocvec(reached).map_err(Error::Value)?;
        let header = CheckpointHeader {
            format: FORMAT.into(),
            run: self.run.clone(),
            bytes: state.len(),
            hash: hash(&state),
        };
        let mut head = serde_json::to_vec(&header).map_err(|error| self.file(error.into()))?;
        head.push(b'\n');
        replace_file(&self.path, &[&head, &state]).map_err(|error| self.file(error))
    }

    fn file(&self, source: std::io::Error) -> Error {
        Error::File { path: self.path.clone(), source }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn checkpoint(directory: &Path) -> Checkpoint {
        Checkpoint { path: directory.join("run.checkpoint"), run: "seed 5".into(), resume: true }
    }

    fn reached() -> IterationState<Vec<f64>> {
        IterationState { iterations: 3, state: vec![0.5, -1.0] }
    }

    fn refusal(checkpoint: &Checkpoint) -> String {
        checkpoint.resumed::<Vec<f64>>().expect_err("refused").to_string()
    }

    #[test]
    fn a_checkpoint_is_read_back_and_leaves_no_other_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = checkpoint(directory.path());
        assert_eq!(file.resumed::<Vec<f64>>().expect("no file"), None);
        file.write(&reached()).expect("written");
        assert_eq!(file.resumed().expect("read"), Some(reached()));
        assert_eq!(Checkpoint { resume: false, ..file }.resumed::<Vec<f64>>().expect("not read"), None);
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn checkpoints_of_other_runs_are_refused_with_the_reason() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = checkpoint(directory.path());
        file.write(&reached()).expect("written");
        let message = refusal(&Checkpoint { run: "seed 6".into(), ..file.clone() });
        assert!(
            message.contains("belongs to seed 5")
                && message.contains("this run is seed 6")
                && message.contains("remove the file"),
            "{message}"
        );
        let whole = std::fs::read(&file.path).expect("read");
        let mut flipped = whole.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        for damaged in [&whole[..whole.len() - 1], &flipped] {
            std::fs::write(&file.path, damaged).expect("written");
            assert!(refusal(&file).contains("it is damaged"), "{}", refusal(&file));
        }
        for garbage in [&b""[..], b"{}", b"{}\n", b"\xff\n\n", &whole[..40]] {
            std::fs::write(&file.path, garbage).expect("written");
            assert!(refusal(&file).contains("not a \"cool-map checkpoint 1\""), "{}", refusal(&file));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let file = Checkpoint { path: "/no/file".into(), run: String::new(), resume: false };
        let message = file.write(&reached()).expect_err("refused").to_string();
        assert!(message.starts_with("/no/file: "), "{message}");
    }
}
