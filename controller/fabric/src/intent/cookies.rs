//! Cookies: how the flows of this controller are recognized, and what each is for.

use super::tables::{FlowEntry, GROUPS};

/// Marks the flows that are ours; their low half says what they are for.
pub(crate) const COOKIE: u64 = 0x434f_4f4c_0000_0000;
/// The bits by which our flows are told from those of others.
pub(crate) const COOKIE_MASK: u64 = 0xffff_ffff_0000_0000;
/// What a flow is for: the top byte of the cookie's low half.
pub(crate) const FOR_TREE: u64 = 1 << 24;
pub(crate) const FOR_RACK: u64 = 2 << 24;
pub(crate) const FOR_NODE: u64 = 3 << 24;
pub(crate) const FOR_NONMEMBERS: u64 = 4 << 24;
pub(crate) const FOR_NODE_PORT: u64 = 5 << 24;
pub(crate) const FOR_LINK: u64 = 6 << 24;
pub(crate) const FOR_NORMAL: u64 = 7 << 24;
/// The flow that drops the rest, in a switch that is, or was, a ToR; its low 16 bits are the rack's number.
pub(crate) const FOR_TOR: u64 = 8 << 24;
/// Towards a host without an agent, and where it is; the low 16 bits are the rack's number.
pub(crate) const FOR_HOST: u64 = 9 << 24;
pub(crate) const FOR_HOST_HERE: u64 = 10 << 24;
pub(crate) const FOR_EDGE: u64 = 11 << 24;
pub(crate) const FOR_BROADCAST: u64 = 12 << 24;
/// What is said to all by IPv6, and neighbour discovery. Where switches have few flows this gives way.
pub(crate) const FOR_IPV6: u64 = 13 << 24;

/// By which cookie, in which bits, the flow is known that counts what outsiders send.
pub(crate) const NONMEMBERS: (u64, u64) = (COOKIE | FOR_NONMEMBERS, u64::MAX);

/// Whether a flow is for the frames of a link's port.
pub(crate) fn is_for_link(cookie: u64) -> bool {
    cookie & 0xff00_0000 == FOR_LINK
}

/// Whether a flow hands Ethernet broadcasts, or link-local multicast and neighbour discovery of IPv6, to the controller.
pub(crate) fn is_for_broadcasts(cookie: u64) -> bool {
    matches!(cookie & 0xff00_0000, FOR_BROADCAST | FOR_IPV6)
}

/// Whether a flow is one of those that every switch holds, and could not do without.
pub(crate) fn is_everywhere(flow: &FlowEntry) -> bool {
    matches!(flow.cookie & 0xff00_0000, 0 | FOR_NONMEMBERS | FOR_TOR | FOR_BROADCAST)
}

/// The number of the tree that a flow is for, if it is for one.
pub(crate) fn tree_of(flow: &FlowEntry) -> Option<u32> {
    (flow.cookie & 0xff00_0000 == FOR_TREE).then_some(GROUPS.start + (flow.cookie & 0x00ff_ffff) as u32)
}
