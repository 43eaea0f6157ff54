//! What a rank called: checked, digested, and in words. How it is carried out is the schedule's matter.

use super::api::{CallRequest, failure};
use super::memory::SharedSlice;
use super::reduce::element_bytes;
use cool_collective::{Call, Layout, Operation, Plan, Rank};
use cool_proto::local::{self, Dtype, Failure, ReduceOp, failure::Kind};

/// A call without its buffers. Ranks that call alike have equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct What {
    operation: Operation,
    root: u32,
    pub(super) dtype: Dtype,
    pub(super) reduce: ReduceOp,
    count: u64,
    element: u32,
}

impl What {
    /// What a request says, for a group of `size` ranks.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it makes no sense, or its buffers are too short.
    pub(super) fn of(request: &CallRequest, size: usize) -> Result<What, Failure> {
        let operation = match request.operation {
            local::Operation::Bcast => Operation::Bcast,
            local::Operation::Reduce => Operation::Reduce,
            local::Operation::Allreduce => Operation::Allreduce,
            local::Operation::Gather => Operation::Gather,
            local::Operation::Allgather => Operation::Allgather,
            local::Operation::Scatter => Operation::Scatter,
            local::Operation::Barrier => Operation::Barrier,
            local::Operation::Unspecified => return Err(invalid(request, "it names no operation")),
        };
        let barrier = operation == Operation::Barrier;
        let reduces = operation.combines();
        let rooted = operation.rooted();
        let element = match element_bytes(request.dtype) {
            _ if barrier => 1,
            Some(bytes) => bytes,
            None => return Err(invalid(request, "it names no type of element")),
        };
        if reduces && request.reduce == ReduceOp::Unspecified {
            return Err(invalid(request, "it does not say how to combine elements"));
        }
        if rooted && request.root as usize >= size {
            let reason =
                format!("its root is rank {}, but the group has ranks 0 to {}", request.root, size - 1);
            return Err(invalid(request, &reason));
        }
        // What an operation does not look at is made equal, so that only what matters is compared.
        let what = What {
            operation,
            root: if rooted { request.root } else { 0 },
            dtype: if barrier { Dtype::Unspecified } else { request.dtype },
            reduce: if reduces { request.reduce } else { ReduceOp::Unspecified },
            count: if barrier { 0 } else { request.count },
            element,
        };
        what.check_buffers(request, size)?;
        Ok(what)
    }

    fn check_buffers(&self, request: &CallRequest, size: usize) -> Result<(), Failure> {
        let too_large = || invalid(request, "its arrays are larger than an address space; split it");
        let part = self.count.checked_mul(u64::from(self.element)).ok_or_else(too_large)?;
        part.checked_mul(size as u64).ok_or_else(too_large)?;
        let (call, rank) = (self.call(), Rank(request.rank));
        let (input, output) = (call.input_bytes(rank, size), call.output_bytes(rank, size));
        for (name, slice, needed) in [("input", &request.input, input), ("output", &request.output, output)] {
            let given = slice.as_ref().map_or(0, SharedSlice::bytes);
            if given < needed {
                let reason = format!("its {name} has {given} bytes and needs {needed}");
                return Err(invalid(request, &reason));
            }
        }
        Ok(())
    }

    /// What the compiler is to make a schedule of.
    pub(super) fn call(&self) -> Call {
        // The product is checked when this is made.
        Call::new(self.operation, Rank(self.root), self.count * u64::from(self.element), self.element)
    }

    /// The plan by which every agent carries it out.
    pub(super) fn plan(&self, layout: &Layout) -> Plan {
        Plan::default_for(&self.call(), layout)
    }

    /// A number that differs, most likely, from that of any other call or plan.
    pub(super) fn digest(&self, layout: &Layout) -> u64 {
        let text = format!("{} by {}", self.words(), self.plan(layout));
        // FNV-1a, 64 bits: the same on every machine, which the standard library's hashes do not promise.
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// In words: "reduce of 5 f64 by sum to rank 3".
    pub(super) fn words(&self) -> String {
        let mut words = self.operation.to_string();
        if self.operation != Operation::Barrier {
            words += &format!(" of {} {}", self.count, self.dtype.as_str_name().to_lowercase());
        }
        if self.reduce != ReduceOp::Unspecified {
            words += &format!(" by {}", self.reduce.as_str_name().to_lowercase());
        }
        match self.operation {
            Operation::Bcast | Operation::Scatter => words += &format!(" from rank {}", self.root),
            Operation::Reduce | Operation::Gather => words += &format!(" to rank {}", self.root),
            _ => {}
        }
        words
    }
}

fn invalid(request: &CallRequest, reason: &str) -> Failure {
    let CallRequest { rank, group, operation, .. } = request;
    let name = operation.as_str_name().to_lowercase();
    let message = format!("rank {rank} cannot call {name} on group {group}: {reason}");
    failure(Kind::Invalid, message, vec![*rank])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::HeapMemory;
    use cool_collective::Place;

    fn request(operation: local::Operation, root: u32, count: u64) -> CallRequest {
        CallRequest {
            group: 7,
            rank: 1,
            operation,
            root,
            dtype: Dtype::F64,
            reduce: ReduceOp::Sum,
            count,
            input: Some(HeapMemory::slice(vec![0; 80])),
            output: Some(HeapMemory::slice(vec![0; 80])),
            timeout: None,
        }
    }

    #[test]
    fn what_an_operation_does_not_use_makes_no_difference() {
        let what = |op, root| What::of(&request(op, root, 5), 2).unwrap();
        assert_eq!(what(local::Operation::Allreduce, 0), what(local::Operation::Allreduce, 1));
        assert_ne!(what(local::Operation::Reduce, 0), what(local::Operation::Reduce, 1));
        assert_eq!(What::of(&request(local::Operation::Barrier, 9, u64::MAX), 2).unwrap().words(), "barrier");
    }

    #[test]
    fn different_calls_have_different_digests_and_words() {
        let layout = Layout::new(&[Place { rack: 0, node: 0 }, Place { rack: 0, node: 1 }]).unwrap();
        let a = What::of(&request(local::Operation::Reduce, 1, 5), 2).unwrap();
        let b = What::of(&request(local::Operation::Reduce, 1, 4), 2).unwrap();
        assert_ne!(a.digest(&layout), b.digest(&layout));
        assert_eq!(a.words(), "reduce of 5 f64 by sum to rank 1");
    }

    #[test]
    fn a_short_buffer_a_wrong_root_or_an_immense_call_is_refused_in_words() {
        let error = |op, root, count| What::of(&request(op, root, count), 2).unwrap_err().message;
        assert!(error(local::Operation::Allgather, 0, 6).contains("output has 80 bytes and needs 96"));
        assert!(error(local::Operation::Bcast, 2, 1).contains("root is rank 2"));
        assert!(error(local::Operation::Bcast, 0, u64::MAX).contains("split it"));
        assert!(error(local::Operation::Unspecified, 0, 1).contains("no operation"));
    }
}
