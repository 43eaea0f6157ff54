//! The members of multicast addresses of other programs than COOL, learned as a switch with
//! snooping learns them (RFC 4541): from reports of hosts and nodes (IGMP, MLD), which queries of
//! the controller elicit. A port is a member while any machine behind it is.
//!
//! A port takes part only once a round of loop probes has shown that it is not connected to another
//! port, because switches forward packets to and from it without the controller.

use crate::frames::vlan::Vlan;
use crate::intent::addresses;
use crate::intent::multicast::{MulticastAddress, MulticastKey, PTP};
use crate::network::deadlines::Deadlines;
use cool_machine::{Duration, Time, earliest};
use cool_topology::membership_query::QUERY_INTERVAL_SECONDS;
use cool_topology::membership_report::MembershipRecord;
use cool_topology::{MacAddr, Port};
use cool_types::is_source_specific;
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

/// Addresses that programs use without joining them. Once one is in use, all ports are members.
const WITHOUT_REPORTS: [MacAddr; 1] = [PTP];
/// Maximum number of addresses of one port, and in all. Each takes a flow in every switch.
pub(super) const PORT_ADDRESSES_MAX: usize = 32;
pub(super) const ADDRESSES_MAX: usize = 1024;
/// Maximum number of VLANs in which all ports are members of an address.
const WITHOUT_REPORTS_MAX: usize = 16;
/// Maximum number of multicast routers.
const ROUTERS_MAX: usize = 64;

const QUERY_INTERVAL: Duration = Duration::from_secs(QUERY_INTERVAL_SECONDS as u64);
/// Time after which a second query follows the first one of a port, which may have been lost.
const QUERY_AGAIN: Duration = Duration::from_secs(5);
/// Time after the last report until a port is no longer a member, and after the last query until a
/// port leads to no router (RFC 3376, 8.4 and 8.5; RFC 4541, 2.1.1).
const MEMBERSHIP_TIME: Duration = Duration::from_secs(260);
/// Time in which another member must answer when one has left, and after which the query for that
/// is repeated (RFC 3376, 8.8).
const LAST_MEMBER_TIME: Duration = Duration::from_secs(2);
const LAST_MEMBER_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a round of loop probes has returned, and after which a round that could not be
/// sent is tried again.
const PROBE_TIME: Duration = Duration::from_secs(1);
const PROBE_AGAIN: Duration = Duration::from_millis(200);

/// A query that the controller must send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MembershipQuery {
    /// A general query to this port, in all its VLANs.
    General(Port),
    /// A query for one address.
    Specific(MulticastKey, Port),
}

/// The reason why an address of a report was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyAddresses;

/// Members, routers and ports.
#[derive(Debug, Default)]
pub(crate) struct Memberships {
    members: BTreeMap<MulticastKey, BTreeSet<Port>>,
    by_port: BTreeMap<Port, BTreeSet<MulticastKey>>,
    expiring: Deadlines<(MulticastKey, Port)>,
    /// Addresses that members may have left, and must be queried again.
    leaving: Deadlines<(MulticastKey, Port)>,
    /// Ports that lead to multicast routers.
    routers: BTreeSet<(Vlan, Port)>,
    routers_expiring: Deadlines<(Vlan, Port)>,
    /// Addresses of which all ports are members.
    without_reports: BTreeSet<MulticastKey>,
    /// Ports that must still be probed, and that were.
    unprobed: Deadlines<Port>,
    probed: Deadlines<Port>,
    open: BTreeSet<Port>,
    /// Ports that must be queried a second time.
    query_again: Deadlines<Port>,
    next_queries: Option<Time>,
    revision: u64,
}

impl Memberships {
    /// Returns the number of changes so far.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the ports that take part.
    pub(crate) fn open_ports(&self) -> &BTreeSet<Port> {
        &self.open
    }

