//! One stream over the model network: a machine at each node, with real bytes that are looked at.

use crate::broadcast::Wrong;
use crate::network::{Destination, Network};
use cool_machine::{Machine, Poll, Time};
use cool_transport::packet::{Body, FRAMING};
use cool_transport::{Input, Output, Packet, Receiver, Sender, Stats, StreamError, StreamSpec, To};

/// Outputs of a machine for one input, beyond what its message could need.
const ENDLESS: u64 = 1_000_000;

/// What a stream did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deeds {
    pub(crate) delivered: Vec<Option<Time>>,
    pub(crate) failures: Vec<(u16, StreamError)>,
    pub(crate) ended: Time,
    pub(crate) repaired_inside: u64,
    pub(crate) repaired_across: u64,
    pub(crate) packets: u64,
    pub(crate) entries: usize,
}

/// The numbers of a stream's trees in the network.
#[derive(Debug)]
pub(crate) struct Trees {
    /// The one over all.
    pub(crate) all: usize,
    /// That of each rack.
    pub(crate) racks: Vec<usize>,
}

#[derive(Debug)]
enum Role {
    Waiting,
    Source(Box<Sender>),
    Sink(Box<Receiver>),
    Dead,
}

#[derive(Debug)]
struct Node {
    role: Role,
    buffer: Vec<u8>,
    wakes: Option<Time>,
    told: bool,
    released: bool,
    closed: bool,
}

/// The stream, with a place for every node of the network whether it takes part or not.
#[derive(Debug)]
pub(crate) struct Stream {
    spec: StreamSpec,
    trees: Trees,
    /// Number of its first node among those that are woken.
    wakes_from: u32,
    message: Vec<u8>,
    nodes: Vec<Node>,
    deeds: Deeds,
}

impl Stream {
    pub(crate) fn new(spec: StreamSpec, trees: Trees, wakes_from: u32, seed: u64, nodes: u16) -> Stream {
        let node = || Node {
            role: Role::Waiting,
            buffer: Vec::new(),
            wakes: None,
            told: false,
            released: false,
            closed: false,
        };
        Stream {
            message: bytes_of(seed, spec.len),
            nodes: (0..nodes).map(|_| node()).collect(),
            deeds: Deeds { delivered: vec![None; usize::from(nodes)], ..Deeds::default() },
            spec,
            trees,
            wakes_from,
        }
    }

    pub(crate) fn deeds(&self) -> &Deeds {
        &self.deeds
    }

    /// Whether every machine is closed or dead.
    pub(crate) fn is_over(&self) -> bool {
        self.members().all(|node| {
            let node = &self.nodes[usize::from(node)];
            node.closed || matches!(node.role, Role::Dead)
        })
    }

    /// Whether every receiver has the message.
    pub(crate) fn is_delivered(&self) -> bool {
        self.members().all(|node| self.deeds.delivered[usize::from(node)].is_some())
    }

    /// Bytes of Ethernet frames that the source has multicast.
    pub(crate) fn multicast(&self) -> u64 {
        match &self.nodes[usize::from(self.spec.id.source)].role {
            Role::Source(machine) => machine.stats().by_tree * self.spec.frame(),
            Role::Waiting | Role::Sink(_) | Role::Dead => 0,
        }
    }

    /// A node is no more.
    pub(crate) fn kill(&mut self, node: u16) {
        self.nodes[usize::from(node)].role = Role::Dead;
    }

    /// A node opens the stream, unless it has.
    pub(crate) fn open(&mut self, net: &mut Network, node: u16) -> Result<(), Wrong> {
        let now = net.now();
        let this = &mut self.nodes[usize::from(node)];
        let Some(me) = self.spec.chain.position(node).filter(|_| matches!(this.role, Role::Waiting)) else {
            return Ok(());
        };
        if me == 0 {
            let sender = Sender::new(now, self.spec.clone()).map_err(Wrong::Spec)?;
            this.role = Role::Source(Box::new(sender));
            self.deeds.delivered[usize::from(node)] = Some(now);
        } else {
            let receiver = Receiver::new(now, self.spec.clone(), me).map_err(Wrong::Spec)?;
            this.role = Role::Sink(Box::new(receiver));
            this.buffer = vec![0; self.message.len()];
        }
        Ok(())
    }

    /// A node got a packet.
    pub(crate) fn receive(
        &mut self,
        net: &mut Network,
        node: u16,
        packet: &Packet,
        payload: &[u8],
    ) -> Result<(), Wrong> {
        let input = Input::Packet { packet, payload: payload.len() };
        let this = &mut self.nodes[usize::from(node)];
        match &mut this.role {
            Role::Source(machine) if !this.closed => machine.handle(net.now(), input),
            Role::Source(_) => {
                if let Some(answer) = Sender::settled_reply(packet) {
                    self.transmit(net, node, To::Node(packet.from), &answer, 0..0);
                }
                return Ok(());
            }
            Role::Sink(machine) if !this.closed => machine.handle(net.now(), input),
            _ => return Ok(()),
        }
        self.drain(net, node, payload)
    }

