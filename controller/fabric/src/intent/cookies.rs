//! Cookies identify the flows of this controller, and the purpose of each.

use super::tables::{FlowEntry, GROUPS};

/// Upper half of the cookies of all flows of this controller. The lower half states the purpose.
pub(crate) const COOKIE: u64 = 0x434f_4f4c_0000_0000;
/// Bits of a cookie that distinguish flows of this controller from those of other controllers.
pub(crate) const COOKIE_MASK: u64 = 0xffff_ffff_0000_0000;
/// Purposes, in the top byte of the cookie's lower half.
pub(crate) const FOR_TREE: u64 = 1 << 24;
pub(crate) const FOR_RACK: u64 = 2 << 24;
pub(crate) const FOR_NODE: u64 = 3 << 24;
pub(crate) const FOR_NONMEMBERS: u64 = 4 << 24;
pub(crate) const FOR_NODE_PORT: u64 = 5 << 24;
pub(crate) const FOR_LINK: u64 = 6 << 24;
pub(crate) const FOR_NORMAL: u64 = 7 << 24;
/// The flow that drops all other packets, in a switch that is or was a ToR. Its low 16 bits are the
/// rack's number.
pub(crate) const FOR_TOR: u64 = 8 << 24;
/// Flows towards a host without an agent, elsewhere and at its own switch. Their low 16 bits are
/// the rack's number.
pub(crate) const FOR_HOST: u64 = 9 << 24;
pub(crate) const FOR_HOST_HERE: u64 = 10 << 24;
pub(crate) const FOR_EDGE: u64 = 11 << 24;
pub(crate) const FOR_BROADCAST: u64 = 12 << 24;
/// Flows for multicast of the link (224.0.0.0/24, ff02::/16), and for neighbor discovery. A switch
/// with few meters or flows can be served without them.
pub(crate) const FOR_LINK_MULTICAST: u64 = 13 << 24;
/// Flows for reports of memberships (IGMP, MLD).
pub(crate) const FOR_MEMBERSHIPS: u64 = 15 << 24;
/// Flows for multicast of other programs.
pub(crate) const FOR_MULTICAST: u64 = 16 << 24;
/// Flows for loop probes at ports that are blocked in favor of another port.
pub(crate) const FOR_NORMAL_PROBE: u64 = 14 << 24;

/// Cookie and mask of the flows that count multicast packets of senders that are not members.
pub(crate) const NONMEMBERS: (u64, u64) = (COOKIE | FOR_NONMEMBERS, u64::MAX);

/// Returns whether a flow is for LLDP at the port of a link.
pub(crate) fn is_for_link(cookie: u64) -> bool {
    cookie & 0xff00_0000 == FOR_LINK
}

/// Returns whether a flow hands broadcasts, multicast of the link or neighbor discovery to the
/// controller.
pub(crate) fn is_for_broadcasts(cookie: u64) -> bool {
    matches!(cookie & 0xff00_0000, FOR_BROADCAST | FOR_LINK_MULTICAST)
}

/// Returns whether a flow hands reports of memberships to the controller.
pub(crate) fn is_for_memberships(cookie: u64) -> bool {
    cookie & 0xff00_0000 == FOR_MEMBERSHIPS
}

/// Returns the position of a flow among those that compete for a table that is too small: first the
/// flows that every switch needs, then those towards nodes, then trees, which groups can do
/// without, and last those of hosts without an agent.
pub(crate) fn rank(flow: &FlowEntry) -> u8 {
    match flow.cookie & 0xff00_0000 {
        0 | FOR_NONMEMBERS | FOR_TOR | FOR_BROADCAST => 0,
        FOR_TREE => 2,
        _ if is_dispensable(flow) => 3,
        _ => 1,
    }
}

/// Returns whether a flow serves hosts without an agent and other programs only, and must give way
/// to others.
pub(crate) fn is_dispensable(flow: &FlowEntry) -> bool {
    matches!(
        flow.cookie & 0xff00_0000,
        FOR_HOST | FOR_HOST_HERE | FOR_EDGE | FOR_LINK_MULTICAST | FOR_MEMBERSHIPS | FOR_MULTICAST
    )
}

/// What a flow is for, in the order in which an operator would look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    EverySwitch,
    Racks,
    Nodes,
    Links,
    Normal,
    Hosts,
    Multicast,
    Trees,
}

impl Purpose {
    /// Returns the purpose in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Purpose::EverySwitch => "every switch",
            Purpose::Racks => "routes to racks",
            Purpose::Nodes => "nodes",
            Purpose::Links => "links",
            Purpose::Normal => "forwarding by the switch",
            Purpose::Hosts => "hosts without an agent",
            Purpose::Multicast => "multicast of other programs",
            Purpose::Trees => "trees",
        }
    }
}

/// Returns the purpose of a flow of this controller.
pub(crate) fn purpose(cookie: u64) -> Purpose {
    match cookie & 0xff00_0000 {
        FOR_RACK => Purpose::Racks,
        FOR_NODE | FOR_NODE_PORT => Purpose::Nodes,
        FOR_LINK => Purpose::Links,
        FOR_NORMAL | FOR_NORMAL_PROBE => Purpose::Normal,
        FOR_HOST | FOR_HOST_HERE | FOR_EDGE => Purpose::Hosts,
        FOR_MULTICAST => Purpose::Multicast,
        FOR_TREE => Purpose::Trees,
        _ => Purpose::EverySwitch,
    }
}

/// Returns the number of the tree that a flow serves.
pub(crate) fn tree_of(flow: &FlowEntry) -> Option<u32> {
    (flow.cookie & 0xff00_0000 == FOR_TREE).then_some(GROUPS.start + (flow.cookie & 0x00ff_ffff) as u32)
}