    /// Returns the addresses that are in use, each with the ports that must receive its packets.
    pub(crate) fn receivers(&self) -> impl Iterator<Item = (MulticastKey, BTreeSet<Port>)> + '_ {
        let reported = self.members.iter().map(|(key, members)| {
            let routers = self.routers_of(key.vlan);
            let ports = members.iter().copied().chain(routers);
            (*key, ports.filter(|port| self.open.contains(port)).collect())
        });
        reported.chain(self.without_reports.iter().map(|key| (*key, self.open.clone())))
    }

    /// Returns the ports that lead to multicast routers of a VLAN.
    pub(crate) fn routers_of(&self, vlan: Vlan) -> impl Iterator<Item = Port> + '_ {
        self.routers.iter().filter(move |(of, _)| *of == vlan).map(|(_, port)| *port)
    }

    /// Records whether a port is an edge port that is not part of a loop.
    pub(crate) fn set_edge(&mut self, now: Time, port: Port, is_edge: bool) {
        if is_edge {
            if !self.open.contains(&port) && !self.probed.contains(&port) && !self.unprobed.contains(&port) {
                self.unprobed.set(port, now);
            }
            return;
        }
        for ports in [&mut self.unprobed, &mut self.probed, &mut self.query_again] {
            ports.clear(port);
        }
        self.revision += u64::from(self.open.remove(&port));
        for key in self.by_port.get(&port).cloned().unwrap_or_default() {
            self.remove(key, port);
        }
        for router in self.routers.extract_if(.., |(_, at)| *at == port).collect::<Vec<_>>() {
            self.routers_expiring.clear(router);
            self.revision += 1;
        }
    }

    /// Records a report that a port has received. Queries may be due afterwards.
    ///
    /// # Errors
    /// Returns an error if an address was left out, because there are too many.
    pub(crate) fn on_report(
        &mut self,
        now: Time,
        port: Port,
        vlan: Vlan,
        records: &[MembershipRecord],
    ) -> Result<(), TooManyAddresses> {
        let mut result = Ok(());
        for record in records.iter().filter(|record| is_carried(record.address)) {
            let key = MulticastKey { vlan, address: MulticastAddress::Ip(record.address) };
            let is_known = self.members.get(&key).is_some_and(|members| members.contains(&port));
            match (record.is_member, is_known) {
                (true, false) if !self.has_room(key, port) => result = Err(TooManyAddresses),
                (true, _) => {
                    if !is_known {
                        self.members.entry(key).or_default().insert(port);
                        self.by_port.entry(port).or_default().insert(key);
                        self.revision += 1;
                    }
                    self.leaving.clear((key, port));
                    self.expiring.set((key, port), now + MEMBERSHIP_TIME);
                }
                (false, true) if !self.leaving.contains(&(key, port)) => {
                    self.leaving.set((key, port), now);
                    self.expiring.set((key, port), now + LAST_MEMBER_TIME);
                }
                (false, _) => {}
            }
        }
        result
    }

    fn has_room(&self, key: MulticastKey, port: Port) -> bool {
        let at_port = self.by_port.get(&port).map_or(0, BTreeSet::len);
        at_port < PORT_ADDRESSES_MAX
            && (self.members.contains_key(&key) || self.members.len() < ADDRESSES_MAX)
    }

    /// Records a query from a port. Only that of a router has a source.
    pub(crate) fn on_query(&mut self, now: Time, port: Port, vlan: Vlan, source: IpAddr) {
        let is_router = !source.is_unspecified();
        let has_room = self.routers.len() < ROUTERS_MAX || self.routers.contains(&(vlan, port));
        if is_router && has_room {
            self.revision += u64::from(self.routers.insert((vlan, port)));
            self.routers_expiring.set((vlan, port), now + MEMBERSHIP_TIME);
        }
    }

    /// Records a frame to this Ethernet address, which may be one that needs no reports.
    pub(crate) fn on_frame(&mut self, to: MacAddr, vlan: Vlan) {
        let key = MulticastKey { vlan, address: MulticastAddress::Ethernet(to) };
        if WITHOUT_REPORTS.contains(&to) && self.without_reports.len() < WITHOUT_REPORTS_MAX {
            self.revision += u64::from(self.without_reports.insert(key));
        }
    }

    fn remove(&mut self, key: MulticastKey, port: Port) {
        self.expiring.clear((key, port));
        self.leaving.clear((key, port));
        if let Some(members) = self.members.get_mut(&key) {
            self.revision += u64::from(members.remove(&port));
            if members.is_empty() {
                self.members.remove(&key);
            }
        }
        if let Some(keys) = self.by_port.get_mut(&port) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_port.remove(&port);
            }
        }
    }

    /// Ends memberships that have expired, and opens ports that were probed. Returns the queries
    /// that are due. `probe` must send a round of loop probes; it returns whether it has.
    pub(crate) fn pass_time(
        &mut self,
        now: Time,
        mut probe: impl FnMut() -> bool,
    ) -> BTreeSet<MembershipQuery> {
        let mut queries = BTreeSet::new();
        while let Some((key, port)) = self.expiring.expired(now) {
            self.remove(key, port);
        }
        while let Some(router) = self.routers_expiring.expired(now) {
            self.revision += u64::from(self.routers.remove(&router));
        }
        while let Some((key, port)) = self.leaving.expired(now) {
            queries.insert(MembershipQuery::Specific(key, port));
            if self.expiring.next_of(&(key, port)).is_some_and(|end| now + LAST_MEMBER_INTERVAL < end) {
                self.leaving.set((key, port), now + LAST_MEMBER_INTERVAL);
            }
        }
        if self.unprobed.next().is_some_and(|at| at <= now) {
            let is_probed = probe();
            while let Some(port) = self.unprobed.expired(now) {
                match is_probed {
                    true => self.probed.set(port, now + PROBE_TIME),
                    false => self.unprobed.set(port, now + PROBE_AGAIN),
                }
            }
        }
        while let Some(port) = self.probed.expired(now) {
            self.revision += u64::from(self.open.insert(port));
            queries.insert(MembershipQuery::General(port));
            self.query_again.set(port, now + QUERY_AGAIN);
            self.next_queries.get_or_insert(now + QUERY_INTERVAL);
        }
        while let Some(port) = self.query_again.expired(now) {
            queries.insert(MembershipQuery::General(port));
        }
        if self.next_queries.take_if(|at| *at <= now).is_some() {
            // A new connection outside of the network may have joined two ports.
            probe();
            queries.extend(self.open.iter().copied().map(MembershipQuery::General));
            self.next_queries = Some(now + QUERY_INTERVAL).filter(|_| !self.open.is_empty());
        }
        queries
    }

    /// Returns when to call [`pass_time`](Memberships::pass_time) even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let own = [
            self.expiring.next(),
            self.leaving.next(),
            self.routers_expiring.next(),
            self.unprobed.next(),
            self.probed.next(),
            self.query_again.next(),
            self.next_queries,
        ];
        own.into_iter().fold(None, earliest)
    }
}

