//! Runs a program on a cluster or, if started by hand, in one process.

use crate::{Comm, Error};

/// Runs `program` as the rank for which a launcher started this process ([`Comm::world`]), and
/// returns its single result.
///
/// In a process that was started by hand, and with the feature `embedded`, runs it as 4 ranks
/// instead (`COOL_EMBEDDED` sets another number), in threads of this process. Returns the results
/// of all ranks in rank order.
///
/// # Errors
/// If the agent does not reply. Without the feature `embedded`, also if the process was started by
/// hand.
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
