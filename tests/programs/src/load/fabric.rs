//! What all played switches and agents share: the cables between them, and what has been counted.

use crate::plan::{End, Plan};
use rs_openflow::{
    Body, BufferId, FixedText, MacAddr, Match, Message, PacketIn, PacketInReason, Port, PortConfig,
    PortFeatures, PortNo, PortReason, PortState, PortStatus, TableId,
};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// Messages that may wait for a switch's socket; more are lost as packets are.
pub(crate) const QUEUE: usize = 1 << 14;

/// The played network.
pub(crate) struct Fabric {
    pub(crate) plan: Plan,
    /// To each switch's controller.
    towards: Vec<mpsc::Sender<Vec<u8>>>,
    /// Switches that have shaken hands; before, they have nothing to say.
    up: Vec<AtomicBool>,
    /// Ports that are down.
    down: Mutex<BTreeSet<(usize, u32)>>,
    origin: Instant,
    /// The last description of a group that an agent was told.
    pub(crate) described: Mutex<Option<Described>>,
    pub(crate) counts: Counts,
    /// Something was counted.
    pub(crate) counted: Notify,
}

/// A description of a group, and which group that is.
pub(crate) struct Described {
    pub(crate) bytes: Vec<u8>,
    pub(crate) group: u64,
    pub(crate) epoch: u32,
}

/// What has happened.
#[derive(Default)]
pub(crate) struct Counts {
    /// Switches that have shaken hands.
    pub(crate) up: AtomicU64,
    /// Flows and groups that switches hold.
    pub(crate) flows: AtomicU64,
    pub(crate) groups: AtomicU64,
    /// Those of these groups that are parts of trees. The others are for fast failover: they follow links, and those of before
    /// stay while the controller still retains what it has found in switches.
    pub(crate) trees: AtomicU64,
    /// Changes of flows and groups that were sent, and when the last one was, in nanoseconds.
    pub(crate) changes: AtomicU64,
    last_change: AtomicU64,
    /// Agents that the controller has taken in.
    pub(crate) joined: AtomicU64,
    /// Bytes of the messages that agents have been sent.
    pub(crate) told: AtomicU64,
    /// Ranks that were told that their group is made.
    pub(crate) enlisted: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Messages for which there was no room.
    pub(crate) lost: AtomicU64,
}

/// The address of a host on the data network.
pub(crate) fn ip(host: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0001 + host as u32)
}

/// The address of a host's interface.
pub(crate) fn mac(host: usize) -> [u8; 6] {
    let [a, b, c, d] = (host as u32).to_be_bytes();
    [0x06, 0, a, b, c, d]
}

impl Fabric {
    /// The network, and the way of messages of each switch to its socket.
    pub(crate) fn new(plan: Plan) -> (Fabric, Vec<mpsc::Receiver<Vec<u8>>>) {
        let (towards, queues) = plan.switches.iter().map(|_| mpsc::channel(QUEUE)).unzip();
        let up = plan.switches.iter().map(|_| AtomicBool::new(false)).collect();
        let fabric = Fabric {
            plan,
            towards,
            up,
            down: Mutex::default(),
            origin: Instant::now(),
            described: Mutex::default(),
            counts: Counts::default(),
            counted: Notify::new(),
        };
        (fabric, queues)
    }

