//! Multicast messages of a group's calls: opens their streams, handles packets, and returns their
//! events.

use super::chain_cache::ChainCache;
use super::long_packets::LongPacketLosses;
use super::running_calls::CallAction;
use super::silent_trees::{SILENT_STREAMS, SilentTrees};
use super::stream_failures::{failed, no_stream};
use crate::buffered_packets::BufferedPackets;
use crate::engine_outbox::ReceivedBytes;
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::failure::{CallFailure, TrafficTotals};
use crate::inputs_outputs::Output;
use crate::link_share::LinkShare;
use crate::members::Members;
use crate::memory::MemoryRange;
use crate::stream::{MulticastStream, StreamEffects, StreamEnd, StreamHold, StreamTrees};
use cool_collective::{MulticastScope, Stripe};
use cool_machine::{Duration, Time};
use cool_transport::{Input, Packet, RateSpec, Receiver, Sender, StreamId, StreamSpec, StreamTimers, packet};
use cool_types::Operation;
use cool_types::limits::{COPIED_BYTES, EAGER_BYTES};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// Start timeout of a receiver: a year, that is, none. The timeout of the call ends the wait;
/// earlier calls that progress extend it.
const BEGINS_WITHIN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Time by which a stream's stall timeout exceeds that of its call, so that the call fails first:
/// its error names ranks.
const GRACE: Duration = Duration::from_secs(2);

/// Number of streams in a row without repair after which acknowledgements of short streams are
/// delayed by [`ACK_DELAY`], so that several share a datagram. A group starts with delayed
/// acknowledgements.
const LOSS_FREE: u32 = 16;

/// Delay of acknowledgements of short streams: shorter than TCP's retransmission timeout, longer
/// than several small calls.
const ACK_DELAY: Duration = Duration::from_millis(5);

/// Time for which a rate that a stream has found is used for the next one over the same tree.
const RATE_LIFETIME: Duration = Duration::from_secs(60);

/// A message that an action of a local rank sends or receives by multicast.
#[derive(Debug)]
pub(super) struct StreamMessage {
    pub(super) of: CallAction,
    /// The properties of its call.
    pub(super) operation: Operation,
    pub(super) digest: u64,
    pub(super) timeout: Duration,
    pub(super) background: bool,
    pub(super) scope: MulticastScope,
    pub(super) transfer: u32,
    /// The index of the sending node.
    pub(super) source: usize,
    pub(super) data: MemoryRange,
}

/// A stream from this node with chunks that were never sent.
#[derive(Clone, Copy, Debug)]
struct SendingStream {
    share: LinkShare,
    queue: SendQueue,
    /// Whether the stream only collects its receiver set, until the one before it has been sent.
    on_hold: bool,
}

/// A queue of streams that are sent one after the other, in the order of their calls. If they were
/// sent at once, all would complete late, and some packets would arrive before receivers have
/// opened the stream. Short streams have a queue of their own, so that they do not wait for long
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendQueue {
    pub(super) stripe: Stripe,
    short: bool,
}

/// A multicast that is waiting to be sent.
#[derive(Debug)]
struct QueuedMulticast {
    multicast: StreamMessage,
    queue: SendQueue,
    concurrent_senders: u32,
    /// A copy of the message, if it is short enough. If there is a copy, the action completes at
    /// once.
    copy: Option<MemoryRange>,
}

/// An event of a stream that concerns its call.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// A rank's stream has sent, repaired or received data.
    Moved { call: u64, rank: u32, traffic: TrafficTotals, progress: bool },
    /// An action has completed.
    Done(CallAction),
    /// The message of an action has arrived completely, but other nodes may still need it from
    /// here.
    Delivered(StreamId, CallAction),
    /// A rank that [`Streams::pin_rank`] has pinned is released, because no receiver needs its
    /// buffers any more.
    Unpinned { call: u64, rank: u32 },
    /// The source has sent its last chunk once, or the stream ended before.
    AllSent { call: u64, rank: u32, queue: SendQueue },
    /// Multicasts of a node have arrived over the tree for a scope.
    Heard(MulticastScope, usize),
    /// A node has made a different call with this number.
    Mismatch { call: u64, node: usize },
    /// A stream has ended.
    Closed(StreamId),
}

