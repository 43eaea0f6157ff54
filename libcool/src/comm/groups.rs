//! Groups that are created from an existing group at run time. Each has its own trees and calls;
//! many may exist at the same time.

use super::Comm;
use crate::environment::JoinMode;
use crate::error::Error;
use crate::session::RankSession;

impl Comm {
    /// Splits the group. Ranks that pass the same color form a new group, ordered by `key`, and by
    /// rank where keys are equal. A rank that passes no color gets `None`. All ranks of the group
    /// must call this.
    ///
    /// The new group has the timeout and plans of its parent. It is released when all its ranks
    /// have dropped it; a rank may do so once its own calls are complete.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// // The ranks of each rack, in reverse order.
    /// let rack = comm.place(comm.rank()).map_or(0, |place| place.rack as u64);
    /// let mine = comm.split(Some(rack), -(comm.rank() as i64))?.expect("a color was given");
    /// assert_eq!(mine.size(), 2);
    /// mine.barrier()
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a rank of the new group does not join it within the group's timeout, or the call fails.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Comm>, Error> {
        self.divide("split", color, key)
    }

    /// Creates a group of the same ranks in the same order, whose calls are independent of this
    /// group's.
    ///
    /// A library that is passed a group should use this, so that its calls do not match those of
    /// the caller. All ranks of the group must call this.
    ///
    /// # Errors
    /// As [`Comm::split`].
    pub fn dup(&self) -> Result<Comm, Error> {
        // All ranks create groups from this one in the same order, so the key is the same at each
        // of them without communication.
        let key = format!("copy of group {}, made for the {}. time", self.group(), self.count_division());
        self.form("dup", key, self.rank() as u32, self.size() as u32)
    }

    /// Creates a group of some of the ranks, in the given order. Returns `None` at the other ranks.
    /// All ranks of the group must call this with the same `ranks`.
    ///
    /// # Errors
    /// If a rank does not exist or is listed twice. Also as [`Comm::split`].
    pub fn subset(&self, ranks: &[usize]) -> Result<Option<Comm>, Error> {
        let name = "subset";
        for (place, rank) in ranks.iter().enumerate() {
            let size = self.size();
            if *rank >= size {
                let reason = format!("there is no rank {rank}; the ranks are 0 to {}", size - 1);
                return Err(self.inner.argument_error(name, reason));
            }
            if ranks[..place].contains(rank) {
                return Err(self.inner.argument_error(name, format!("rank {rank} is listed twice")));
            }
        }
        let place = ranks.iter().position(|rank| *rank == self.rank());
        self.divide(name, place.map(|_| 0), place.unwrap_or(0) as i64)
    }

    fn divide(&self, name: &'static str, color: Option<u64>, key: i64) -> Result<Option<Comm>, Error> {
        // Each rank's entry: whether it has a color, the color, and the key.
        let mut all = vec![[0i64; 3]; self.size()];
        all[self.rank()] = [i64::from(color.is_some()), color.unwrap_or(0).cast_signed(), key];
        self.allgather_in_place(all.as_flattened_mut())?;
        let number = self.count_division();
        let Some(color) = color else { return Ok(None) };
        let mine = all[self.rank()];
        let mut members: Vec<(i64, usize)> = (0..)
            .zip(&all)
            .filter(|(_, said)| said[..2] == mine[..2])
            .map(|(rank, said)| (said[2], rank))
            .collect();
        members.sort_unstable();
        let place = members.iter().position(|(_, rank)| *rank == self.rank()).unwrap_or_default();
        // The number of ranks of a group fits.
        let (rank, size) = (place as u32, members.len() as u32);
        let key = format!("part {color} of group {}, split for the {number}. time", self.group());
        self.form(name, key, rank, size).map(Some)
    }

    /// Returns how many groups were created from this one, including the current one.
    fn count_division(&self) -> u64 {
        let mut state = self.inner.state();
        state.splits += 1;
        state.splits
    }

    /// Joins the group of all ranks that pass the same key.
    fn form(&self, name: &'static str, key: String, rank: u32, size: u32) -> Result<Comm, Error> {
        let (timeout, plans) = (self.timeout(), self.inner.state().plans.clone());
        let mode = JoinMode::Enlist { key, size, timeout };
        let (session, attached) = RankSession::open(self.inner.session.socket(), rank, &mode, name)?;
        Ok(Comm::new(session, attached, timeout, plans, Vec::new()))
    }
}