    /// Polls a node's machine until it is idle.
    pub(crate) fn drain(&mut self, net: &mut Network, node: u16, payload: &[u8]) -> Result<(), Wrong> {
        let now = net.now();
        for _ in 0..ENDLESS {
            let this = &mut self.nodes[usize::from(node)];
            if this.closed {
                return Ok(());
            }
            let (entries, poll) = match &mut this.role {
                Role::Source(machine) => (machine.entries(), machine.poll(now)),
                Role::Sink(machine) => (machine.entries(), machine.poll(now)),
                Role::Waiting | Role::Dead => return Ok(()),
            };
            self.deeds.entries = self.deeds.entries.max(entries);
            match poll {
                Poll::Output(output) => self.obey(net, node, output, payload)?,
                Poll::Idle(None) => return Ok(()),
                Poll::Idle(Some(at)) if at <= now => return Err(Wrong::Spin { node }),
                Poll::Idle(Some(at)) => {
                    // A wake that comes too early is answered with the right time.
                    if this.wakes.is_none_or(|wakes| wakes <= now || at < wakes) {
                        this.wakes = Some(at);
                        net.wake(self.wakes_from + u32::from(node), at);
                    }
                    return Ok(());
                }
            }
        }
        Err(Wrong::Spin { node })
    }

    fn obey(&mut self, net: &mut Network, node: u16, output: Output, payload: &[u8]) -> Result<(), Wrong> {
        let index = usize::from(node);
        let this = &mut self.nodes[index];
        let wrong = |what| Err(Wrong::Order { node, what });
        match output {
            Output::Transmit { to, packet, payload } => {
                if !payload.is_empty() && this.released {
                    return wrong("sent what it had released");
                }
                self.transmit(net, node, to, &packet, payload.start as usize..payload.end as usize);
            }
            Output::Store(range) => {
                if this.told || range.end - range.start != payload.len() as u64 {
                    return wrong("stored what it did not get");
                }
                this.buffer[range.start as usize..range.end as usize].copy_from_slice(payload);
            }
            Output::Delivered => {
                if this.told {
                    return wrong("delivered twice");
                }
                this.told = true;
                if this.buffer != self.message {
                    return Err(Wrong::Bytes { node });
                }
                self.deeds.delivered[index] = Some(net.now());
            }
            Output::Released => this.released = true,
            Output::Closed => {
                this.closed = true;
                self.deeds.ended = net.now();
            }
            Output::Failed(error) => self.deeds.failures.push((node, error)),
            Output::Mismatch { .. } => return wrong("found a mismatch"),
        }
        Ok(())
    }

    fn transmit(
        &mut self,
        net: &mut Network,
        node: u16,
        to: To,
        packet: &Packet,
        payload: core::ops::Range<usize>,
    ) {
        let mut bytes = Vec::with_capacity(128 + payload.len());
        packet.encode(&mut bytes);
        let source = node == self.spec.id.source;
        let from = if source { &self.message } else { &self.nodes[usize::from(node)].buffer };
        bytes.extend_from_slice(&from[payload]);
        self.deeds.packets += 1;
        let to = match to {
            To::Tree => Destination::Tree(self.trees.all),
            To::Rack => {
                self.deeds.repaired_inside += (bytes.len() + FRAMING) as u64;
                Destination::Tree(self.trees.racks[usize::from(net.rack_of(node))])
            }
            To::Node(other) => {
                if matches!(packet.body, Body::Data { .. }) {
                    let deeds = &mut self.deeds;
                    let inside = net.rack_of(node) == net.rack_of(other);
                    let sum = if inside { &mut deeds.repaired_inside } else { &mut deeds.repaired_across };
                    *sum += (bytes.len() + FRAMING) as u64;
                }
                Destination::Node(other)
            }
        };
        net.send(node, to, bytes.into());
    }

    /// What each node's machine counted.
    ///
    /// # Errors
    /// If one that did not die is still open.
    pub(crate) fn stats(&self, at: Time) -> Result<Vec<Stats>, Wrong> {
        let mut all = vec![Stats::default(); self.nodes.len()];
        for node in self.members() {
            let this = &self.nodes[usize::from(node)];
            all[usize::from(node)] = match &this.role {
                Role::Dead => continue,
                Role::Source(machine) if this.closed => machine.stats(),
                Role::Sink(machine) if this.closed => machine.stats(),
                _ => return Err(Wrong::Stall { node, at }),
            };
        }
        Ok(all)
    }

    fn members(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.spec.chain.len()).map(|position| self.spec.chain.node(position))
    }
}

/// A message that differs from one seed, and from one place, to the next.
fn bytes_of(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at.wrapping_add(seed)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}
