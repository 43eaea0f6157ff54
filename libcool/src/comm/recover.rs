//! Going on after a failure: who is left, and a group of those.

use super::Comm;
use crate::error::Error;

/// What the survivors of a group have agreed on: the same at every one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The bitwise and of what they gave.
    pub flags: u64,
    /// The ranks that are gone, ascending.
    pub gone: Vec<usize>,
}

impl Comm {
    /// A group of the ranks that are left, in their old order; [`Comm::gone`] of it says who is not in it. It works
    /// also, and above all, after calls of this group have failed. All ranks that are left call this.
    ///
    /// A rank is gone if it has ended or left the group, its agent is gone, or it does not come within the shortest
    /// timeout that any of them has set. That is decided once for all of them, by the controller; who counts as
    /// gone is told so by an error if it comes later. The new group has the timeout and the plans of this one,
    /// which should then be dropped.
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
    /// If this rank counts as gone, others call [`Comm::agree`], or the controller is away. Nothing is lost by trying
    /// again.
    pub fn shrink(&self) -> Result<Comm, Error> {
        let (timeout, plans) = (self.timeout(), self.inner.state().plans.clone());
        let (session, attached, gone) = self.inner.session.shrink(timeout)?;
        Ok(Comm::new(session, attached, timeout, plans, gone))
    }

    /// The bitwise and of what all ranks give that are left, and who is gone; see [`Comm::shrink`] for what that
    /// means. It works after calls of this group have failed. All ranks that are left call this.
    ///
    /// # Errors
    /// If this rank counts as gone, others call [`Comm::shrink`], or the controller is away.
    pub fn agree(&self, flags: u64) -> Result<Agreement, Error> {
        let timeout = self.timeout();
        let (flags, gone) = self.inner.session.agree(flags, timeout)?;
        Ok(Agreement { flags, gone })
    }

    /// Lets all calls of this group fail that are under way or come later, at every rank, with
    /// [`FailureKind::Revoked`](crate::FailureKind::Revoked): for a rank that cannot go on as the others expect. Only
    /// [`Comm::shrink`] and [`Comm::agree`] work afterwards. A group that has failed before need not be revoked: it
    /// has failed at every rank.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn revoke(&self) -> Result<(), Error> {
        self.inner.session.revoke()
    }

    /// The ranks of the group from which this one was made by [`Comm::shrink`] that are not in it; none for any
    /// other group.
    pub fn gone(&self) -> &[usize] {
        &self.inner.lost
    }
}
