//! Multicast messages of a group's calls: opening streams, their packets, and what they mean for calls.

use super::Group;
use crate::failure::{Failure, FailureKind};
use crate::link_share::Share;
use crate::memory::MemoryRange;
use crate::outbox::Received;
use crate::shared::{Shared, TimerKey};
use crate::stream::{End, Stream, StreamEffects, Waits};
use cool_collective::{Kind, Scope};
use cool_machine::{Duration, Time};
use cool_transport::{
    Input, Packet, RateSpec, Receiver, Sender, SpecError, StreamError, StreamId, StreamSpec, Timers,
};
use cool_types::Operation;
use cool_types::limits::{COPIED_BYTES, EAGER_BYTES};
use std::net::SocketAddrV4;

/// What a stream waits beyond the call's timeout: the call's own says more about what is wrong.
const GRACE: Duration = Duration::from_secs(2);

/// After this many streams in a row that needed no repair, as at first, acknowledgements of short streams are delayed
/// by [`ACK_DELAY`], so that those of many share a datagram.
pub(super) const LOSS_FREE: u32 = 16;

/// Short against a retry of TCP, long against a few small calls.
const ACK_DELAY: Duration = Duration::from_millis(5);

impl Group {
    /// Opens the next multicast of a rank over whose tree none is on its way. In order, the first bytes arrive early; at
    /// once, each stream would slow the others and all would be late.
    pub(super) fn next_multicast(
        &mut self,
        now: Time,
        shared: &mut Shared,
        number: u64,
        rank: u32,
    ) -> Result<(), Failure> {
        let Some(call) = self.calls.get_mut(&number) else { return Ok(()) };
        let operation = call.signature.call.operation;
        let Some(run) = call.runs.get_mut(&rank) else { return Ok(()) };
        let Some(action) = run.next_multicast() else { return Ok(()) };
        let Kind::Multicast { scope, stripe, transfer, src, concurrent_senders } =
            run.program().actions[action as usize].kind
        else {
            return Ok(());
        };
        let data = run.range(src);
        let share = self.members.share(scope, stripe, concurrent_senders);
        let mut spec = self.stream_spec((number, transfer.0, scope, self.members.me), data.len);
        spec.rate =
            RateSpec { ceiling: share.ceiling(&shared.sending.with(&share)), verified: share.verified };
        let id = spec.id;
        let sender = Sender::new(now, spec).map_err(|e| self.no_stream(rank, &e))?;
        let tree = self.members.tree(scope, stripe).map(|tree| tree.address);
        let mut stream = Stream::new(End::Sender(Box::new(sender)), data, (operation, rank, action), tree);
        stream.sending = Some(share);
        shared.sends(share);
        let copied = continue_on_copy(&mut stream, shared);
        self.open(now, shared, id, stream)?;
        if copied {
            self.complete(now, shared, number, rank, action);
        }
        Ok(())
    }

    /// Opens the receiving end of a multicast from a node.
    pub(super) fn open_receiver(
        &mut self,
        now: Time,
        shared: &mut Shared,
        from: (u64, u32, Scope, usize),
        (rank, action, data): (u32, u32, MemoryRange),
    ) -> Result<(), Failure> {
        let spec = self.stream_spec(from, data.len);
        let id = spec.id;
        // Not in the chain: the machine refuses it.
        let me = spec.chain.position(self.members.me as u16).unwrap_or(u16::MAX);
        let receiver = Receiver::new(now, spec, me).map_err(|e| self.no_stream(rank, &e))?;
        let operation =
            self.calls.get(&id.call).map_or(Operation::Bcast, |call| call.signature.call.operation);
        let stream = Stream::new(End::Receiver(Box::new(receiver)), data, (operation, rank, action), None);
        self.open(now, shared, id, stream)
    }

    fn stream_spec(
        &mut self,
        (call, transfer, scope, source): (u64, u32, Scope, usize),
        len: u64,
    ) -> StreamSpec {
        let (group, epoch) = self.key();
        let (digest, timeout) =
            self.calls.get(&call).map_or((0, Duration::ZERO), |call| (call.digest, call.timeout));
        let patience = timeout + GRACE;
        let defaults = Timers::default();
        StreamSpec {
            // No group has more nodes than fit.
            id: StreamId { group, epoch, call, transfer, source: source as u16 },
            len,
            digest,
            chunk_bytes: self.members.chunk_bytes,
            chain: self.members.chain(scope, source),
            multicast: self.members.has_tree(scope),
            rack_tree: self.members.rack_tree().is_some(),
            rate: RateSpec::default(),
            eager: EAGER_BYTES,
            timers: Timers {
                initial_rto: self.retry_timer,
                start: patience,
                ready: defaults.ready.min(timeout),
                stall: patience,
                ack_delay: if self.loss_free >= LOSS_FREE { ACK_DELAY } else { Duration::ZERO },
            },
        }
    }

