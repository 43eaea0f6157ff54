//! The part of a pass that uses broadcasts: pieces of the missing blocks, until all are sent or
//! late ranks wait to be admitted.

use super::{CopyRank, report_source_failed};
use crate::admission::NewcomerListener;
use crate::errors::CopyError;
use crate::missing_blocks::{MissingBlocks, bytes_of};
use crate::piece_writer::{PieceWriter, WriteResult};
use crate::pipeline::{self, PieceForm};
use crate::protocol::{CopyEvent, CopyVia};
use crate::source::{ReadPiece, start_reading};
use cool::Comm;
use cool_content::{Manifest, pieces_from};
use std::sync::Arc;

impl CopyRank<'_> {
    /// Sends the missing blocks, at the source's rank.
    pub(super) fn send(
        &mut self,
        comm: &Comm,
        root: usize,
        manifest: &Arc<Manifest>,
        missing: MissingBlocks,
    ) -> Result<(), CopyError> {
        let bytes = bytes_of(manifest, &missing.blocks);
        let any_missing = !missing.blocks.is_empty();
        if any_missing || !self.by_swarm {
            CopyEvent::Sending { bytes }.send()?;
        }
        if self.task.via != CopyVia::Swarm && self.newcomer_listener.is_none() {
            self.newcomer_listener = self.task.secret.map(NewcomerListener::start).transpose()?;
        }
        if !any_missing {
            if !self.by_swarm {
                self.plan = comm.last_plan();
            }
            return Ok(());
        }
        let (source, piece_bytes) = ((self.source_root(), manifest), self.task.piece_bytes(bytes));
        let pieces = start_reading(self.task, source, missing, piece_bytes)?;
        let mut failure = None;
        let mut packed = std::iter::from_fn(|| {
            // The admission of newcomers ends the pass, so it must be the last piece.
            if self.newcomers.is_some() {
                return None;
            }
            self.newcomers = self.newcomer_listener.as_ref().and_then(NewcomerListener::waiting);
            if self.newcomers.is_some() {
                return Some((PieceForm::Admission, Vec::new()));
            }
            match pieces.recv().ok()? {
                Ok(ReadPiece { packed, next }) => {
                    self.next = next;
                    Some(packed)
                }
                Err(error) => Some((PieceForm::SourceFailed, failure.insert(error).to_string().into_bytes())),
            }
        });
        let sent = pipeline::send(comm, root, &mut packed)?;
        self.sent += sent;
        self.plan = comm.last_plan();
        match failure {
            Some(error) => {
                self.report_sent()?;
                Err(report_source_failed(error))
            }
            None => Ok(()),
        }
    }

    /// Reports how many bytes were sent over the network, and how.
    pub(super) fn report_sent(&self) -> std::io::Result<()> {
        let via = match (self.by_swarm, self.plan.as_str()) {
            (true, "") => "swarm".to_owned(),
            (true, plan) => format!("swarm, then {plan}"),
            (false, plan) => plan.to_owned(),
        };
        CopyEvent::Sent { bytes: self.sent, via }.send()
    }

    /// Receives the missing blocks, at all other ranks.
    pub(super) fn receive(
        &mut self,
        comm: &Comm,
        root: usize,
        manifest: &Arc<Manifest>,
        MissingBlocks { blocks, first }: &MissingBlocks,
    ) -> Result<(), CopyError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let mut writer = PieceWriter::start(self.destination.take(), (self.task, self.began))?;
        let piece_bytes = self.task.piece_bytes(bytes_of(manifest, blocks));
        let mut pieces = pieces_from(manifest, blocks, *first, piece_bytes);
        let mut failure = None;
        let outcome = pipeline::receive(comm, root, |form, bytes| match (form, pieces.next()) {
            (PieceForm::Admission, _) => {}
            (PieceForm::SourceFailed, _) | (_, None) => failure = Some(bytes),
            (form, Some(piece)) => writer.enqueue(piece, form, bytes),
        });
        let WriteResult { destination, install } = writer.finish();
        (self.destination, self.install) = (destination, self.install.take().or(install));
        outcome?;
        failure.map_or(Ok(()), |reason| Err(self.source_failed(&reason)))
    }
}
