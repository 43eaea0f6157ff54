//! The hosts without an agent, with the port and the addresses of each, learned from packet-ins.
//!
//! A host is learned from its first frame. A host that has announced an address is probed from time
//! to time. Any other host stays until its port goes down or room is needed. A host's frames affect
//! that host only. A host can never take the address of a node, because a certificate identifies
//! the node's agent.

use crate::api::{HostLimits, HostView, MacAddr};
use crate::frames::vlan::Vlan;
use crate::intent::hosts::HostKey;
use crate::network::deadlines::Deadlines;
use cool_machine::{Duration, Time};
use cool_topology::{DatapathId, Port};
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

/// Silence after which a host is probed. Further probes follow at [`PROBE_AGAIN`].
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_AGAIN: Duration = Duration::from_secs(5);
/// Number of unanswered probes after which a host is removed.
const PROBES_MAX: u32 = 3;
/// Minimum time between two moves of a host. A frame that would move the host again sooner is not
/// accepted.
const MOVE_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Time within which a host must answer a request of another host. Later requests are flooded to
/// all.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Silence after which a host makes room for another one at its port.
const EVICTABLE_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of addresses recorded for one host. Requests for further ones, for example of a
/// gateway, are flooded to all.
pub(super) const ADDRESSES_MAX: usize = 64;

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostEntry {
    pub(crate) port: Port,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Whether the host is a router, if it has stated that.
    pub(crate) router: Option<bool>,
    last_seen: Time,
    moved: Time,
    /// Number of unanswered probes.
    requested: u32,
}

/// Owner of an address, and the time of the first unanswered request to it.
#[derive(Clone, Copy, Debug)]
struct HostAddressOwner {
    host: HostKey,
    requested: Option<Time>,
}

/// Whether a host's frame is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostVerdict {
    Accepted,
    /// There are too many hosts, at its port or in all.
    TooManyHosts,
    /// The host was at another port a moment ago.
    MovesTooOften,
}

