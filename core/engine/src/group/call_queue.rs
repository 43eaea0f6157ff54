//! The queue of pending calls. A call is pending until its plan has been chosen and its schedule
//! compiled, which is work for another thread. Calls begin in the order in which ranks make them.

use super::schedule_cache::ScheduleCache;
use crate::api::CallRequest;
use crate::call_signature::CallSignature;
use crate::engine_resources::GroupContext;
use crate::failure::CallFailure;
use crate::ids::WorkId;
use crate::inputs_outputs::Work;
use crate::preparation::{Preparation, PreparedCall};
use crate::program::CompiledSchedule;
use cool_collective::{Layout, Planner};
use cool_machine::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// A local rank's call that has not begun.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) token: u64,
    /// When the rank made the call.
    pub(super) at: Time,
    pub(super) request: CallRequest,
    /// The call, or the reason why it is refused.
    pub(super) signature: Result<CallSignature, CallFailure>,
}

/// A call that can begin, with its schedule or the reason why it is refused.
pub(super) type Ready = (PendingCall, Result<(CallSignature, Arc<CompiledSchedule>), CallFailure>);

#[derive(Debug)]
pub(super) struct CallQueue {
    planner: Planner,
    schedules: ScheduleCache,
    /// The pending calls, in order.
    pending: VecDeque<PendingCall>,
    /// The preparation of the first pending call.
    preparing: Option<WorkId>,
}

impl CallQueue {
    pub(super) fn new(planner: Planner) -> CallQueue {
        CallQueue { planner, schedules: ScheduleCache::default(), pending: VecDeque::new(), preparing: None }
    }

    /// Plans all calls for another layout of the group. No rank may have made a call yet, because
    /// all nodes must choose the same plans.
    pub(super) fn set_layout(&mut self, layout: Layout) {
        self.planner.set_layout(layout);
    }

    /// Returns whether no call is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether the call of a rank with this number is pending.
    pub(super) fn has_call(&self, call: u64, rank: u32) -> bool {
        self.pending
            .iter()
            .any(|PendingCall { request, .. }| (request.call_number, request.rank) == (Some(call), rank))
    }

    /// Appends a call.
    pub(super) fn push(&mut self, call: PendingCall) {
        self.pending.push_back(call);
    }

    /// Removes and returns the first pending call if it can begin. Otherwise starts its
    /// preparation; only one call is prepared at a time.
    pub(super) fn poll(&mut self, context: &mut GroupContext<'_>) -> Option<Ready> {
        let first = self.pending.front()?;
        let prepared = match &first.signature {
            Err(refused) => Err(refused.clone()),
            Ok(signature) => match self.schedules.find(signature) {
                Some(compiled) => Ok((signature.clone(), compiled)),
                None => {
                    self.prepare(context);
                    return None;
                }
            },
        };
        Some((self.pending.pop_front()?, prepared))
    }

    /// Starts the preparation of the first pending call, unless it is in progress.
    fn prepare(&mut self, context: &mut GroupContext<'_>) {
        let Some(PendingCall { request, signature: Ok(signature), .. }) = self.pending.front() else {
            return;
        };
        if self.preparing.is_none() {
            let preparation = Preparation {
                group: context.members.id_and_epoch(),
                signature: signature.clone(),
                planner: self.planner.clone(),
                node: context.members.me,
                rank: request.rank,
            };
            let work = Work::Prepare(Box::new(preparation));
            self.preparing = Some(context.resources.work(context.members.id, [None; 2], work));
        }
    }

    /// Handles the completion of a preparation.
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
            Ok(compiled) => self.schedules.insert(signature, compiled),
            Err(refused) => {
                if let Some(first) = self.pending.front_mut() {
                    first.signature = Err(refused);
                }
            }
        }
    }

    /// Removes all pending calls because the group has failed. Returns their tokens and ranks.
    pub(super) fn fail(&mut self) -> impl Iterator<Item = (u64, u32)> {
        self.preparing = None;
        std::mem::take(&mut self.pending).into_iter().map(|pending| (pending.token, pending.request.rank))
    }
}
