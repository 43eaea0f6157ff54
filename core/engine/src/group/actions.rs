//! Starts the actions of ranks' programs by handing them to messages and streams.

use super::Group;
use super::messages::{ElementReduction, MessageEnd};
use super::running_calls::{CallAction, NextMulticast};
use super::streams::StreamMessage;
use crate::engine_resources::{EngineResources, GroupContext};
use crate::failure::{CallFailure, TrafficTotals};
use cool_collective::ActionKind;
use cool_machine::Time;
use cool_transport::unicast::MessageName;

impl Group {
    /// Starts an action.
    pub(super) fn start_action(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        of: CallAction,
    ) -> Result<(), CallFailure> {
        let Some(call) = self.calls.get(of.call) else { return Ok(()) };
        let Some(run) = call.runs.get(&of.rank) else { return Ok(()) };
        let reduction = call.signature.element.zip(call.signature.reduce);
        let reduction = reduction.map(|(element, op)| ElementReduction { element, op });
        let end = |span| MessageEnd { of, token: run.token, range: run.range(span), reduction: None };
        let (members, digest) = (&self.members, call.compiled.digest);
        let received = |transfer, from| members.message(of.call, transfer, from, of.rank);
        let mut context = GroupContext { now, members, resources };
        match run.program().actions[of.action as usize].kind {
            ActionKind::Reduce { dst, .. }
                if let Some((from, transfer)) = run.compiled().fused(of.rank, of.action) =>
            {
                let to = MessageEnd { reduction, ..end(dst) };
                self.messages.receive_local(&mut context, received(transfer.0, from.0), to);
            }
            ActionKind::Receive { .. } if run.compiled().is_elided_receive(of.rank, of.action) => {
                self.complete_action(now, resources, of);
            }
            ActionKind::Reduce { src, dst } => {
                let to = MessageEnd { reduction, ..end(dst) };
                self.messages.move_local(&mut context, run.range(src), &to);
            }
            ActionKind::Copy { src, dst } => {
                self.messages.move_local(&mut context, run.range(src), &end(dst))
            }
            ActionKind::Send { to, transfer, src } => {
                let message = members.message(of.call, transfer.0, of.rank, to.0);
                let from = end(src);
                self.send(now, resources, message, from);
            }
            ActionKind::Receive { from, transfer, dst } => {
                let (message, to) = (received(transfer.0, from.0), end(dst));
                match members.other_node_of(from.0) {
                    None => self.messages.receive_local(&mut context, message, to),
                    Some(node) => self.messages.receive(&mut context, node, (message, digest), &to)?,
                }
            }
            ActionKind::Multicast { .. } => self.calls.queue_multicast(of),
            ActionKind::ReceiveMulticast { from, scope, transfer, dst } => {
                let source = members.layout.node_of(from);
                let (operation, timeout, background) = (call.operation(), call.timeout, call.background);
                let (transfer, data) = (transfer.0, run.range(dst));
                let multicast = StreamMessage {
                    of,
                    operation,
                    digest,
                    timeout,
                    background,
                    scope,
                    transfer,
                    source,
                    data,
                };
                self.streams.receive(&mut context, &multicast)?;
            }
        }
        Ok(())
    }

    /// Sends a rank's message to another rank, on this node or another.
    fn send(&mut self, now: Time, resources: &mut EngineResources, message: MessageName, from: MessageEnd) {
        let Some(call) = self.calls.get(message.call) else { return };
        let mut context = GroupContext { now, members: &self.members, resources };
        let Some(node) = self.members.other_node_of(message.to) else {
            return self.messages.send_local(&mut context, message, from);
        };
        let traffic = TrafficTotals { bytes_unicast: from.range.len, ..TrafficTotals::default() };
        context.resources.count(call.operation(), traffic);
        self.messages.send(&mut context, node, (message, call.compiled.digest), from);
        self.calls.count(message.call, message.from, traffic);
    }

    /// Opens a rank's next multicast over a free tree.
    pub(super) fn next_multicast(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        call_number: u64,
        rank: u32,
    ) -> Result<(), CallFailure> {
        let Some(next) = self.calls.next_multicast(call_number, rank) else { return Ok(()) };
        let Some(call) = self.calls.get(call_number) else { return Ok(()) };
        let NextMulticast { action, scope, stripe, transfer, data, concurrent_senders } = next;
        let multicast = StreamMessage {
            of: CallAction { call: call_number, rank, action },
            operation: call.operation(),
            digest: call.compiled.digest,
            timeout: call.timeout,
            background: call.background,
            scope,
            transfer,
            source: self.members.me,
            data,
        };
        self.prove_source(now, resources, scope, concurrent_senders);
        let mut context = GroupContext { now, members: &self.members, resources };
        self.streams.send(&mut context, multicast, (stripe, concurrent_senders))
    }
}
