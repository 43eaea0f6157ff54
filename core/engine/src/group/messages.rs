//! Unicast messages of a group's calls: to and from other nodes, and between ranks of this node; with the copies and
//! reductions by which their bytes get to their places.

use super::running_calls::CallAction;
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::WorkId;
use crate::machine::Work;
use crate::memory::MemoryRange;
use crate::output_queue::ReceivedBytes;
use crate::shared::{GroupContext, SharedState};
use cool_transport::unicast::{Input, MessageName, Payload};
use cool_types::limits::EAGER_BYTES;
use cool_types::{ElementType, ReduceOp};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Messages from this length on go straight from the socket to their place. Several shorter ones are read at once, which is
/// worth more than to do without a copy.
const DIRECT_BYTES: u64 = 32 * 1024;

/// How elements are combined.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementReduction {
    pub(super) element: ElementType,
    pub(super) op: ReduceOp,
}

/// Where a message comes from or goes to on this node, and the action that waits for it.
#[derive(Clone, Debug)]
pub(super) struct MessageEnd {
    pub(super) of: CallAction,
    /// What the driver knows the rank's call by.
    pub(super) token: u64,
    pub(super) range: MemoryRange,
    /// Of a receive on this node: the message is not put here, but combined with what is here.
    pub(super) reduction: Option<ElementReduction>,
}

/// A receive from another node.
#[derive(Debug)]
struct PendingReceive {
    of: CallAction,
    range: MemoryRange,
    /// A message that belongs here, and fits, has has_begun.
    has_begun: bool,
}

/// A message that came before its receive; what the peer may send so is bounded by its credit.
#[derive(Debug)]
pub(super) struct UnexpectedMessage {
    pub(super) digest: u64,
    pub(super) bytes: u64,
    /// What came of it; empty before anything has.
    pub(super) data: MemoryRange,
}

impl UnexpectedMessage {
    /// Keeps bytes of it. They come in order, of messages that are short enough to come unasked.
    pub(super) fn buffer(&mut self, shared: &mut SharedState, offset: u64, within: Range<usize>) {
        if self.data.len == 0 {
            self.data = shared.out.allocate(self.bytes);
        }
        let to = self.data.part(offset, within.len() as u64);
        shared.out.store(&ReceivedBytes::Input(within), to);
    }

    /// Puts what has come to its place, and forgets it.
    pub(super) fn deliver(self, shared: &mut SharedState, to: MemoryRange) {
        shared.out.copy(self.data, to.part(0, self.data.len));
        shared.out.free(self.data);
    }
}

/// The sending end of a message between two ranks of this node, where it came first.
#[derive(Debug)]
enum LocalSend {
    /// The sender waits.
    Waiting(MessageEnd),
    /// The sender has gone on; this is a bounce buffer.
    Bounced(MemoryRange),
}

/// Work that was given out for actions of a call.
#[derive(Debug)]
struct LocalWork {
    call: u64,
    /// The actions that are done then.
    actions: [Option<CallAction>; 2],
    /// A bounce buffer that is free then.
    bounce: Option<MemoryRange>,
}

/// The messages of a group's calls at this node. Tells which actions are done ([`CallMessages::poll`]).
#[derive(Debug, Default)]
pub(super) struct CallMessages {
    /// To other nodes.
    sends: BTreeMap<MessageName, MessageEnd>,
    /// From other nodes.
    receives: BTreeMap<MessageName, PendingReceive>,
    /// From other nodes, before their receives.
    unexpected: BTreeMap<MessageName, UnexpectedMessage>,
    /// Between ranks of this node, whose senders came first.
    local_sends: BTreeMap<MessageName, LocalSend>,
    /// Between ranks of this node, whose receivers came first.
    local_receives: BTreeMap<MessageName, MessageEnd>,
    work_tracker: BTreeMap<WorkId, LocalWork>,
    done: VecDeque<CallAction>,
}

impl CallMessages {
    /// Takes an action that is done.
    pub(super) fn poll(&mut self) -> Option<CallAction> {
        self.done.pop_front()
    }

    /// A rank sends to one of another node, which `node` is the place of.
    pub(super) fn send(
        &mut self,
        context: &mut GroupContext<'_>,
        node: usize,
        (message, digest): (MessageName, u64),
        from: MessageEnd,
    ) {
        let bytes = from.range.len;
        self.sends.insert(message, from);
        context.send_to_peer(node, Input::Send { message, digest, bytes, announce: false });
    }

