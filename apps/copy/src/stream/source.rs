//! The source of a stream: the frames of the command, as numbered parts.

use super::frames::FrameReceiver;
use crate::pipeline::{PackedPiece, PieceForm};
use cool_content::Digester;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

/// Maximum length of a part, in bytes: broadcasts of shorter parts are slower (docs/guide/copy.md).
pub(crate) const PART_MAX_BYTES: usize = 8 << 20;
/// Maximum number of received frames that wait to be sent.
const FRAMES_READY: usize = 16;

/// Joins frames to parts, and keeps every part until all ranks have it: if a node is lost, the
/// others resume at the first part that one of them is missing.
pub(super) struct StreamSource {
    frames: Receiver<io::Result<Option<Vec<u8>>>>,
    /// `None` while frames arrive. Then, whether the empty frame that marks the end has arrived.
    ended: Option<bool>,
    digester: Digester,
    /// Bytes received from the command.
    pub(super) bytes: u64,
    /// Parts that some rank may not have received yet.
    unconfirmed: VecDeque<PackedPiece>,
    /// Number of the first unconfirmed part.
    first: u64,
}

impl StreamSource {
    /// Connects to the command's socket.
    pub(super) fn connect(path: PathBuf) -> io::Result<StreamSource> {
        let (sender, frames) = sync_channel(FRAMES_READY);
        let mut input = FrameReceiver::connect(&path)?;
        thread::Builder::new().name("read".into()).spawn(move || {
            loop {
                let frame = input.next();
                let last = !matches!(frame, Ok(Some(_)));
                if sender.send(frame).is_err() || last {
                    return;
                }
            }
        })?;
        Ok(StreamSource {
            frames,
            ended: None,
            digester: Digester::default(),
            bytes: 0,
            unconfirmed: VecDeque::new(),
            first: 0,
        })
    }

    /// Returns the part of this number: an unconfirmed one, or the next.
    pub(super) fn part(&mut self, number: u64) -> PackedPiece {
        // Ranks synchronize every few parts, so the index is small.
        let index = number.saturating_sub(self.first) as usize;
        if index == self.unconfirmed.len() {
            let part = self.next();
            self.unconfirmed.push_back(part);
        }
        let part = self.unconfirmed.get(index).cloned();
        part.unwrap_or_else(|| (PieceForm::SourceFailed, b"a part was lost".to_vec()))
    }

    /// Waits for at least one frame, and returns all that have been received. After the last frame
    /// it returns the end, any number of times.
    fn next(&mut self) -> PackedPiece {
        let mut bytes = Vec::new();
        while bytes.len() < PART_MAX_BYTES && self.ended.is_none() {
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
            Some(true) if bytes.is_empty() => (PieceForm::End, self.digester.digest().to_string().into()),
            Some(false) if bytes.is_empty() => {
                (PieceForm::SourceFailed, b"the command exited before its input ended".to_vec())
            }
            _ => (PieceForm::Plain, bytes),
        }
    }

    /// Drops the parts before this number, because all ranks have them.
    pub(super) fn confirm(&mut self, before: u64) {
        while self.first < before && self.unconfirmed.pop_front().is_some() {
            self.first += 1;
        }
    }
}
