//! Finds the edge ports, which have no link to a switch and may therefore lead to hosts. A port
//! becomes an edge port after the time in which its link would have been found, or at once if a
//! node is located there. A port that has had a link since it came up never becomes one.

use super::deadlines::Deadlines;
use cool_machine::Time;
use cool_topology::{DatapathId, Port};
use std::collections::BTreeSet;

/// Ports that are up.
#[derive(Debug, Default)]
pub(crate) struct EdgePorts {
    up: BTreeSet<Port>,
    /// Ports that have had a link since they came up.
    linked: BTreeSet<Port>,
    /// Time at which each port counts as an edge port if no link was found.
    settling: Deadlines<Port>,
    settled: BTreeSet<Port>,
    /// Ports that have changed since the last call of [`take_changed`](EdgePorts::take_changed).
    changed: BTreeSet<Port>,
}

impl EdgePorts {
    /// Records that a switch has connected, perhaps again, with these ports up.
    pub(crate) fn switch_up(&mut self, switch: DatapathId, up: &BTreeSet<u32>) {
        self.forget(|port| port.switch == switch && !up.contains(&port.number));
    }

    /// Records that a port is up. A link at it would have been found by `settled`.
    pub(crate) fn port_up(&mut self, port: Port, settled: Time) {
        if self.up.insert(port) {
            self.settling.set(port, settled);
        }
    }

    pub(crate) fn port_down(&mut self, port: Port) {
        self.up.remove(&port);
        self.linked.remove(&port);
        self.settling.clear(port);
        if self.settled.remove(&port) {
            self.changed.insert(port);
        }
    }

    pub(crate) fn switch_removed(&mut self, switch: DatapathId) {
        self.forget(|port| port.switch == switch);
    }

    fn forget(&mut self, removed: impl Fn(&Port) -> bool) {
        for port in self.up.iter().copied().filter(|port| removed(port)).collect::<Vec<_>>() {
            self.port_down(port);
        }
        self.linked.retain(|port| !removed(port));
    }

    /// Records that a link was found at a port.
    pub(crate) fn linked(&mut self, port: Port) {
        if self.linked.insert(port) && self.settled.remove(&port) {
            self.changed.insert(port);
        }
    }

    /// Records that a node is at a port, which therefore counts at once.
    pub(crate) fn node_at(&mut self, port: Port) {
        self.settling.clear(port);
        self.settle(port);
    }

    /// Makes ports edge ports after their waiting time.
    pub(crate) fn pass_time(&mut self, now: Time) {
        while let Some(port) = self.settling.expired(now) {
            self.settle(port);
        }
    }

    fn settle(&mut self, port: Port) {
        if self.may_be(port) {
            self.settled.insert(port);
            self.changed.insert(port);
        }
    }

    /// Returns the edge ports.
    pub(crate) fn all(&self) -> &BTreeSet<Port> {
        &self.settled
    }

    /// Returns the ports that are up.
    pub(crate) fn up(&self) -> impl Iterator<Item = Port> + '_ {
        self.up.iter().copied()
    }

    /// Returns whether a port is up and has had no link so far.
    pub(crate) fn may_be(&self, port: Port) -> bool {
        self.up.contains(&port) && !self.linked.contains(&port)
    }

    /// Returns the ports that have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Port> {
        core::mem::take(&mut self.changed)
    }

    /// Marks a port as changed for another reason.
    pub(crate) fn touch(&mut self, port: Port) {
        self.changed.insert(port);
    }

    /// Returns when the next port may become an edge port.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.settling.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_port_with_a_node_counts_at_once_unless_linked_or_down() {
        let port = |number| Port { switch: DatapathId(1), number };
        let mut edges = EdgePorts::default();
        for number in [1, 2] {
            edges.port_up(port(number), Time::ZERO + Duration::from_millis(4));
        }
        edges.linked(port(2));
        for number in [1, 2, 3] {
            edges.node_at(port(number));
        }
        assert_eq!((edges.all(), edges.deadline()), (&[port(1)].into(), None));
    }

    #[test]
    fn a_port_counts_after_a_while_and_after_a_link_once_down() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let port = |number| Port { switch: DatapathId(1), number };
        let mut edges = EdgePorts::default();
        edges.port_up(port(1), at(4));
        edges.port_up(port(2), at(4));
        edges.linked(port(2));
        edges.pass_time(at(3));
        assert!(edges.all().is_empty() && edges.may_be(port(1)) && !edges.may_be(port(2)));
        edges.pass_time(at(4));
        assert_eq!((edges.all(), edges.deadline()), (&[port(1)].into(), None));
        edges.port_up(port(1), at(9));
        assert_eq!(edges.deadline(), None);
        edges.port_down(port(2));
        edges.port_up(port(2), at(9));
        edges.linked(port(1));
        edges.pass_time(at(9));
        assert_eq!((edges.all(), &edges.changed), (&[port(2)].into(), &[port(1), port(2)].into()));
        edges.switch_up(DatapathId(1), &[1].into());
        assert!(edges.all().is_empty() && !edges.may_be(port(1)));
        edges.switch_removed(DatapathId(1));
        edges.port_up(port(1), at(9));
        edges.pass_time(at(9));
        assert_eq!(edges.all(), &[port(1)].into());
    }
}
