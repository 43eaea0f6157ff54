//! Which calls are taken. All ranks of a communicator must come to one answer without asking each other, so only that counts which MPI
//! makes equal at all of them: the operation, the communicator and where its ranks are, the reduction, the bytes of the signature. Never
//! how a rank has described its memory: another rank may have described the same bytes otherwise.

use crate::settings::{Mode, MpiSettings, RankOrder};
use cool_types::Operation;
use std::fmt;

/// Why a call is left to the host's MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyLeft {
    /// `COOL_MPI=off`.
    Off,
    /// `COOL_MPI_OPS` has other operations.
    NotChosen,
    /// Fewer bytes than `COOL_MPI_MIN`, or than those from which COOL is the faster one in the operation.
    Small,
    /// More than [`LARGEST`], or than those up to which COOL is the faster one.
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

impl fmt::Display for WhyLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyLeft::Off => "off",
            WhyLeft::NotChosen => "not in COOL_MPI_OPS",
            WhyLeft::Small => "small",
            WhyLeft::Large => "large",
            WhyLeft::Reduction => "reduction",
            WhyLeft::Elements => "type",
            WhyLeft::Intercommunicator => "intercommunicator",
            WhyLeft::Alone => "one rank",
            WhyLeft::NoGroup => "no group",
            WhyLeft::Arguments => "arguments",
        })
    }
}

impl MpiSettings {
    /// Whether a call may be taken, by what is known before its communicator is looked at.
    ///
    /// # Errors
    /// If not, why.
    pub fn admit(&self, operation: Operation) -> Result<(), WhyLeft> {
        match (self.mode, self.operations.contains(&operation)) {
            (Mode::Off, _) => Err(WhyLeft::Off),
            (_, false) => Err(WhyLeft::NotChosen),
            _ => Ok(()),
        }
    }

    /// Whether a call of so long a signature is taken: of bcast and the reductions the vector's bytes, else those of all parts.
    ///
    /// # Errors
    /// If not, why.
    pub fn admit_bytes(&self, operation: Operation, bytes: u64) -> Result<(), WhyLeft> {
        match bytes {
            _ if bytes < self.least(operation) => Err(WhyLeft::Small),
            _ if bytes > self.most(operation) => Err(WhyLeft::Large),
            _ => Ok(()),
        }
    }
}

impl MpiSettings {
    /// Whether a call of this length, of ranks that lie so, is taken; it is asked when its communicator has a group.
    ///
    /// # Errors
    /// If not, why.
    pub fn admit_order(&self, operation: Operation, bytes: u64, order: RankOrder) -> Result<(), WhyLeft> {
        if bytes < self.least_in(operation, order) { Err(WhyLeft::Small) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::LARGEST;

    fn settings(variables: &[(&str, &str)]) -> MpiSettings {
        MpiSettings::read(|name| Some(variables.iter().find(|(known, _)| *known == name)?.1.into())).unwrap()
    }

    #[test]
    fn lengths_from_the_least_to_the_largest_are_taken() {
        let by_default = settings(&[]);
        let all_taken = settings(&[("COOL_MPI_MIN", "0")]);
        let bounds = [(Operation::Bcast, 32 << 10, LARGEST), (Operation::Alltoall, 128 << 10, (1 << 20) - 1)];
        for (operation, least, most) in bounds {
            assert_eq!(by_default.admit_bytes(operation, least - 1), Err(WhyLeft::Small));
            assert_eq!(by_default.admit_bytes(operation, least), Ok(()));
            assert_eq!(by_default.admit_bytes(operation, most), Ok(()));
            assert_eq!(by_default.admit_bytes(operation, most + 1), Err(WhyLeft::Large));
            assert_eq!(all_taken.admit_bytes(operation, 0), Ok(()));
            assert_eq!(all_taken.admit_bytes(operation, LARGEST), Ok(()));
        }
    }

    #[test]
    fn what_a_host_does_well_in_an_order_of_ranks_is_left_to_it_unless_all_is_to_be_taken() {
        use RankOrder::{Interleaved, Racked};
        let orders = [(Operation::Allreduce, Racked), (Operation::ReduceScatter, Interleaved)];
        for (operation, order) in orders {
            let other = if order == Racked { Interleaved } else { Racked };
            let (by_default, all_taken) = (settings(&[]), settings(&[("COOL_MPI_MIN", "0")]));
            assert_eq!(by_default.admit_order(operation, 64 << 10, order), Err(WhyLeft::Small));
            assert_eq!(by_default.admit_order(operation, 64 << 10, other), Ok(()));
            assert_eq!(by_default.admit_order(operation, 128 << 10, order), Ok(()));
            assert_eq!(all_taken.admit_order(operation, 1, order), Ok(()));
        }
    }

    #[test]
    fn operations_that_are_not_named_are_left() {
        let some = settings(&[("COOL_MPI_OPS", "bcast, reduce")]);
        assert_eq!(some.admit(Operation::Reduce), Ok(()));
        assert_eq!(some.admit(Operation::Allreduce), Err(WhyLeft::NotChosen));
        assert_eq!(settings(&[("COOL_MPI", "off")]).admit(Operation::Bcast), Err(WhyLeft::Off));
        assert_eq!(settings(&[]).admit(Operation::Barrier), Err(WhyLeft::NotChosen));
    }
}
