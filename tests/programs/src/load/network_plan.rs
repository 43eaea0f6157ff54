//! The plan of the simulated network: switches, cables and hosts.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Flows that every switch must have: LLDP, ARP, four types of neighbor discovery, broadcasts,
/// multicast of the link for both versions of IP and for PTP, and reports of memberships for both
/// versions of IP to the controller; a flow that drops other packets; and flows that count and drop
/// packets to groups, for both versions of IP.
const FLOWS_PER_SWITCH: usize = 15;
/// Flows of a host: packets to it, and its LLDP and ARP to the controller.
const FLOWS_PER_HOST: usize = 3;

/// The other end of the cable at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortPeer {
    Switch { switch: usize, port: u32 },
    Host(usize),
}

/// The ports of a switch that have a cable.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwitchPorts {
    pub(crate) ports: BTreeMap<u32, PortPeer>,
}

/// The port to which a host is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPort {
    pub(crate) switch: usize,
    pub(crate) port: u32,
}

/// A network. Switches are numbered from 0, and the first `racks` of them are ToRs.
#[derive(Clone, Debug)]
pub(crate) struct NetworkPlan {
    pub(crate) switches: Vec<SwitchPorts>,
    pub(crate) hosts: Vec<HostPort>,
    pub(crate) racks: usize,
    pub(crate) links: usize,
}

impl NetworkPlan {
    fn new(racks: usize, others: usize) -> NetworkPlan {
        NetworkPlan {
            switches: vec![SwitchPorts::default(); racks + others],
            hosts: Vec::new(),
            racks,
            links: 0,
        }
    }

    /// Returns the number of the next free port.
    fn next_port(&self, switch: usize) -> u32 {
        self.switches[switch].ports.len() as u32 + 1
    }

    /// Connects two switches.
    fn link(&mut self, a: usize, b: usize) {
        let (at_a, at_b) = (self.next_port(a), self.next_port(b));
        self.switches[a].ports.insert(at_a, PortPeer::Switch { switch: b, port: at_b });
        self.switches[b].ports.insert(at_b, PortPeer::Switch { switch: a, port: at_a });
        self.links += 1;
    }

    /// Connects this number of hosts to each ToR.
    fn add_hosts(&mut self, per_rack: usize) {
        for switch in 0..self.racks {
            for _ in 0..per_rack {
                let port = self.next_port(switch);
                self.switches[switch].ports.insert(port, PortPeer::Host(self.hosts.len()));
                self.hosts.push(HostPort { switch, port });
            }
        }
    }

    /// Returns a network of `leaves` ToRs, each of which is connected to each of `spines` switches.
    fn leaf_spine(leaves: usize, spines: usize, per_rack: usize) -> NetworkPlan {
        let mut plan = NetworkPlan::new(leaves, spines);
        for leaf in 0..leaves {
            (0..spines).for_each(|spine| plan.link(leaf, leaves + spine));
        }
        plan.add_hosts(per_rack);
        plan
    }

    /// Returns a fat-tree of switches with `k` ports (Al-Fares et al., SIGCOMM 2008), with any
    /// number of hosts per rack. `k` must be even.
    fn fat_tree(k: usize, per_rack: usize) -> NetworkPlan {
        let half = k / 2;
        let (edges, cores) = (k * half, half * half);
        let mut plan = NetworkPlan::new(edges, edges + cores);
        for pod in 0..k {
            for up in 0..half {
                let aggregation = edges + pod * half + up;
                (0..half).for_each(|edge| plan.link(pod * half + edge, aggregation));
                (0..half).for_each(|core| plan.link(aggregation, 2 * edges + up * half + core));
            }
        }
        plan.add_hosts(per_rack);
        plan
    }

    /// Returns the number of flows in all switches as soon as the network is discovered. A ToR has
    /// those of its hosts and of the other racks, and other switches have those of all racks. Each
    /// end of a link has one flow for its LLDP.
    pub(crate) fn flows(&self) -> usize {
        self.switches.len() * (FLOWS_PER_SWITCH + self.racks) - self.racks
            + FLOWS_PER_HOST * self.hosts.len()
            + 2 * self.links
    }
}

impl FromStr for NetworkPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<NetworkPlan, String> {
        let numbers = |rest: &str| -> Option<Vec<usize>> {
            rest.split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect()
        };
        let plan = match text.split_once(':') {
            Some(("fattree", rest)) => match numbers(rest).as_deref() {
                Some([k, per_rack]) if k % 2 == 0 => Some(NetworkPlan::fat_tree(*k, *per_rack)),
                _ => None,
            },
            Some(("leafspine", rest)) => match numbers(rest).as_deref() {
                Some([leaves, spines, per_rack]) => {
                    Some(NetworkPlan::leaf_spine(*leaves, *spines, *per_rack))
                }
                _ => None,
            },
            _ => None,
        };
        plan.filter(|plan| plan.switches.len() < 1 << 16 && plan.hosts.len() < 1 << 20).ok_or_else(|| {
            "expected fattree:KxH (K ports per switch, even; H hosts per rack) or leafspine:LxSxH".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cable_of_a_fat_tree_has_two_ends() {
        let plan: NetworkPlan = "fattree:20x50".parse().unwrap();
        assert_eq!((plan.switches.len(), plan.racks, plan.hosts.len(), plan.links), (500, 200, 10_000, 4000));
        for (at, switch) in plan.switches.iter().enumerate() {
            for (number, end) in &switch.ports {
                match *end {
                    PortPeer::Switch { switch: peer, port } => {
                        let back = PortPeer::Switch { switch: at, port: *number };
                        assert_eq!(plan.switches[peer].ports[&port], back);
                    }
                    PortPeer::Host(host) => assert_eq!(plan.hosts[host].port, *number),
                }
            }
        }
        // 300 switches have flows for 200 racks; 200 ToRs for 199 racks and 50 hosts, three each.
        // 20 links end at each of the former, 10 at each of the latter. Every switch has 11 others.
        let links = 300 * 20 + 200 * 10;
        assert_eq!(plan.flows(), 300 * 200 + 200 * (199 + 50 * 3) + links + 500 * 15);
        assert!("fattree:3x1".parse::<NetworkPlan>().is_err() && "ring:4".parse::<NetworkPlan>().is_err());
    }
}
