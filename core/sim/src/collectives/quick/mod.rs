//! Ranks that carry out quick calls themselves, beside the engines of their agents: processes of their own, which send and take
//! datagrams, wait, and tell their agents what those are to know.

mod kept;
mod rank;
mod ranks;

pub(super) use rank::RankCall;
pub(super) use ranks::{QuickRanks, RankEvent, RankId, WATCHES};