/// Returns whether packets to an address are carried if it has members. Those on the link (RFC
/// 5771, section 4; RFC 4291, section 2.7) always are, and COOL's own have trees.
fn is_carried(address: IpAddr) -> bool {
    let is_on_link = match address {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.octets()[1] & 0xf <= 2,
    };
    // Trees in OpenFlow switches never have source-specific addresses.
    let is_tree = addresses::number(address).is_some() && !is_source_specific(address);
    address.is_multicast() && !is_on_link && !is_tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_topology::DatapathId;

    fn port(number: u32) -> Port {
        Port { switch: DatapathId(1), number }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn record(address: &str, is_member: bool) -> MembershipRecord {
        MembershipRecord { address: address.parse().unwrap(), is_member }
    }

    fn key(address: &str) -> MulticastKey {
        MulticastKey { vlan: Vlan::default(), address: MulticastAddress::Ip(address.parse().unwrap()) }
    }

    /// Returns memberships with the open ports 1 to 3.
    fn memberships() -> Memberships {
        let mut memberships = Memberships::default();
        (1..=3).for_each(|number| memberships.set_edge(at(0), port(number), true));
        assert!(memberships.pass_time(at(0), || true).is_empty() && memberships.open_ports().is_empty());
        let queries = memberships.pass_time(at(1), || unreachable!("they were probed"));
        assert_eq!(queries, (1..=3).map(|number| MembershipQuery::General(port(number))).collect());
        memberships
    }

    fn report(memberships: &mut Memberships, seconds: u64, number: u32, address: &str, is_member: bool) {
        let records = [record(address, is_member)];
        memberships.on_report(at(seconds), port(number), Vlan::default(), &records).unwrap();
    }

    fn receivers(memberships: &Memberships) -> Vec<(MulticastKey, Vec<u32>)> {
        let numbers = |ports: BTreeSet<Port>| ports.into_iter().map(|port| port.number).collect();
        memberships.receivers().map(|(key, ports)| (key, numbers(ports))).collect()
    }

    #[test]
    fn a_port_is_a_member_until_its_reports_cease() {
        let mut memberships = memberships();
        report(&mut memberships, 2, 1, "239.1.2.3", true);
        report(&mut memberships, 3, 2, "239.1.2.3", true);
        report(&mut memberships, 4, 1, "239.1.2.3", true);
        assert_eq!(receivers(&memberships), [(key("239.1.2.3"), vec![1, 2])]);
        memberships.pass_time(at(3) + MEMBERSHIP_TIME, || true);
        assert_eq!(receivers(&memberships), [(key("239.1.2.3"), vec![1])]);
        memberships.set_edge(at(5) + MEMBERSHIP_TIME, port(1), false);
        assert_eq!(receivers(&memberships), []);
    }

    #[test]
    fn a_port_that_reports_a_leave_is_queried_twice() {
        let mut memberships = memberships();
        memberships.pass_time(at(6), || true);
        report(&mut memberships, 10, 1, "ff1e::5", true);
        report(&mut memberships, 11, 1, "ff1e::5", false);
        let query = [MembershipQuery::Specific(key("ff1e::5"), port(1))].into();
        assert_eq!(memberships.pass_time(at(11), || true), query);
        // Another leave neither extends the time nor adds queries.
        report(&mut memberships, 11, 1, "ff1e::5", false);
        assert_eq!(memberships.pass_time(at(12), || true), query);
        assert_eq!(receivers(&memberships).len(), 1);
        let mut answered = 0;
        for seconds in [13, 14] {
            memberships.pass_time(at(seconds), || true);
            answered += receivers(&memberships).len();
        }
        assert_eq!(answered, 0);
        // Another host behind the port answers.
        report(&mut memberships, 20, 1, "ff1e::5", true);
        report(&mut memberships, 21, 1, "ff1e::5", false);
        memberships.pass_time(at(21), || true);
        report(&mut memberships, 22, 1, "ff1e::5", true);
        assert!(memberships.pass_time(at(30), || true).is_empty());
        assert_eq!(receivers(&memberships).len(), 1);
    }

    #[test]
    fn a_port_is_probed_before_it_takes_part() {
        let mut memberships = Memberships::default();
        memberships.set_edge(at(0), port(1), true);
        report(&mut memberships, 0, 1, "239.1.2.3", true);
        memberships.pass_time(at(0), || false);
        assert_eq!(memberships.deadline(), Some(at(0) + PROBE_AGAIN));
        memberships.pass_time(at(1), || true);
        memberships.set_edge(at(1), port(1), true);
        assert_eq!(receivers(&memberships), [(key("239.1.2.3"), vec![])]);
        memberships.pass_time(at(2), || false);
        assert_eq!(receivers(&memberships), [(key("239.1.2.3"), vec![1])]);
        // A port that is found to be part of a loop.
        memberships.set_edge(at(2), port(1), false);
        memberships.set_edge(at(3), port(1), true);
        assert!(memberships.open_ports().is_empty());
    }

    #[test]
    fn open_ports_are_queried_again_and_again() {
        let mut memberships = memberships();
        let all: BTreeSet<_> = (1..=3).map(|number| MembershipQuery::General(port(number))).collect();
        let mut times = Vec::new();
        while times.len() < 4 {
            let now = memberships.deadline().unwrap();
            if memberships.pass_time(now, || true) == all {
                times.push(now);
            }
        }
        assert_eq!(times, [6, 126, 251, 376].map(at));
    }

    #[test]
    fn routers_receive_every_address_while_they_query() {
        let mut memberships = memberships();
        report(&mut memberships, 2, 1, "239.1.2.3", true);
        memberships.on_query(at(2), port(2), Vlan::default(), [0, 0, 0, 0].into());
        memberships.on_query(at(2), port(3), Vlan::default(), [10, 0, 0, 9].into());
        memberships.on_query(at(2), port(2), Vlan(Some(7)), [10, 0, 0, 9].into());
        assert_eq!(receivers(&memberships), [(key("239.1.2.3"), vec![1, 3])]);
        report(&mut memberships, 100, 1, "239.1.2.3", true);
        memberships.pass_time(at(2) + MEMBERSHIP_TIME, || true);
        assert_eq!(receivers(&memberships), [(key("239.1.2.3"), vec![1])]);
    }

    #[test]
    fn routers_and_vlans_of_the_time_protocol_are_limited() {
        let mut memberships = memberships();
        for vlan in (1..200).map(|identifier| Vlan(Some(identifier))) {
            memberships.on_frame(PTP, vlan);
            memberships.on_query(at(2), port(3), vlan, [10, 0, 0, 9].into());
        }
        assert_eq!(receivers(&memberships).len(), WITHOUT_REPORTS_MAX);
        assert_eq!(memberships.routers.len(), ROUTERS_MAX);
    }

    #[test]
    fn the_time_protocol_reaches_all_open_ports() {
        let mut memberships = memberships();
        memberships.on_frame(MacAddr(0x01, 0, 0x5e, 1, 2, 3), Vlan::default());
        memberships.on_frame(WITHOUT_REPORTS[0], Vlan::default());
        let address = MulticastAddress::Ethernet(WITHOUT_REPORTS[0]);
        assert_eq!(
            receivers(&memberships),
            [(MulticastKey { vlan: Vlan::default(), address }, vec![1, 2, 3])]
        );
    }

    #[test]
    fn addresses_of_the_link_and_of_trees_have_no_members() {
        let mut memberships = memberships();
        for address in ["224.0.0.251", "ff02::fb", "ff01::1", "239.192.0.0", "ff18::434f:4f4c:c000:0"] {
            report(&mut memberships, 2, 1, address, true);
        }
        assert_eq!(receivers(&memberships), []);
    }

    #[test]
    fn addresses_are_limited_at_each_port_and_in_all() {
        let mut memberships = Memberships::default();
        let mut join = |number: u32, address: u32| {
            let records = [MembershipRecord {
                address: core::net::Ipv4Addr::from_bits(0xe800_0000 + address).into(),
                is_member: true,
            }];
            memberships.on_report(at(0), port(number), Vlan::default(), &records)
        };
        let ports = (ADDRESSES_MAX / PORT_ADDRESSES_MAX) as u32;
        for number in 0..ports {
            for address in 0..PORT_ADDRESSES_MAX as u32 {
                assert_eq!(join(number, number * PORT_ADDRESSES_MAX as u32 + address), Ok(()));
            }
        }
        assert_eq!(join(0, 0), Ok(()), "a member reports again");
        assert_eq!(join(0, ADDRESSES_MAX as u32 - 1), Err(TooManyAddresses));
        assert_eq!(join(ports, ADDRESSES_MAX as u32), Err(TooManyAddresses));
        assert_eq!(join(ports, 0), Ok(()), "an address that is in use already");
    }
}
