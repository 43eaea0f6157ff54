//! Starting the actions of programs, and the work that was given out for them.

use super::Group;
use super::messages::{Place, Reduction};
use crate::failure::{Failure, Traffic};
use crate::machine::{Work, WorkId};
use crate::memory::MemoryRange;
use crate::shared::{Context, Shared};
use cool_collective::Kind;
use cool_machine::Time;
use cool_transport::unicast::Input;

/// Work that was given out for actions of a call.
#[derive(Debug)]
pub(super) struct LocalWork {
    call: u64,
    /// The ranks' actions that are done then.
    actions: [Option<(u32, u32)>; 2],
    /// A bounce buffer that is free then.
    pub(super) bounce: Option<MemoryRange>,
}

impl Group {
    /// Starts every action that may start, and those that may start by them, as long as the turn goes on.
    pub(crate) fn run(&mut self, now: Time, shared: &mut Shared) -> Result<(), Failure> {
        while !(self.ready.is_empty() && self.multicasters.is_empty()) && shared.turn.start(self.members.id) {
            if let Some((call, rank, action)) = self.ready.pop_front() {
                self.start(now, shared, call, rank, action)?;
            } else if let Some((call, rank)) = self.multicasters.pop_front() {
                self.next_multicast(now, shared, call, rank)?;
            }
        }
        Ok(())
    }

    fn start(
        &mut self,
        now: Time,
        shared: &mut Shared,
        number: u64,
        rank: u32,
        action: u32,
    ) -> Result<(), Failure> {
        let Some(call) = self.calls.get_mut(&number) else { return Ok(()) };
        let reduction = call.signature.element.zip(call.signature.reduce);
        let reduction = reduction.map(|(element, op)| Reduction { element, op });
        let Some(run) = call.runs.get_mut(&rank) else { return Ok(()) };
        match run.program().actions[action as usize].kind {
            Kind::Reduce { dst, .. } if let Some((from, transfer)) = run.compiled().fused(rank, action) => {
                let place = Place { reduction, ..Place::new(rank, action, run.range(dst)) };
                let message = self.members.message(number, transfer.0, from.0, rank);
                self.receive_here(now, shared, message, place);
            }
            Kind::Receive { .. } if run.compiled().is_passed_over(rank, action) => {
                self.complete(now, shared, number, rank, action);
            }
            Kind::Reduce { src, dst } => {
                let (from, to) = (run.range(src), run.range(dst));
                let place = Place { reduction, ..Place::new(rank, action, to) };
                self.work(now, shared, number, (from, None), &place, None);
            }
            Kind::Copy { src, dst } => {
                let (from, to) = (run.range(src), run.range(dst));
                self.work(now, shared, number, (from, None), &Place::new(rank, action, to), None);
            }
            Kind::Send { to, transfer, src } => {
                let place = Place::new(rank, action, run.range(src));
                self.send(now, shared, (number, transfer.0), to.0, place);
            }
            Kind::Receive { from, transfer, dst } => {
                let place = Place::new(rank, action, run.range(dst));
                let message = self.members.message(number, transfer.0, from.0, rank);
                if self.members.layout.node_of(from) == self.members.me {
                    self.receive_here(now, shared, message, place);
                } else {
                    self.expect(now, shared, message, place)?;
                }
            }
            Kind::Multicast { .. } => {
                run.progress.queue_multicast(action);
                self.multicasters.push_back((number, rank));
            }
            Kind::ReceiveMulticast { from, scope, transfer, dst } => {
                let data = run.range(dst);
                let source = self.members.layout.node_of(from);
                self.open_receiver(now, shared, (number, transfer.0, scope, source), (rank, action, data))?;
            }
        }
        Ok(())
    }

    /// A rank sends to another, of this node or another one.
    fn send(&mut self, now: Time, shared: &mut Shared, (number, transfer): (u64, u32), to: u32, from: Place) {
        let message = self.members.message(number, transfer, from.rank, to);
        let Some(node) = self.members.other_node_of(to) else {
            return self.send_here(now, shared, message, from);
        };
        let Some(call) = self.calls.get_mut(&number) else { return };
        let bytes = from.range.len;
        let traffic = Traffic { bytes_unicast: bytes, ..Traffic::default() };
        if let Some(run) = call.runs.get_mut(&from.rank) {
            run.stats.traffic += traffic;
        }
        shared.count(call.signature.call.operation, traffic);
        let input = Input::Send { message, digest: call.digest, bytes };
        self.messages.sends.insert(message, from);
        Context { now, members: &self.members, shared }.tell_peer(node, input);
    }

    /// Has bytes copied to a place of a call, or combined with what is there. Then the action there is done, and that of
    /// the sender if it waits; a bounce buffer is given back.
    pub(super) fn work(
        &mut self,
        now: Time,
        shared: &mut Shared,
        call: u64,
        (from, sender): (MemoryRange, Option<(u32, u32)>),
        to: &Place,
        bounce: Option<MemoryRange>,
    ) {
        let work = LocalWork { call, actions: [sender, Some((to.rank, to.action))], bounce };
        if to.range.len == 0 {
            return self.worked(now, shared, work);
        }
        let Some(open) = self.calls.get_mut(&call) else { return };
        open.works += 1;
        let token = |rank: u32| open.runs.get(&rank).map(|run| run.token);
        let tokens = [sender.and_then(|(rank, _)| token(rank)), token(to.rank)];
        let task = match to.reduction {
            Some(Reduction { element, op }) => Work::Reduce { element, op, from, to: to.range },
            None => Work::Copy { from, to: to.range },
        };
        let id = shared.work(self.members.id, tokens, task);
        self.works.insert(id, work);
    }

    /// Work that was given out is done.
    ///
    /// # Errors
    /// If the group fails by what follows.
    pub(crate) fn work_done(&mut self, now: Time, shared: &mut Shared, id: WorkId) -> Result<(), Failure> {
        if let Some(work) = self.works.remove(&id) {
            self.calls.get_mut(&work.call).into_iter().for_each(|call| call.works -= 1);
            self.worked(now, shared, work);
        } else {
            self.point_to_point.work_done(&mut Context { now, members: &self.members, shared }, id);
        }
        self.run(now, shared)
    }

    fn worked(&mut self, now: Time, shared: &mut Shared, work: LocalWork) {
        work.bounce.into_iter().for_each(|buffer| shared.give_back(buffer));
        for (rank, action) in work.actions.into_iter().flatten() {
            self.complete(now, shared, work.call, rank, action);
        }
    }
}