    /// Starts a stream, with what came of it before.
    fn open(
        &mut self,
        now: Time,
        shared: &mut Shared,
        id: StreamId,
        mut stream: Stream,
    ) -> Result<(), Failure> {
        let effects = stream.poll(now, &Received::NONE, (&self.members, &mut shared.out));
        self.streams.insert(id, stream);
        self.apply(now, shared, id, effects)?;
        let buffered = self.buffered.take(&id);
        if buffered.lossy {
            self.stream_input(now, shared, id, Input::LateJoin)?;
        }
        for (packet, payload) in buffered.packets {
            if let Some(stream) = self.streams.get_mut(&id) {
                let received = Received::Buffered(payload);
                let effects = stream.packet(now, &packet, &received, (&self.members, &mut shared.out));
                shared.out.free(payload);
                self.apply(now, shared, id, effects)?;
            } else {
                shared.out.free(payload);
            }
        }
        Ok(())
    }

    /// A packet came from a member of the group.
    pub(crate) fn packet(
        &mut self,
        now: Time,
        shared: &mut Shared,
        from: SocketAddrV4,
        packet: Packet,
        payload: &Received,
    ) -> Result<(), Failure> {
        let node = usize::from(packet.from);
        if self.members.nodes.get(node).is_none_or(|n| n.udp != from) || node == self.members.me {
            tracing::debug!(%from, node, "dropped a packet in the name of a node that is elsewhere");
            return Ok(());
        }
        if self.failed.is_some() {
            return Ok(());
        }
        self.failure_detector.heard(node);
        if self.differs(packet.id.call, packet.digest) {
            self.tell_call(now, shared, packet.id.call, node);
            return Ok(());
        }
        if let Some(stream) = self.streams.get_mut(&packet.id) {
            let effects = stream.packet(now, &packet, payload, (&self.members, &mut shared.out));
            self.apply(now, shared, packet.id, effects)?;
            return self.run(now, shared);
        }
        // Streams of calls that are over are over here, too; others will come or are about to.
        if packet.id.call >= self.oldest_open() && !self.over.contains(&packet.id) {
            self.buffered.keep(packet, payload, &mut shared.out);
        } else if usize::from(packet.id.source) == self.members.me
            && let Some(answer) = Sender::settled_reply(&packet)
        {
            shared.out.control(from, &answer);
        }
        Ok(())
    }

    /// A stream's deadline has passed.
    pub(crate) fn stream_due(&mut self, now: Time, shared: &mut Shared, id: StreamId) -> Result<(), Failure> {
        if let Some(stream) = self.streams.get_mut(&id) {
            let effects = stream.poll(now, &Received::NONE, (&self.members, &mut shared.out));
            self.apply(now, shared, id, effects)?;
        }
        self.run(now, shared)
    }

    /// The number of streams that share this node's link has changed.
    pub(crate) fn share_link(&mut self, now: Time, shared: &mut Shared) -> Result<(), Failure> {
        let sending = self.streams.iter().filter_map(|(id, stream)| Some((*id, stream.sending?)));
        let sending: Vec<(StreamId, Share)> = sending.collect();
        for (id, share) in sending {
            let ceiling = share.ceiling(&shared.sending);
            self.stream_input(now, shared, id, Input::Ceiling(ceiling))?;
        }
        self.run(now, shared)
    }

