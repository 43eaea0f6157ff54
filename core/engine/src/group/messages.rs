//! Unicast messages of a group's calls, to and from other nodes and between ranks of this node,
//! with the copies and reductions that move their bytes.

use super::running_calls::CallAction;
use crate::engine_outbox::ReceivedBytes;
use crate::engine_resources::{EngineResources, GroupContext};
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::WorkId;
use crate::inputs_outputs::Work;
use crate::memory::MemoryRange;
use cool_transport::unicast::{Input, MessageName, Payload};
use cool_types::limits::EAGER_BYTES;
use cool_types::{ElementType, ReduceOp};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Messages of at least this many bytes are read directly from the socket to their destination.
/// Shorter ones are read together, because that saves more time than avoiding a copy.
const ZERO_COPY_MIN_BYTES: u64 = 32 * 1024;

/// How elements are combined.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementReduction {
    pub(super) element: ElementType,
    pub(super) op: ReduceOp,
}

/// The end of a message on this node: its memory, and the action that waits for it.
#[derive(Clone, Debug)]
pub(super) struct MessageEnd {
    pub(super) of: CallAction,
    /// The driver's token of the rank's call.
    pub(super) token: u64,
    pub(super) range: MemoryRange,
    /// For a receive on this node: the message must be combined with the destination instead of
    /// replacing it.
    pub(super) reduction: Option<ElementReduction>,
}

/// A receive from another node.
#[derive(Debug)]
struct PendingReceive {
    of: CallAction,
    range: MemoryRange,
    /// Whether a matching message of the right length has begun to arrive.
    has_begun: bool,
}

/// A message that arrived before its receive. The sender's credit bounds how much it may send in
/// this way.
#[derive(Debug)]
pub(super) struct UnexpectedMessage {
    pub(super) digest: u64,
    pub(super) bytes: u64,
    /// The bytes that have arrived; empty before the first of them.
    pub(super) data: MemoryRange,
}

impl UnexpectedMessage {
    /// Buffers bytes of the message. They arrive in order, because only short messages are sent
    /// before they are expected.
    pub(super) fn buffer(
        &mut self,
        resources: &mut EngineResources,
        group: u64,
        (offset, within): (u64, Range<usize>),
    ) {
        if self.data.len == 0 {
            self.data = resources.out.allocate(group, self.bytes);
        }
        let to = self.data.part(offset, within.len() as u64);
        resources.out.store(&ReceivedBytes::Input(within), to);
    }

    /// Copies the buffered bytes to their destination, and frees the buffer.
    pub(super) fn deliver(self, resources: &mut EngineResources, to: MemoryRange) {
        resources.out.copy(self.data, to.part(0, self.data.len));
        resources.out.free(self.data);
    }
}

/// The sending end of a message between two local ranks if its send started before its receive.
#[derive(Debug)]
enum LocalSend {
    /// The sender waits.
    Waiting(MessageEnd),
    /// The sender has continued, and the message is in this bounce buffer.
    Bounced(MemoryRange),
}

/// Work for actions of a call.
#[derive(Debug)]
struct LocalWork {
    call: u64,
    /// The actions that complete when the work has completed.
    actions: [Option<CallAction>; 2],
    /// A bounce buffer that is freed afterwards.
    bounce: Option<MemoryRange>,
}

/// The messages of a group's calls on this node. [`CallMessages::poll`] returns the completed
/// actions.
#[derive(Debug, Default)]
pub(super) struct CallMessages {
    /// Messages to other nodes.
    sends: BTreeMap<MessageName, MessageEnd>,
    /// Messages from other nodes.
    receives: BTreeMap<MessageName, PendingReceive>,
    /// Messages from other nodes that arrived before their receives.
    unexpected: BTreeMap<MessageName, UnexpectedMessage>,
    /// Messages between local ranks with the send started first.
    local_sends: BTreeMap<MessageName, LocalSend>,
    /// Messages between local ranks with the receive started first.
    local_receives: BTreeMap<MessageName, MessageEnd>,
    work_tracker: BTreeMap<WorkId, LocalWork>,
    done: VecDeque<CallAction>,
}

