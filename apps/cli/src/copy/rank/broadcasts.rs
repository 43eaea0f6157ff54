//! The part of a pass that goes by broadcasts: pieces of what somebody lacks, until all have come or newcomers wait.

use super::{Copying, Lacking, Stop, bytes_of, give_up};
use crate::copy::admission::NewcomersMet;
use crate::copy::pipeline::{self, Form};
use crate::copy::said::{CopyVia, Said};
use crate::copy::source::{self, ReadPiece};
use crate::copy::writer::{Writer, Written};
use cool::Comm;
use cool_content::{Manifest, pieces_from};
use std::sync::Arc;

impl Copying<'_> {
    /// At the source.
    pub(super) fn send(
        &mut self,
        comm: &Comm,
        root: usize,
        manifest: &Arc<Manifest>,
        lacking: Lacking,
    ) -> Result<(), Stop> {
        let bytes = bytes_of(manifest, &lacking.blocks);
        let lacks = !lacking.blocks.is_empty();
        if lacks || !self.by_swarm {
            Said::Sending { bytes }.say()?;
        }
        if self.task.via != CopyVia::Swarm && self.newcomers_met.is_none() {
            self.newcomers_met = self.task.secret.map(NewcomersMet::wait).transpose()?;
        }
        if !lacks {
            if !self.by_swarm {
                self.plan = comm.last_plan();
            }
            return Ok(());
        }
        let read = source::read(self.task, (self.source_root(), manifest), lacking, self.task.piece(bytes))?;
        let mut fault = None;
        let mut packed = std::iter::from_fn(|| {
            // Admits newcomers once: the pass ends with it.
            if self.newcomers.is_some() {
                return None;
            }
            self.newcomers = self.newcomers_met.as_ref().and_then(NewcomersMet::waiting);
            if self.newcomers.is_some() {
                return Some((Form::Admits, Vec::new()));
            }
            match read.recv().ok()? {
                Ok(ReadPiece { packed, next }) => {
                    self.next = next;
                    Some(packed)
                }
                Err(why) => Some((Form::GivesUp, fault.insert(why).to_string().into_bytes())),
            }
        });
        let sent = pipeline::send(comm, root, &mut packed)?;
        self.sent += sent;
        self.plan = comm.last_plan();
        match fault {
            Some(fault) => {
                self.say_sent()?;
                Err(give_up(fault))
            }
            None => Ok(()),
        }
    }

    /// The source says what went over the network in all.
    pub(super) fn say_sent(&self) -> std::io::Result<()> {
        let via = match (self.by_swarm, self.plan.as_str()) {
            (true, "") => "swarm".to_owned(),
            (true, plan) => format!("swarm, then {plan}"),
            (false, plan) => plan.to_owned(),
        };
        Said::Sent { bytes: self.sent, via }.say()
    }

    /// At all others.
    pub(super) fn receive(
        &mut self,
        comm: &Comm,
        root: usize,
        manifest: &Arc<Manifest>,
        Lacking { blocks, first }: &Lacking,
    ) -> Result<(), Stop> {
        if blocks.is_empty() {
            return Ok(());
        }
        let mut writer = Writer::start(self.target.take(), (self.task, self.began))?;
        let mut pieces = pieces_from(manifest, blocks, *first, self.task.piece(bytes_of(manifest, blocks)));
        let mut given_up = None;
        let outcome = pipeline::receive(comm, root, |form, bytes| match (form, pieces.next()) {
            (Form::Admits, _) => {}
            (Form::GivesUp, _) | (_, None) => given_up = Some(bytes),
            (form, Some(piece)) => writer.write(piece, form, bytes),
        });
        let Written { kept, placing } = writer.finish();
        (self.target, self.placing) = (kept, self.placing.take().or(placing));
        outcome?;
        given_up.map_or(Ok(()), |why| Err(self.given_up(&why)))
    }
}
