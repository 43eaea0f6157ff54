//! Reasons why frames of hosts are not forwarded, for the operator.

use super::memberships::{ADDRESSES_MAX, PORT_ADDRESSES_MAX};
use super::{HostForwarder, Surroundings};
use crate::intent::hosts::HostKey;
use cool_machine::{Duration, Time};
use cool_topology::Port;
use std::collections::BTreeMap;
use tracing::warn;

/// How long a warning stays after its cause was last seen.
const WARNING_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of ports with a warning.
const WARNINGS_MAX: usize = 64;

/// Why frames that a port receives are not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostWarning {
    /// A host claims an address of a node that is somewhere else.
    ClaimsNodeAddress(HostKey, String),
    TooManyHosts,
    MovesTooOften(HostKey),
    TooManyAddresses,
    /// The port receives frames that were flooded out of another port.
    Loop,
}

/// The warnings, one for each port.
#[derive(Debug, Default)]
pub(super) struct HostWarnings {
    by_port: BTreeMap<Port, (HostWarning, Time)>,
    revision: u64,
}

impl HostWarnings {
    /// Records a warning for a while. Returns whether it is the first at its port and must be
    /// logged.
    fn record(&mut self, now: Time, port: Port, warning: HostWarning) -> bool {
        let until = now + WARNING_LIFETIME;
        if let Some((same, then)) = self.by_port.get_mut(&port)
            && *same == warning
        {
            *then = until;
            return false;
        }
        if self.by_port.len() >= WARNINGS_MAX && !self.by_port.contains_key(&port) {
            return false;
        }
        self.revision += 1;
        self.by_port.insert(port, (warning, until)).is_none()
    }

    /// Removes the warning of a port. `was_closed` is true if the port had been closed because of a
    /// loop.
    pub(super) fn port_down(&mut self, port: Port, was_closed: bool) {
        if was_closed | self.by_port.remove(&port).is_some() {
            self.revision += 1;
        }
    }

    /// Removes warnings that have expired.
    pub(super) fn pass_time(&mut self, now: Time) {
        let before = self.by_port.len();
        self.by_port.retain(|_, (_, until)| *until > now);
        self.revision += u64::from(self.by_port.len() < before);
    }

    /// Counts a change of the closed ports, which the flood guard records.
    pub(super) fn touch(&mut self) {
        self.revision += 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Port, HostWarning)> {
        self.by_port.iter().map(|(port, (warning, _))| (*port, warning.clone()))
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns when the next warning expires.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.by_port.values().map(|(_, until)| *until).min()
    }
}

impl HostForwarder {
    /// Records a warning, and logs it if it is new.
    pub(super) fn warn(&mut self, now: Time, network: &Surroundings<'_>, port: Port, warning: HostWarning) {
        let is_new = match warning {
            // The flood guard records closed ports itself.
            HostWarning::Loop => {
                self.warnings.touch();
                true
            }
            _ => self.warnings.record(now, port, warning.clone()),
        };
        if is_new {
            warn!("{}", self.describe(network, port, &warning));
        }
    }

    /// Returns a warning as text.
    pub(super) fn describe(&self, network: &Surroundings<'_>, port: Port, warning: &HostWarning) -> String {
        let at = network.port_name(port);
        match warning {
            HostWarning::ClaimsNodeAddress(key, node) => format!(
                "port {at}: host {} claims an address of node {node}, so its frames are dropped; give it an address of its own",
                key.mac
            ),
            HostWarning::TooManyHosts => format!(
                "port {at}: further hosts are not served, because there are {} of {} in all and at most {} at a port; see \
                 --max-hosts and --max-hosts-per-port",
                self.hosts.len(),
                self.limits.all,
                self.limits.per_port
            ),
            HostWarning::MovesTooOften(key) => format!(
                "port {at}: host {} also sends from another port; check whether two hosts have its address, or a cable \
                 forms a loop",
                key.mac
            ),
            HostWarning::TooManyAddresses => format!(
                "port {at}: machines have joined more multicast addresses than are carried, at most {PORT_ADDRESSES_MAX} \
                 for a port and {ADDRESSES_MAX} in all; packets to further ones do not reach them"
            ),
            HostWarning::Loop => format!(
                "port {at} is closed to hosts, because it receives broadcasts that other ports sent; look for a switch \
                 without LLDP that connects it to another port"
            ),
        }
    }
}
