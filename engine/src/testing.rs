//! Collectives as tests make them: what each rank gives, and what it must have at the end.

use crate::{CallRequest, ElementType, Operation, ReduceOp};
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer of a rank. Clones are the same buffer.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    /// A buffer that holds these bytes.
    pub fn new(bytes: Vec<u8>) -> Buffer {
        Buffer(Arc::new(Mutex::new(bytes)))
    }

    /// Does something with its bytes.
    pub fn with<R>(&self, act: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        // A panic elsewhere leaves bytes, not a broken invariant.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What it holds.
    pub fn bytes(&self) -> Vec<u8> {
        self.with(|bytes| bytes.clone())
    }
}

/// The elements that a rank contributes to a call.
fn contribution(salt: u64, rank: usize, count: u64) -> Vec<u32> {
    (0..count).map(|i| (salt * 7919 + rank as u64 * 104_729 + i * 31) as u32).collect()
}

fn bytes(elements: &[u32]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_ne_bytes()).collect()
}

/// The elementwise sum of vectors.
fn sum(vectors: impl Iterator<Item = Vec<u32>>) -> Vec<u32> {
    let sum = vectors.reduce(|sum, v| sum.iter().zip(v).map(|(a, b)| a.wrapping_add(b)).collect());
    sum.unwrap_or_default()
}

/// One collective of a test: its buffers and what they must hold at the end.
pub struct Collective {
    /// By rank.
    pub requests: Vec<CallRequest<Buffer>>,
    expected: Vec<Option<Vec<u8>>>,
}

impl Collective {
    /// A call by every rank of a group of `size`; buffers are filled by `salt`.
    pub fn new(group: u64, size: u32, operation: Operation, root: u32, count: u64, salt: u64) -> Collective {
        Collective::of(group, size as usize, operation, root, (count, None), salt)
    }

    /// With parts of unequal lengths.
    pub fn counted(
        group: u64,
        size: u32,
        operation: Operation,
        root: u32,
        counts: &[u64],
        salt: u64,
    ) -> Collective {
        Collective::of(group, size as usize, operation, root, (0, Some(counts)), salt)
    }

    fn of(
        group: u64,
        size: usize,
        operation: Operation,
        root: u32,
        (count, counts): (u64, Option<&[u64]>),
        salt: u64,
    ) -> Collective {
        let data = Data { size, operation, root: root as usize, count, counts, salt };
        let mut requests = Vec::new();
        let mut expected = Vec::new();
        for rank in 0..size {
            let (input, want) = (data.input(rank), data.output(rank).map(|elements| bytes(&elements)));
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
                input: input.map(|elements| Buffer::new(bytes(&elements))),
                output: want.as_ref().map(undefined).map(Buffer::new),
                timeout: None,
            });
            expected.push(want);
        }
        Collective { requests, expected }
    }

    /// The same by a plan.
    pub fn by(mut self, plan: &str) -> Collective {
        self.requests.iter_mut().for_each(|request| plan.clone_into(&mut request.plan));
        self
    }

    /// Whether all outputs are as they must be.
    pub fn check(&self) {
        for (request, expected) in self.requests.iter().zip(&self.expected) {
            if let (Some(output), Some(expected)) = (&request.output, expected) {
                let wrong = output.bytes().iter().zip(expected).position(|(a, b)| a != b);
                let CallRequest { group, rank, operation, root, count, plan, .. } = request;
                assert_eq!(
                    wrong, None,
                    "{operation:?} of {count} from {root} by {plan:?}: rank {rank} of group {group}"
                );
            }
        }
    }
}

/// What the ranks of one call have and get.
struct Data<'c> {
    size: usize,
    operation: Operation,
    root: usize,
    count: u64,
    counts: Option<&'c [u64]>,
    salt: u64,
}

impl Data<'_> {
    fn part(&self, rank: usize) -> u64 {
        self.counts.map_or(self.count, |counts| counts[rank])
    }

    fn block(&self, from: usize, to: usize) -> u64 {
        self.counts.map_or(self.count, |counts| counts[from * self.size + to])
    }

    fn total(&self) -> u64 {
        (0..self.size).map(|rank| self.part(rank)).sum()
    }

    /// A rank's part of an array of all parts.
    fn own(&self, rank: usize, all: &[u32]) -> Vec<u32> {
        let start: u64 = (0..rank).map(|rank| self.part(rank)).sum();
        all[start as usize..][..self.part(rank) as usize].to_vec()
    }

    /// What a rank contributes.
    fn input(&self, rank: usize) -> Option<Vec<u32>> {
        let count = match self.operation {
            Operation::Bcast | Operation::Barrier => return None,
            Operation::Scatter if rank != self.root => return None,
            Operation::Gather | Operation::Allgather => self.part(rank),
            Operation::Scatter | Operation::ReduceScatter => self.total(),
            Operation::Alltoall => (0..self.size).map(|to| self.block(rank, to)).sum(),
            _ => self.count,
        };
        Some(contribution(self.salt, rank, count))
    }

    /// What a rank must have at the end.
    fn output(&self, rank: usize) -> Option<Vec<u32>> {
        let inputs = || (0..self.size).filter_map(|rank| self.input(rank));
        match self.operation {
            Operation::Bcast => Some(contribution(self.salt, self.root, self.count)),
            Operation::Reduce | Operation::Gather if rank != self.root => None,
            Operation::Reduce | Operation::Allreduce => Some(sum(inputs())),
            Operation::Gather | Operation::Allgather => Some(inputs().flatten().collect()),
            Operation::Scatter | Operation::ReduceScatter => Some(self.own(rank, &sum(inputs()))),
            Operation::Alltoall => {
                let from = |from: usize| {
                    let start: u64 = (0..rank).map(|to| self.block(from, to)).sum();
                    let row = contribution(self.salt, from, start + self.block(from, rank));
                    row[start as usize..].to_vec()
                };
                Some((0..self.size).flat_map(from).collect())
            }
            Operation::Scan => Some(sum(inputs().take(rank + 1))),
            Operation::Exscan if rank == 0 => None,
            Operation::Exscan => Some(sum(inputs().take(rank))),
            Operation::Barrier => None,
        }
    }
}