    fn stream_input(
        &mut self,
        now: Time,
        shared: &mut Shared,
        id: StreamId,
        input: Input<'_>,
    ) -> Result<(), Failure> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let effects = stream.input(now, input, (&self.members, &mut shared.out));
        self.apply(now, shared, id, effects)
    }

    /// Carries out what a stream's effects mean for its call.
    fn apply(
        &mut self,
        now: Time,
        shared: &mut Shared,
        id: StreamId,
        effects: StreamEffects,
    ) -> Result<(), Failure> {
        let Some(stream) = self.streams.get(&id) else { return Ok(()) };
        let (rank, operation) = (stream.rank, stream.operation);
        self.count(now, shared, (id, rank, operation), &effects);
        if let Some(error) = effects.failed {
            return Err(self.stream_failed(id, rank, error));
        }
        for node in effects.mismatches {
            self.tell_call(now, shared, id.call, usize::from(node));
        }
        if effects.all_sent || effects.released || effects.closed {
            self.sent_all(shared, id, rank);
        }
        if effects.delivered {
            self.delivered(now, shared, id, effects.released);
        }
        if effects.released || effects.closed {
            self.released(now, shared, id);
        }
        if effects.closed {
            if let Some(stream) = self.streams.remove(&id) {
                self.retry_timer = stream.retry_timer();
                self.loss_free = if stream.needed_repair() { 0 } else { self.loss_free.saturating_add(1) };
                shared.forget_stream(&id, stream);
                if self.calls.contains_key(&id.call) {
                    self.over.insert(id);
                }
            }
        } else {
            shared.timers.set(TimerKey::Stream(id), effects.deadline);
        }
        Ok(())
    }

    /// Counts what a stream did: for the node under the operation of its call at once, and for its rank.
    fn count(
        &mut self,
        now: Time,
        shared: &mut Shared,
        (id, rank, operation): (StreamId, u32, Operation),
        effects: &StreamEffects,
    ) {
        shared.count(operation, effects.traffic);
        let moved = effects.stored + effects.traffic.bytes_multicast + effects.traffic.chunks_resent > 0;
        let run = self.calls.get_mut(&id.call).and_then(|call| {
            if moved {
                call.progress = now;
            }
            call.runs.get_mut(&rank)
        });
        // A stream of a copied message outlives its call.
        match run {
            Some(run) => run.stats.traffic += effects.traffic,
            None => self.ranks.entry(rank).or_default().afterwards += effects.traffic,
        }
    }

    /// A source has put its last chunk on the link, or never will.
    fn sent_all(&mut self, shared: &mut Shared, id: StreamId, rank: u32) {
        let stream = self.streams.get_mut(&id);
        let Some(share) = stream.and_then(|stream| stream.sending.take()) else { return };
        shared.sent(share);
        if let Some(run) = self.calls.get_mut(&id.call).and_then(|call| call.runs.get_mut(&rank)) {
            run.progress.multicast_sent(share.stripe);
        }
        self.multicasters.push_back((id.call, rank));
    }

    /// A receiver has the whole message. Its successors may still need it from here.
    fn delivered(&mut self, now: Time, shared: &mut Shared, id: StreamId, released: bool) {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.is_receiver()) else { return };
        let (rank, action) = (stream.rank, stream.action);
        let Some(run) = self.calls.get_mut(&id.call).and_then(|call| call.runs.get_mut(&rank)) else {
            return;
        };
        if !released {
            if continue_on_copy(stream, shared) {
                // Its rank need not wait until others have it from here.
            } else if let Kind::ReceiveMulticast { dst, .. } = run.program().actions[action as usize].kind
                && run.changed_later(action, dst)
            {
                // The action goes on until nobody needs the bytes from here.
                return;
            } else {
                stream.waits = Waits::Rank;
                run.pins += 1;
                self.complete(now, shared, id.call, rank, action);
                return;
            }
        }
        stream.waits = Waits::Nobody;
        self.complete(now, shared, id.call, rank, action);
    }

    /// Nobody needs the message from here any more.
    fn released(&mut self, now: Time, shared: &mut Shared, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (rank, action) = (stream.rank, stream.action);
        stream.release().into_iter().for_each(|buffer| shared.give_back(buffer));
        match std::mem::replace(&mut stream.waits, Waits::Nobody) {
            Waits::Nobody => {}
            Waits::Action => self.complete(now, shared, id.call, rank, action),
            Waits::Rank => {
                if let Some(run) = self.calls.get_mut(&id.call).and_then(|call| call.runs.get_mut(&rank)) {
                    run.pins -= 1;
                }
                self.leave_if_finished(now, shared, id.call, rank);
            }
        }
    }

    fn no_stream(&self, rank: u32, error: &SpecError) -> Failure {
        Failure::new(
            FailureKind::Invalid,
            format!("rank {rank}, group {}: {error}", self.members.id),
            vec![rank],
        )
    }

    fn stream_failed(&self, id: StreamId, rank: u32, error: StreamError) -> Failure {
        let (kind, nodes) = match &error {
            StreamError::NotStarted { source_node, .. } => (FailureKind::Timeout, vec![*source_node]),
            StreamError::Stalled { source_node, .. } => (FailureKind::Timeout, vec![*source_node]),
            StreamError::Incomplete { nodes, .. } => (FailureKind::Lost, nodes.clone()),
        };
        let nodes =
            nodes.iter().map(|node| usize::from(*node)).filter(|node| *node < self.members.nodes.len());
        let nodes: Vec<usize> = nodes.collect();
        let names: Vec<&str> = nodes.iter().map(|node| self.members.nodes[*node].name.as_str()).collect();
        let ranks = nodes.iter().flat_map(|node| self.members.ranks_of(*node)).collect();
        let text = format!(
            "call {} of group {} at rank {rank}: {error} (nodes {}, numbered by place in the group); \
             are their agents running and reachable?",
            id.call,
            id.group,
            names.join(", ")
        );
        Failure::new(kind, text, ranks)
    }
}

/// Lets a stream go on with a copy of its message, if that is short enough and there is room.
fn continue_on_copy(stream: &mut Stream, shared: &mut Shared) -> bool {
    let data = stream.data();
    let buffer = if data.len <= COPIED_BYTES { shared.bounce(data) } else { None };
    if let Some(buffer) = buffer {
        stream.continue_on(buffer);
    }
    buffer.is_some()
}
