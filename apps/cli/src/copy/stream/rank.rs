//! One rank of a stream: the source's broadcasts what comes, part by part, and the others write it.
//!
//! Parts are numbered. All ranks meet after every few of them; until then the source keeps what it has sent, and if a node is lost the others go
//! on from the first part that one of them lacks.

use super::super::fault::Fault;
use super::super::group::{lost, own_node, rank_on, say_lost, set_way, share};
use super::super::pipeline::{Form, Packed};
use super::super::rank::{RankError, RankOptions, Stop};
use super::super::said::Said;
use super::StreamTask;
use super::feed::{FRAME_MAX, Frames};
use super::sink::Sink;
use cool::{Comm, Op};
use cool_content::Digester;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) type StreamRankOptions = RankOptions;

/// Bytes of the longest part: shorter broadcasts are slower (docs/guide/copy.md).
const PART_MAX: usize = 8 << 20;
/// Frames that have come and are not sent yet.
const FRAMES_READY: usize = 16;
/// Parts between two meetings.
const MEET_EVERY: u64 = 4;
/// How long the input may pause, or a pipe not be read.
const PAUSE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The frames of the command, as parts for all ranks; those that were sent since ranks last met are kept.
struct Source {
    frames: Receiver<io::Result<Option<Vec<u8>>>>,
    /// Whether the last frame has come, or none comes any more.
    ended: Option<bool>,
    digester: Digester,
    bytes: u64,
    sent: VecDeque<Packed>,
    /// The number of the first of these.
    first: u64,
}

impl Source {
    fn connect(path: PathBuf) -> io::Result<Source> {
        let (give, frames) = sync_channel(FRAMES_READY);
        let mut input = Frames::connect(&path)?;
        thread::Builder::new().name("read".into()).spawn(move || {
            loop {
                let frame = input.next();
                let last = !matches!(frame, Ok(Some(_)));
                if give.send(frame).is_err() || last {
                    return;
                }
            }
        })?;
        Ok(Source {
            frames,
            ended: None,
            digester: Digester::default(),
            bytes: 0,
            sent: VecDeque::new(),
            first: 0,
        })
    }

    /// The part of a number, which was sent already or is the next.
    fn part(&mut self, number: u64) -> Packed {
        // Fewer than between two meetings.
        let index = number.saturating_sub(self.first) as usize;
        if index == self.sent.len() {
            let part = self.next();
            self.sent.push_back(part);
        }
        self.sent.get(index).cloned().unwrap_or_else(|| (Form::GivesUp, b"a part was lost".to_vec()))
    }

    /// All that has come, at least something; then again and again that it was all.
    fn next(&mut self) -> Packed {
        let mut bytes = Vec::new();
        while bytes.len() < PART_MAX && self.ended.is_none() {
            let frame = if bytes.is_empty() {
                self.frames.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.frames.try_recv()
            };
            match frame {
                Ok(Ok(Some(frame))) => bytes.extend(frame),
                Err(TryRecvError::Empty) => break,
                Ok(Ok(None)) => self.ended = Some(true),
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => self.ended = Some(false),
            }
        }
        self.digester.update(&bytes);
        self.bytes += bytes.len() as u64;
        match self.ended {
            Some(true) if bytes.is_empty() => (Form::End, self.digester.digest().to_string().into()),
            Some(false) if bytes.is_empty() => {
                (Form::GivesUp, b"the command has ended before its input".to_vec())
            }
            _ => (Form::Plain, bytes),
        }
    }

    /// All ranks have the parts before this one.
    fn forget(&mut self, before: u64) {
        while self.first < before && self.sent.pop_front().is_some() {
            self.first += 1;
        }
    }
}

/// Runs as the rank that the job started this process as.
pub(crate) fn rank(options: &StreamRankOptions) -> Result<(), RankError> {
    let task: StreamTask = serde_json::from_str(options.task()).map_err(RankError::Task)?;
    let comm = Comm::world()?;
    let began = Instant::now();
    let error = Streaming::new(&task, &comm).and_then(|streaming| streaming.run(comm)).err();
    Said::ended(began, error).say().map_err(RankError::Report)
}

/// A rank's state from pass to pass.
struct Streaming<'t> {
    task: &'t StreamTask,
    /// Why it has none counts only where it is the source.
    source: Option<Result<Source, Fault>>,
    sink: Option<Sink>,
    /// The part that comes next here, and the hash of all once it has come.
    next: u64,
    hash: Option<String>,
    sent: u64,
}

