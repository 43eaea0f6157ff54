//! Which calls are taken. All ranks of a communicator must come to one answer without asking each other, so only that counts which MPI
//! makes equal at all of them: the operation, the communicator and where its ranks are, the reduction, the bytes of the signature. Never
//! how a rank has described its memory: another rank may have described the same bytes otherwise.

use crate::settings::{InterceptMode, MpiSettings, RankOrder};
use cool_types::Operation;
use std::fmt;

/// Why a call is left to the host's MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FallbackReason {
    /// `COOL_MPI=off`.
    Off,
    /// `COOL_MPI_OPS` has other operations.
    NotChosen,
    /// Fewer bytes than `COOL_MPI_MIN`, or than those from which COOL is the faster one in the operation.
    Small,
    /// More than [`LARGEST_CALL_BYTES`], or than those up to which COOL is the faster one.
    Large,
    /// A reduction that the program has made, or one of which COOL has no like.
    Reduction,
    /// Elements that COOL cannot combine.
    Elements,
    /// Between two groups.
    Intercommunicator,
    /// A communicator of one rank.
    Alone,
    /// There is no group for the communicator: no agent, or too many groups.
    NoGroup,
    /// The arguments are wrong: the host's library says how.
    Arguments,
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FallbackReason::Off => "off",
            FallbackReason::NotChosen => "not in COOL_MPI_OPS",
            FallbackReason::Small => "small",
            FallbackReason::Large => "large",
            FallbackReason::Reduction => "reduction",
            FallbackReason::Elements => "type",
            FallbackReason::Intercommunicator => "intercommunicator",
            FallbackReason::Alone => "one rank",
            FallbackReason::NoGroup => "no group",
            FallbackReason::Arguments => "arguments",
        })
    }
}

impl MpiSettings {
    /// Whether a call may be taken, by what is known before its communicator is looked at.
    ///
    /// # Errors
    /// If not, why.
    pub fn admit(&self, operation: Operation) -> Result<(), FallbackReason> {
        match (self.mode, self.operations.contains(&operation)) {
            (InterceptMode::Off, _) => Err(FallbackReason::Off),
            (_, false) => Err(FallbackReason::NotChosen),
            _ => Ok(()),
        }
    }

    /// Whether a call of so long a signature is taken: of bcast and the reductions the vector's bytes, else those of all parts.
    ///
    /// # Errors
    /// If not, why.
    pub fn admit_bytes(&self, operation: Operation, bytes: u64) -> Result<(), FallbackReason> {
        match bytes {
            _ if bytes < self.smallest(operation) => Err(FallbackReason::Small),
            _ if bytes > self.largest(operation) => Err(FallbackReason::Large),
            _ => Ok(()),
        }
    }
}

impl MpiSettings {
    /// Whether a call of this length, of ranks that lie so, is taken; it is asked when its communicator has a group.
    ///
    /// # Errors
    /// If not, why.
    pub fn admit_order(
        &self,
        operation: Operation,
        bytes: u64,
        order: RankOrder,
    ) -> Result<(), FallbackReason> {
        if bytes < self.least_for_order(operation, order) { Err(FallbackReason::Small) } else { Ok(()) }
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
            assert_eq!(by_default.admit_bytes(operation, smallest - 1), Err(FallbackReason::Small));
            assert_eq!(by_default.admit_bytes(operation, smallest), Ok(()));
            assert_eq!(by_default.admit_bytes(operation, largest), Ok(()));
            assert_eq!(by_default.admit_bytes(operation, largest + 1), Err(FallbackReason::Large));
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
            assert_eq!(by_default.admit_order(operation, 64 << 10, order), Err(FallbackReason::Small));
            assert_eq!(by_default.admit_order(operation, 64 << 10, other), Ok(()));
            assert_eq!(by_default.admit_order(operation, 128 << 10, order), Ok(()));
            assert_eq!(all_taken.admit_order(operation, 1, order), Ok(()));
        }
    }

    #[test]
    fn operations_that_are_not_listed_pass_through() {
        let some = settings(&[("COOL_MPI_OPS", "bcast, reduce")]);
        assert_eq!(some.admit(Operation::Reduce), Ok(()));
        assert_eq!(some.admit(Operation::Allreduce), Err(FallbackReason::NotChosen));
        assert_eq!(settings(&[("COOL_MPI", "off")]).admit(Operation::Bcast), Err(FallbackReason::Off));
        assert_eq!(settings(&[]).admit(Operation::Barrier), Err(FallbackReason::NotChosen));
    }
}
