//! Ranks that have gone from a group, with the calls that they made before.

use crate::failure::{CallFailure, CallFailureKind};
use crate::members::Members;
use cool_collective::Rank;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Departures {
    /// By rank: the number of calls that it made, and why it went.
    departed: BTreeMap<u32, (u64, String)>,
}

impl Departures {
    /// A rank went after this number of calls; the failure of those who need it.
    pub(super) fn add(&mut self, members: &Members, rank: u32, calls: u64, why: String) -> CallFailure {
        let failed = failure(members, rank, &why);
        self.departed.insert(rank, (calls, why));
        failed
    }

    /// Of some ranks those that have gone: after how many calls, and why.
    pub(super) fn among<'a>(&'a self, ranks: &'a [Rank]) -> impl Iterator<Item = (u32, u64, &'a str)> {
        let gone =
            |rank: &Rank| self.departed.get(&rank.0).map(|(calls, why)| (rank.0, *calls, why.as_str()));
        ranks.iter().filter_map(gone)
    }

    /// # Errors
    /// If a rank is gone that is to take part in a call.
    pub(super) fn check_call(&self, members: &Members, call: u64) -> Result<(), CallFailure> {
        let gone = self.departed.iter().find(|(_, (calls, _))| *calls <= call);
        gone.map_or(Ok(()), |(rank, (_, why))| Err(failure(members, *rank, why)))
    }

    /// # Errors
    /// If a rank is gone.
    pub(super) fn check(&self, members: &Members, rank: u32) -> Result<(), CallFailure> {
        self.departed.get(&rank).map_or(Ok(()), |(_, why)| Err(failure(members, rank, why)))
    }

    /// # Errors
    /// If the rank is gone from which something is to come; of any, if all are.
    pub(super) fn check_sources(&self, members: &Members, source: Option<u32>) -> Result<(), CallFailure> {
        source.map_or_else(|| self.check_any_left(members), |rank| self.check(members, rank))
    }

    /// # Errors
    /// If all ranks but one are gone.
    pub(super) fn check_any_left(&self, members: &Members) -> Result<(), CallFailure> {
        match self.departed.last_key_value() {
            Some((rank, (_, why))) if self.departed.len() + 1 >= members.layout.size() => {
                Err(failure(members, *rank, why))
            }
            _ => Ok(()),
        }
    }
}

/// The failure of what needs a rank that is gone.
pub(super) fn failure(members: &Members, rank: u32, why: &str) -> CallFailure {
    let text = format!("{} is gone from group {}: {why}", members.name(&[rank]), members.id);
    CallFailure::new(CallFailureKind::Lost, text, vec![rank])
}