#[derive(Debug)]
pub(super) struct Streams {
    open: BTreeMap<StreamId, MulticastStream>,
    sending: BTreeMap<StreamId, SendingStream>,
    /// The multicasts that wait to be sent, in the order in which they were queued.
    queued: VecDeque<QueuedMulticast>,
    buffered: BufferedPackets,
    /// Streams that have ended although their calls are in progress.
    over: BTreeSet<StreamId>,
    /// Chains that streams have used.
    chains: ChainCache,
    /// The retransmission timeout that the last stream measured.
    retransmission_timeout: Duration,
    /// The rate that the last stream over each tree has found, and when.
    found_rates: BTreeMap<SocketAddr, (u64, Time)>,
    /// Number of streams in a row without repair.
    loss_free: u32,
    long_packet_losses: LongPacketLosses,
    silent_trees: SilentTrees,
    events: VecDeque<StreamEvent>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            open: BTreeMap::new(),
            sending: BTreeMap::new(),
            queued: VecDeque::new(),
            buffered: BufferedPackets::default(),
            over: BTreeSet::new(),
            chains: ChainCache::default(),
            retransmission_timeout: StreamTimers::default().initial_rto,
            found_rates: BTreeMap::new(),
            loss_free: LOSS_FREE,
            long_packet_losses: LongPacketLosses::default(),
            silent_trees: SilentTrees::default(),
            events: VecDeque::new(),
        }
    }
}

