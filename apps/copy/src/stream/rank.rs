//! One rank of a stream. The source's rank broadcasts the input part by part. The other ranks write
//! it, and the source's rank too if `copy_on_source`.
//!
//! Parts are numbered. After every few parts all ranks synchronize. Until then the source keeps the
//! parts that it has sent; if a node is lost, the others resume at the first part that one of them
//! is missing.

use super::frames::FRAME_MAX_BYTES;
use super::sink::StreamSink;
use super::source::{PART_MAX_BYTES, StreamSource};
use crate::copy_group::{broadcast_packed, configure_broadcasts, lost_nodes, own_node, rank_on, report_lost};
use crate::errors::{CopyError, CopyFileError, RankError};
use crate::pipeline::{PackedPiece, PieceForm};
use crate::protocol::{CopyEvent, StreamTask};
use cool::{Comm, Op};
use std::time::{Duration, Instant};

/// Number of parts between two synchronizations.
const SYNC_EVERY: u64 = 4;
/// Timeout of the broadcasts: the longest time for which the input may pause, or a pipe's reader
/// may be idle.
const PAUSE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Executes the rank of this process. `task` is a [`StreamTask`] as JSON.
///
/// # Errors
/// If the process cannot be a rank. If its node cannot have a copy, it reports that as an event.
pub fn run_stream_rank(task: &str) -> Result<(), RankError> {
    let task: StreamTask = serde_json::from_str(task).map_err(RankError::Task)?;
    let comm = Comm::world()?;
    let began = Instant::now();
    let error = StreamRank::new(&task, &comm).and_then(|rank| rank.run(comm)).err();
    CopyEvent::ended(began, error).send().map_err(RankError::Report)
}

/// The state of a rank from pass to pass.
struct StreamRank<'t> {
    task: &'t StreamTask,
    /// At the source's rank: the input. An error is sent to the other ranks as the end of the
    /// stream.
    source: Option<Result<StreamSource, CopyFileError>>,
    sink: Option<StreamSink>,
    /// Number of the next part to write.
    next: u64,
    /// Hash of the whole stream, once the end has arrived.
    hash: Option<String>,
    /// Bytes broadcast so far; at ranks other than the source, received.
    bytes_broadcast: u64,
}

