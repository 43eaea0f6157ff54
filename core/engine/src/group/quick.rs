//! Quick calls, which the ranks of several nodes execute themselves by datagrams: the part of the
//! agents, which agree on whether all ranks of a group are able to.

pub(super) mod agreement;