    /// One rank of this node sends to another.
    pub(super) fn send_local(
        &mut self,
        context: &mut GroupContext<'_>,
        message: MessageName,
        from: MessageEnd,
    ) {
        if let Some(to) = self.local_receives.remove(&message) {
            self.copy_local(context, from, &to);
        } else if from.range.len <= EAGER_BYTES
            && let Some(buffer) = context.shared.bounce(from.range)
        {
            self.local_sends.insert(message, LocalSend::Bounced(buffer));
            self.done.push_back(from.of);
        } else {
            self.local_sends.insert(message, LocalSend::Waiting(from));
        }
    }

    /// One rank of this node receives from another.
    pub(super) fn receive_local(
        &mut self,
        context: &mut GroupContext<'_>,
        message: MessageName,
        to: MessageEnd,
    ) {
        match self.local_sends.remove(&message) {
            None => {
                self.local_receives.insert(message, to);
            }
            Some(LocalSend::Bounced(buffer)) => self.start_work(context, (buffer, None), &to, Some(buffer)),
            Some(LocalSend::Waiting(from)) => self.copy_local(context, from, &to),
        }
    }

    fn copy_local(&mut self, context: &mut GroupContext<'_>, from: MessageEnd, to: &MessageEnd) {
        self.start_work(context, (from.range, Some((from.of, from.token))), to, None);
    }

    /// A rank copies or combines its own bytes.
    pub(super) fn move_local(&mut self, context: &mut GroupContext<'_>, from: MemoryRange, to: &MessageEnd) {
        self.start_work(context, (from, None), to, None);
    }

    /// Has bytes copied to a place, or combined with what is there. Then the action there is done, and that of
    /// the sender if it waits; a bounce buffer is given back.
    fn start_work(
        &mut self,
        context: &mut GroupContext<'_>,
        (from, sender): (MemoryRange, Option<(CallAction, u64)>),
        to: &MessageEnd,
        bounce: Option<MemoryRange>,
    ) {
        let actions = [sender.map(|(action, _)| action), Some(to.of)];
        let work = LocalWork { call: to.of.call, actions, bounce };
        if to.range.len == 0 {
            return self.finish_work(context.shared, work);
        }
        let task = match to.reduction {
            Some(ElementReduction { element, op }) => Work::Reduce { element, op, from, to: to.range },
            None => Work::Copy { from, to: to.range },
        };
        let tokens = [sender.map(|(_, token)| token), Some(to.token)];
        let id = context.shared.work(context.members.id, tokens, task);
        self.work_tracker.insert(id, work);
    }

    /// Work that was given out is done; whether it was of a call.
    pub(super) fn on_work_done(&mut self, shared: &mut SharedState, id: WorkId) -> bool {
        let work = self.work_tracker.remove(&id);
        work.map(|work| self.finish_work(shared, work)).is_some()
    }

    fn finish_work(&mut self, shared: &mut SharedState, work: LocalWork) {
        work.bounce.into_iter().for_each(|buffer| shared.give_back(buffer));
        self.done.extend(work.actions.into_iter().flatten());
    }

    /// Calls for which work was given out that is not done.
    pub(super) fn calls_with_work(&self) -> BTreeSet<u64> {
        self.work_tracker.values().map(|work| work.call).collect()
    }

    /// A rank of this node receives from another node, which `node` is the place of. What came before belongs to the call
    /// if it has its digest; else its sender is being asked what it called.
    ///
    /// # Errors
    /// If what came does not fit.
    pub(super) fn receive(
        &mut self,
        context: &mut GroupContext<'_>,
        node: usize,
        (message, digest): (MessageName, u64),
        to: &MessageEnd,
    ) -> Result<(), CallFailure> {
        let mut receive = PendingReceive { of: to.of, range: to.range, has_begun: false };
        match self.unexpected.remove(&message) {
            Some(early) if early.digest != digest => context.shared.out.free(early.data),
            Some(early) => {
                let fits = check_length(message, early.bytes, to.range.len);
                if fits.is_err() {
                    context.shared.out.free(early.data);
                    return fits;
                }
                early.deliver(context.shared, to.range);
                receive.has_begun = true;
            }
            None => {}
        }
        self.receives.insert(message, receive);
        context.send_to_peer(node, Input::Expect(message));
        Ok(())
    }

