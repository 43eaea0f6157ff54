//! IPv6 addresses of nodes. Agents do not register them, so they are learned from the nodes' own
//! messages, at the node's port and with its Ethernet address. The controller answers requests for
//! addresses that were announced recently, and the node itself answers for older ones.

use super::host_table::{ADDRESSES_MAX, PROBE_AFTER, REPLY_TIMEOUT};
use crate::api::NodeRegistration;
use crate::frames::vlan::Vlan;
use cool_machine::Time;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};

/// Addresses of all nodes.
#[derive(Debug, Default)]
pub(crate) struct NeighborCache {
    by_address: BTreeMap<(Vlan, Ipv6Addr), NodeAddressOwner>,
    by_node: BTreeMap<String, AnnouncedAddresses>,
}

/// Owner of an address.
#[derive(Clone, Debug)]
struct NodeAddressOwner {
    node: String,
    received: Time,
    /// Time of the first unanswered request to the owner.
    requested: Option<Time>,
}

/// Addresses that a node has announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnnouncedAddresses {
    vlan: Vlan,
    pub(crate) addresses: BTreeSet<Ipv6Addr>,
    /// Whether the node is a router, if it has stated that.
    pub(crate) router: Option<bool>,
}

/// Which side must answer a request for a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressResponder {
    /// The controller, on behalf of the node.
    Controller {
        router: bool,
    },
    Node,
}

/// Verdict on another machine's claim to an address of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimVerdict {
    Refused,
    /// Refused, and the node must be probed.
    Doubted,
    /// The node does not answer for the address any longer.
    Granted,
}

impl NeighborCache {
    /// Records that a node has announced an address, which no other node may have. Returns false if
    /// it is unknown whether the node is a router; the caller must then probe it.
    pub(crate) fn on_announcement(
        &mut self,
        now: Time,
        vlan: Vlan,
        address: Ipv6Addr,
        node: &str,
        router: Option<bool>,
    ) -> bool {
        if self.by_node.get(node).is_some_and(|speaker| speaker.vlan != vlan) {
            self.forget(node);
        }
        let new = || AnnouncedAddresses { vlan, ..AnnouncedAddresses::default() };
        let speaker = self.by_node.entry(node.to_owned()).or_insert_with(new);
        speaker.router = router.or(speaker.router);
        let known = speaker.router.is_some();
        if !speaker.addresses.contains(&address) && speaker.addresses.len() >= ADDRESSES_MAX {
            let received =
                |address: &Ipv6Addr| self.by_address.get(&(vlan, *address)).map(|holder| holder.received);
            let longest = speaker.addresses.iter().map(|address| (received(address), *address)).min();
            let Some((_, silent)) =
                longest.filter(|(received, _)| received.is_none_or(|at| at + PROBE_AFTER <= now))
            else {
                return known;
            };
            speaker.addresses.remove(&silent);
            self.by_address.remove(&(vlan, silent));
        }
        speaker.addresses.insert(address);
        let holder = NodeAddressOwner { node: node.to_owned(), received: now, requested: None };
        self.by_address.insert((vlan, address), holder);
        known
    }

    /// Removes and returns the addresses of a node.
    pub(crate) fn forget(&mut self, node: &str) -> AnnouncedAddresses {
        let speaker = self.by_node.remove(node).unwrap_or_default();
        for address in &speaker.addresses {
            self.by_address.remove(&(speaker.vlan, *address));
        }
        speaker
    }

    #[cfg(test)]
    pub(crate) fn get(&self, node: &str) -> Option<&AnnouncedAddresses> {
        self.by_node.get(node)
    }

    /// Returns all addresses of a registered node: the one that its agent registered, and those
    /// that the node has announced, each with whether the node is a router if that is known.
    pub(crate) fn addresses_with(&self, node: &NodeRegistration) -> Vec<(IpAddr, Option<bool>)> {
        let announced = self.by_node.get(&node.name);
        let router = announced.and_then(|announced| announced.router);
        let further = announced.into_iter().flat_map(|announced| &announced.addresses);
        let further = further.map(|ip| IpAddr::V6(*ip)).filter(|ip| *ip != node.ip);
        let all = core::iter::once(node.ip).chain(further);
        all.map(|ip| (ip, router.filter(|_| ip.is_ipv6()))).collect()
    }

    /// Returns the node that has an address in a VLAN.
    pub(crate) fn holder(&self, vlan: Vlan, address: Ipv6Addr) -> Option<&str> {
        self.by_address.get(&(vlan, address)).map(|holder| holder.node.as_str())
    }

