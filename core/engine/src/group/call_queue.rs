//! Calls until their plan is picked and their schedule compiled. That is work for another thread; then both are
//! kept. Calls begin in the order in which they came.

use crate::api::CallRequest;
use crate::call_signature::CallSignature;
use crate::failure::CallFailure;
use crate::ids::WorkId;
use crate::machine::Work;
use crate::preparation::{Preparation, PreparedCall};
use crate::program::CompiledSchedule;
use crate::shared::GroupContext;
use cool_collective::Planner;
use cool_machine::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// Compiled schedules that a group keeps: programs repeat the same few calls.
const SCHEDULES_MAX: usize = 32;

/// A call of a local rank that has not begun.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) token: u64,
    /// When it came.
    pub(super) at: Time,
    pub(super) request: CallRequest,
    /// What it is, or what is wrong with it.
    pub(super) signature: Result<CallSignature, CallFailure>,
}

/// A call that can begin, with its schedule; or what is wrong with it.
pub(super) type Ready = (PendingCall, Result<(CallSignature, Arc<CompiledSchedule>), CallFailure>);

#[derive(Debug)]
pub(super) struct CallQueue {
    planner: Planner,
    schedules: VecDeque<(CallSignature, Arc<CompiledSchedule>)>,
    /// In order.
    pending: VecDeque<PendingCall>,
    /// The preparation of the first of these.
    preparing: Option<WorkId>,
}

impl CallQueue {
    pub(super) fn new(planner: Planner) -> CallQueue {
        CallQueue { planner, schedules: VecDeque::new(), pending: VecDeque::new(), preparing: None }
    }

    /// Whether no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// A call has come, and waits for its turn.
    pub(super) fn push(&mut self, call: PendingCall) {
        self.pending.push_back(call);
    }

    /// Takes the first call that waits if it can begin. If it has to be prepared, which one call at a time is, that is
    /// begun.
    pub(super) fn poll(&mut self, context: &mut GroupContext<'_>) -> Option<Ready> {
        let first = self.pending.front()?;
        let prepared = match &first.signature {
            Err(refused) => Err(refused.clone()),
            Ok(signature) => match self.known_schedule(signature) {
                Some(compiled) => Ok((signature.clone(), compiled)),
                None => {
                    self.prepare(context);
                    return None;
                }
            },
        };
        Some((self.pending.pop_front()?, prepared))
    }

    fn known_schedule(&self, signature: &CallSignature) -> Option<Arc<CompiledSchedule>> {
        let known = self.schedules.iter().find(|(known, _)| known == signature);
        known.map(|(_, compiled)| Arc::clone(compiled))
    }

    /// Has the first call that waits prepared, if that is not under way.
    fn prepare(&mut self, context: &mut GroupContext<'_>) {
        let Some(PendingCall { request, signature: Ok(signature), .. }) = self.pending.front() else {
            return;
        };
        if self.preparing.is_none() {
            let preparation = Preparation {
                group: context.members.key(),
                signature: signature.clone(),
                planner: self.planner.clone(),
                node: context.members.me,
                rank: request.rank,
            };
            let work = Work::Prepare(Box::new(preparation));
            self.preparing = Some(context.shared.work(context.members.id, [None; 2], work));
        }
    }

    /// A call has been prepared.
    pub(super) fn on_prepared(&mut self, id: WorkId, prepared: PreparedCall) {
        if self.preparing != Some(id) {
            // The group has failed meanwhile.
            return;
        }
        self.preparing = None;
        let PreparedCall { signature, plan, compiled } = prepared;
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
                if let Some(first) = self.pending.front_mut() {
                    first.signature = Err(refused);
                }
            }
        }
    }

    /// Forgets the calls that wait, whose group has failed: their tokens and ranks.
    pub(super) fn fail(&mut self) -> impl Iterator<Item = (u64, u32)> {
        self.preparing = None;
        std::mem::take(&mut self.pending).into_iter().map(|pending| (pending.token, pending.request.rank))
    }
}