impl<'t> StreamRank<'t> {
    fn new(task: &'t StreamTask, comm: &Comm) -> Result<StreamRank<'t>, CopyError> {
        let node = own_node(comm);
        let is_source = node == task.from;
        let connect = || StreamSource::connect(task.socket.clone()).map_err(CopyFileError::at(&task.socket));
        let source = is_source.then(connect);
        let dest = || task.dest.replace("{node}", &node).into();
        let sink = (task.copy_on_source || !is_source).then(|| StreamSink::start(dest(), task.mode));
        Ok(StreamRank { task, source, sink: sink.transpose()?, next: 0, hash: None, bytes_broadcast: 0 })
    }

    fn run(mut self, mut comm: Comm) -> Result<(), CopyError> {
        let outcome = loop {
            match self.pass(&comm) {
                Err(CopyError::Group(error)) if error.is_loss() => {
                    let rest = comm.shrink()?;
                    report_lost(&rest, lost_nodes(&comm, &rest))?;
                    comm = rest;
                }
                outcome => break outcome,
            }
        };
        drop(comm);
        // The reason why this node could not write explains more than the end of the stream.
        self.sink.map_or(Ok(()), |sink| sink.finish(self.hash.as_deref()))?;
        outcome
    }

    /// Broadcasts all parts, beginning with the first one that any rank is missing.
    fn pass(&mut self, comm: &Comm) -> Result<(), CopyError> {
        comm.set_timeout(PAUSE_MAX);
        configure_broadcasts(comm, self.task.via, self.task.background)?;
        let lost = || CopyError::SourceLost(self.task.from.clone());
        let root = rank_on(comm, &self.task.from).ok_or_else(lost)?;
        let mut number = self.synchronize(comm)?;
        loop {
            let part = self.part(number);
            let (form, bytes) = broadcast_packed(comm, root, PART_MAX_BYTES + FRAME_MAX_BYTES, part)?;
            self.bytes_broadcast += bytes.len() as u64;
            if number == self.next {
                self.on_part(form, bytes)?;
            }
            let last = form != PieceForm::Plain;
            number += 1;
            if last || number.is_multiple_of(SYNC_EVERY) {
                number = self.synchronize(comm)?;
            }
            if last {
                return self.report_sent(comm);
            }
        }
    }

    /// Agrees with all ranks on the first part that one of them is missing, and returns its number.
    /// The source drops the parts before it.
    fn synchronize(&mut self, comm: &Comm) -> Result<u64, CopyError> {
        // The stream ends if no node can write any more.
        let is_writing = self.sink.as_ref().is_some_and(|sink| !sink.has_failed());
        let mut all = [self.next, u64::MAX - u64::from(is_writing)];
        comm.allreduce_in_place(&mut all, Op::Min)?;
        let [number, writing_min] = all;
        if writing_min == u64::MAX {
            return Err(CopyError::Source("no node can write it".to_owned()));
        }
        if let Some(Ok(source)) = &mut self.source {
            source.confirm(number);
        }
        Ok(number)
    }

    /// At the source's rank, returns the part with this number. Other ranks return an empty part,
    /// which the broadcast replaces.
    fn part(&mut self, number: u64) -> PackedPiece {
        match &mut self.source {
            Some(Ok(source)) => source.part(number),
            Some(Err(error)) => (PieceForm::SourceFailed, error.to_string().into()),
            None => (PieceForm::Plain, Vec::new()),
        }
    }

    fn on_part(&mut self, form: PieceForm, bytes: Vec<u8>) -> Result<(), CopyError> {
        self.next += 1;
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        match form {
            PieceForm::End => self.hash = Some(text()),
            PieceForm::SourceFailed => {
                let reason = text();
                if self.source.is_some() {
                    CopyEvent::SourceFailed { reason: reason.clone() }.send()?;
                }
                return Err(CopyError::Source(format!("{} stopped sending: {reason}", self.task.from)));
            }
            // A stream admits no late nodes, because they would miss its beginning.
            PieceForm::Admission => {}
            PieceForm::Plain | PieceForm::Compressed => {
                if let Some(sink) = &mut self.sink {
                    sink.write(bytes);
                }
            }
        }
        Ok(())
    }

    /// Reports the length of the input and the number of bytes sent, at the source's rank.
    fn report_sent(&self, comm: &Comm) -> Result<(), CopyError> {
        if let Some(Ok(source)) = &self.source {
            CopyEvent::Source { bytes: source.bytes, identity: None }.send()?;
            CopyEvent::Sent { bytes: self.bytes_broadcast, via: comm.last_plan() }.send()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::noise;
    use cool::embedded::{Embedded, run};
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::thread;
    use tempfile::TempDir;

    /// Streams these bytes to four nodes, of which the first gets no copy, and returns the error of
    /// each.
    fn streamed(directory: &Path, bytes: Vec<u8>, complete: bool) -> Vec<Option<String>> {
        let task = StreamTask {
            from: "n0".into(),
            socket: directory.join("input"),
            dest: directory.join("{node}/copy").display().to_string(),
            copy_on_source: false,
            via: Default::default(),
            background: false,
            mode: Some(0o600),
        };
        let listener = UnixListener::bind(&task.socket).unwrap();
        let command = thread::spawn(move || {
            let (mut rank, _) = listener.accept().unwrap();
            let last = if complete { &[&[][..]][..] } else { &[] };
            for frame in bytes.chunks(300_000).chain(last.iter().copied()) {
                let frame = [&(frame.len() as u32).to_le_bytes()[..], frame].concat();
                // The rank may have ended already, because no node can write.
                drop(rank.write_all(&frame));
            }
        });
        let ranks = Embedded { ranks: 4, ranks_per_node: 1, racks: 2 };
        let one = |comm: Comm| StreamRank::new(&task, &comm).and_then(|rank| rank.run(comm)).err();
        let outcomes = run(ranks, |comm| one(comm).map(|error| error.to_string())).unwrap();
        command.join().unwrap();
        outcomes
    }

    #[test]
    fn all_nodes_but_the_source_have_the_input_even_if_empty() {
        for bytes in [noise(5, 40 << 20), Vec::new()] {
            let directory = TempDir::new().unwrap();
            assert_eq!(streamed(directory.path(), bytes.clone(), true), vec![None; 4]);
            for node in ["n1", "n2", "n3"] {
                assert!(std::fs::read(directory.path().join(node).join("copy")).unwrap() == bytes);
            }
            assert!(!directory.path().join("n0").exists());
        }
    }

    #[test]
    fn nothing_is_left_of_input_that_ends_too_early() {
        let directory = TempDir::new().unwrap();
        let outcomes = streamed(directory.path(), noise(5, 3 << 20), false);
        let why = "n0 stopped sending: the command exited before its input ended".to_owned();
        assert_eq!(outcomes, vec![Some(why); 4]);
        assert_eq!(std::fs::read_dir(directory.path().join("n1")).unwrap().count(), 0);
    }

    #[test]
    fn a_node_that_cannot_write_is_named() {
        let directory = TempDir::new().unwrap();
        std::fs::create_dir_all(directory.path().join("n2/copy")).unwrap();
        let outcomes = streamed(directory.path(), noise(5, 100), true);
        let unusable = format!("{}: is a directory", directory.path().join("n2/copy").display());
        assert_eq!(outcomes, [None, None, Some(unusable), None]);
        for node in ["n1", "n3"] {
            let mode = directory.path().join(node).join("copy").metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn each_node_names_its_reason_if_none_can_write() {
        let directory = TempDir::new().unwrap();
        for node in ["n1", "n2", "n3"] {
            std::fs::create_dir_all(directory.path().join(node).join("copy")).unwrap();
        }
        let outcomes = streamed(directory.path(), noise(5, 100), true);
        let named =
            |error: &Option<String>| error.as_deref().is_some_and(|text| text.ends_with("is a directory"));
        assert!(outcomes[1..].iter().all(named), "{outcomes:?}");
    }
}