impl Streams {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.queued.is_empty()
    }

    /// Returns the next event.
    pub(super) fn poll(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// Queues a multicast over the tree of a stripe, behind earlier ones.
    ///
    /// # Errors
    /// Returns an error if the stream is invalid.
    pub(super) fn send(
        &mut self,
        context: &mut GroupContext<'_>,
        multicast: StreamMessage,
        (stripe, concurrent_senders): (Stripe, u32),
    ) -> Result<(), CallFailure> {
        let copy = copied(context.members.id, multicast.data, context.resources);
        if copy.is_some() {
            self.events.push_back(StreamEvent::Done(multicast.of));
        }
        let queue = SendQueue { stripe, short: multicast.data.len <= EAGER_BYTES };
        self.queued.push_back(QueuedMulticast { multicast, queue, concurrent_senders, copy });
        self.send_next(context, queue)
    }

    /// Advances a queue: one stream is sent, and in a queue of long streams the next one gathers
    /// its receivers.
    ///
    /// # Errors
    /// Returns an error if a stream is invalid.
    pub(super) fn send_next(
        &mut self,
        context: &mut GroupContext<'_>,
        queue: SendQueue,
    ) -> Result<(), CallFailure> {
        loop {
            let in_queue = || self.sending.iter().filter(|(_, stream)| stream.queue == queue);
            let is_free = in_queue().all(|(_, stream)| stream.on_hold);
            let gathering = in_queue().find(|(_, stream)| stream.on_hold).map(|(id, _)| *id);
            match gathering {
                Some(id) if is_free => self.release_hold(context, id)?,
                None if is_free || !queue.short => {
                    let next = self.queued.iter().position(|queued| queued.queue == queue);
                    let Some(queued) = next.and_then(|next| self.queued.remove(next)) else { return Ok(()) };
                    self.open_sender(context, &queued, !is_free)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Starts to send a stream that was on hold, with its share of the link.
    fn release_hold(&mut self, context: &mut GroupContext<'_>, id: StreamId) -> Result<(), CallFailure> {
        let Some(stream) = self.sending.get_mut(&id) else { return Ok(()) };
        stream.on_hold = false;
        let share = stream.share;
        context.resources.start_sending(share);
        self.input(context, id, Input::Ceiling(share.ceiling(&context.resources.sending)))?;
        self.input(context, id, Input::Proceed)
    }

    fn open_sender(
        &mut self,
        context: &mut GroupContext<'_>,
        queued: &QueuedMulticast,
        on_hold: bool,
    ) -> Result<(), CallFailure> {
        let QueuedMulticast { ref multicast, queue, concurrent_senders, copy } = *queued;
        let StreamMessage { of, operation, scope, data, .. } = *multicast;
        let stripe = queue.stripe;
        let share = context.members.share(scope, stripe, concurrent_senders);
        let ceiling = share.ceiling(&context.resources.sending.with(&share));
        let mut spec = self.spec(context.members, multicast);
        let tree = context.members.tree(scope, stripe).filter(|_| spec.multicast).map(|tree| tree.address);
        let found = tree.and_then(|tree| self.found_rates.get(&tree));
        let found = found.filter(|(_, at)| context.now < *at + RATE_LIFETIME).map(|(rate, _)| *rate);
        spec.rate = RateSpec { ceiling, verified: share.verified, found, background: multicast.background };
        spec.on_hold = on_hold;
        let id = spec.id;
        let sender = Sender::new(context.now, spec).map_err(|e| no_stream(context.members, of.rank, &e))?;
        let trees = StreamTrees { source: tree, rack: context.members.rack_tree() };
        let mut stream = MulticastStream::new(
            StreamEnd::Sender(Box::new(sender)),
            data,
            (scope, operation, of.rank, of.action),
            trees,
        );
        self.sending.insert(id, SendingStream { share, queue, on_hold });
        if !on_hold {
            context.resources.start_sending(share);
        }
        if let Some(copy) = copy {
            stream.continue_on(copy);
        }
        self.open_stream(context, id, stream)
    }

    /// Opens the receiving end of a multicast.
    ///
    /// # Errors
    /// Returns an error if the stream is invalid.
    pub(super) fn receive(
        &mut self,
        context: &mut GroupContext<'_>,
        multicast: &StreamMessage,
    ) -> Result<(), CallFailure> {
        let StreamMessage { of, operation, scope, data, .. } = *multicast;
        let spec = self.spec(context.members, multicast);
        let id = spec.id;
        // If this node is not in the chain, `Receiver::new` returns an error.
        let me = spec.chain.position(context.members.me as u16).unwrap_or(u16::MAX);
        let receiver =
            Receiver::new(context.now, spec, me).map_err(|e| no_stream(context.members, of.rank, &e))?;
        let end = StreamEnd::Receiver(Box::new(receiver));
        let trees = StreamTrees { source: None, rack: context.members.rack_tree() };
        let stream = MulticastStream::new(end, data, (scope, operation, of.rank, of.action), trees);
        self.open_stream(context, id, stream)
    }

    fn spec(&mut self, members: &Members, multicast: &StreamMessage) -> StreamSpec {
        let StreamMessage { of, digest, timeout, scope, transfer, source, data, .. } = *multicast;
        let (group, epoch) = members.id_and_epoch();
        let patience = timeout + GRACE;
        let defaults = StreamTimers::default();
        let chain = self.chains.chain((scope, source), || members.chain(scope, source));
        StreamSpec {
            // No group has more nodes than fit.
            id: StreamId { group, epoch, call: of.call, transfer, source: source as u16 },
            len: data.len,
            digest,
            chunk_bytes: members.chunk_bytes,
            further_bytes: members.extra_packet_bytes(),
            chain,
            multicast: members.is_source(scope, source),
            rack_tree: members.rack_tree().is_some(),
            rate: RateSpec::default(),
            eager: EAGER_BYTES,
            on_hold: false,
            in_parts: self.long_packet_losses.are_lost(source as u16),
            timers: StreamTimers {
                initial_rto: self.retransmission_timeout,
                start: BEGINS_WITHIN,
                ready: defaults.ready.min(timeout),
                stall: patience,
                ack_delay: if self.loss_free >= LOSS_FREE { ACK_DELAY } else { Duration::ZERO },
            },
        }
    }

    /// Opens a stream and hands it the packets that arrived before.
    fn open_stream(
        &mut self,
        context: &mut GroupContext<'_>,
        id: StreamId,
        mut stream: MulticastStream,
    ) -> Result<(), CallFailure> {
        let effects =
            stream.poll(context.now, &ReceivedBytes::NONE, (context.members, &mut context.resources.out));
        self.open.insert(id, stream);
        self.apply(context, id, effects)?;
        let buffered = self.buffered.take(&id);
        if buffered.lossy {
            self.input(context, id, Input::LateJoin)?;
        }
        let mut result = Ok(());
        for (packet, payload) in buffered.packets {
            if result.is_ok() {
                result = self.on_packet(context, &packet, &ReceivedBytes::Buffered(payload)).map(drop);
            }
            context.resources.out.free(payload);
        }
        result
    }

    /// Handles a packet of a stream. Returns whether the stream is open.
    ///
    /// # Errors
    /// Returns an error if the stream fails.
    pub(super) fn on_packet(
        &mut self,
        context: &mut GroupContext<'_>,
        packet: &Packet,
        payload: &ReceivedBytes,
    ) -> Result<bool, CallFailure> {
        let Some(stream) = self.open.get_mut(&packet.id) else { return Ok(false) };
        let effects =
            stream.on_packet(context.now, packet, payload, (context.members, &mut context.resources.out));
        self.apply(context, packet.id, effects)?;
        Ok(true)
    }

    /// Returns whether a stream has ended although its call is in progress, so that its packets can
    /// be dropped.
    pub(super) fn is_over(&self, id: &StreamId) -> bool {
        self.over.contains(id)
    }

    /// Buffers a packet of a stream that has yet to be opened.
    pub(super) fn buffer(
        &mut self,
        resources: &mut EngineResources,
        packet: Packet,
        payload: &ReceivedBytes,
    ) {
        self.buffered.buffer(packet, payload, &mut resources.out);
    }

    /// Handles the deadline of a stream.
    ///
    /// # Errors
    /// Returns an error if the stream fails.
    pub(super) fn on_timer(
        &mut self,
        context: &mut GroupContext<'_>,
        id: StreamId,
    ) -> Result<(), CallFailure> {
        let Some(stream) = self.open.get_mut(&id) else { return Ok(()) };
        let effects =
            stream.poll(context.now, &ReceivedBytes::NONE, (context.members, &mut context.resources.out));
        self.apply(context, id, effects)
    }

    /// Adjusts the rates of streams, because the number of streams that share this node's link has
    /// changed.
    ///
    /// # Errors
    /// Returns an error if a stream fails.
    pub(super) fn share_link(&mut self, context: &mut GroupContext<'_>) -> Result<(), CallFailure> {
        for (id, stream) in self.sending.clone() {
            let ceiling = stream.share.ceiling(&context.resources.sending);
            self.input(context, id, Input::Ceiling(ceiling))?;
        }
        Ok(())
    }

    fn input(
        &mut self,
        context: &mut GroupContext<'_>,
        id: StreamId,
        input: Input<'_>,
    ) -> Result<(), CallFailure> {
        let Some(stream) = self.open.get_mut(&id) else { return Ok(()) };
        let effects = stream.input(context.now, input, (context.members, &mut context.resources.out));
        self.apply(context, id, effects)
    }

    /// Applies the effects of a stream, and queues the events for its call.
    fn apply(
        &mut self,
        context: &mut GroupContext<'_>,
        id: StreamId,
        effects: StreamEffects,
    ) -> Result<(), CallFailure> {
        let Some(stream) = self.open.get_mut(&id) else { return Ok(()) };
        let of = CallAction { call: id.call, rank: stream.rank, action: stream.action };
        let events = &mut self.events;
        count(context.resources, stream.operation, of, &effects, events);
        if let Some(error) = effects.failed {
            return Err(failed(context.members, id, of.rank, error));
        }
        if effects.tree_silent {
            self.silent_trees.on_missed(context, stream.scope, (id.source, SILENT_STREAMS));
        }
        let mismatch = |node| StreamEvent::Mismatch { call: id.call, node: usize::from(node) };
        events.extend(effects.mismatches.into_iter().map(mismatch));
        let over = effects.released || effects.closed;
        if (effects.all_sent || over)
            && let Some(SendingStream { share, queue, on_hold }) = self.sending.remove(&id)
        {
            if !on_hold {
                context.resources.finish_sending(share);
            }
            events.push_back(StreamEvent::AllSent { call: of.call, rank: of.rank, queue });
        }
        if effects.delivered && stream.is_receiver() {
            delivered(stream, context.resources, (id, of), effects.released, events);
        }
        if over {
            released(stream, context.resources, of, events);
        }
        if effects.closed {
            self.on_closed(context, id);
        } else {
            context.set_timer(TimerKey::Stream(id), effects.deadline);
        }
        Ok(())
    }

    fn on_closed(&mut self, context: &mut GroupContext<'_>, id: StreamId) {
        let Some(stream) = self.open.remove(&id) else { return };
        self.retransmission_timeout = stream.retransmission_timeout();
        if let Some((tree, rate)) = stream.found_rate() {
            self.found_rates.insert(tree, (rate, context.now));
        }
        if stream.has_long_packets() {
            self.long_packet_losses.record_arrival(id.source);
        } else if stream.needs_parts() && self.long_packet_losses.record_loss(context.now, id.source) {
            let members = context.members;
            let headers = packet::DATA_HEADER as u64 + u64::from(members.extra_packet_bytes());
            let bytes = u64::from(members.chunk_bytes) + headers;
            if let Some(source) = members.nodes.get(usize::from(id.source)) {
                context.resources.out.push(Output::LongPacketsLost { from: source.udp, bytes });
            }
        }
        if stream.hears_tree() {
            self.silent_trees.record_arrival(stream.scope, id.source);
        } else if stream.misses_tree() {
            self.silent_trees.on_missed(context, stream.scope, (id.source, 1));
        }
        self.loss_free = if stream.needed_repair() { 0 } else { self.loss_free.saturating_add(1) };
        context.resources.forget_stream(&id, stream);
        self.events.push_back(StreamEvent::Closed(id));
    }

    /// Lets the action of a delivered message complete, while its rank must wait until no receiver
    /// needs the message any more ([`StreamEvent::Unpinned`]). Returns whether the rank must wait.
    pub(super) fn pin_rank(&mut self, id: &StreamId) -> bool {
        match self.open.get_mut(id) {
            Some(stream) if stream.hold == StreamHold::Action => {
                stream.hold = StreamHold::Rank;
                true
            }
            _ => false,
        }
    }

    /// Marks a stream as ended, so that its packets are dropped from now on.
    pub(super) fn ignore(&mut self, id: StreamId) {
        self.over.insert(id);
    }

    /// Drops the packets of a call that has ended, except for those of open streams.
    pub(super) fn forget_call(&mut self, call: u64, resources: &mut EngineResources) {
        self.buffered.forget(call, &mut resources.out);
        self.over.retain(|id| id.call != call);
    }

    /// Frees all resources of streams.
    pub(super) fn clear(&mut self, resources: &mut EngineResources) {
        for (id, stream) in std::mem::take(&mut self.open) {
            resources.forget_stream(&id, stream);
        }
        let sending = std::mem::take(&mut self.sending).into_values().filter(|stream| !stream.on_hold);
        sending.for_each(|stream| resources.finish_sending(stream.share));
        std::mem::take(&mut self.queued)
            .iter()
            .filter_map(|queued| queued.copy)
            .for_each(|copy| resources.give_back(copy));
        self.buffered.clear(&mut resources.out);
        self.events.clear();
    }

    /// Returns the nodes that have sent packets of a call before its streams were opened, each with
    /// the digest of its call.
    pub(super) fn digests(&self, call: u64) -> impl Iterator<Item = (usize, u64)> {
        self.buffered.digests(call).into_iter().map(|(node, digest)| (usize::from(node), digest))
    }

    /// Returns the indices of the nodes from which a call waits for data.
    pub(super) fn sources(&self, call: u64) -> impl Iterator<Item = usize> {
        let receives = self.open.iter().filter(move |(id, s)| id.call == call && s.is_receiver());
        receives.map(|(id, _)| usize::from(id.source))
    }
}

/// Counts the traffic of a stream, both for the node and for the rank.
fn count(
    resources: &mut EngineResources,
    operation: Operation,
    of: CallAction,
    effects: &StreamEffects,
    events: &mut VecDeque<StreamEvent>,
) {
    let traffic = effects.traffic;
    let progress = effects.stored + traffic.bytes_multicast + traffic.chunks_resent > 0;
    if progress || traffic != TrafficTotals::default() {
        resources.count(operation, traffic);
        events.push_back(StreamEvent::Moved { call: of.call, rank: of.rank, traffic, progress });
    }
}

/// Handles the delivery of a message. The receiver's successors in the chain may still need it,
/// unless it has been released.
fn delivered(
    stream: &mut MulticastStream,
    resources: &mut EngineResources,
    (id, of): (StreamId, CallAction),
    released: bool,
    events: &mut VecDeque<StreamEvent>,
) {
    if stream.hears_tree() {
        events.push_back(StreamEvent::Heard(stream.scope, id.source.into()));
    }
    // If the stream has a copy, the rank need not wait for other receivers.
    let copy = if released { None } else { copied(id.group, stream.data(), resources) };
    if let Some(copy) = copy {
        stream.continue_on(copy);
    }
    if released || copy.is_some() {
        stream.hold = StreamHold::None;
        events.push_back(StreamEvent::Done(of));
    } else {
        events.push_back(StreamEvent::Delivered(id, of));
    }
}

/// Handles the release of a message, which no receiver needs any more.
fn released(
    stream: &mut MulticastStream,
    resources: &mut EngineResources,
    of: CallAction,
    events: &mut VecDeque<StreamEvent>,
) {
    stream.release().into_iter().for_each(|buffer| resources.give_back(buffer));
    match std::mem::replace(&mut stream.hold, StreamHold::None) {
        StreamHold::None => {}
        StreamHold::Action => events.push_back(StreamEvent::Done(of)),
        StreamHold::Rank => events.push_back(StreamEvent::Unpinned { call: of.call, rank: of.rank }),
    }
}

/// Returns a copy of a message, if it is short enough and there is room.
fn copied(group: u64, data: MemoryRange, resources: &mut EngineResources) -> Option<MemoryRange> {
    if data.len <= COPIED_BYTES { resources.bounce(group, data) } else { None }
}
