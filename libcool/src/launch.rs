//! One program, two ways to run: on a cluster or by hand.

use crate::{Comm, Error};

/// Runs `program` as the rank that a launcher started this process as ([`Comm::world`]); its result is the only
/// one.
///
/// In a process that was started by hand and with the feature `embedded`, runs it as 4 ranks
/// (`COOL_EMBEDDED` sets another number) in threads of this process instead, and gives the results of
/// all, in rank order.
///
/// # Errors
/// If the agent does not answer; without the feature `embedded`, if the process was started by hand.
pub fn launch<R, F>(program: F) -> Result<Vec<R>, Error>
where
    F: Fn(Comm) -> R + Sync,
    R: Send,
{
    #[cfg(feature = "embedded")]
    if crate::environment::Environment::from_process()?.is_none() {
        return crate::embedded::run(crate::embedded::Embedded::from_environment()?, program);
    }
    Ok(vec![program(Comm::world()?)])
}
