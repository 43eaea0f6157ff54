//! The hosts towards which switches have flows or are withdrawing them.

use super::Output;
use crate::intent::hosts::HostKey;
use cool_machine::{Duration, Time};
use cool_topology::Port;
use std::collections::BTreeMap;

/// State of a host's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostPlacement {
    /// Flows lead to this port.
    At(Port),
    /// All flows are being withdrawn, and new ones must wait for the switches, but no longer than
    /// until this time, because a mixture of old and new flows could form a loop.
    Withdrawn(Time),
}

/// Flows of all hosts.
#[derive(Debug)]
pub(super) struct HostPlacements {
    deferral_timeout: Duration,
    by_host: BTreeMap<HostKey, HostPlacement>,
}

impl HostPlacements {
    pub(super) fn new(deferral_timeout: Duration) -> HostPlacements {
        HostPlacements { deferral_timeout, by_host: BTreeMap::new() }
    }

    /// Returns the change of flows that a host needs now at this port and rack; `place` is `None`
    /// if the host is at no port.
    pub(super) fn update(&mut self, now: Time, host: HostKey, place: Option<(Port, u32)>) -> Option<Output> {
        match (self.by_host.get(&host), place) {
            (Some(HostPlacement::At(before)), Some((port, _))) if *before == port => None,
            (Some(HostPlacement::Withdrawn(_)), _) | (None, None) => None,
            (Some(HostPlacement::At(_)), _) => {
                self.by_host.insert(host, HostPlacement::Withdrawn(now + self.deferral_timeout));
                Some(Output::WithdrawHost(host))
            }
            (None, Some((port, rack))) => {
                self.by_host.insert(host, HostPlacement::At(port));
                Some(Output::PlaceHost { host, rack, port })
            }
        }
    }

    /// Removes and returns the hosts with a withdrawal that is acknowledged or has timed out.
    pub(super) fn take_withdrawn(
        &mut self,
        now: Time,
        is_acknowledged: impl Fn(HostKey) -> bool,
    ) -> Vec<HostKey> {
        let over = |host: HostKey, placement: HostPlacement| match placement {
            HostPlacement::At(_) => false,
            HostPlacement::Withdrawn(until) => until <= now || is_acknowledged(host),
        };
        let hosts: Vec<HostKey> =
            self.by_host.iter().filter(|(host, p)| over(**host, **p)).map(|(host, _)| *host).collect();
        self.by_host.retain(|host, placement| !over(*host, *placement));
        hosts
    }

    /// Returns when the next withdrawal times out.
    pub(super) fn deadline(&self) -> Option<Time> {
        let until = self.by_host.values().filter_map(|placement| match placement {
            HostPlacement::Withdrawn(until) => Some(*until),
            HostPlacement::At(_) => None,
        });
        until.min()
    }
}
