//! Calls until their plan is picked and their schedule compiled. That is work for another thread; then both are
//! kept. Calls begin in the order in which they came.

use super::{Group, SCHEDULES_MAX};
use crate::api::CallRequest;
use crate::call_signature::CallSignature;
use crate::failure::Failure;
use crate::machine::{Work, WorkId};
use crate::preparation::{Preparation, Prepared};
use crate::program::Compiled;
use crate::shared::Shared;
use cool_machine::Time;
use std::sync::Arc;

/// A call of a local rank that has not begun.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) token: u64,
    /// When it came.
    pub(super) at: Time,
    pub(super) request: CallRequest,
    /// What it is, or what is wrong with it.
    pub(super) signature: Result<CallSignature, Failure>,
}

impl Group {
    /// Begins what can begin. One call at a time is prepared: the first.
    pub(super) fn begin_waiting(&mut self, now: Time, shared: &mut Shared) -> Result<(), Failure> {
        while let Some(first) = self.waiting.front() {
            let prepared = match &first.signature {
                Ok(signature) => match self.known_schedule(signature) {
                    Some(compiled) => Ok((signature.clone(), compiled)),
                    None => {
                        self.prepare(shared);
                        return Ok(());
                    }
                },
                Err(refused) => Err(refused.clone()),
            };
            if let Some(first) = self.waiting.pop_front() {
                self.take_turn(now, shared, &first, prepared)?;
            }
        }
        Ok(())
    }

    fn known_schedule(&self, signature: &CallSignature) -> Option<Arc<Compiled>> {
        let known = self.schedules.iter().find(|(known, _)| known == signature);
        known.map(|(_, compiled)| Arc::clone(compiled))
    }

    /// Has the first call that waits prepared, if that is not under way.
    fn prepare(&mut self, shared: &mut Shared) {
        let Some(Waiting { request, signature: Ok(signature), .. }) = self.waiting.front() else { return };
        if self.preparing.is_none() {
            let preparation = Preparation {
                group: self.key(),
                signature: signature.clone(),
                planner: self.planner.clone(),
                node: self.members.me,
                rank: request.rank,
            };
            let work = Work::Prepare(Box::new(preparation));
            self.preparing = Some(shared.work(self.members.id, [None; 2], work));
        }
    }

    /// A call has been prepared.
    pub(crate) fn prepared(
        &mut self,
        now: Time,
        shared: &mut Shared,
        id: WorkId,
        prepared: Prepared,
    ) -> Result<(), Failure> {
        if self.preparing != Some(id) {
            // The group has failed meanwhile.
            return Ok(());
        }
        self.preparing = None;
        let Prepared { signature, plan, compiled } = prepared;
        if signature.plan.is_none() {
            self.planner.keep(&signature.call, plan);
        }
        match compiled {
            Ok(compiled) => {
                if self.schedules.len() >= SCHEDULES_MAX {
                    self.schedules.pop_front();
                }
                self.schedules.push_back((signature, compiled));
            }
            Err(refused) => {
                if let Some(first) = self.waiting.front_mut() {
                    first.signature = Err(refused);
                }
            }
        }
        self.begin_waiting(now, shared)
    }
}
