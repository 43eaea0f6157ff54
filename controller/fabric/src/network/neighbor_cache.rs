//! The IPv6 addresses of nodes. Agents do not tell them: they are known by what a node says itself, at its own port and under its
//! own Ethernet address. What it has said of late is answered for it; for what was said longer ago it is asked itself.

use super::host_table::{ANSWERS_WITHIN, ASK_AFTER, MAX_ADDRESSES};
use crate::frames::vlan::Vlan;
use cool_machine::Time;
use core::net::Ipv6Addr;
use std::collections::{BTreeMap, BTreeSet};

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct NeighborCache {
    by_address: BTreeMap<(Vlan, Ipv6Addr), NodeAddressOwner>,
    by_node: BTreeMap<String, AnnouncedAddresses>,
}

/// Whose an address is.
#[derive(Clone, Debug)]
struct NodeAddressOwner {
    node: String,
    heard: Time,
    /// Since when a question has been without an answer.
    asked: Option<Time>,
}

/// What a node has said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnnouncedAddresses {
    vlan: Vlan,
    pub(crate) addresses: BTreeSet<Ipv6Addr>,
    /// Whether it is a router.
    pub(crate) router: Option<bool>,
}

/// Who is to answer a question for a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressResponder {
    /// The controller, by what the node has said.
    Controller {
        router: bool,
    },
    Node,
}

/// What becomes of an address of a node that somebody else says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimVerdict {
    Refused,
    /// The same, and the node is to be asked.
    Doubted,
    /// The node does not answer for it any more.
    Granted,
}

impl NeighborCache {
    /// A node has said that it has an address, which is no other node's. Returns whether it is known whether it is a router.
    pub(crate) fn heard(
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
        if !speaker.addresses.contains(&address) && speaker.addresses.len() >= MAX_ADDRESSES {
            let heard =
                |address: &Ipv6Addr| self.by_address.get(&(vlan, *address)).map(|holder| holder.heard);
            let longest = speaker.addresses.iter().map(|address| (heard(address), *address)).min();
            let Some((_, silent)) = longest.filter(|(heard, _)| heard.is_none_or(|at| at + ASK_AFTER <= now))
            else {
                return known;
            };
            speaker.addresses.remove(&silent);
            self.by_address.remove(&(vlan, silent));
        }
        speaker.addresses.insert(address);
        let holder = NodeAddressOwner { node: node.to_owned(), heard: now, asked: None };
        self.by_address.insert((vlan, address), holder);
        known
    }

    /// Nothing is known of a node any more; returns what was.
    pub(crate) fn forget(&mut self, node: &str) -> AnnouncedAddresses {
        let speaker = self.by_node.remove(node).unwrap_or_default();
        for address in &speaker.addresses {
            self.by_address.remove(&(speaker.vlan, *address));
        }
        speaker
    }

    /// What a node has said.
    pub(crate) fn of(&self, node: &str) -> Option<&AnnouncedAddresses> {
        self.by_node.get(node)
    }

    /// The node that has an address in a segment.
    pub(crate) fn holder(&self, vlan: Vlan, address: Ipv6Addr) -> Option<&str> {
        self.by_address.get(&(vlan, address)).map(|holder| holder.node.as_str())
    }

    /// Somebody asks for an address: the node that has it, and who is to answer; nobody if it is not known, or has been asked in vain.
    pub(crate) fn ask(
        &mut self,
        now: Time,
        vlan: Vlan,
        address: Ipv6Addr,
    ) -> Option<(&str, AddressResponder)> {
        let holder = self.by_address.get_mut(&(vlan, address))?;
        let router = self.by_node.get(&holder.node).and_then(|speaker| speaker.router);
        if let Some(router) = router.filter(|_| now < holder.heard + ASK_AFTER && holder.asked.is_none()) {
            return Some((&holder.node, AddressResponder::Controller { router }));
        }
        let asked = *holder.asked.get_or_insert(now);
        (now < asked + ANSWERS_WITHIN).then_some((&holder.node, AddressResponder::Node))
    }

