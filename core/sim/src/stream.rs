//! One stream over the model network, with a machine at each node and real bytes that are checked.

use crate::broadcast_error::BroadcastError;
use crate::network::{Destination, PacketNetwork};
use cool_machine::{Machine, Poll, Time};
use cool_transport::packet::{FRAMING, PacketBody};
use cool_transport::{
    Input, Output, Packet, PacketTarget, Receiver, Sender, StreamError, StreamSpec, StreamStats,
};
use std::collections::BTreeSet;

/// Number of outputs for one input that counts as an endless loop.
const ENDLESS: u64 = 1_000_000;

/// The results of a stream so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamResults {
    pub(crate) delivered: Vec<Option<Time>>,
    pub(crate) failures: Vec<(u16, StreamError)>,
    pub(crate) ended: Time,
    pub(crate) repaired_inside: u64,
    pub(crate) repaired_across: u64,
    pub(crate) packets: u64,
    pub(crate) entries: usize,
}

/// The network's numbers of a stream's trees.
#[derive(Debug)]
pub(crate) struct Trees {
    /// The tree over all nodes.
    pub(crate) all: usize,
    /// The tree of each rack.
    pub(crate) racks: Vec<usize>,
    /// The nodes that will receive the tree over all nodes once they have renewed their membership.
    pub(crate) forgotten: BTreeSet<u16>,
}

#[derive(Debug)]
enum StreamRole {
    Waiting,
    Source(Box<Sender>),
    Sink(Box<Receiver>),
    Dead,
}

#[derive(Debug)]
struct StreamNode {
    role: StreamRole,
    buffer: Vec<u8>,
    wakes: Option<Time>,
    notified: bool,
    released: bool,
    closed: bool,
}

/// The stream, with an entry for every node of the network, whether it takes part or not.
#[derive(Debug)]
pub(crate) struct Stream {
    spec: StreamSpec,
    trees: Trees,
    /// The number by which the network wakes its first node.
    wakes_from: u32,
    message: Vec<u8>,
    nodes: Vec<StreamNode>,
    results: StreamResults,
}

impl Stream {
    pub(crate) fn new(spec: StreamSpec, trees: Trees, wakes_from: u32, seed: u64, nodes: u16) -> Stream {
        let node = || StreamNode {
            role: StreamRole::Waiting,
            buffer: Vec::new(),
            wakes: None,
            notified: false,
            released: false,
            closed: false,
        };
        Stream {
            message: bytes_of(seed, spec.len),
            nodes: (0..nodes).map(|_| node()).collect(),
            results: StreamResults { delivered: vec![None; usize::from(nodes)], ..StreamResults::default() },
            spec,
            trees,
            wakes_from,
        }
    }

    pub(crate) fn results(&self) -> &StreamResults {
        &self.results
    }

    /// Returns whether every machine is closed or has crashed.
    pub(crate) fn is_over(&self) -> bool {
        self.members().all(|node| {
            let node = &self.nodes[usize::from(node)];
            node.closed || matches!(node.role, StreamRole::Dead)
        })
    }

    /// Returns whether every receiver has the message.
    pub(crate) fn is_delivered(&self) -> bool {
        self.members().all(|node| self.results.delivered[usize::from(node)].is_some())
    }

    /// Returns the bytes of Ethernet frames that the source has multicast.
    pub(crate) fn multicast(&self) -> u64 {
        match &self.nodes[usize::from(self.spec.id.source)].role {
            StreamRole::Source(machine) => machine.stats().by_tree * self.spec.frame(),
            StreamRole::Waiting | StreamRole::Sink(_) | StreamRole::Dead => 0,
        }
    }

    /// Crashes a node.
    pub(crate) fn kill(&mut self, node: u16) {
        self.nodes[usize::from(node)].role = StreamRole::Dead;
    }

    /// Opens the stream at a node, unless it is already open.
    pub(crate) fn open(&mut self, net: &mut PacketNetwork, node: u16) -> Result<(), BroadcastError> {
        let now = net.now();
        let this = &mut self.nodes[usize::from(node)];
        let Some(me) = self.spec.chain.position(node).filter(|_| matches!(this.role, StreamRole::Waiting))
        else {
            return Ok(());
        };
        if me == 0 {
            let sender = Sender::new(now, self.spec.clone()).map_err(BroadcastError::Spec)?;
            this.role = StreamRole::Source(Box::new(sender));
            self.results.delivered[usize::from(node)] = Some(now);
        } else {
            let receiver = Receiver::new(now, self.spec.clone(), me).map_err(BroadcastError::Spec)?;
            this.role = StreamRole::Sink(Box::new(receiver));
            this.buffer = vec![0; self.message.len()];
        }
        Ok(())
    }

    /// Handles a packet that arrived at a node.
    pub(crate) fn receive(
        &mut self,
        net: &mut PacketNetwork,
        node: u16,
        packet: &Packet,
        payload: &[u8],
    ) -> Result<(), BroadcastError> {
        let input = Input::Packet { packet, payload: payload.len() };
        let this = &mut self.nodes[usize::from(node)];
        match &mut this.role {
            StreamRole::Source(machine) if !this.closed => machine.handle(net.now(), input),
            StreamRole::Source(_) => {
                if let Some(answer) = Sender::settled_reply(packet) {
                    self.transmit(net, node, PacketTarget::Node(packet.from), &answer, 0..0);
                }
                return Ok(());
            }
            StreamRole::Sink(machine) if !this.closed => machine.handle(net.now(), input),
            _ => return Ok(()),
        }
        self.drain(net, node, payload)
    }

