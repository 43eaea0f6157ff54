//! Measurements of the running fabric. The switches' tasks and the network write them, all other
//! code only reads them, and no task waits for them.

pub(crate) mod counters;

use crate::api::{ConnectionId, NotAdmitted};
use crate::intent::tables::RuleCounts;
use cool_machine::{Duration, Time};
use cool_topology::discovery::RefusedFrames;
use cool_topology::{DatapathId, Link, Port};
use counters::{PortCounters, SwitchCounters};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

/// Maximum number of rejected switches that are recorded.
const TURNED_AWAY_MAX: usize = 64;

/// Period for which refused packets and rejected switches are reported after the last of them.
pub const RECENT: Duration = Duration::from_secs(300);

/// Counters of a port, and their rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PortLoad {
    /// Counts since the switch started.
    pub counters: PortCounters,
    /// Receive rate between the last two readings.
    pub rx_bytes_per_second: f64,
    /// Send rate between the last two readings.
    pub tx_bytes_per_second: f64,
}

/// Counters of a switch, and their rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwitchLoad {
    /// Ports by number.
    pub ports: BTreeMap<u32, PortLoad>,
    /// Multicast packets to the controller's addresses that the switch dropped because their
    /// senders are not members.
    pub nonmember_packets: u64,
    /// Whether some of them were dropped within [`RECENT`], while this controller counted.
    pub nonmember_packets_recent: bool,
    /// Packets that its ports handed to the controller on this connection.
    pub packet_ins: u64,
    /// Packet-ins that were dropped because their ports caused too many.
    pub packet_ins_dropped: u64,
    /// Whether some of them were dropped within [`RECENT`].
    pub packet_ins_dropped_recent: bool,
    /// Whether the switch limits packet-ins by meters.
    pub meters: bool,
    /// Whether the switch has group tables of type ALL, if it reports that.
    pub group_tables: Option<bool>,
    /// Whether it is an Open vSwitch that forwards packets in user space, which does not fill in
    /// checksums.
    pub is_in_user_space: bool,
}

/// Histogram of durations.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// For each of [`Histogram::BOUNDS`], the number of durations up to it and above the previous
    /// bound; finally the number of longer ones.
    pub counts: [u64; Histogram::BOUNDS.len() + 1],
    /// Sum in seconds.
    pub sum: f64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; Histogram::BOUNDS.len() + 1], sum: 0.0 }
    }
}

impl Histogram {
    /// Upper bounds of the buckets, in seconds.
    pub const BOUNDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

    fn record(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = Histogram::BOUNDS.iter().position(|bound| seconds <= *bound);
        self.counts[bucket.unwrap_or(Histogram::BOUNDS.len())] += 1;
        self.sum += seconds;
    }
}

/// All measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Connected switches that have reported their counters.
    pub switches: BTreeMap<DatapathId, SwitchLoad>,
    /// Number of entries that each switch must hold.
    pub rules: BTreeMap<DatapathId, RuleCounts>,
    /// Time from a change of a switch's desired entries until the switch acknowledges it.
    pub installation: Histogram,
    /// Time from the moment at which both ends are up until a link or node is found.
    pub discovery: Histogram,
    /// LLDP frames that were refused.
    pub refused_lldp: RefusedFrames,
    /// Number of rejected switches by cause.
    pub not_admitted: BTreeMap<&'static str, u64>,
    /// Latest rejection of each datapath id and address, within [`RECENT`].
    pub rejected: BTreeMap<(DatapathId, IpAddr), RejectedSwitch>,
    /// Connections that have ended, by datapath id, if it was known, and address.
    pub broken_connections: BTreeMap<(Option<DatapathId>, IpAddr), BrokenConnections>,
}

/// Connections of one switch that have ended, each within [`RECENT`] of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenConnections {
    /// Number of connections.
    pub count: u32,
    /// Reason why the last one ended.
    pub why: String,
    /// Time at which the last one ended.
    pub at: Instant,
}

/// A switch that was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedSwitch {
    /// Reason.
    pub why: NotAdmitted,
    /// Time of the rejection.
    pub at: Instant,
}

#[derive(Debug, Default)]
struct TelemetryState {
    measurements: Measurements,
    sources: BTreeMap<DatapathId, CounterSource>,
}

/// Connection on which the kept counters of a switch were reported.
#[derive(Debug)]
struct CounterSource {
    connection: ConnectionId,
    /// Time of its last report.
    at: Time,
    /// Times at which the counts of non-member packets and of dropped packet-ins last rose.
    rose: [Option<Time>; 2],
}

/// Store of the measurements.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    state: Mutex<TelemetryState>,
}

impl Telemetry {
    /// Returns all current measurements.
    pub(crate) fn read(&self) -> Measurements {
        let mut state = self.state.lock();
        state.measurements.rejected.retain(|_, rejected| rejected.at.elapsed() < RECENT);
        state.measurements.broken_connections.retain(|_, broken| broken.at.elapsed() < RECENT);
        state.measurements.clone()
    }

