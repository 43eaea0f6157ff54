//! Collectives for tests: the data that each rank contributes, and the result that it must have.

use crate::{CallRequest, ElementType, Operation, ReduceOp};
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer of a rank. Clones share the same bytes.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    /// Returns a buffer with these bytes.
    pub fn new(bytes: Vec<u8>) -> Buffer {
        Buffer(Arc::new(Mutex::new(bytes)))
    }

    /// Calls a function with the buffer's bytes, and returns its result.
    pub fn with<R>(&self, act: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        // A panic elsewhere cannot break an invariant of plain bytes, so a poisoned lock is
        // ignored.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a copy of the buffer's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.with(|bytes| bytes.clone())
    }
}

/// Returns the elements that a rank contributes to a call.
fn contribution(salt: u64, rank: usize, count: u64) -> Vec<u32> {
    (0..count).map(|i| (salt * 7919 + rank as u64 * 104_729 + i * 31) as u32).collect()
}

fn bytes(elements: &[u32]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_ne_bytes()).collect()
}

/// Returns the elementwise sum of vectors.
fn sum(vectors: &[Vec<u32>]) -> Vec<u32> {
    let Some((first, others)) = vectors.split_first() else { return Vec::new() };
    let mut sum = first.clone();
    for vector in others {
        sum.iter_mut().zip(vector).for_each(|(a, b)| *a = a.wrapping_add(*b));
    }
    sum
}

/// One collective of a test: its buffers, and the results that they must hold.
pub struct ReferenceCollective {
    /// The requests, by rank.
    pub requests: Vec<CallRequest<Buffer>>,
    expected: Vec<Option<Vec<u8>>>,
    given: Vec<Option<Vec<u8>>>,
}

impl ReferenceCollective {
    /// Returns a call by every rank of a group of `size` ranks. The buffers are filled from `salt`.
    pub fn new(
        group: u64,
        size: u32,
        operation: Operation,
        root: u32,
        count: u64,
        salt: u64,
    ) -> ReferenceCollective {
        ReferenceCollective::build(group, size as usize, operation, root, (count, None), salt)
    }

    /// Returns a call with parts of unequal lengths.
    pub fn counted(
        group: u64,
        size: u32,
        operation: Operation,
        root: u32,
        counts: &[u64],
        salt: u64,
    ) -> ReferenceCollective {
        ReferenceCollective::build(group, size as usize, operation, root, (0, Some(counts)), salt)
    }

    fn build(
        group: u64,
        size: usize,
        operation: Operation,
        root: u32,
        (count, counts): (u64, Option<&[u64]>),
        salt: u64,
    ) -> ReferenceCollective {
        let data = ReferenceData::new(size, operation, root as usize, (count, counts), salt);
        let mut requests = Vec::new();
        let mut expected = Vec::new();
        let mut given = Vec::new();
        for rank in 0..size {
            let input = data.gives(rank).then(|| bytes(&data.inputs[rank]));
            let want = data.output(rank).map(|elements| bytes(&elements));
            let source = operation == Operation::Bcast && rank == data.root;
            let undefined = |want: &Vec<u8>| if source { want.clone() } else { vec![0xee; want.len()] };
            requests.push(CallRequest {
                group,
                rank: rank as u32,
                operation,
                root,
                element: ElementType::U32,
                reduce: Some(ReduceOp::Sum),
                count,
                counts: counts.map(<[u64]>::to_vec),
                plan: String::new(),
                input: input.clone().map(Buffer::new),
                output: want.as_ref().map(undefined).map(Buffer::new),
                timeout: None,
                call_number: None,
                watch: false,
                background: false,
            });
            given.push(input);
            expected.push(want);
        }
        ReferenceCollective { requests, expected, given }
    }

    /// Returns the same call with a plan.
    pub fn by(mut self, plan: &str) -> ReferenceCollective {
        self.requests.iter_mut().for_each(|request| plan.clone_into(&mut request.plan));
        self
    }

    /// Checks that all outputs are correct.
    ///
    /// # Panics
    /// Panics if one of them is not.
    pub fn check(&self) {
        (0..self.requests.len())
            .for_each(|rank| self.check_rank(rank).unwrap_or_else(|wrong| panic!("{wrong}")));
    }

