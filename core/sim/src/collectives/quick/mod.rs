//! Ranks that execute quick calls themselves. They are processes separate from their agents'
//! engines: they send and receive datagrams, wait, and report to their agents.

mod rank;
mod ranks;
mod retained;

pub(super) use rank::RankCall;
pub(super) use ranks::{QuickRanks, RankEvent, RankId, WATCHES};