    /// Records that a switch at this address, which reports this datapath id, was rejected.
    pub(crate) fn not_admitted(&self, claimed: DatapathId, address: IpAddr, why: NotAdmitted) {
        let measurements = &mut self.state.lock().measurements;
        *measurements.not_admitted.entry(why.cause()).or_default() += 1;
        let rejected = &mut measurements.rejected;
        rejected.retain(|_, rejected| rejected.at.elapsed() < RECENT);
        if rejected.len() < TURNED_AWAY_MAX || rejected.contains_key(&(claimed, address)) {
            rejected.insert((claimed, address), RejectedSwitch { why, at: Instant::now() });
        }
    }

    /// Records that a connection has ended for this reason. Its switch may not have stated its
    /// datapath id.
    pub(crate) fn connection_broken(&self, switch: Option<DatapathId>, address: IpAddr, why: &str) {
        let broken = &mut self.state.lock().measurements.broken_connections;
        broken.retain(|_, broken| broken.at.elapsed() < RECENT);
        let before = broken.get(&(switch, address)).map(|broken| broken.count);
        if before.is_some() || broken.len() < TURNED_AWAY_MAX {
            let count = before.unwrap_or(0).saturating_add(1);
            let new = BrokenConnections { count, why: why.to_owned(), at: Instant::now() };
            broken.insert((switch, address), new);
        }
    }

    /// Records the counters that a switch reported on this connection.
    pub(crate) fn counted(
        &self,
        connection: ConnectionId,
        switch: DatapathId,
        now: Time,
        counted: SwitchCounters,
    ) {
        let mut state = self.state.lock();
        let before = state.sources.remove(&switch).filter(|source| source.connection == connection);
        let old = state.measurements.switches.remove(&switch).unwrap_or_default();
        let seconds = before.as_ref().map_or(0.0, |source| (now - source.at).as_secs_f64());
        let rises = [
            counted.nonmember_packets > old.nonmember_packets,
            counted.packet_ins_dropped > old.packet_ins_dropped,
        ];
        let rose = match &before {
            Some(source) => [0, 1].map(|i| if rises[i] { Some(now) } else { source.rose[i] }),
            // It is unknown when the packets of earlier connections were counted.
            None => [None, counted.packet_ins_dropped.gt(&0).then_some(now)],
        };
        let [nonmember_packets_recent, packet_ins_dropped_recent] =
            rose.map(|at| at.is_some_and(|at| now - at <= RECENT));
        state.sources.insert(switch, CounterSource { connection, at: now, rose });
        let rate = |before: u64, after: u64| match seconds > 0.0 {
            true => after.saturating_sub(before) as f64 / seconds,
            false => 0.0,
        };
        let load = |(port, counters): (u32, PortCounters)| {
            // A new port has no rate yet.
            let old = old.ports.get(&port).map_or(counters, |load| load.counters);
            let load = PortLoad {
                counters,
                rx_bytes_per_second: rate(old.rx_bytes, counters.rx_bytes),
                tx_bytes_per_second: rate(old.tx_bytes, counters.tx_bytes),
            };
            (port, load)
        };
        let load = SwitchLoad {
            ports: counted.ports.into_iter().map(load).collect(),
            nonmember_packets: counted.nonmember_packets,
            nonmember_packets_recent,
            packet_ins: counted.packet_ins,
            packet_ins_dropped: counted.packet_ins_dropped,
            packet_ins_dropped_recent,
            meters: counted.meters,
            group_tables: counted.group_tables,
            is_in_user_space: counted.is_in_user_space,
        };
        state.measurements.switches.insert(switch, load);
    }

    /// Records the end of a connection.
    pub(crate) fn ended(&self, connection: ConnectionId, switch: DatapathId) {
        let mut state = self.state.lock();
        if state.sources.get(&switch).is_some_and(|source| source.connection == connection) {
            state.sources.remove(&switch);
            state.measurements.switches.remove(&switch);
        }
    }

    /// Records how many entries a switch must hold; `None` if the switch was removed.
    pub(crate) fn desired(&self, switch: DatapathId, rules: Option<RuleCounts>) {
        let reported = &mut self.state.lock().measurements.rules;
        match rules {
            Some(rules) => drop(reported.insert(switch, rules)),
            None => drop(reported.remove(&switch)),
        }
    }

    /// Records how long a switch took to acknowledge an update.
    pub(crate) fn installed(&self, took: Duration) {
        self.state.lock().measurements.installation.record(took);
    }

    /// Records the number of refused LLDP frames.
    pub(crate) fn refused_lldp(&self, refused: RefusedFrames) {
        self.state.lock().measurements.refused_lldp = refused;
    }

