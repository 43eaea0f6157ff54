//! A bulk flow that shares the network with broadcasts and backs off as TCP does (NewReno with
//! selective acknowledgements: RFC 5681, RFC 6675). It shows whether both get their share. The flow
//! has no end and no content. Lost packets are not counted, and not retransmitted either.

use crate::network::{Destination, PacketNetwork};
use cool_machine::{Duration, Time};
use cool_types::wire::DATAGRAM_FRAMING;
use std::collections::BTreeSet;

/// The first byte of the flow's packets. Packets of streams begin differently.
const MAGIC: u8 = 0xF1;
/// Bytes of a full packet without Ethernet, IPv4 and UDP headers.
const FULL: usize = 1472;
/// Number of later acknowledgements after which a packet counts as lost (DupThresh in RFC 6675).
const REORDERING: u32 = 3;
/// Time without an acknowledgement after which the flow starts again (Linux's shortest RTO).
const TIMEOUT: Duration = Duration::from_millis(200);

/// A bulk flow.
#[derive(Debug)]
pub(crate) struct BulkFlow {
    number: u8,
    from: u16,
    to: u16,
    /// The number by which the network wakes it.
    whom: u32,
    next: u32,
    /// Packets in flight.
    flying: BTreeSet<u32>,
    /// Maximum number of packets in flight.
    window: f64,
    threshold: f64,
    /// A loss before this packet belongs to the previous loss event.
    recovered: u32,
    heard: Time,
    bytes: u64,
}

impl BulkFlow {
    pub(crate) fn new(number: u8, from: u16, to: u16, whom: u32) -> BulkFlow {
        BulkFlow {
            number,
            from,
            to,
            whom,
            next: 0,
            flying: BTreeSet::new(),
            window: 10.0,
            threshold: f64::INFINITY,
            recovered: 0,
            heard: Time::ZERO,
            bytes: 0,
        }
    }

    /// Returns the bytes of Ethernet frames that have been acknowledged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of the flow to which a packet belongs, if any.
    pub(crate) fn number_of(bytes: &[u8]) -> Option<u8> {
        (bytes.len() >= 6 && bytes[0] == MAGIC).then(|| bytes[1])
    }

    /// Handles a packet of this flow that arrived at a node.
    pub(crate) fn receive(&mut self, net: &mut PacketNetwork, node: u16, bytes: &[u8]) {
        let Some(Ok(serial)) = bytes.get(2..6).map(|serial| serial.try_into().map(u32::from_be_bytes)) else {
            return;
        };
        if node == self.to {
            net.send(self.to, Destination::Node(self.from), bytes[..6].into());
            return;
        }
        self.heard = net.now();
        if self.flying.remove(&serial) {
            self.bytes += FULL as u64 + DATAGRAM_FRAMING;
            self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        }
        while let Some(&first) = self.flying.first()
            && first + REORDERING <= serial
        {
            self.flying.pop_first();
            if first >= self.recovered {
                self.window = (self.window / 2.0).max(2.0);
                self.threshold = self.window;
                self.recovered = self.next;
            }
        }
        self.fill(net);
    }

    /// Handles the timer, which also starts the flow.
    pub(crate) fn wake(&mut self, net: &mut PacketNetwork) {
        if net.now() - self.heard >= TIMEOUT {
            self.flying.clear();
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = 1.0;
            self.heard = net.now();
        }
        self.fill(net);
        net.wake(self.whom, self.heard + TIMEOUT);
    }

    fn fill(&mut self, net: &mut PacketNetwork) {
        while (self.flying.len() as f64) < self.window {
            let mut bytes = vec![0; FULL];
            bytes[..2].copy_from_slice(&[MAGIC, self.number]);
            bytes[2..6].copy_from_slice(&self.next.to_be_bytes());
            net.send(self.from, Destination::Node(self.to), bytes.into());
            self.flying.insert(self.next);
            self.next += 1;
        }
    }
}
