//! The costs of the work of agents on the CPUs of their nodes, which agents measure at their start.

use super::cost_model::{median, round_to_preferred_number};
use cool_collective::timing::{AgentCosts, nanos};
use cool_proto::control::CpuCosts;
use std::collections::BTreeMap;
use std::time::Duration;

/// Length of the longest id of a machine, in characters.
const MACHINE_ID_MAX: usize = 64;
/// Rates, in bytes per second, and times of a plausible measurement.
const RATES: std::ops::RangeInclusive<u64> = 1_000_000..=1_000_000_000_000;
const TIME_MAX: Duration = Duration::from_millis(10);
/// How many times longer a packet of a multicast takes an agent, and a byte of a TCP connection,
/// than an agent measures over the loopback interface. That path contains neither the tables and
/// timers of the engine nor a network interface. Fitted to measurements of four hosts on a bridge
/// without shaping, with programs of the release profile.
const PACKET_FACTOR: u64 = 6;
const SOCKET_FACTOR: u64 = 8;
/// Number of messages between a rank and its agent in a call: the request and the reply, each of
/// which is sent and received.
const MESSAGES_OF_CALL: u32 = 4;

/// The costs of an agent's work on the CPU of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpeed {
    /// The id of the machine. Nodes on one machine share its CPUs.
    machine: String,
    /// The number of CPUs that the agent may use.
    cpus: u32,
    /// Rates of copying, of combining, and of a TCP connection.
    rates: [u64; 3],
    /// Work to send or receive a short message, and a packet of a multicast.
    times: [Duration; 2],
}

impl TryFrom<CpuCosts> for AgentSpeed {
    type Error = &'static str;

    fn try_from(costs: CpuCosts) -> Result<AgentSpeed, &'static str> {
        let CpuCosts { machine, cpus, copy, reduce, socket, message_ns, packet_ns } = costs;
        let (rates, times) = ([copy, reduce, socket], [message_ns, packet_ns].map(Duration::from_nanos));
        if machine.len() > MACHINE_ID_MAX || !machine.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the id of the machine must be short printable ASCII");
        }
        if cpus == 0 || !rates.iter().all(|rate| RATES.contains(rate)) {
            return Err("rates must be from 1 MB/s to 1 TB/s, on at least one CPU");
        }
        if !times.iter().all(|time| (Duration::from_nanos(1)..=TIME_MAX).contains(time)) {
            return Err("the work for a message must take from 1 ns to 10 ms");
        }
        Ok(AgentSpeed { machine, cpus, rates, times })
    }
}

impl AgentSpeed {
    /// Sets the costs of the agents of a group to the medians of their measurements, rounded so
    /// that another measurement most likely yields the same plans. `agents` must contain each node
    /// of the group once. If there are more nodes than CPUs on a machine, as in an emulated
    /// network, all work takes as many times longer, because in most collectives all nodes work at
    /// the same time.
    pub fn set_costs<'a>(agents: impl Iterator<Item = &'a AgentSpeed>, costs: &mut AgentCosts) {
        let agents: Vec<&AgentSpeed> = agents.collect();
        let mut machines: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for agent in &agents {
            let (nodes, cpus) = machines.entry(&agent.machine).or_default();
            (*nodes, *cpus) = (*nodes + 1, agent.cpus.into());
        }
        let shares = machines.values().map(|(nodes, cpus)| nodes.div_ceil(*cpus));
        let share = shares.max().unwrap_or(1);
        let [copy, reduce, socket] =
            [0, 1, 2].map(|i| median(agents.iter().map(|agent| agent.rates[i])).unwrap_or(0));
        let [message, packet] =
            [0, 1].map(|i| median(agents.iter().map(|agent| nanos(agent.times[i]))).unwrap_or(0));
        let rate = |measured: u64| round_to_preferred_number(measured / share);
        let time = |measured: u64| Duration::from_nanos(round_to_preferred_number(measured * share));
        (costs.copy, costs.reduce, costs.socket) = (rate(copy), rate(reduce), rate(socket / SOCKET_FACTOR));
        (costs.send, costs.receive) = (time(message), time(message));
        costs.packet = time(PACKET_FACTOR * packet);
        costs.call = costs.send * MESSAGES_OF_CALL;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn measured(machine: &str, packet_ns: u64) -> CpuCosts {
        CpuCosts {
            machine: machine.into(),
            cpus: 2,
            copy: 10_000_000_000,
            reduce: 4_700_000_000,
            socket: 3_000_000_000,
            message_ns: 6_800,
            packet_ns,
        }
    }

    fn costs(agents: &[(&str, u64)]) -> AgentCosts {
        let speed = |(machine, packet_ns): &(&str, u64)| measured(machine, *packet_ns).try_into().unwrap();
        let speeds: Vec<AgentSpeed> = agents.iter().map(speed).collect();
        let mut costs = AgentCosts::default();
        AgentSpeed::set_costs(speeds.iter(), &mut costs);
        costs
    }

    #[test]
    fn costs_are_rounded_medians() {
        let found = costs(&[("a", 900), ("b", 1_100), ("c", 50_000)]);
        assert_eq!([found.packet, found.send], [6_800, 6_800].map(Duration::from_nanos));
        assert_eq!((found.copy, found.reduce, found.socket), (10_000_000_000, 4_600_000_000, 320_000_000));
        assert_eq!(found.mtu, AgentCosts::default().mtu);
    }

    #[test]
    fn nodes_of_one_machine_share_its_cpus() {
        // All values are rounded to six numbers per decade.
        let shared = costs(&[("a", 1_500); 4]);
        assert_eq!(shared.packet, costs(&[("a", 3_000), ("b", 3_000)]).packet);
        assert_eq!(shared.copy, 4_600_000_000, "half of the rate");
        assert_eq!(costs(&[("a", 1_500); 2]).packet, Duration::from_nanos(10_000));
    }

    #[test]
    fn implausible_costs_are_refused() {
        let valid = measured("a", 1_500);
        assert!(AgentSpeed::try_from(valid.clone()).is_ok());
        for invalid in [
            CpuCosts { machine: "x".repeat(65), ..valid.clone() },
            CpuCosts { machine: "\x1b[2J".into(), ..valid.clone() },
            CpuCosts { cpus: 0, ..valid.clone() },
            CpuCosts { socket: 0, ..valid.clone() },
            CpuCosts { copy: u64::MAX, ..valid.clone() },
            CpuCosts { packet_ns: 0, ..valid.clone() },
            CpuCosts { message_ns: u64::MAX, ..valid },
        ] {
            assert!(AgentSpeed::try_from(invalid.clone()).is_err(), "{invalid:?}");
        }
    }
}