    /// Records how long it took to find a link or node.
    pub(crate) fn found(&self, took: Duration) {
        self.state.lock().measurements.discovery.record(took);
    }
}

/// Times at which ports came up and nodes registered, from which the latency of discovery is
/// computed.
#[derive(Debug, Default)]
pub(crate) struct DiscoveryLatency {
    ports: BTreeMap<Port, Time>,
    nodes: BTreeMap<String, Time>,
}

impl DiscoveryLatency {
    pub(crate) fn port_up(&mut self, now: Time, port: Port) {
        self.ports.entry(port).or_insert(now);
    }

    pub(crate) fn port_down(&mut self, port: Port) {
        self.ports.remove(&port);
    }

    pub(crate) fn switch_removed(&mut self, switch: DatapathId) {
        self.ports.retain(|port, _| port.switch != switch);
    }

    pub(crate) fn registered(&mut self, now: Time, node: &str) {
        self.nodes.insert(node.to_owned(), now);
    }

    pub(crate) fn left(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// Returns how long a link that was found now has been up.
    pub(crate) fn link(&self, now: Time, link: Link) -> Option<Duration> {
        let since = self.ports.get(&link.a)?.max(self.ports.get(&link.b)?);
        Some(now - *since)
    }

    /// Returns how long a node that was found now has been up.
    pub(crate) fn node(&self, now: Time, node: &str, port: Port) -> Option<Duration> {
        let since = self.ports.get(&port)?.max(self.nodes.get(node)?);
        Some(now - *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(rx_bytes: u64) -> SwitchCounters {
        let port = PortCounters { rx_bytes, ..PortCounters::default() };
        SwitchCounters { ports: BTreeMap::from([(1, port)]), ..SwitchCounters::default() }
    }

    #[test]
    fn a_rate_is_between_two_answers_of_one_connection() {
        let telemetry = Telemetry::default();
        let switch = DatapathId(7);
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let rate = |telemetry: &Telemetry| telemetry.read().switches[&switch].ports[&1].rx_bytes_per_second;
        telemetry.counted(1, switch, at(0), counted(500));
        assert_eq!(rate(&telemetry), 0.0);
        telemetry.counted(1, switch, at(2), counted(2500));
        assert_eq!(rate(&telemetry), 1000.0);
        // A switch that restarts counts from zero.
        telemetry.counted(1, switch, at(4), counted(0));
        assert_eq!(rate(&telemetry), 0.0);
        telemetry.counted(2, switch, at(1), counted(9000));
        assert_eq!(rate(&telemetry), 0.0);
        telemetry.ended(1, switch);
        assert!(telemetry.read().switches.contains_key(&switch));
        telemetry.ended(2, switch);
        assert!(telemetry.read().switches.is_empty());
    }

    #[test]
    fn refusals_are_reported_for_a_while_after_the_last_one() {
        let telemetry = Telemetry::default();
        let switch = DatapathId(7);
        let lately = |seconds, nonmember_packets, packet_ins_dropped| {
            let counted =
                SwitchCounters { nonmember_packets, packet_ins_dropped, ..SwitchCounters::default() };
            telemetry.counted(1, switch, Time::ZERO + Duration::from_secs(seconds), counted);
            let load = &telemetry.read().switches[&switch];
            (load.nonmember_packets_recent, load.packet_ins_dropped_recent)
        };
        // Packets that were counted for an earlier controller may be old.
        assert_eq!(lately(0, 5, 0), (false, false));
        assert_eq!(lately(2, 6, 0), (true, false));
        assert_eq!(lately(200, 6, 1), (true, true));
        assert_eq!(lately(303, 6, 1), (false, true));
        assert_eq!(lately(600, 6, 1), (false, false));
        assert_eq!(lately(602, 7, 1), (true, false));
    }

    #[test]
    fn connections_that_break_again_and_again_are_counted() {
        let telemetry = Telemetry::default();
        let (switch, address) = (Some(DatapathId(7)), IpAddr::from([10, 0, 0, 9]));
        for why in ["it refused a barrier", "it did not report its tables"] {
            telemetry.connection_broken(switch, address, why);
        }
        for last in 0..=255 {
            telemetry.connection_broken(None, [10, 0, 1, last].into(), "its first message is not a hello");
        }
        let broken = telemetry.read().broken_connections;
        let of_switch = &broken[&(switch, address)];
        assert_eq!((of_switch.count, of_switch.why.as_str()), (2, "it did not report its tables"));
        assert_eq!(broken.len(), TURNED_AWAY_MAX);
    }

    #[test]
    fn durations_are_counted_up_to_their_bounds() {
        let mut histogram = Histogram::default();
        for ms in [1, 2, 3, 700, 60_000] {
            histogram.record(Duration::from_millis(ms));
        }
        assert_eq!(histogram.counts, [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]);
        assert!((histogram.sum - 60.706).abs() < 1e-9);
    }
}