impl<'t> Streaming<'t> {
    fn new(task: &'t StreamTask, comm: &Comm) -> Result<Streaming<'t>, Stop> {
        let node = own_node(comm);
        let is_source = node == task.from;
        let source = is_source.then(|| Source::connect(task.socket.clone()).map_err(Fault::at(&task.socket)));
        let sink = (task.own || !is_source).then(|| Sink::start(task.dest.replace("{node}", &node).into()));
        Ok(Streaming { task, source, sink: sink.transpose()?, next: 0, hash: None, sent: 0 })
    }

    fn run(mut self, mut comm: Comm) -> Result<(), Stop> {
        let outcome = loop {
            match self.pass(&comm) {
                Err(Stop::Group(error)) if error.is_loss() => {
                    let rest = comm.shrink()?;
                    say_lost(&rest, lost(&comm, &rest))?;
                    comm = rest;
                }
                outcome => break outcome,
            }
        };
        drop(comm);
        let written = self.sink.map_or(Ok(()), |sink| sink.finish(self.hash.as_deref()));
        outcome.and_then(|()| Ok(written?))
    }

    /// All parts from the first that somebody lacks.
    fn pass(&mut self, comm: &Comm) -> Result<(), Stop> {
        comm.set_timeout(PAUSE_MAX);
        set_way(comm, self.task.via, self.task.background)?;
        let root = rank_on(comm, &self.task.from).ok_or_else(|| Stop::SourceGone(self.task.from.clone()))?;
        let mut number = self.meet(comm)?;
        loop {
            let (form, bytes) = share(comm, root, PART_MAX + FRAME_MAX, self.part(number))?;
            self.sent += bytes.len() as u64;
            if number == self.next {
                self.take(form, bytes)?;
            }
            let last = form != Form::Plain;
            number += 1;
            if last || number.is_multiple_of(MEET_EVERY) {
                number = self.meet(comm)?;
            }
            if last {
                return self.end(comm);
            }
        }
    }

    /// Where all go on: the first part that somebody lacks, and nobody needs those before.
    fn meet(&mut self, comm: &Comm) -> Result<u64, Stop> {
        // Of nodes that cannot write, none is waited for; if that is all of them there is nothing to go on for.
        let lacks = self.sink.as_ref().is_some_and(|sink| !sink.has_failed());
        let mut all = [self.next, u64::MAX - u64::from(lacks)];
        comm.allreduce_in_place(&mut all, Op::Min)?;
        let [number, anybody] = all;
        if anybody == u64::MAX {
            return Err(Stop::Source("no node can write it".to_owned()));
        }
        if let Some(Ok(source)) = &mut self.source {
            source.forget(number);
        }
        Ok(number)
    }

    /// The part of a number, at the source.
    fn part(&mut self, number: u64) -> Packed {
        match &mut self.source {
            Some(Ok(source)) => source.part(number),
            Some(Err(fault)) => (Form::GivesUp, fault.to_string().into()),
            None => (Form::Plain, Vec::new()),
        }
    }

    fn take(&mut self, form: Form, bytes: Vec<u8>) -> Result<(), Stop> {
        self.next += 1;
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        match form {
            Form::End => self.hash = Some(text()),
            Form::GivesUp => {
                let reason = text();
                if self.source.is_some() {
                    Said::GivesUp { reason: reason.clone() }.say()?;
                }
                return Err(Stop::Source(format!("{} gives up: {reason}", self.task.from)));
            }
            // Nobody is admitted to a stream, of which it would have the end only.
            Form::Admits => {}
            Form::Plain | Form::Compressed => {
                if let Some(sink) = &mut self.sink {
                    sink.write(bytes);
                }
            }
        }
        Ok(())
    }

    /// The source says what it has sent.
    fn end(&self, comm: &Comm) -> Result<(), Stop> {
        if let Some(Ok(source)) = &self.source {
            Said::Source { bytes: source.bytes }.say()?;
            Said::Sent { bytes: self.sent, via: comm.last_plan() }.say()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::noise;
    use super::*;
    use cool::embedded::{Embedded, run};
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use tempfile::TempDir;

    /// Frames of a command whose input is these bytes, to four nodes of which the first may not have it; what each says was wrong.
    fn streamed(folder: &Path, bytes: Vec<u8>, ends_well: bool) -> Vec<Option<String>> {
        let task = StreamTask {
            from: "n0".into(),
            socket: folder.join("input"),
            dest: folder.join("{node}/copy").display().to_string(),
            own: false,
            via: Default::default(),
            background: false,
        };
        let listener = UnixListener::bind(&task.socket).unwrap();
        let command = thread::spawn(move || {
            let (mut rank, _) = listener.accept().unwrap();
            let last = if ends_well { &[&[][..]][..] } else { &[] };
            for frame in bytes.chunks(300_000).chain(last.iter().copied()) {
                rank.write_all(&(frame.len() as u32).to_le_bytes()).unwrap();
                rank.write_all(frame).unwrap();
            }
        });
        let ranks = Embedded { ranks: 4, ranks_per_node: 1, racks: 2 };
        let one = |comm: Comm| Streaming::new(&task, &comm).and_then(|s| s.run(comm)).err();
        let outcomes = run(ranks, |comm| one(comm).map(|stop| stop.to_string())).unwrap();
        command.join().unwrap();
        outcomes
    }

    #[test]
    fn all_nodes_but_the_source_have_what_came_also_nothing() {
        for bytes in [noise(5, 40 << 20), Vec::new()] {
            let folder = TempDir::new().unwrap();
            assert_eq!(streamed(folder.path(), bytes.clone(), true), vec![None; 4]);
            for node in ["n1", "n2", "n3"] {
                assert!(std::fs::read(folder.path().join(node).join("copy")).unwrap() == bytes);
            }
            assert!(!folder.path().join("n0").exists());
        }
    }

    #[test]
    fn of_input_that_ends_too_early_nothing_is_left() {
        let folder = TempDir::new().unwrap();
        let outcomes = streamed(folder.path(), noise(5, 3 << 20), false);
        let why = "n0 gives up: the command has ended before its input".to_owned();
        assert_eq!(outcomes, vec![Some(why); 4]);
        assert_eq!(std::fs::read_dir(folder.path().join("n1")).unwrap().count(), 0);
    }

    #[test]
    fn nodes_that_cannot_write_are_named_and_if_that_is_all_it_ends() {
        let folder = TempDir::new().unwrap();
        std::fs::create_dir_all(folder.path().join("n2/copy")).unwrap();
        let outcomes = streamed(folder.path(), noise(5, 100), true);
        let taken = format!("{}: is a folder", folder.path().join("n2/copy").display());
        assert_eq!(outcomes, [None, None, Some(taken), None]);
    }
}