impl CallMessages {
    /// Returns an action that has completed.
    pub(super) fn poll(&mut self) -> Option<CallAction> {
        self.done.pop_front()
    }

    /// Sends a message to a rank of another node.
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

    /// Sends a message to another local rank.
    pub(super) fn send_local(
        &mut self,
        context: &mut GroupContext<'_>,
        message: MessageName,
        from: MessageEnd,
    ) {
        if let Some(to) = self.local_receives.remove(&message) {
            self.copy_local(context, from, &to);
        } else if from.range.len <= EAGER_BYTES
            && let Some(buffer) = context.resources.bounce(context.members.id, from.range)
        {
            self.local_sends.insert(message, LocalSend::Bounced(buffer));
            self.done.push_back(from.of);
        } else {
            self.local_sends.insert(message, LocalSend::Waiting(from));
        }
    }

    /// Receives a message from another local rank.
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

    /// Copies or combines a rank's own bytes.
    pub(super) fn move_local(&mut self, context: &mut GroupContext<'_>, from: MemoryRange, to: &MessageEnd) {
        self.start_work(context, (from, None), to, None);
    }

    /// Starts work that copies bytes to a destination, or combines them with it. Afterwards the
    /// action at the destination completes, as does that of a waiting sender, and the bounce buffer
    /// is freed.
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
            return self.finish_work(context.resources, work);
        }
        let task = match to.reduction {
            Some(ElementReduction { element, op }) => Work::Reduce { element, op, from, to: to.range },
            None => Work::Copy { from, to: to.range },
        };
        let tokens = [sender.map(|(_, token)| token), Some(to.token)];
        let id = context.resources.work(context.members.id, tokens, task);
        self.work_tracker.insert(id, work);
    }

    /// Handles the completion of work. Returns whether it belonged to a call.
    pub(super) fn on_work_done(&mut self, resources: &mut EngineResources, id: WorkId) -> bool {
        let work = self.work_tracker.remove(&id);
        work.map(|work| self.finish_work(resources, work)).is_some()
    }

    fn finish_work(&mut self, resources: &mut EngineResources, work: LocalWork) {
        work.bounce.into_iter().for_each(|buffer| resources.give_back(buffer));
        self.done.extend(work.actions.into_iter().flatten());
    }

    /// Returns the calls for which work is in progress.
    pub(super) fn calls_with_work(&self) -> BTreeSet<u64> {
        self.work_tracker.values().map(|work| work.call).collect()
    }

    /// Starts a receive from another node. Bytes that arrived early belong to the call if they have
    /// its digest; otherwise their sender is being notified of the mismatch.
    ///
    /// # Errors
    /// Returns an error if the early message has the wrong length.
    pub(super) fn receive(
        &mut self,
        context: &mut GroupContext<'_>,
        node: usize,
        (message, digest): (MessageName, u64),
        to: &MessageEnd,
    ) -> Result<(), CallFailure> {
        let mut receive = PendingReceive { of: to.of, range: to.range, has_begun: false };
        match self.unexpected.remove(&message) {
            Some(early) if early.digest != digest => context.resources.out.free(early.data),
            Some(early) => {
                let fits = check_length(message, early.bytes, to.range.len);
                if fits.is_err() {
                    context.resources.out.free(early.data);
                    return fits;
                }
                early.deliver(context.resources, to.range);
                receive.has_begun = true;
            }
            None => {}
        }
        self.receives.insert(message, receive);
        context.send_to_peer(node, Input::Accept(message));
        Ok(())
    }

    /// Handles the beginning or the announcement of a message from another node, for a current or a
    /// later call.
    ///
    /// # Errors
    /// Returns an error if the message has the wrong length.
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

    /// Handles bytes of a message from another node: a range of the input, or an empty range if
    /// they are in place already. Returns whether the message has a destination.
    pub(super) fn on_data(
        &mut self,
        resources: &mut EngineResources,
        message: MessageName,
        offset: u64,
        within: Range<usize>,
    ) -> bool {
        if let Some(receive) = self.receives.get(&message).filter(|receive| receive.has_begun) {
            let to = receive.range.part(offset, within.len() as u64);
            resources.out.store(&ReceivedBytes::Input(within), to);
            return true;
        }
        if let Some(unexpected) = self.unexpected.get_mut(&message) {
            unexpected.buffer(resources, message.group, (offset, within));
        }
        false
    }

    /// Handles the end of an expected message.
    pub(super) fn on_received(&mut self, message: MessageName) {
        if self.receives.get(&message).is_some_and(|receive| receive.has_begun)
            && let Some(receive) = self.receives.remove(&message)
        {
            self.done.push_back(receive.of);
        }
    }

    /// Handles the completion of a send.
    pub(super) fn on_sent(&mut self, message: MessageName) {
        self.done.extend(self.sends.remove(&message).map(|from| from.of));
    }

    /// Returns the memory of a part of a message that is being sent, if the message is still known.
    pub(super) fn payload(&self, part: &Payload) -> Option<MemoryRange> {
        let from = self.sends.get(&part.message)?;
        Some(from.range.part(part.offset, part.len.into()))
    }

    /// Returns the destination of a message that has begun to arrive.
    pub(super) fn place(&self, message: MessageName) -> Option<MemoryRange> {
        Some(self.receives.get(&message).filter(|receive| receive.has_begun)?.range)
    }

    /// Returns the sending ranks and the digests of messages that arrived before a call began here.
    pub(super) fn early_digests(&self, call: u64) -> impl Iterator<Item = (u32, u64)> {
        let of_call = self.unexpected.iter().filter(move |(name, _)| name.call == call);
        of_call.map(|(name, unexpected)| (name.from, unexpected.digest))
    }

    /// Returns the ranks from which a call waits for messages.
    pub(super) fn sources(&self, call: u64) -> impl Iterator<Item = u32> {
        let names = self.receives.keys().chain(self.local_receives.keys());
        names.filter(move |name| name.call == call).map(|name| name.from)
    }

    /// Frees all resources of messages.
    pub(super) fn clear(&mut self, resources: &mut EngineResources) {
        let CallMessages { local_sends, unexpected, work_tracker, .. } = std::mem::take(self);
        for local in local_sends.into_values() {
            if let LocalSend::Bounced(buffer) = local {
                resources.give_back(buffer);
            }
        }
        work_tracker
            .into_values()
            .filter_map(|work| work.bounce)
            .for_each(|buffer| resources.give_back(buffer));
        unexpected.into_values().for_each(|unexpected| resources.out.free(unexpected.data));
    }
}

/// Returns the destination of the next part of a message, if it should be read directly to its
/// destination.
pub(super) fn direct_place(whole: MemoryRange, part: &Payload) -> Option<MemoryRange> {
    let fits = part.offset.checked_add(part.len.into()).is_some_and(|end| end <= whole.len);
    (fits && whole.len >= ZERO_COPY_MIN_BYTES).then(|| whole.part(part.offset, part.len.into()))
}

fn check_length(message: MessageName, bytes: u64, wanted: u64) -> Result<(), CallFailure> {
    if bytes == wanted {
        return Ok(());
    }
    let text = format!(
        "rank {} sent {bytes} bytes to rank {} instead of {wanted} (call {} of group {}); \
         run the same version of the agent on all nodes",
        message.from, message.to, message.call, message.group
    );
    Err(CallFailure::new(CallFailureKind::Mismatch, text, vec![message.from, message.to]))
}
