//! State that all simulated switches and agents share: the cables between switches, and counters.

use crate::network_plan::{NetworkPlan, PortPeer};
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

/// Most messages that wait for the socket of a switch. More are lost, as packets are in a network.
pub(crate) const QUEUE: usize = 1 << 14;

/// The simulated network.
pub(crate) struct SimulatedFabric {
    pub(crate) plan: NetworkPlan,
    /// The queue of each switch, with messages to its controller.
    to_controller: Vec<mpsc::Sender<Vec<u8>>>,
    /// Whether each switch has completed its handshake. Before, it must not send other messages.
    up: Vec<AtomicBool>,
    /// Ports whose cable was removed: switch and number.
    down: Mutex<BTreeSet<(usize, u32)>>,
    origin: Instant,
    /// The last description of a group that an agent has received.
    pub(crate) last_description: Mutex<Option<GroupDescription>>,
    pub(crate) counts: FabricCounts,
    /// Notified when a counter changes.
    pub(crate) count_changed: Notify,
}

/// An encoded description of a group, with the group's number and epoch.
pub(crate) struct GroupDescription {
    pub(crate) bytes: Vec<u8>,
    pub(crate) group: u64,
    pub(crate) epoch: u32,
}

/// Counters of all switches and agents.
#[derive(Default)]
pub(crate) struct FabricCounts {
    /// Switches that have completed the handshake.
    pub(crate) switches_up: AtomicU64,
    /// Flows and groups in all switches.
    pub(crate) flows: AtomicU64,
    pub(crate) groups: AtomicU64,
    /// Groups that belong to multicast trees. The others are for fast failover: they follow the
    /// links, and after a restart the controller keeps for a while those that it has found in
    /// switches.
    pub(crate) trees: AtomicU64,
    /// Number of changes of flows and groups, and the time of the last one in nanoseconds.
    pub(crate) changes: AtomicU64,
    last_change: AtomicU64,
    /// Agents that the controller has accepted.
    pub(crate) joined: AtomicU64,
    /// Bytes of the messages that agents have received.
    pub(crate) bytes_to_agents: AtomicU64,
    /// Ranks that have received their group, and ranks that were refused one.
    pub(crate) enlisted: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Messages for which a queue had no space.
    pub(crate) messages_lost: AtomicU64,
}

/// Returns the address of a host on the data network.
pub(crate) fn ip(host: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0001 + host as u32)
}

/// Returns the address of a host's interface.
pub(crate) fn mac(host: usize) -> [u8; 6] {
    let [a, b, c, d] = (host as u32).to_be_bytes();
    [0x06, 0, a, b, c, d]
}

impl SimulatedFabric {
    /// Returns the network, and for each switch the queue of messages that it must send.
    pub(crate) fn new(plan: NetworkPlan) -> (SimulatedFabric, Vec<mpsc::Receiver<Vec<u8>>>) {
        let (to_controller, queues) = plan.switches.iter().map(|_| mpsc::channel(QUEUE)).unzip();
        let up = plan.switches.iter().map(|_| AtomicBool::new(false)).collect();
        let fabric = SimulatedFabric {
            plan,
            to_controller,
            up,
            down: Mutex::default(),
            origin: Instant::now(),
            last_description: Mutex::default(),
            counts: FabricCounts::default(),
            count_changed: Notify::new(),
        };
        (fabric, queues)
    }

