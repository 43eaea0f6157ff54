//! The hosts without an agent: at which port each is, and which addresses it has, by what they say.
//!
//! A host is known from its first frame that comes to the controller. One that has said an address is asked now and then
//! whether it is still there; one that has not stays until its port goes down or room is needed. What a host says
//! decides about itself only: nobody takes the address of a node, whose agent is known by its certificate.

use super::deadlines::Deadlines;
use crate::api::{HostLimits, MacAddr};
use crate::frames::vlan::Vlan;
use crate::intent::hosts::HostKey;
use cool_machine::{Duration, Time};
use cool_topology::{DatapathId, Port};
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

/// After this silence a host is asked whether it is there, and again after [`ASK_AGAIN`].
pub(super) const ASK_AFTER: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Questions without an answer after which it is not.
const ASKS: u32 = 3;
/// A host that was somewhere else so shortly before is not believed to have moved again.
const MOVES_AFTER: Duration = Duration::from_secs(1);
/// A question that others have asked a host is to be answered within this time, or all are asked.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// After this silence a host makes room for another of its port.
const YIELDS_AFTER: Duration = Duration::from_secs(60);
/// Addresses that are known of one host; of what has more, a gateway for instance, all are asked.
pub(super) const MAX_ADDRESSES: usize = 64;

/// What is known of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostEntry {
    pub(crate) port: Port,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Whether it says that it is a router.
    pub(crate) router: Option<bool>,
    heard: Time,
    moved: Time,
    /// Questions without an answer.
    asked: u32,
}

/// Whose an address is, and since when a question of others has been without an answer.
#[derive(Clone, Copy, Debug)]
struct HostAddressOwner {
    host: HostKey,
    asked: Option<Time>,
}

/// Whether a host's frame counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostVerdict {
    Accepted,
    /// There are too many hosts, at its port or in all.
    TooMany,
    /// It was at another port a moment ago.
    MovesTooOften,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct HostTable {
    limits: HostLimits,
    by_key: BTreeMap<HostKey, HostEntry>,
    by_address: BTreeMap<(Vlan, IpAddr), HostAddressOwner>,
    by_port: BTreeMap<Port, BTreeSet<HostKey>>,
    asking: Deadlines<HostKey>,
    /// Those that have come, gone or moved.
    changed: BTreeSet<HostKey>,
    revision: u64,
}

impl HostTable {
    pub(crate) fn new(limits: HostLimits) -> HostTable {
        HostTable {
            limits,
            by_key: BTreeMap::new(),
            by_address: BTreeMap::new(),
            by_port: BTreeMap::new(),
            asking: Deadlines::default(),
            changed: BTreeSet::new(),
            revision: 0,
        }
    }

    /// A host has said something at a port, perhaps that it has an address.
    pub(crate) fn heard(
        &mut self,
        now: Time,
        port: Port,
        key: HostKey,
        address: Option<IpAddr>,
    ) -> HostVerdict {
        let before = self.by_key.get(&key).map(|host| (host.port, host.moved));
        if before.is_some_and(|(at, moved)| at != port && now < moved + MOVES_AFTER) {
            return HostVerdict::MovesTooOften;
        }
        if before.is_none_or(|(at, _)| at != port) {
            if !self.has_room(now, port, before.is_some()) {
                return HostVerdict::TooMany;
            }
            self.put(now, port, key);
        }
        if let Some(address) = address {
            self.set_address(key, address);
        }
        if let Some(host) = self.by_key.get_mut(&key) {
            (host.heard, host.asked) = (now, 0);
            if !host.addresses.is_empty() {
                self.asking.set(key, now + ASK_AFTER);
            }
        }
        HostVerdict::Accepted
    }

    /// A host has said whether it is a router.
    pub(crate) fn set_router(&mut self, key: HostKey, router: bool) {
        if let Some(host) = self.by_key.get_mut(&key) {
            host.router = Some(router);
        }
    }

