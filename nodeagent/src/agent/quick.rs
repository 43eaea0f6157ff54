//! Quick calls, which the ranks of several nodes execute themselves by datagrams: the part of a
//! node's agent.

pub(super) mod server;