/// All hosts.
#[derive(Debug)]
pub(crate) struct HostTable {
    limits: HostLimits,
    by_key: BTreeMap<HostKey, HostEntry>,
    by_address: BTreeMap<(Vlan, IpAddr), HostAddressOwner>,
    by_port: BTreeMap<Port, BTreeSet<HostKey>>,
    probing: Deadlines<HostKey>,
    /// Hosts that appeared, vanished or moved.
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
            probing: Deadlines::default(),
            changed: BTreeSet::new(),
            revision: 0,
        }
    }

    /// Records a frame of a host at a port, which may claim an address.
    pub(crate) fn on_frame(
        &mut self,
        now: Time,
        port: Port,
        key: HostKey,
        address: Option<IpAddr>,
    ) -> HostVerdict {
        let before = self.by_key.get(&key).map(|host| (host.port, host.moved));
        if before.is_some_and(|(at, moved)| at != port && now < moved + MOVE_INTERVAL_MIN) {
            return HostVerdict::MovesTooOften;
        }
        if before.is_none_or(|(at, _)| at != port) {
            if !self.has_room(now, port, before.is_some()) {
                return HostVerdict::TooManyHosts;
            }
            self.put(now, port, key);
        }
        if let Some(address) = address {
            self.set_address(key, address);
        }
        if let Some(host) = self.by_key.get_mut(&key) {
            (host.last_seen, host.requested) = (now, 0);
            if !host.addresses.is_empty() {
                self.probing.set(key, now + PROBE_AFTER);
            }
        }
        HostVerdict::Accepted
    }

    /// Records whether a host is a router.
    pub(crate) fn set_router(&mut self, key: HostKey, router: bool) {
        if let Some(host) = self.by_key.get_mut(&key) {
            host.router = Some(router);
        }
    }

    /// Records a host that an earlier controller knew at this port.
    pub(crate) fn restore(&mut self, now: Time, port: Port, key: HostKey) {
        if !self.by_key.contains_key(&key) {
            self.on_frame(now, port, key, None);
        }
    }

    /// Places a host at a port. A host that moves keeps its addresses.
    fn put(&mut self, now: Time, port: Port, key: HostKey) {
        self.leave(key);
        let new = HostEntry {
            port,
            addresses: BTreeSet::new(),
            router: None,
            last_seen: now,
            moved: now,
            requested: 0,
        };
        let host = self.by_key.entry(key).or_insert(new);
        (host.port, host.moved) = (port, now);
        self.by_port.entry(port).or_default().insert(key);
        self.change(key);
    }

    /// Removes a host from its port.
    fn leave(&mut self, key: HostKey) {
        let Some(port) = self.by_key.get(&key).map(|host| host.port) else { return };
        if let Some(there) = self.by_port.get_mut(&port) {
            there.remove(&key);
            if there.is_empty() {
                self.by_port.remove(&port);
            }
        }
    }

    /// Returns whether a port has room for a host that is new (or `known` at another port).
    fn has_room(&mut self, now: Time, port: Port, known: bool) -> bool {
        let there = self.by_port.get(&port);
        if there.map_or(0, BTreeSet::len) >= self.limits.per_port {
            let longest =
                there.into_iter().flatten().filter_map(|key| Some((self.by_key.get(key)?.last_seen, *key)));
            match longest.min().filter(|(last_seen, _)| *last_seen + EVICTABLE_AFTER <= now) {
                Some((_, key)) => self.forget(key),
                None => return false,
            }
        }
        known || self.by_key.len() < self.limits.all
    }

    /// Makes a host the owner of an address, whichever host had it before.
    fn set_address(&mut self, key: HostKey, address: IpAddr) {
        let place = (key.vlan, address);
        let before = self.by_address.get(&place).map(|holder| holder.host);
        if before != Some(key) {
            let Some(host) = self.by_key.get_mut(&key) else { return };
            if host.addresses.len() >= ADDRESSES_MAX {
                return;
            }
            host.addresses.insert(address);
            self.revision += 1;
            if let Some(other) = before.and_then(|other| self.by_key.get_mut(&other)) {
                other.addresses.remove(&address);
            }
        }
        self.by_address.insert(place, HostAddressOwner { host: key, requested: None });
    }

    /// Removes a host.
    pub(crate) fn forget(&mut self, key: HostKey) {
        self.leave(key);
        let Some(host) = self.by_key.remove(&key) else { return };
        for address in host.addresses {
            self.by_address.remove(&(key.vlan, address));
        }
        self.probing.clear(key);
        self.change(key);
    }

    fn change(&mut self, key: HostKey) {
        self.changed.insert(key);
        self.revision += 1;
    }

    /// Removes all hosts of a port.
    pub(crate) fn port_down(&mut self, port: Port) {
        self.by_port.get(&port).cloned().into_iter().flatten().for_each(|key| self.forget(key));
    }

    /// Removes all hosts of a switch.
    pub(crate) fn switch_removed(&mut self, switch: DatapathId) {
        let ports: Vec<Port> = self.by_port.keys().copied().filter(|port| port.switch == switch).collect();
        ports.into_iter().for_each(|port| self.port_down(port));
    }

    pub(crate) fn get(&self, key: HostKey) -> Option<&HostEntry> {
        self.by_key.get(&key)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the hosts with an Ethernet address, in all VLANs.
    pub(crate) fn with_mac(&self, mac: MacAddr) -> Vec<HostKey> {
        let all = HostKey { mac, vlan: Vlan(None) }..=HostKey { mac, vlan: Vlan(Some(u16::MAX)) };
        self.by_key.range(all).map(|(key, _)| *key).collect()
    }

    /// Returns the owner of a requested address and its port; `None` if it is unknown or has not
    /// answered the last request in time.
    pub(crate) fn resolve(&mut self, now: Time, vlan: Vlan, address: IpAddr) -> Option<(HostKey, Port)> {
        let holder = self.by_address.get_mut(&(vlan, address))?;
        let requested = *holder.requested.get_or_insert(now);
        if requested + REPLY_TIMEOUT <= now {
            return None;
        }
        Some((holder.host, self.by_key.get(&holder.host)?.port))
    }

    /// Returns all hosts, as the API shows them.
    pub(crate) fn views(&self) -> Vec<HostView> {
        let view = |(key, host): (&HostKey, &HostEntry)| HostView {
            mac: key.mac,
            vlan: key.vlan.0,
            addresses: host.addresses.iter().copied().collect(),
            port: host.port,
        };
        self.by_key.iter().map(view).collect()
    }

    /// Returns the switches that have hosts.
    pub(crate) fn switches(&self) -> impl Iterator<Item = DatapathId> {
        self.by_port.keys().map(|port| port.switch)
    }

    /// Returns the VLANs of the hosts at a port.
    pub(crate) fn vlans_at(&self, port: Port) -> impl Iterator<Item = Vlan> {
        self.by_port.get(&port).into_iter().flatten().map(|key| key.vlan)
    }

    /// Returns the ports that have hosts.
    pub(crate) fn ports(&self) -> impl Iterator<Item = Port> {
        self.by_port.keys().copied()
    }

    /// Returns whether a port has hosts.
    pub(crate) fn are_at(&self, port: Port) -> bool {
        self.by_port.contains_key(&port)
    }

    /// Marks a host as changed for another reason.
    pub(crate) fn touch(&mut self, key: HostKey) {
        self.changed.insert(key);
    }

    /// Returns the hosts that appeared, vanished or moved since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<HostKey> {
        core::mem::take(&mut self.changed)
    }

    /// Returns the hosts that must be probed now, each with one of its addresses. Removes those
    /// that have not answered.
    pub(crate) fn pass_time(&mut self, now: Time) -> Vec<(HostKey, Port, IpAddr)> {
        let mut ask = Vec::new();
        while let Some(key) = self.probing.expired(now) {
            let Some(host) = self.by_key.get_mut(&key) else { continue };
            // The host may have lost an address, so probes alternate between the first and the last
            // in order, which for IPv6 is the link-local one.
            let (first, last) = (host.addresses.first(), host.addresses.last());
            let address = if host.requested % 2 == 0 { first } else { last };
            let Some(address) = address.copied() else { continue };
            if host.requested >= PROBES_MAX {
                self.forget(key);
                continue;
            }
            host.requested += 1;
            self.probing.set(key, now + PROBE_AGAIN);
            ask.push((key, host.port, address));
        }
        ask
    }

    /// Returns when to call [`pass_time`](HostTable::pass_time) next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.probing.next()
    }

    /// Returns the number of changes so far that are visible in a snapshot of the network.
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
    fn hosts_are_learned_and_the_last_claim_to_an_address_counts() {
        let mut hosts = HostTable::new(LIMITS);
        assert_eq!(hosts.on_frame(at(0), port(1), key(1), ip(1)), HostVerdict::Accepted);
        hosts.on_frame(at(0), port(1), key(1), ip(11));
        hosts.on_frame(at(0), port(2), key(2), ip(2));
        assert_eq!(hosts.take_changed(), [key(1), key(2)].into());
        assert_eq!(hosts.resolve(at(0), Vlan(None), ip(11).unwrap()), Some((key(1), port(1))));
        assert_eq!(hosts.resolve(at(0), Vlan(Some(5)), ip(11).unwrap()), None);
        // A host may move, but not twice in a moment, and keeps its addresses.
        assert_eq!(hosts.on_frame(at(0), port(2), key(1), None), HostVerdict::MovesTooOften);
        assert_eq!(hosts.on_frame(at(2), port(2), key(1), None), HostVerdict::Accepted);
        assert_eq!(hosts.resolve(at(2), Vlan(None), ip(1).unwrap()), Some((key(1), port(2))));
        hosts.on_frame(at(3), port(2), key(2), ip(1));
        assert_eq!(hosts.resolve(at(3), Vlan(None), ip(1).unwrap()), Some((key(2), port(2))));
        assert_eq!(hosts.get(key(1)).unwrap().addresses, [ip(11).unwrap()].into());
        hosts.port_down(port(1));
        assert_eq!(hosts.len(), 2);
        hosts.switch_removed(DatapathId(1));
        assert_eq!((hosts.len(), hosts.by_address.len(), hosts.deadline()), (0, 0, None));
    }

    #[test]
    fn an_unanswered_request_goes_to_all() {
        let mut hosts = HostTable::new(LIMITS);
        let address = ip(1).unwrap();
        hosts.on_frame(at(0), port(1), key(1), ip(1));
        assert!(hosts.resolve(at(5), Vlan(None), address).is_some());
        assert!(hosts.resolve(at(5), Vlan(None), address).is_some());
        assert_eq!(hosts.resolve(at(6), Vlan(None), address), None);
        hosts.on_frame(at(7), port(1), key(1), ip(1));
        assert!(hosts.resolve(at(9), Vlan(None), address).is_some());
    }

    #[test]
    fn a_silent_host_is_asked_and_forgotten_if_it_does_not_answer() {
        let mut hosts = HostTable::new(LIMITS);
        hosts.on_frame(at(0), port(1), key(1), ip(1));
        hosts.on_frame(at(0), port(2), key(2), None);
        let requested = (key(1), port(1), ip(1).unwrap());
        assert_eq!((hosts.pass_time(at(59)), hosts.pass_time(at(60))), (vec![], vec![requested]));
        hosts.on_frame(at(61), port(1), key(1), ip(1));
        assert_eq!(hosts.deadline(), Some(at(121)));
        for seconds in [121, 126, 131] {
            assert_eq!(hosts.pass_time(at(seconds)), [requested]);
        }
        hosts.take_changed();
        assert_eq!((hosts.pass_time(at(136)), hosts.get(key(1))), (vec![], None));
        assert_eq!(hosts.take_changed(), [key(1)].into());
        // Of several addresses, the host may have lost one.
        hosts.on_frame(at(200), port(1), key(3), ip(3));
        hosts.on_frame(at(200), port(1), key(3), Some(IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 3])));
        let requested = [260, 265, 270].map(|seconds| hosts.pass_time(at(seconds))[0].2.is_ipv4());
        assert_eq!(requested, [true, false, true]);
        assert_eq!((hosts.pass_time(at(275)), hosts.get(key(3))), (vec![], None));
        // A host that has claimed no address cannot be probed.
        assert!(hosts.pass_time(at(10_000)).is_empty() && hosts.get(key(2)).is_some());
    }

    #[test]
    fn hosts_are_limited_and_silent_ones_make_room() {
        let mut hosts = HostTable::new(LIMITS);
        let received = |hosts: &mut HostTable, seconds, number, n| {
            hosts.on_frame(at(seconds), port(number), key(n), None)
        };
        for n in 1..=3 {
            assert_eq!(received(&mut hosts, n.into(), 1, n), HostVerdict::Accepted);
        }
        assert_eq!(received(&mut hosts, 10, 1, 4), HostVerdict::TooManyHosts);
        assert_eq!(received(&mut hosts, 61, 1, 4), HostVerdict::Accepted);
        assert_eq!((hosts.get(key(1)), hosts.len()), (None, 3));
        for n in 5..=7 {
            received(&mut hosts, 61, 2, n);
        }
        assert_eq!(received(&mut hosts, 61, 3, 8), HostVerdict::TooManyHosts);
        // A known host may still move.
        assert_eq!(received(&mut hosts, 70, 3, 5), HostVerdict::Accepted);
        assert_eq!(hosts.len(), LIMITS.all);
        for n in 0..100 {
            hosts.on_frame(at(100), port(3), key(5), Some(IpAddr::from([10, 1, 0, n])));
        }
        assert_eq!(hosts.get(key(5)).unwrap().addresses.len(), ADDRESSES_MAX);
    }
}