    /// An earlier controller knew a host at this port.
    pub(crate) fn restore(&mut self, now: Time, port: Port, key: HostKey) {
        if !self.by_key.contains_key(&key) {
            self.heard(now, port, key, None);
        }
    }

    /// Puts a host at a port; one that was at another keeps its addresses.
    fn put(&mut self, now: Time, port: Port, key: HostKey) {
        self.leave(key);
        let new =
            HostEntry { port, addresses: BTreeSet::new(), router: None, heard: now, moved: now, asked: 0 };
        let host = self.by_key.entry(key).or_insert(new);
        (host.port, host.moved) = (port, now);
        self.by_port.entry(port).or_default().insert(key);
        self.change(key);
    }

    /// A host is at its port no more.
    fn leave(&mut self, key: HostKey) {
        let Some(port) = self.by_key.get(&key).map(|host| host.port) else { return };
        if let Some(there) = self.by_port.get_mut(&port) {
            there.remove(&key);
            if there.is_empty() {
                self.by_port.remove(&port);
            }
        }
    }

    /// Whether there is room at a port for a host that is new, or known elsewhere.
    fn has_room(&mut self, now: Time, port: Port, known: bool) -> bool {
        let there = self.by_port.get(&port);
        if there.map_or(0, BTreeSet::len) >= self.limits.per_port {
            let longest =
                there.into_iter().flatten().filter_map(|key| Some((self.by_key.get(key)?.heard, *key)));
            match longest.min().filter(|(heard, _)| *heard + YIELDS_AFTER <= now) {
                Some((_, key)) => self.forget(key),
                None => return false,
            }
        }
        known || self.by_key.len() < self.limits.all
    }

    /// The address is this host's from now on, whoever had it before.
    fn set_address(&mut self, key: HostKey, address: IpAddr) {
        let place = (key.vlan, address);
        let before = self.by_address.get(&place).map(|holder| holder.host);
        if before != Some(key) {
            let Some(host) = self.by_key.get_mut(&key) else { return };
            if host.addresses.len() >= MAX_ADDRESSES {
                return;
            }
            host.addresses.insert(address);
            self.revision += 1;
            if let Some(other) = before.and_then(|other| self.by_key.get_mut(&other)) {
                other.addresses.remove(&address);
            }
        }
        self.by_address.insert(place, HostAddressOwner { host: key, asked: None });
    }

    /// It is not there any more.
    pub(crate) fn forget(&mut self, key: HostKey) {
        self.leave(key);
        let Some(host) = self.by_key.remove(&key) else { return };
        for address in host.addresses {
            self.by_address.remove(&(key.vlan, address));
        }
        self.asking.clear(key);
        self.change(key);
    }

    fn change(&mut self, key: HostKey) {
        self.changed.insert(key);
        self.revision += 1;
    }

    /// All hosts of a port are gone.
    pub(crate) fn port_down(&mut self, port: Port) {
        self.by_port.get(&port).cloned().into_iter().flatten().for_each(|key| self.forget(key));
    }

    /// All hosts of a switch are gone.
    pub(crate) fn switch_removed(&mut self, switch: DatapathId) {
        let ports: Vec<Port> = self.by_port.keys().copied().filter(|port| port.switch == switch).collect();
        ports.into_iter().for_each(|port| self.port_down(port));
    }

