//! The network that is played: switches, cables and hosts.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Flows that every switch holds: LLDP, ARP, four kinds of neighbour discovery, broadcasts and IPv6 multicast of the link to the
/// controller, the rest dropped, what of that is for groups counted, of either version of IP.
const ALWAYS: usize = 11;
/// Flows of a host: packets for it, and its LLDP and its ARP to the controller.
const PER_HOST: usize = 3;

/// What is at the other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Switch { switch: usize, port: u32 },
    Host(usize),
}

/// The ports of a switch that something is connected to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch {
    pub(crate) ports: BTreeMap<u32, End>,
}

/// Where a host is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) switch: usize,
    pub(crate) port: u32,
}

/// Switches by number, from 0; the first `racks` of them are ToRs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) switches: Vec<Switch>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) racks: usize,
    pub(crate) links: usize,
}

impl Plan {
    fn new(racks: usize, others: usize) -> Plan {
        Plan { switches: vec![Switch::default(); racks + others], hosts: Vec::new(), racks, links: 0 }
    }

    fn port(&self, switch: usize) -> u32 {
        self.switches[switch].ports.len() as u32 + 1
    }

    fn link(&mut self, a: usize, b: usize) {
        let (at_a, at_b) = (self.port(a), self.port(b));
        self.switches[a].ports.insert(at_a, End::Switch { switch: b, port: at_b });
        self.switches[b].ports.insert(at_b, End::Switch { switch: a, port: at_a });
        self.links += 1;
    }

    fn hosts(&mut self, per_rack: usize) {
        for switch in 0..self.racks {
            for _ in 0..per_rack {
                let port = self.port(switch);
                self.switches[switch].ports.insert(port, End::Host(self.hosts.len()));
                self.hosts.push(Host { switch, port });
            }
        }
    }

    /// `leaves` ToRs, each linked to each of `spines`.
    fn leaf_spine(leaves: usize, spines: usize, per_rack: usize) -> Plan {
        let mut plan = Plan::new(leaves, spines);
        for leaf in 0..leaves {
            (0..spines).for_each(|spine| plan.link(leaf, leaves + spine));
        }
        plan.hosts(per_rack);
        plan
    }

    /// A fat-tree of switches with `k` ports (Al-Fares et al., SIGCOMM 2008), but any number of hosts a rack.
    fn fat_tree(k: usize, per_rack: usize) -> Plan {
        let half = k / 2;
        let (edges, cores) = (k * half, half * half);
        let mut plan = Plan::new(edges, edges + cores);
        for pod in 0..k {
            for up in 0..half {
                let aggregation = edges + pod * half + up;
                (0..half).for_each(|edge| plan.link(pod * half + edge, aggregation));
                (0..half).for_each(|core| plan.link(aggregation, 2 * edges + up * half + core));
            }
        }
        plan.hosts(per_rack);
        plan
    }

    /// Flows for unicast and what every switch holds, if all is found: at a ToR its hosts (each with what its port says
    /// to the controller) and the other racks, at the ends of links what keeps them known.
    pub(crate) fn flows(&self) -> usize {
        self.switches.len() * (ALWAYS + self.racks) - self.racks
            + PER_HOST * self.hosts.len()
            + 2 * self.links
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Plan, String> {
        let numbers = |rest: &str| -> Option<Vec<usize>> {
            rest.split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect()
        };
        let plan = match text.split_once(':') {
            Some(("fattree", rest)) => match numbers(rest).as_deref() {
                Some([k, per_rack]) if k % 2 == 0 => Some(Plan::fat_tree(*k, *per_rack)),
                _ => None,
            },
            Some(("leafspine", rest)) => match numbers(rest).as_deref() {
                Some([leaves, spines, per_rack]) => Some(Plan::leaf_spine(*leaves, *spines, *per_rack)),
                _ => None,
            },
            _ => None,
        };
        plan.filter(|plan| plan.switches.len() < 1 << 16 && plan.hosts.len() < 1 << 20).ok_or_else(|| {
            "expected fattree:KxH (K even ports a switch, H hosts a rack) or leafspine:LxSxH".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fat_tree_of_twenty_ports_has_five_hundred_switches_and_every_cable_two_ends() {
        let plan: Plan = "fattree:20x50".parse().unwrap();
        assert_eq!((plan.switches.len(), plan.racks, plan.hosts.len(), plan.links), (500, 200, 10_000, 4000));
        for (at, switch) in plan.switches.iter().enumerate() {
            for (number, end) in &switch.ports {
                match *end {
                    End::Switch { switch: peer, port } => {
                        let back = End::Switch { switch: at, port: *number };
                        assert_eq!(plan.switches[peer].ports[&port], back);
                    }
                    End::Host(host) => assert_eq!(plan.hosts[host].port, *number),
                }
            }
        }
        // 200 racks at each of 300 switches, 199 and 50 hosts at each of 200 ToRs, 20 links at each, and 11 everywhere.
        let links = 300 * 20 + 200 * 10;
        assert_eq!(plan.flows(), 300 * 200 + 200 * (199 + 50 * 3) + links + 500 * 11);
        assert!("fattree:3x1".parse::<Plan>().is_err() && "ring:4".parse::<Plan>().is_err());
    }
}