    /// Polls a node's machine until it is idle.
    pub(crate) fn drain(
        &mut self,
        net: &mut PacketNetwork,
        node: u16,
        payload: &[u8],
    ) -> Result<(), BroadcastError> {
        let now = net.now();
        for _ in 0..ENDLESS {
            let this = &mut self.nodes[usize::from(node)];
            if this.closed {
                return Ok(());
            }
            let (entries, poll) = match &mut this.role {
                StreamRole::Source(machine) => (machine.entries(), machine.poll(now)),
                StreamRole::Sink(machine) => (machine.entries(), machine.poll(now)),
                StreamRole::Waiting | StreamRole::Dead => return Ok(()),
            };
            self.results.entries = self.results.entries.max(entries);
            match poll {
                Poll::Output(output) => self.execute(net, node, output, payload)?,
                Poll::Idle(None) => return Ok(()),
                Poll::Idle(Some(at)) if at <= now => return Err(BroadcastError::Spin { node }),
                Poll::Idle(Some(at)) => {
                    // If the network wakes the machine too early, the machine returns the right
                    // time again.
                    if this.wakes.is_none_or(|wakes| wakes <= now || at < wakes) {
                        this.wakes = Some(at);
                        net.wake(self.wakes_from + u32::from(node), at);
                    }
                    return Ok(());
                }
            }
        }
        Err(BroadcastError::Spin { node })
    }

    fn execute(
        &mut self,
        net: &mut PacketNetwork,
        node: u16,
        output: Output,
        payload: &[u8],
    ) -> Result<(), BroadcastError> {
        let index = usize::from(node);
        let this = &mut self.nodes[index];
        let wrong = |what| Err(BroadcastError::Order { node, what });
        match output {
            Output::Transmit { to, packet, payload } => {
                if !payload.is_empty() && this.released {
                    return wrong("sent data that it had released");
                }
                self.transmit(net, node, to, &packet, payload.start as usize..payload.end as usize);
            }
            Output::Store(range) => {
                if this.notified || range.end - range.start != payload.len() as u64 {
                    return wrong("stored data that it did not receive");
                }
                this.buffer[range.start as usize..range.end as usize].copy_from_slice(payload);
            }
            Output::Delivered => {
                if this.notified {
                    return wrong("delivered twice");
                }
                this.notified = true;
                if this.buffer != self.message {
                    return Err(BroadcastError::Bytes { node });
                }
                self.results.delivered[index] = Some(net.now());
            }
            Output::Released => this.released = true,
            Output::Closed => {
                this.closed = true;
                self.results.ended = net.now();
            }
            Output::Failed(error) => self.results.failures.push((node, error)),
            Output::Mismatch { .. } => return wrong("found a mismatch"),
            Output::TreeSilent => {
                if self.trees.forgotten.remove(&node) {
                    net.join_tree(self.trees.all, node);
                }
            }
        }
        Ok(())
    }

    fn transmit(
        &mut self,
        net: &mut PacketNetwork,
        node: u16,
        to: PacketTarget,
        packet: &Packet,
        payload: core::ops::Range<usize>,
    ) {
        let mut bytes = Vec::with_capacity(128 + payload.len());
        packet.encode(&mut bytes);
        let source = node == self.spec.id.source;
        let from = if source { &self.message } else { &self.nodes[usize::from(node)].buffer };
        bytes.extend_from_slice(&from[payload]);
        self.results.packets += 1;
        let to = match to {
            PacketTarget::Tree => Destination::Tree(self.trees.all),
            PacketTarget::Rack => {
                self.results.repaired_inside += (bytes.len() + FRAMING) as u64;
                Destination::Tree(self.trees.racks[usize::from(net.rack_of(node))])
            }
            PacketTarget::Node(other) => {
                if matches!(packet.body, PacketBody::Data { .. }) {
                    let results = &mut self.results;
                    let inside = net.rack_of(node) == net.rack_of(other);
                    let sum =
                        if inside { &mut results.repaired_inside } else { &mut results.repaired_across };
                    *sum += (bytes.len() + FRAMING) as u64;
                }
                Destination::Node(other)
            }
        };
        net.send(node, to, bytes.into());
    }

    /// Returns the counters of each node's machine.
    ///
    /// # Errors
    /// Fails if a machine that did not crash is still open.
    pub(crate) fn stats(&self, at: Time) -> Result<Vec<StreamStats>, BroadcastError> {
        let mut all = vec![StreamStats::default(); self.nodes.len()];
        for node in self.members() {
            let this = &self.nodes[usize::from(node)];
            all[usize::from(node)] = match &this.role {
                StreamRole::Dead => continue,
                StreamRole::Source(machine) if this.closed => machine.stats(),
                StreamRole::Sink(machine) if this.closed => machine.stats(),
                _ => return Err(BroadcastError::Stall { node, at }),
            };
        }
        Ok(all)
    }

    fn members(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.spec.chain.len()).map(|position| self.spec.chain.node(position))
    }
}

/// Returns a message whose bytes depend on the seed and on their position.
fn bytes_of(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at.wrapping_add(seed)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}
