//! Snooping of memberships: records reports, passes them to multicast routers only (RFC 4541,
//! 2.1.1), and queries the ports.

use super::flood_guard::{FloodPurpose, ProbeRound};
use super::memberships::MembershipQuery;
use super::warnings::HostWarning;
use super::{HostForwarder, PROBE_SOURCE, Surroundings};
use crate::frames::membership;
use crate::frames::vlan::{Tag, Vlan};
use crate::intent::multicast::MulticastAddress;
use cool_machine::Time;
use cool_topology::membership_report::MembershipMessage;
use cool_topology::{DatapathId, Port};
use std::collections::{BTreeMap, BTreeSet};

impl HostForwarder {
    /// Processes a message about memberships of an accepted sender, which is also given as an
    /// untagged frame.
    pub(super) fn snoop(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        port: Port,
        tag: Tag,
        frame: &[u8],
        message: &MembershipMessage,
    ) {
        let vlan = tag.vlan();
        match message {
            MembershipMessage::Query(source) => {
                self.memberships.on_query(now, port, vlan, *source);
                self.flood(now, port, tag.put(frame.to_vec()), FloodPurpose::Other);
            }
            MembershipMessage::Report(records) => {
                if self.memberships.on_report(now, port, vlan, records).is_err() {
                    self.warn(now, network, port, HostWarning::TooManyAddresses);
                }
                let routers = self.memberships.routers_of(vlan).filter(|router| *router != port);
                for router in routers.collect::<Vec<_>>() {
                    self.send(router, tag.put(frame.to_vec()));
                }
            }
        }
    }

    /// Ends memberships that have expired, probes ports before they take part, and sends the
    /// queries that are due.
    pub(super) fn query_members(&mut self, now: Time, network: &Surroundings<'_>) {
        let HostForwarder { memberships, floods, .. } = self;
        let mut round: Option<ProbeRound> = None;
        let queries = memberships.pass_time(now, || {
            round = round.take().or_else(|| floods.start_probes(now, Tag::default()));
            round.is_some()
        });
        if let Some(round) = round {
            self.send_probes(&round);
        }
        let mut general: BTreeMap<(DatapathId, Vlan), Vec<u32>> = BTreeMap::new();
        for query in queries {
            match query {
                MembershipQuery::General(port) => {
                    for vlan in self.vlans_at(network, port) {
                        general.entry((port.switch, vlan)).or_default().push(port.number);
                    }
                }
                MembershipQuery::Specific(key, port) => {
                    if let MulticastAddress::Ip(address) = key.address {
                        self.send(port, key.vlan.put(membership::specific_query(address, PROBE_SOURCE)));
                    }
                }
            }
        }
        for ((switch, vlan), ports) in general {
            for frame in membership::general_queries(PROBE_SOURCE) {
                self.send_to_ports(switch, &ports, &vlan.put(frame));
            }
        }
    }

    /// Returns the VLANs of the machines at a port, and the untagged segment.
    fn vlans_at(&self, network: &Surroundings<'_>, port: Port) -> BTreeSet<Vlan> {
        let of_node = network.node_at(port).map(|name| network.nodes.vlan(&name));
        self.hosts.vlans_at(port).chain(of_node).chain([Vlan::default()]).collect()
    }
}
