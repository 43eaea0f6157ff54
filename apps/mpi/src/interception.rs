//! Which calls are intercepted. All ranks of a communicator must reach the same decision without
//! communication, so it depends only on facts that MPI guarantees to be equal at all of them: the
//! operation, the communicator and the racks of its ranks, the reduction, and the bytes of the
//! signature. It must not depend on how a rank describes its memory, because another rank may
//! describe the same bytes differently.

use crate::settings::{InterceptMode, MpiSettings, RankOrder};
use cool_types::Operation;
use std::fmt;

/// Why a call is passed through to the host's MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PassThroughReason {
    /// `COOL_MPI=off`, or the program has called `MPI_Finalize`.
    Off,
    /// `COOL_MPI_OPS` does not include the operation.
    NotChosen,
    /// Fewer bytes than `COOL_MPI_MIN`, or than the size from which COOL is faster.
    Small,
    /// More bytes than [`LARGEST_CALL_BYTES`](crate::LARGEST_CALL_BYTES), or than the size up to
    /// which COOL is faster.
    Large,
    /// The reduction is a function of the program (`MPI_Op_create`), or COOL does not support it.
    Reduction,
    /// COOL cannot reduce elements of this type.
    Elements,
    /// The communicator is an intercommunicator.
    Intercommunicator,
    /// The communicator has only one rank.
    Alone,
    /// The communicator has no group, because there is no agent or there are too many groups.
    NoGroup,
    /// The arguments are invalid. The host's library reports this.
    Arguments,
}

impl fmt::Display for PassThroughReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PassThroughReason::Off => "off",
            PassThroughReason::NotChosen => "not in COOL_MPI_OPS",
            PassThroughReason::Small => "small",
            PassThroughReason::Large => "large",
            PassThroughReason::Reduction => "reduction",
            PassThroughReason::Elements => "type",
            PassThroughReason::Intercommunicator => "intercommunicator",
            PassThroughReason::Alone => "one rank",
            PassThroughReason::NoGroup => "no group",
            PassThroughReason::Arguments => "arguments",
        })
    }
}

impl MpiSettings {
    /// Decides whether a call may be intercepted, before its communicator is examined.
    ///
    /// # Errors
    /// Returns the reason if the call must be passed through.
    pub fn admit(&self, operation: Operation) -> Result<(), PassThroughReason> {
        match (self.mode, self.operations.contains(&operation)) {
            (InterceptMode::Off, _) => Err(PassThroughReason::Off),
            (_, false) => Err(PassThroughReason::NotChosen),
            _ => Ok(()),
        }
    }

    /// Decides whether a call with a type signature of `bytes` bytes may be intercepted. For bcast
    /// and reductions, these are the bytes of the vector; for other operations, those of all parts
    /// together.
    ///
    /// # Errors
    /// Returns the reason if the call must be passed through.
    pub fn admit_bytes(&self, operation: Operation, bytes: u64) -> Result<(), PassThroughReason> {
        match bytes {
            _ if bytes < self.smallest(operation) => Err(PassThroughReason::Small),
            _ if bytes > self.largest(operation) => Err(PassThroughReason::Large),
            _ => Ok(()),
        }
    }
}

impl MpiSettings {
    /// Returns `Ok` unless the call is shorter than the threshold for the order of its ranks. The
    /// caller must have called [`MpiSettings::admit`] and [`MpiSettings::admit_bytes`] before.
    ///
    /// # Errors
    /// Returns [`PassThroughReason::Small`] if the call must be passed through.
    pub fn admit_order(
        &self,
        operation: Operation,
        bytes: u64,
        order: RankOrder,
    ) -> Result<(), PassThroughReason> {
        if bytes < self.least_for_order(operation, order) { Err(PassThroughReason::Small) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::LARGEST_CALL_BYTES;

    fn settings(variables: &[(&str, &str)]) -> MpiSettings {
        MpiSettings::read(|name| Some(variables.iter().find(|(known, _)| *known == name)?.1.into())).unwrap()
    }

    #[test]
    fn lengths_between_the_limits_are_intercepted() {
        let by_default = settings(&[]);
        let all_taken = settings(&[("COOL_MPI_MIN", "0")]);
        let bounds = [
            (Operation::Bcast, 32 << 10, LARGEST_CALL_BYTES),
            (Operation::Alltoall, 128 << 10, (1 << 20) - 1),
        ];
        for (operation, smallest, largest) in bounds {
            assert_eq!(by_default.admit_bytes(operation, smallest - 1), Err(PassThroughReason::Small));
            assert_eq!(by_default.admit_bytes(operation, smallest), Ok(()));
            assert_eq!(by_default.admit_bytes(operation, largest), Ok(()));
            assert_eq!(by_default.admit_bytes(operation, largest + 1), Err(PassThroughReason::Large));
            assert_eq!(all_taken.admit_bytes(operation, 0), Ok(()));
            assert_eq!(all_taken.admit_bytes(operation, LARGEST_CALL_BYTES), Ok(()));
        }
    }

    #[test]
    fn rank_orders_that_suit_the_host_raise_the_threshold() {
        use RankOrder::{Interleaved, Racked};
        let orders = [(Operation::Allreduce, Racked), (Operation::ReduceScatter, Interleaved)];
        for (operation, order) in orders {
            let other = if order == Racked { Interleaved } else { Racked };
            let (by_default, all_taken) = (settings(&[]), settings(&[("COOL_MPI_MIN", "0")]));
            assert_eq!(by_default.admit_order(operation, 64 << 10, order), Err(PassThroughReason::Small));
            assert_eq!(by_default.admit_order(operation, 64 << 10, other), Ok(()));
            assert_eq!(by_default.admit_order(operation, 128 << 10, order), Ok(()));
            assert_eq!(all_taken.admit_order(operation, 1, order), Ok(()));
        }
    }

    #[test]
    fn operations_that_are_not_listed_pass_through() {
        let some = settings(&[("COOL_MPI_OPS", "bcast, reduce")]);
        assert_eq!(some.admit(Operation::Reduce), Ok(()));
        assert_eq!(some.admit(Operation::Allreduce), Err(PassThroughReason::NotChosen));
        assert_eq!(settings(&[("COOL_MPI", "off")]).admit(Operation::Bcast), Err(PassThroughReason::Off));
        assert_eq!(settings(&[]).admit(Operation::Barrier), Err(PassThroughReason::NotChosen));
    }
}