    /// Returns the node that has a requested address, and which side must answer; `None` if the
    /// address is unknown or the node has not answered the last request in time.
    pub(crate) fn resolve(
        &mut self,
        now: Time,
        vlan: Vlan,
        address: Ipv6Addr,
    ) -> Option<(&str, AddressResponder)> {
        let holder = self.by_address.get_mut(&(vlan, address))?;
        let router = self.by_node.get(&holder.node).and_then(|speaker| speaker.router);
        if let Some(router) =
            router.filter(|_| now < holder.received + PROBE_AFTER && holder.requested.is_none())
        {
            return Some((&holder.node, AddressResponder::Controller { router }));
        }
        let requested = *holder.requested.get_or_insert(now);
        (now < requested + REPLY_TIMEOUT).then_some((&holder.node, AddressResponder::Node))
    }

    /// Judges the claim of another machine to an address of a node.
    pub(crate) fn claim(&mut self, now: Time, vlan: Vlan, address: Ipv6Addr) -> ClaimVerdict {
        let Some(holder) = self.by_address.get_mut(&(vlan, address)) else { return ClaimVerdict::Granted };
        match holder.requested {
            None if now < holder.received + REPLY_TIMEOUT => return ClaimVerdict::Refused,
            None => {
                holder.requested = Some(now);
                return ClaimVerdict::Doubted;
            }
            Some(requested) if now < requested + REPLY_TIMEOUT => return ClaimVerdict::Refused,
            Some(_) => {}
        }
        if let Some(holder) = self.by_address.remove(&(vlan, address))
            && let Some(speaker) = self.by_node.get_mut(&holder.node)
        {
            speaker.addresses.remove(&address);
        }
        ClaimVerdict::Granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_machine::Duration;

    const NONE: Vlan = Vlan(None);

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn ip(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n)
    }

    #[test]
    fn recent_announcements_are_answered_and_old_ones_forwarded() {
        let mut known = NeighborCache::default();
        assert_eq!(known.resolve(at(0), NONE, ip(1)), None);
        // A request by the node does not state whether it is a router.
        assert!(!known.on_announcement(at(0), NONE, ip(1), "h1", None));
        assert_eq!(known.resolve(at(0), NONE, ip(1)), Some(("h1", AddressResponder::Node)));
        assert!(known.on_announcement(at(1), NONE, ip(1), "h1", Some(false)));
        let answered = Some(("h1", AddressResponder::Controller { router: false }));
        assert_eq!(known.resolve(at(60_000), NONE, ip(1)), answered);
        assert_eq!(known.resolve(at(60_000), Vlan(Some(5)), ip(1)), None);
        assert_eq!(known.resolve(at(60_001), NONE, ip(1)), Some(("h1", AddressResponder::Node)));
        assert_eq!(known.resolve(at(61_000), NONE, ip(1)), Some(("h1", AddressResponder::Node)));
        assert_eq!(known.resolve(at(61_001), NONE, ip(1)), None);
        known.on_announcement(at(70_000), NONE, ip(1), "h1", None);
        assert_eq!(known.resolve(at(70_000), NONE, ip(1)), answered);
        assert_eq!(known.forget("h1").addresses, [ip(1)].into());
        assert!(known.by_address.is_empty() && known.by_node.is_empty());
    }

    #[test]
    fn no_machine_takes_an_address_for_which_its_node_answers() {
        let mut known = NeighborCache::default();
        known.on_announcement(at(0), NONE, ip(1), "h1", Some(true));
        assert_eq!(known.claim(at(999), NONE, ip(1)), ClaimVerdict::Refused);
        assert_eq!(known.claim(at(1000), NONE, ip(1)), ClaimVerdict::Doubted);
        assert_eq!(known.claim(at(1001), NONE, ip(1)), ClaimVerdict::Refused);
        known.on_announcement(at(1002), NONE, ip(1), "h1", None);
        assert_eq!(known.claim(at(2002), NONE, ip(1)), ClaimVerdict::Doubted);
        assert_eq!(
            (known.claim(at(3002), NONE, ip(1)), known.holder(NONE, ip(1))),
            (ClaimVerdict::Granted, None)
        );
        assert!(known.get("h1").unwrap().addresses.is_empty());
    }

    #[test]
    fn addresses_of_a_node_are_limited_and_the_oldest_makes_room() {
        let mut known = NeighborCache::default();
        for n in 0..100 {
            known.on_announcement(at(n.into()), NONE, ip(n), "h1", None);
        }
        let count =
            |known: &NeighborCache| (known.get("h1").unwrap().addresses.len(), known.by_address.len());
        assert_eq!((count(&known), known.holder(NONE, ip(99))), ((ADDRESSES_MAX, ADDRESSES_MAX), None));
        known.on_announcement(at(60_000), NONE, ip(99), "h1", None);
        assert_eq!((count(&known), known.holder(NONE, ip(99))), ((ADDRESSES_MAX, ADDRESSES_MAX), Some("h1")));
        assert_eq!(known.holder(NONE, ip(0)), None);
        known.on_announcement(at(60_000), Vlan(Some(5)), ip(1), "h1", None);
        assert_eq!((count(&known), known.holder(NONE, ip(1))), ((1, 1), None));
    }
}