    /// Checks that a rank has the correct result, and that its input has not changed.
    ///
    /// # Errors
    /// Returns a description of the difference.
    pub fn check_rank(&self, rank: usize) -> Result<(), String> {
        let request = &self.requests[rank];
        let buffers = [(&request.output, &self.expected[rank]), (&request.input, &self.given[rank])];
        for (buffer, expected) in buffers {
            let (Some(buffer), Some(expected)) = (buffer, expected) else { continue };
            let wrong = buffer.with(|bytes| bytes.iter().zip(expected).position(|(a, b)| a != b));
            if let Some(at) = wrong {
                let CallRequest { group, operation, root, count, plan, .. } = request;
                return Err(format!(
                    "{operation:?} of {count} from {root} by {plan:?}: rank {rank} of group {group} differs at byte {at}"
                ));
            }
        }
        Ok(())
    }
}

/// The contributions and results of one call.
struct ReferenceData<'c> {
    size: usize,
    operation: Operation,
    root: usize,
    count: u64,
    counts: Option<&'c [u64]>,
    /// The contribution of each rank.
    inputs: Vec<Vec<u32>>,
    /// The combined result, if ranks receive it or a part of it.
    all: Vec<u32>,
}

impl<'c> ReferenceData<'c> {
    fn new(
        size: usize,
        operation: Operation,
        root: usize,
        (count, counts): (u64, Option<&'c [u64]>),
        salt: u64,
    ) -> ReferenceData<'c> {
        let mut data =
            ReferenceData { size, operation, root, count, counts, inputs: Vec::new(), all: Vec::new() };
        data.inputs = (0..size).map(|rank| contribution(salt, rank, data.contributed(rank))).collect();
        data.all = match operation {
            Operation::Bcast => contribution(salt, root, count),
            Operation::Gather | Operation::Allgather => data.inputs.concat(),
            Operation::Scatter => data.inputs[root].clone(),
            Operation::Reduce | Operation::Allreduce | Operation::ReduceScatter => sum(&data.inputs),
            _ => Vec::new(),
        };
        data
    }

    fn part(&self, rank: usize) -> u64 {
        self.counts.map_or(self.count, |counts| counts[rank])
    }

    fn block(&self, from: usize, to: usize) -> u64 {
        self.counts.map_or(self.count, |counts| counts[from * self.size + to])
    }

    fn total(&self) -> u64 {
        (0..self.size).map(|rank| self.part(rank)).sum()
    }

    /// Returns a rank's part of an array of all parts.
    fn own(&self, rank: usize) -> Vec<u32> {
        let start: u64 = (0..rank).map(|rank| self.part(rank)).sum();
        self.all[start as usize..][..self.part(rank) as usize].to_vec()
    }

    /// Returns whether a rank contributes data, even if its length is 0.
    fn gives(&self, rank: usize) -> bool {
        match self.operation {
            Operation::Bcast | Operation::Barrier => false,
            Operation::Scatter => rank == self.root,
            _ => true,
        }
    }

    /// Returns the number of elements that a rank contributes.
    fn contributed(&self, rank: usize) -> u64 {
        match self.operation {
            _ if !self.gives(rank) => 0,
            Operation::Gather | Operation::Allgather => self.part(rank),
            Operation::Scatter | Operation::ReduceScatter => self.total(),
            Operation::Alltoall => (0..self.size).map(|to| self.block(rank, to)).sum(),
            _ => self.count,
        }
    }

    /// Returns the result that a rank must have.
    fn output(&self, rank: usize) -> Option<Vec<u32>> {
        match self.operation {
            Operation::Reduce | Operation::Gather if rank != self.root => None,
            Operation::Bcast
            | Operation::Reduce
            | Operation::Allreduce
            | Operation::Gather
            | Operation::Allgather => Some(self.all.clone()),
            Operation::Scatter | Operation::ReduceScatter => Some(self.own(rank)),
            Operation::Alltoall => {
                let from = |from: usize| {
                    let start: u64 = (0..rank).map(|to| self.block(from, to)).sum();
                    &self.inputs[from][start as usize..][..self.block(from, rank) as usize]
                };
                Some((0..self.size).flat_map(from).copied().collect())
            }
            Operation::Scan => Some(sum(&self.inputs[..=rank])),
            Operation::Exscan if rank == 0 => None,
            Operation::Exscan => Some(sum(&self.inputs[..rank])),
            Operation::Barrier => None,
        }
    }
}
