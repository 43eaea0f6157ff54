//! The lost ranks of a group: those that have left it, and the number of calls that they made
//! before.

use crate::failure::{CallFailure, CallFailureKind};
use crate::members::Members;
use cool_collective::Rank;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct LostRankTable {
    /// By rank: the number of calls that it made, and the reason why it left.
    lost: BTreeMap<u32, (u64, String)>,
}

impl LostRankTable {
    /// Records that a rank left after this number of calls. Returns the failure of everything that
    /// needs the rank.
    pub(super) fn add(&mut self, members: &Members, rank: u32, calls: u64, why: String) -> CallFailure {
        let failed = failure(members, rank, &why);
        self.lost.insert(rank, (calls, why));
        failed
    }

    /// Returns those of `ranks` that have left, with the number of their calls and the reason.
    pub(super) fn among<'a>(&'a self, ranks: &'a [Rank]) -> impl Iterator<Item = (u32, u64, &'a str)> {
        let lost = |rank: &Rank| self.lost.get(&rank.0).map(|(calls, why)| (rank.0, *calls, why.as_str()));
        ranks.iter().filter_map(lost)
    }

    /// Checks that all ranks that must take part in a call are present.
    ///
    /// # Errors
    /// Returns the failure if one of them has left.
    pub(super) fn check_call(&self, members: &Members, call: u64) -> Result<(), CallFailure> {
        let lost = self.lost.iter().find(|(_, (calls, _))| *calls <= call);
        lost.map_or(Ok(()), |(rank, (_, why))| Err(failure(members, *rank, why)))
    }

    /// Checks that a rank is present.
    ///
    /// # Errors
    /// Returns the failure if it has left.
    pub(super) fn check(&self, members: &Members, rank: u32) -> Result<(), CallFailure> {
        self.lost.get(&rank).map_or(Ok(()), |(_, why)| Err(failure(members, rank, why)))
    }

    /// Checks that the source of a message, or any possible source, is present.
    ///
    /// # Errors
    /// Returns the failure if the source has left or, if any rank may be the source, if all have.
    pub(super) fn check_sources(&self, members: &Members, source: Option<u32>) -> Result<(), CallFailure> {
        source.map_or_else(|| self.check_any_left(members), |rank| self.check(members, rank))
    }

    /// Checks that at least one other rank is present.
    ///
    /// # Errors
    /// Returns the failure if all others have left.
    pub(super) fn check_any_left(&self, members: &Members) -> Result<(), CallFailure> {
        match self.lost.last_key_value() {
            Some((rank, (_, why))) if self.lost.len() + 1 >= members.layout.size() => {
                Err(failure(members, *rank, why))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the failure of everything that needs a rank that has left.
pub(super) fn failure(members: &Members, rank: u32, why: &str) -> CallFailure {
    let text = format!("{} is gone from group {}: {why}", members.describe_ranks(&[rank]), members.id);
    CallFailure::new(CallFailureKind::Lost, text, vec![rank])
}