    /// Somebody else says that it has an address of a node.
    pub(crate) fn claim(&mut self, now: Time, vlan: Vlan, address: Ipv6Addr) -> ClaimVerdict {
        let Some(holder) = self.by_address.get_mut(&(vlan, address)) else { return ClaimVerdict::Granted };
        match holder.asked {
            None if now < holder.heard + ANSWERS_WITHIN => return ClaimVerdict::Refused,
            None => {
                holder.asked = Some(now);
                return ClaimVerdict::Doubted;
            }
            Some(asked) if now < asked + ANSWERS_WITHIN => return ClaimVerdict::Refused,
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
    fn what_a_node_has_said_of_late_is_answered_for_it_and_then_it_is_asked() {
        let mut known = NeighborCache::default();
        assert_eq!(known.ask(at(0), NONE, ip(1)), None);
        // A question of its own does not say whether it is a router.
        assert!(!known.heard(at(0), NONE, ip(1), "h1", None));
        assert_eq!(known.ask(at(0), NONE, ip(1)), Some(("h1", AddressResponder::Node)));
        assert!(known.heard(at(1), NONE, ip(1), "h1", Some(false)));
        let answered = Some(("h1", AddressResponder::Controller { router: false }));
        assert_eq!(known.ask(at(60_000), NONE, ip(1)), answered);
        assert_eq!(known.ask(at(60_000), Vlan(Some(5)), ip(1)), None);
        assert_eq!(known.ask(at(60_001), NONE, ip(1)), Some(("h1", AddressResponder::Node)));
        assert_eq!(known.ask(at(61_000), NONE, ip(1)), Some(("h1", AddressResponder::Node)));
        assert_eq!(known.ask(at(61_001), NONE, ip(1)), None);
        known.heard(at(70_000), NONE, ip(1), "h1", None);
        assert_eq!(known.ask(at(70_000), NONE, ip(1)), answered);
        assert_eq!(known.forget("h1").addresses, [ip(1)].into());
        assert!(known.by_address.is_empty() && known.by_node.is_empty());
    }

    #[test]
    fn nobody_takes_an_address_for_which_its_node_answers() {
        let mut known = NeighborCache::default();
        known.heard(at(0), NONE, ip(1), "h1", Some(true));
        assert_eq!(known.claim(at(999), NONE, ip(1)), ClaimVerdict::Refused);
        assert_eq!(known.claim(at(1000), NONE, ip(1)), ClaimVerdict::Doubted);
        assert_eq!(known.claim(at(1001), NONE, ip(1)), ClaimVerdict::Refused);
        known.heard(at(1002), NONE, ip(1), "h1", None);
        assert_eq!(known.claim(at(2002), NONE, ip(1)), ClaimVerdict::Doubted);
        assert_eq!(
            (known.claim(at(3002), NONE, ip(1)), known.holder(NONE, ip(1))),
            (ClaimVerdict::Granted, None)
        );
        assert!(known.of("h1").unwrap().addresses.is_empty());
    }

    #[test]
    fn a_node_has_a_bounded_number_of_addresses_of_one_segment_and_the_one_unheard_for_longest_makes_room() {
        let mut known = NeighborCache::default();
        for n in 0..100 {
            known.heard(at(n.into()), NONE, ip(n), "h1", None);
        }
        let count = |known: &NeighborCache| (known.of("h1").unwrap().addresses.len(), known.by_address.len());
        assert_eq!((count(&known), known.holder(NONE, ip(99))), ((MAX_ADDRESSES, MAX_ADDRESSES), None));
        known.heard(at(60_000), NONE, ip(99), "h1", None);
        assert_eq!((count(&known), known.holder(NONE, ip(99))), ((MAX_ADDRESSES, MAX_ADDRESSES), Some("h1")));
        assert_eq!(known.holder(NONE, ip(0)), None);
        known.heard(at(60_000), Vlan(Some(5)), ip(1), "h1", None);
        assert_eq!((count(&known), known.holder(NONE, ip(1))), ((1, 1), None));
    }
}
