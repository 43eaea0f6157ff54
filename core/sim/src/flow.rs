//! A bulk flow that shares the network with broadcasts and backs off as TCP does (NewReno with selective
//! acknowledgements: RFC 5681, RFC 6675), to see whether both get their part. It has no end and no content: what is
//! lost is not sent again, only not counted.

use crate::network::{Destination, Network};
use cool_machine::{Duration, Time};
use cool_types::wire::DATAGRAM_FRAMING;
use std::collections::BTreeSet;

/// How its packets begin, which no stream's does.
const MAGIC: u8 = 0xF1;
/// Bytes of a full packet without Ethernet, IPv4 and UDP headers.
const FULL: usize = 1472;
/// A packet is lost when this many later ones have been acknowledged (RFC 6675's DupThresh).
const REORDERING: u32 = 3;
/// Without an acknowledgement for this long it begins anew (Linux's shortest RTO).
const TIMEOUT: Duration = Duration::from_millis(200);

/// The flow.
#[derive(Debug)]
pub(crate) struct Flow {
    number: u8,
    from: u16,
    to: u16,
    /// Its number among those that are woken.
    whom: u32,
    next: u32,
    /// What is under way.
    flying: BTreeSet<u32>,
    /// Packets that may be under way.
    window: f64,
    threshold: f64,
    /// A loss before this packet belongs to the loss before.
    recovered: u32,
    heard: Time,
    bytes: u64,
}

impl Flow {
    pub(crate) fn new(number: u8, from: u16, to: u16, whom: u32) -> Flow {
        Flow {
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

    /// Bytes of Ethernet frames that have been acknowledged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The flow that a packet belongs to, if any.
    pub(crate) fn number_of(bytes: &[u8]) -> Option<u8> {
        (bytes.len() >= 6 && bytes[0] == MAGIC).then(|| bytes[1])
    }

    /// A packet of this flow reached a node.
    pub(crate) fn receive(&mut self, net: &mut Network, node: u16, bytes: &[u8]) {
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

    /// The time that it asked for has come; the first starts it.
    pub(crate) fn wake(&mut self, net: &mut Network) {
        if net.now() - self.heard >= TIMEOUT {
            self.flying.clear();
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = 1.0;
            self.heard = net.now();
        }
        self.fill(net);
        net.wake(self.whom, self.heard + TIMEOUT);
    }

    fn fill(&mut self, net: &mut Network) {
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