    /// A message from another node, that belongs to the call here or to one that has not has_begun, begins to arrive or is
    /// announced.
    ///
    /// # Errors
    /// If it does not fit.
    pub(super) fn on_begin(
        &mut self,
        message: MessageName,
        (digest, bytes): (u64, u64),
    ) -> Result<(), CallFailure> {
        if let Some(receive) = self.receives.get_mut(&message) {
            receive.has_begun = true;
            return check_length(message, bytes, receive.range.len);
        }
        self.unexpected.insert(message, UnexpectedMessage { digest, bytes, data: MemoryRange::EMPTY });
        Ok(())
    }

    /// Bytes of a message from another node: these of the input, or none if they are in their place. Whether they have
    /// a place.
    pub(super) fn on_data(
        &mut self,
        shared: &mut SharedState,
        message: MessageName,
        offset: u64,
        within: Range<usize>,
    ) -> bool {
        if let Some(receive) = self.receives.get(&message).filter(|receive| receive.has_begun) {
            let to = receive.range.part(offset, within.len() as u64);
            shared.out.store(&ReceivedBytes::Input(within), to);
            return true;
        }
        if let Some(unexpected) = self.unexpected.get_mut(&message) {
            unexpected.buffer(shared, offset, within);
        }
        false
    }

    /// All of a message that was expected is here.
    pub(super) fn on_received(&mut self, message: MessageName) {
        if self.receives.get(&message).is_some_and(|receive| receive.has_begun)
            && let Some(receive) = self.receives.remove(&message)
        {
            self.done.push_back(receive.of);
        }
    }

    /// All of a message is on its way.
    pub(super) fn on_sent(&mut self, message: MessageName) {
        self.done.extend(self.sends.remove(&message).map(|from| from.of));
    }

    /// A part of a message that is being sent, if it is still known.
    pub(super) fn payload(&self, part: &Payload) -> Option<MemoryRange> {
        let from = self.sends.get(&part.message)?;
        Some(from.range.part(part.offset, part.len.into()))
    }

    /// Where a message goes that has has_begun to come.
    pub(super) fn place(&self, message: MessageName) -> Option<MemoryRange> {
        Some(self.receives.get(&message).filter(|receive| receive.has_begun)?.range)
    }

    /// Sending ranks and digests of the messages that came before a call began here.
    pub(super) fn early_digests(&self, call: u64) -> impl Iterator<Item = (u32, u64)> {
        let of_call = self.unexpected.iter().filter(move |(name, _)| name.call == call);
        of_call.map(|(name, unexpected)| (name.from, unexpected.digest))
    }

    /// The ranks from which a call waits for messages.
    pub(super) fn sources(&self, call: u64) -> impl Iterator<Item = u32> {
        let names = self.receives.keys().chain(self.local_receives.keys());
        names.filter(move |name| name.call == call).map(|name| name.from)
    }

    /// Gives back all that messages have used.
    pub(super) fn clear(&mut self, shared: &mut SharedState) {
        let CallMessages { local_sends, unexpected, work_tracker, .. } = std::mem::take(self);
        for local in local_sends.into_values() {
            if let LocalSend::Bounced(buffer) = local {
                shared.give_back(buffer);
            }
        }
        work_tracker.into_values().filter_map(|work| work.bounce).for_each(|buffer| shared.give_back(buffer));
        unexpected.into_values().for_each(|unexpected| shared.out.free(unexpected.data));
    }
}

/// Where a part of a message belongs that is about to come, if that goes straight to its place.
pub(super) fn direct_place(whole: MemoryRange, part: &Payload) -> Option<MemoryRange> {
    let fits = part.offset.checked_add(part.len.into()).is_some_and(|end| end <= whole.len);
    (fits && whole.len >= DIRECT_BYTES).then(|| whole.part(part.offset, part.len.into()))
}

fn check_length(message: MessageName, bytes: u64, wanted: u64) -> Result<(), CallFailure> {
    if bytes == wanted {
        return Ok(());
    }
    let text = format!(
        "rank {} sent {bytes} bytes to rank {} where {wanted} belong (call {} of group {}); \
         run the same version of the agent on all nodes",
        message.from, message.to, message.call, message.group
    );
    Err(CallFailure::new(CallFailureKind::Mismatch, text, vec![message.from, message.to]))
}