    pub(crate) fn get(&self, key: HostKey) -> Option<&HostEntry> {
        self.by_key.get(&key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (HostKey, &HostEntry)> {
        self.by_key.iter().map(|(key, host)| (*key, host))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The hosts with an Ethernet address, in whichever segments.
    pub(crate) fn with_mac(&self, mac: MacAddr) -> Vec<HostKey> {
        let all = HostKey { mac, vlan: Vlan(None) }..=HostKey { mac, vlan: Vlan(Some(u16::MAX)) };
        self.by_key.range(all).map(|(key, _)| *key).collect()
    }

    /// Whom to ask for an address, and where; nobody if it is not known, or has just been asked in vain.
    pub(crate) fn ask(&mut self, now: Time, vlan: Vlan, address: IpAddr) -> Option<(HostKey, Port)> {
        let holder = self.by_address.get_mut(&(vlan, address))?;
        let asked = *holder.asked.get_or_insert(now);
        if asked + ANSWERS_WITHIN <= now {
            return None;
        }
        Some((holder.host, self.by_key.get(&holder.host)?.port))
    }

    /// The switches that have hosts.
    pub(crate) fn switches(&self) -> impl Iterator<Item = DatapathId> {
        self.by_port.keys().map(|port| port.switch)
    }

    /// The ports that have hosts.
    pub(crate) fn ports(&self) -> impl Iterator<Item = Port> {
        self.by_port.keys().copied()
    }

    /// Whether a port has hosts.
    pub(crate) fn are_at(&self, port: Port) -> bool {
        self.by_port.contains_key(&port)
    }

    /// Something else that decides about a host has changed.
    pub(crate) fn touch(&mut self, key: HostKey) {
        self.changed.insert(key);
    }

    /// Those that have come, gone or moved since this was asked last.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<HostKey> {
        core::mem::take(&mut self.changed)
    }

    /// HostTable that are to be asked now whether they are there, by one of their addresses; those that have not answered are gone.
    pub(crate) fn pass_time(&mut self, now: Time) -> Vec<(HostKey, Port, IpAddr)> {
        let mut ask = Vec::new();
        while let Some(key) = self.asking.expired(now) {
            let Some(host) = self.by_key.get_mut(&key) else { continue };
            // It may have one of them no more: by the other end of those in order, where an IPv6 host's link-local one is.
            let (first, last) = (host.addresses.first(), host.addresses.last());
            let address = if host.asked % 2 == 0 { first } else { last };
            let Some(address) = address.copied() else { continue };
            if host.asked >= ASKS {
                self.forget(key);
                continue;
            }
            host.asked += 1;
            self.asking.set(key, now + ASK_AGAIN);
            ask.push((key, host.port, address));
        }
        ask
    }

    /// When to pass time next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.asking.next()
    }

    /// Counts the changes that a snapshot of the network shows.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HostLimits = HostLimits { all: 6, per_port: 3 };

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn port(number: u32) -> Port {
        Port { switch: DatapathId(1), number }
    }

    fn key(n: u8) -> HostKey {
        HostKey { mac: MacAddr(2, 0, 0, 0, 0, n), vlan: Vlan(None) }
    }

    fn ip(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, n]))
    }

    #[test]
    fn a_host_is_where_it_speaks_with_its_addresses_and_the_last_who_says_one_has_it() {
        let mut hosts = HostTable::new(LIMITS);
        assert_eq!(hosts.heard(at(0), port(1), key(1), ip(1)), HostVerdict::Accepted);
        hosts.heard(at(0), port(1), key(1), ip(11));
        hosts.heard(at(0), port(2), key(2), ip(2));
        assert_eq!(hosts.take_changed(), [key(1), key(2)].into());
        assert_eq!(hosts.ask(at(0), Vlan(None), ip(11).unwrap()), Some((key(1), port(1))));
        assert_eq!(hosts.ask(at(0), Vlan(Some(5)), ip(11).unwrap()), None);
        // It moves, though not twice in a moment, and takes its addresses along.
        assert_eq!(hosts.heard(at(0), port(2), key(1), None), HostVerdict::MovesTooOften);
        assert_eq!(hosts.heard(at(2), port(2), key(1), None), HostVerdict::Accepted);
        assert_eq!(hosts.ask(at(2), Vlan(None), ip(1).unwrap()), Some((key(1), port(2))));
        hosts.heard(at(3), port(2), key(2), ip(1));
        assert_eq!(hosts.ask(at(3), Vlan(None), ip(1).unwrap()), Some((key(2), port(2))));
        assert_eq!(hosts.get(key(1)).unwrap().addresses, [ip(11).unwrap()].into());
        hosts.port_down(port(1));
        assert_eq!(hosts.len(), 2);
        hosts.switch_removed(DatapathId(1));
        assert_eq!((hosts.len(), hosts.by_address.len(), hosts.deadline()), (0, 0, None));
    }

    #[test]
    fn a_question_that_is_not_answered_is_for_all_until_somebody_says_the_address() {
        let mut hosts = HostTable::new(LIMITS);
        let address = ip(1).unwrap();
        hosts.heard(at(0), port(1), key(1), ip(1));
        assert!(hosts.ask(at(5), Vlan(None), address).is_some());
        assert!(hosts.ask(at(5), Vlan(None), address).is_some());
        assert_eq!(hosts.ask(at(6), Vlan(None), address), None);
        hosts.heard(at(7), port(1), key(1), ip(1));
        assert!(hosts.ask(at(9), Vlan(None), address).is_some());
    }

    #[test]
    fn a_silent_host_is_asked_and_forgotten_if_it_does_not_answer() {
        let mut hosts = HostTable::new(LIMITS);
        hosts.heard(at(0), port(1), key(1), ip(1));
        hosts.heard(at(0), port(2), key(2), None);
        let asked = (key(1), port(1), ip(1).unwrap());
        assert_eq!((hosts.pass_time(at(59)), hosts.pass_time(at(60))), (vec![], vec![asked]));
        hosts.heard(at(61), port(1), key(1), ip(1));
        assert_eq!(hosts.deadline(), Some(at(121)));
        for seconds in [121, 126, 131] {
            assert_eq!(hosts.pass_time(at(seconds)), [asked]);
        }
        hosts.take_changed();
        assert_eq!((hosts.pass_time(at(136)), hosts.get(key(1))), (vec![], None));
        assert_eq!(hosts.take_changed(), [key(1)].into());
        // Of several addresses it may have lost one.
        hosts.heard(at(200), port(1), key(3), ip(3));
        hosts.heard(at(200), port(1), key(3), Some(IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 3])));
        let asked = [260, 265, 270].map(|seconds| hosts.pass_time(at(seconds))[0].2.is_ipv4());
        assert_eq!(asked, [true, false, true]);
        assert_eq!((hosts.pass_time(at(275)), hosts.get(key(3))), (vec![], None));
        // Who has said no address cannot be asked.
        assert!(hosts.pass_time(at(10_000)).is_empty() && hosts.get(key(2)).is_some());
    }

    #[test]
    fn there_are_no_more_hosts_than_allowed_and_a_silent_one_makes_room_at_its_port() {
        let mut hosts = HostTable::new(LIMITS);
        let heard =
            |hosts: &mut HostTable, seconds, number, n| hosts.heard(at(seconds), port(number), key(n), None);
        for n in 1..=3 {
            assert_eq!(heard(&mut hosts, n.into(), 1, n), HostVerdict::Accepted);
        }
        assert_eq!(heard(&mut hosts, 10, 1, 4), HostVerdict::TooMany);
        assert_eq!(heard(&mut hosts, 61, 1, 4), HostVerdict::Accepted);
        assert_eq!((hosts.get(key(1)), hosts.len()), (None, 3));
        for n in 5..=7 {
            heard(&mut hosts, 61, 2, n);
        }
        assert_eq!(heard(&mut hosts, 61, 3, 8), HostVerdict::TooMany);
        // One that is known may still move.
        assert_eq!(heard(&mut hosts, 70, 3, 5), HostVerdict::Accepted);
        assert_eq!(hosts.len(), LIMITS.all);
        for n in 0..100 {
            hosts.heard(at(100), port(3), key(5), Some(IpAddr::from([10, 1, 0, n])));
        }
        assert_eq!(hosts.get(key(5)).unwrap().addresses.len(), MAX_ADDRESSES);
    }
}
