//! Recovery after a failure: agreement of the survivors, and a new group of them.

use super::Comm;
use crate::error::Error;

/// The agreement of the survivors of a group, which is the same at each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Bitwise AND of the numbers that the survivors passed.
    pub flags: u64,
    /// Lost ranks, ascending.
    pub gone: Vec<usize>,
}

impl Comm {
    /// Creates a group of the surviving ranks, in their old order. All survivors must call this.
    ///
    /// It is meant to be called after calls of this group have failed. [`Comm::gone`] of the new
    /// group returns the lost ranks.
    ///
    /// A rank counts as lost if it has ended or left the group, its agent is unreachable, or it
    /// does not call this within the shortest timeout that any survivor has set. The controller
    /// decides this once for all survivors; a rank that calls later and counts as lost gets an
    /// error. The new group has the timeout and the plans of this one, which should be dropped
    /// afterwards.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// if comm.rank() == 2 {
    ///     return Ok(()); // As if it had been killed.
    /// }
    /// let mut sum = [0];
    /// if comm.allreduce(&[1], &mut sum, cool::Op::Sum).is_err() {
    ///     let rest = comm.shrink()?;
    ///     assert_eq!(rest.gone(), [2]);
    ///     rest.allreduce(&[1], &mut sum, cool::Op::Sum)?;
    /// }
    /// assert_eq!(sum, [3]);
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If this rank counts as lost, other ranks call [`Comm::agree`] instead, or the controller is
    /// unreachable. The call may be repeated.
    pub fn shrink(&self) -> Result<Comm, Error> {
        let (timeout, plans) = (self.timeout(), self.inner.state().plans.clone());
        let (session, attached, gone) = self.inner.session.shrink(timeout)?;
        Ok(Comm::new(session, attached, timeout, plans, gone))
    }

    /// Returns the bitwise AND of `flags` over all surviving ranks, and the lost ranks; see
    /// [`Comm::shrink`] for which ranks count as lost. All survivors must call this. It works after
    /// calls of this group have failed.
    ///
    /// # Errors
    /// If this rank counts as lost, other ranks call [`Comm::shrink`] instead, or the controller is
    /// unreachable.
    pub fn agree(&self, flags: u64) -> Result<Agreement, Error> {
        let timeout = self.timeout();
        let (flags, gone) = self.inner.session.agree(flags, timeout)?;
        Ok(Agreement { flags, gone })
    }

    /// Makes all pending and later calls of this group fail at every rank, with
    /// [`FailureKind::Revoked`](crate::FailureKind::Revoked).
    ///
    /// A rank should call this if it cannot continue as the other ranks expect. Only
    /// [`Comm::shrink`] and [`Comm::agree`] work afterwards. A group that has already failed need
    /// not be revoked, because it has failed at every rank.
    ///
    /// # Errors
    /// If the agent is unreachable.
    pub fn revoke(&self) -> Result<(), Error> {
        self.inner.session.revoke()
    }

    /// Returns the lost ranks of the group from which [`Comm::shrink`] created this one. Returns an
    /// empty slice for any other group.
    pub fn gone(&self) -> &[usize] {
        &self.inner.lost
    }
}