    /// Queues a message of a switch, and waits until the queue has space.
    pub(crate) async fn send(&self, switch: usize, message: Message) {
        if let Some(bytes) = encode(&message)
            && self.to_controller[switch].send(bytes).await.is_err()
        {
            self.counts.messages_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that a switch has completed its handshake.
    pub(crate) fn mark_up(&self, switch: usize) {
        if !self.up[switch].swap(true, Ordering::Relaxed) {
            self.counts.switches_up.fetch_add(1, Ordering::Relaxed);
            self.count_changed.notify_waiters();
        }
    }

    /// Sends a frame that arrives at a port to the controller, unless the port is down.
    pub(crate) fn receive_frame(&self, switch: usize, port: u32, frame: &[u8]) {
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
        self.enqueue(switch, Message::new(0, Body::PacketIn(packet)));
    }

    /// Sends a frame out of a port. If a switch is connected there, the frame arrives at that
    /// switch.
    pub(crate) fn send_frame(&self, switch: usize, port: u32, frame: &[u8]) {
        if lock(&self.down).contains(&(switch, port)) {
            return;
        }
        if let Some(PortPeer::Switch { switch, port }) = self.plan.switches[switch].ports.get(&port) {
            self.receive_frame(*switch, *port, frame);
        }
    }

    /// Removes or restores the cable at a port. The switches at both ends report it.
    pub(crate) fn set_cable(&self, switch: usize, port: u32, up: bool) {
        let mut ends = vec![(switch, port)];
        if let Some(PortPeer::Switch { switch, port }) = self.plan.switches[switch].ports.get(&port) {
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
            self.enqueue(switch, Message::new(0, Body::PortStatus(status)));
        }
    }

    /// Queues a message of a switch without waiting. A switch that has not completed its handshake
    /// sends nothing. The message is lost if the queue has no space.
    fn enqueue(&self, switch: usize, message: Message) {
        if !self.up[switch].load(Ordering::Relaxed) {
            return;
        }
        if let Some(bytes) = encode(&message)
            && self.to_controller[switch].try_send(bytes).is_err()
        {
            self.counts.messages_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records a change of a flow or a group.
    pub(crate) fn record_change(&self) {
        self.counts.changes.fetch_add(1, Ordering::Relaxed);
        self.counts.last_change.store(self.origin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.count_changed.notify_waiters();
    }

    /// Returns the time of the last change.
    pub(crate) fn last_change(&self) -> Instant {
        self.origin + Duration::from_nanos(self.counts.last_change.load(Ordering::Relaxed))
    }

    /// Waits until a condition on the counters holds.
    ///
    /// # Errors
    /// Returns an error if the condition does not hold within `timeout`. `awaited` names it in the
    /// error.
    pub(crate) async fn wait_until(
        &self,
        awaited: &str,
        timeout: Duration,
        holds: impl Fn(&FabricCounts) -> bool,
    ) -> Result<(), String> {
        let end = Instant::now() + timeout;
        loop {
            let count_changed = self.count_changed.notified();
            if holds(&self.counts) {
                return Ok(());
            }
            // Some counters change without a notification, so they are also checked at intervals.
            let soon = (Instant::now() + Duration::from_millis(10)).min(end);
            if tokio::time::timeout_at(soon.into(), count_changed).await.is_err() && Instant::now() >= end {
                return Err(format!("{awaited}: not reached within {timeout:?}; {}", self.counts.summary()));
            }
        }
    }

    /// Waits until there has been no change for `silence`. Returns the time of the last change.
    pub(crate) async fn wait_until_quiet(&self, silence: Duration) -> Instant {
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

impl FabricCounts {
    /// Returns the counters as a text for errors.
    pub(crate) fn summary(&self) -> String {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} switches, {} flows, {} groups ({} of trees) after {} changes; {} agents joined, {} ranks enlisted, {} refused; {} messages lost",
            get(&self.switches_up),
            get(&self.flows),
            get(&self.groups),
            get(&self.trees),
            get(&self.changes),
            get(&self.joined),
            get(&self.enlisted),
            get(&self.refused),
            get(&self.messages_lost)
        )
    }
}

/// Encodes a message. If that is impossible, prints the reason and returns `None`.
fn encode(message: &Message) -> Option<Vec<u8>> {
    match message.encode() {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            eprintln!("cool-load: cannot send {message}: {error}");
            None
        }
    }
}

/// Returns the description of a port, as its switch reports it.
pub(crate) fn port_of(switch: usize, number: u32, up: bool) -> Port {
    let [a, b] = (switch as u16).to_be_bytes();
    let [c, d] = (number as u16).to_be_bytes();
    Port {
        port: PortNo(number),
        hw_addr: MacAddr(0x0a, 0, a, b, c, d),
        name: fixed_text(&format!("eth{number}")),
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

/// Returns a text for an OpenFlow message. It is empty if `text` is too long.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> FixedText<N> {
    FixedText::new(text).unwrap_or(FixedText([0; N]))
}

/// Locks a mutex, also after a panic, because each change of its data is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