    /// Hands a message to a switch's socket; waits for room.
    pub(crate) async fn tell(&self, switch: usize, message: Message) {
        if let Some(bytes) = encode(&message)
            && self.towards[switch].send(bytes).await.is_err()
        {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A switch has shaken hands.
    pub(crate) fn is_up(&self, switch: usize) {
        if !self.up[switch].swap(true, Ordering::Relaxed) {
            self.counts.up.fetch_add(1, Ordering::Relaxed);
            self.counted.notify_waiters();
        }
    }

    /// A frame comes in by a port and is handed to the controller, unless the port is down.
    pub(crate) fn arrive(&self, switch: usize, port: u32, frame: &[u8]) {
        if lock(&self.down).contains(&(switch, port)) {
            return;
        }
        let packet = PacketIn {
            buffer: BufferId::NONE,
            total_len: frame.len() as u16,
            reason: PacketInReason::ACTION,
            table: TableId(0),
            cookie: 0,
            matching: Match::new().in_port(PortNo(port)),
            data: frame.to_vec(),
        };
        self.post(switch, Message::new(0, Body::PacketIn(packet)));
    }

    /// A frame leaves by a port: to a switch it comes in there.
    pub(crate) fn leave(&self, switch: usize, port: u32, frame: &[u8]) {
        if lock(&self.down).contains(&(switch, port)) {
            return;
        }
        if let Some(End::Switch { switch, port }) = self.plan.switches[switch].ports.get(&port) {
            self.arrive(*switch, *port, frame);
        }
    }

    /// Pulls or puts back the cable at a port: both ends report it.
    pub(crate) fn cable(&self, switch: usize, port: u32, up: bool) {
        let mut ends = vec![(switch, port)];
        if let Some(End::Switch { switch, port }) = self.plan.switches[switch].ports.get(&port) {
            ends.push((*switch, *port));
        }
        for end in &ends {
            match up {
                true => lock(&self.down).remove(end),
                false => lock(&self.down).insert(*end),
            };
        }
        for (switch, number) in ends {
            let status = PortStatus { reason: PortReason::MODIFY, port: port_of(switch, number, up) };
            self.post(switch, Message::new(0, Body::PortStatus(status)));
        }
    }

    fn post(&self, switch: usize, message: Message) {
        if !self.up[switch].load(Ordering::Relaxed) {
            return;
        }
        if let Some(bytes) = encode(&message)
            && self.towards[switch].try_send(bytes).is_err()
        {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A flow or group was changed.
    pub(crate) fn note_change(&self) {
        self.counts.changes.fetch_add(1, Ordering::Relaxed);
        self.counts.last_change.store(self.origin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.counted.notify_waiters();
    }

    /// How long ago the last change was sent.
    pub(crate) fn last_change(&self) -> Instant {
        self.origin + Duration::from_nanos(self.counts.last_change.load(Ordering::Relaxed))
    }

    /// Waits until something that is counted holds.
    pub(crate) async fn until(
        &self,
        what: &str,
        patience: Duration,
        holds: impl Fn(&Counts) -> bool,
    ) -> Result<(), String> {
        let end = Instant::now() + patience;
        loop {
            let counted = self.counted.notified();
            if holds(&self.counts) {
                return Ok(());
            }
            // Also without news: what is counted without a notice is seen soon.
            let soon = (Instant::now() + Duration::from_millis(10)).min(end);
            if tokio::time::timeout_at(soon.into(), counted).await.is_err() && Instant::now() >= end {
                return Err(format!("{what}: not within {patience:?}; {}", self.counts.text()));
            }
        }
    }

    /// Waits until no change has come for a while; returns when the last one came.
    pub(crate) async fn quiet(&self, silence: Duration) -> Instant {
        let begun = Instant::now();
        loop {
            let last = self.last_change().max(begun);
            if last.elapsed() >= silence {
                return self.last_change();
            }
            tokio::time::sleep_until((last + silence).into()).await;
        }
    }
}

impl Counts {
    pub(crate) fn text(&self) -> String {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} switches, {} flows, {} groups, {} of trees, in {} changes; {} agents joined, {} ranks enlisted, {} refused; {} messages lost",
            get(&self.up),
            get(&self.flows),
            get(&self.groups),
            get(&self.trees),
            get(&self.changes),
            get(&self.joined),
            get(&self.enlisted),
            get(&self.failed),
            get(&self.lost)
        )
    }
}

fn encode(message: &Message) -> Option<Vec<u8>> {
    match message.encode() {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            eprintln!("cool-load: cannot send {message}: {error}");
            None
        }
    }
}

/// A port as its switch tells of it.
pub(crate) fn port_of(switch: usize, number: u32, up: bool) -> Port {
    let [a, b] = (switch as u16).to_be_bytes();
    let [c, d] = (number as u16).to_be_bytes();
    Port {
        port: PortNo(number),
        hw_addr: MacAddr(0x0a, 0, a, b, c, d),
        name: text(&format!("eth{number}")),
        config: PortConfig::NONE,
        state: if up { PortState::LIVE } else { PortState::LINK_DOWN },
        current: PortFeatures::NONE,
        advertised: PortFeatures::NONE,
        supported: PortFeatures::NONE,
        peer: PortFeatures::NONE,
        current_kbps: 10_000_000,
        max_kbps: 10_000_000,
    }
}

/// A short text of an OpenFlow message; empty if it is too long.
pub(crate) fn text<const N: usize>(text: &str) -> FixedText<N> {
    FixedText::new(text).unwrap_or(FixedText([0; N]))
}

/// Nothing that is locked here is left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
