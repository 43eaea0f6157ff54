//! Ranks that execute quick calls themselves. They are processes separate from their agents'
//! engines: they send and receive datagrams, wait, and report to their agents.

mod rank;
mod rank_table;
mod ranks;
mod retained;

pub(super) use rank::{RankCall, WATCHES};
pub(super) use rank_table::{QuickRanks, RankEvent, RankId};
