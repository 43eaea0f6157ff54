//! What a rank called: checked, digested, and in words. How it is carried out is the schedule's matter.

use super::api::{CallRequest, failure};
use super::memory::SharedSlice;
use cool_collective::{Call, Operation, Plan, Rank};
use cool_proto::local::{self, Dtype, Failure, ReduceOp, failure::Kind};

/// The longest array: what one process can address.
const MAX_ARRAY: u64 = 1 << 47;

/// The most counts that are written out in words.
const COUNTS_SHOWN: usize = 8;

/// Bytes of a count in shared memory.
const COUNT_BYTES: u64 = size_of::<u64>() as u64;

/// A call without its buffers. Ranks that call alike have equal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct What {
    /// What the compiler is to make a schedule of.
    pub(super) call: Call,
    pub(super) dtype: Dtype,
    pub(super) reduce: ReduceOp,
    /// Forced by the ranks.
    pub(super) plan: Option<Plan>,
}

impl What {
    /// What a request says, for a group of `size` ranks.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it makes no sense, or its buffers are too short.
    pub(super) fn of(request: &CallRequest, size: usize) -> Result<What, Failure> {
        let operation =
            operation(request.operation).ok_or_else(|| invalid(request, "it names no operation"))?;
        let barrier = operation == Operation::Barrier;
        let element = match request.dtype.known().map(|known| known.bytes() as u32) {
            _ if barrier => 1,
            Some(bytes) => bytes,
            None => return Err(invalid(request, "it names no type of element")),
        };
        if operation.combines() {
            let (dtype, reduce) = (request.dtype, request.reduce);
            if reduce == ReduceOp::Unspecified {
                return Err(invalid(request, "it does not say how to combine elements"));
            }
            if !dtype.known().zip(reduce.known()).is_some_and(|(dtype, reduce)| dtype.combines_by(reduce)) {
                let name = |text: &str| text.to_lowercase();
                let (dtype, reduce) = (name(dtype.as_str_name()), name(reduce.as_str_name()));
                return Err(invalid(request, &format!("elements of type {dtype} have no {reduce}")));
            }
        }
        if operation.rooted() && request.root as usize >= size {
            let reason =
                format!("its root is rank {}, but the group has ranks 0 to {}", request.root, size - 1);
            return Err(invalid(request, &reason));
        }
        let plan = (!request.plan.is_empty()).then(|| request.plan.parse::<Plan>()).transpose();
        let plan = plan.map_err(|e| invalid(request, &e.to_string()))?;
        let bytes = |count: u64| {
            let bytes = count.checked_mul(u64::from(element)).filter(|bytes| *bytes <= MAX_ARRAY);
            bytes.ok_or_else(|| too_large(request))
        };
        let counts = counts(request, operation, size)?;
        // What an operation does not look at is made equal, so that only what matters is compared.
        let root = Rank(if operation.rooted() { request.root } else { 0 });
        let count = if barrier || counts.is_some() { 0 } else { request.count };
        let mut call = Call::new(operation, root, bytes(count)?, element);
        if let Some(counts) = counts {
            call = call.with_counts(counts.into_iter().map(bytes).collect::<Result<Vec<u64>, Failure>>()?);
        }
        let what = What {
            call,
            dtype: if barrier { Dtype::Unspecified } else { request.dtype },
            reduce: if operation.combines() { request.reduce } else { ReduceOp::Unspecified },
            plan,
        };
        what.check_buffers(request, size)?;
        Ok(what)
    }

    fn check_buffers(&self, request: &CallRequest, size: usize) -> Result<(), Failure> {
        let rank = Rank(request.rank);
        let (input, output) = (self.call.input_bytes(rank, size), self.call.output_bytes(rank, size));
        for (name, slice, needed) in [("input", &request.input, input), ("output", &request.output, output)] {
            if needed > MAX_ARRAY {
                return Err(too_large(request));
            }
            let given = slice.as_ref().map_or(0, SharedSlice::bytes);
            if given < needed {
                let reason = format!("its {name} has {given} bytes and needs {needed}");
                return Err(invalid(request, &reason));
            }
        }
        Ok(())
    }

    /// A number that differs, most likely, from that of any other call or plan.
    pub(super) fn digest(&self, plan: &Plan) -> u64 {
        let text = format!("{} by {plan}", self.words());
        fnv(text.bytes().chain(self.counts().iter().flat_map(|bytes| bytes.to_le_bytes())))
    }

    /// In words: "reduce of 5 f64 by sum to rank 3".
    pub(super) fn words(&self) -> String {
        let operation = self.call.operation;
        let mut words = operation.to_string();
        if operation != Operation::Barrier {
            words += &format!(" of {} {}", self.amount(), self.dtype.as_str_name().to_lowercase());
        }
        if self.reduce != ReduceOp::Unspecified {
            words += &format!(" by {}", self.reduce.as_str_name().to_lowercase());
        }
        match operation {
            Operation::Bcast | Operation::Scatter => words += &format!(" from {}", self.call.root),
            Operation::Reduce | Operation::Gather => words += &format!(" to {}", self.call.root),
            _ => {}
        }
        if let Some(plan) = self.plan {
            words += &format!(" with plan {plan}");
        }
        words
    }

    /// Elements: "5", "3, 0, 4", or the first of many with a number that tells them from others.
    fn amount(&self) -> String {
        let element = u64::from(self.call.element);
        if self.call.counts.is_none() {
            return (self.call.bytes / element).to_string();
        }
        let counts = self.counts();
        let shown: Vec<String> =
            counts.iter().take(COUNTS_SHOWN).map(|bytes| (bytes / element).to_string()).collect();
        let shown = shown.join(", ");
        match counts.len() - counts.len().min(COUNTS_SHOWN) {
            0 => shown,
            more => {
                let all = fnv(counts.iter().flat_map(|bytes| bytes.to_le_bytes()));
                format!("{shown} and {more} more (all: {all:016x})")
            }
        }
    }

    fn counts(&self) -> &[u64] {
        self.call.counts.as_deref().unwrap_or_default()
    }
}

/// What keeps a plan from carrying out calls of an operation, and what would fit.
pub fn wrong_plan(operation: local::Operation, plan: &str) -> Option<String> {
    let Some(operation) = self::operation(operation) else {
        return Some("no operation is named".to_owned());
    };
    match plan.parse::<Plan>() {
        Ok(plan) => plan.check(operation).err().map(|e| e.to_string()),
        Err(e) => Some(e.to_string()),
    }
}

fn operation(code: local::Operation) -> Option<Operation> {
    Some(match code {
        local::Operation::Unspecified => return None,
        local::Operation::Bcast => Operation::Bcast,
        local::Operation::Reduce => Operation::Reduce,
        local::Operation::Allreduce => Operation::Allreduce,
        local::Operation::Gather => Operation::Gather,
        local::Operation::Allgather => Operation::Allgather,
        local::Operation::Scatter => Operation::Scatter,
        local::Operation::ReduceScatter => Operation::ReduceScatter,
        local::Operation::Alltoall => Operation::Alltoall,
        local::Operation::Scan => Operation::Scan,
        local::Operation::Exscan => Operation::Exscan,
        local::Operation::Barrier => Operation::Barrier,
    })
}

/// The elements of each part, copied out of memory that the rank may change meanwhile.
fn counts(request: &CallRequest, operation: Operation, size: usize) -> Result<Option<Vec<u64>>, Failure> {
    let Some(slice) = &request.counts else { return Ok(None) };
    if !operation.takes_counts() {
        return Err(invalid(request, "it has counts, but its ranks have no parts; leave them out"));
    }
    let wanted = if operation == Operation::Alltoall { size.checked_mul(size) } else { Some(size) };
    let wanted = wanted.ok_or_else(|| too_large(request))? as u64;
    if slice.bytes() != wanted.saturating_mul(COUNT_BYTES) {
        let given = slice.bytes() / COUNT_BYTES;
        let reason = format!("it has {given} counts, but {size} ranks need {wanted}");
        return Err(invalid(request, &reason));
    }
    let mut bytes = vec![0; slice.bytes() as usize];
    slice.read(0, &mut bytes);
    Ok(Some(bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect()))
}

/// FNV-1a, 64 bits: the same on every machine, which the standard library's hashes do not promise.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn too_large(request: &CallRequest) -> Failure {
    invalid(request, "its arrays are larger than an address space; split it")
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
    use crate::HeapMemory;

    fn request(operation: local::Operation, root: u32, count: u64) -> CallRequest {
        CallRequest {
            group: 7,
            rank: 1,
            operation,
            root,
            dtype: Dtype::F64,
            reduce: ReduceOp::Sum,
            count,
            counts: None,
            plan: String::new(),
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

    /// As [`request`], with these counts, given as a rank leaves them in its memory.
    fn counted(operation: local::Operation, counts: &[u64]) -> CallRequest {
        let counts = counts.iter().flat_map(|c| c.to_ne_bytes()).collect();
        CallRequest { counts: Some(HeapMemory::slice(counts)), ..request(operation, 0, 0) }
    }

    fn by(plan: &str, request: CallRequest) -> CallRequest {
        CallRequest { plan: plan.to_owned(), ..request }
    }

    #[test]
    fn different_calls_have_different_digests_and_words() {
        let reduce = |root, count| request(local::Operation::Reduce, root, count);
        let gather = |counts: &[u64]| counted(local::Operation::Gather, counts);
        let calls = [
            reduce(0, 5),
            reduce(1, 5),
            reduce(1, 4),
            by("cool-b-r", reduce(1, 4)),
            by("cool-b-r/4096", reduce(1, 4)),
            request(local::Operation::Scan, 0, 4),
            request(local::Operation::Exscan, 0, 4),
            request(local::Operation::Gather, 0, 4),
            gather(&[4, 4]),
            gather(&[3, 5]),
            gather(&[5, 3]),
        ];
        let whats: Vec<What> = calls.iter().map(|call| What::of(call, 2).unwrap()).collect();
        let default = "cool-p-p".parse().unwrap();
        for (i, a) in whats.iter().enumerate() {
            for b in &whats[..i] {
                let digest = |what: &What| what.digest(&what.plan.unwrap_or(default));
                assert_ne!(digest(a), digest(b), "{} and {}", a.words(), b.words());
                assert_ne!(a.words(), b.words());
            }
        }
        assert_eq!(whats[2].words(), "reduce of 4 f64 by sum to rank 1");
        assert_eq!(whats[3].words(), "reduce of 4 f64 by sum to rank 1 with plan cool-b-r");
        assert_eq!(whats[9].words(), "gather of 3, 5 f64 to rank 0");
    }

    #[test]
    fn many_counts_are_told_apart_in_few_words() {
        let words = |last| {
            let counts: Vec<u64> = (0..1000).map(|i| if i == 999 { last } else { 0 }).collect();
            let call = CallRequest { rank: 0, ..counted(local::Operation::Gather, &counts) };
            What::of(&call, 1000).unwrap().words()
        };
        assert!(words(0).starts_with("gather of 0, 0, 0, 0, 0, 0, 0, 0 and 992 more (all: "), "{}", words(0));
        assert!(words(0).len() < 100);
        assert_ne!(words(0), words(1));
    }

    #[test]
    fn a_short_buffer_a_wrong_root_or_an_immense_call_is_refused_in_words() {
        let wrong = |request: &CallRequest| What::of(request, 2).unwrap_err().message;
        let error = |op, root, count| wrong(&request(op, root, count));
        assert!(error(local::Operation::Allgather, 0, 6).contains("output has 80 bytes and needs 96"));
        assert!(error(local::Operation::Bcast, 2, 1).contains("root is rank 2"));
        assert!(error(local::Operation::Bcast, 0, u64::MAX).contains("split it"));
        assert!(error(local::Operation::Alltoall, 0, u64::MAX / 8).contains("split it"));
        assert!(error(local::Operation::Unspecified, 0, 1).contains("no operation"));
    }

    #[test]
    fn counts_that_do_not_fit_the_group_or_the_operation_are_refused_in_words() {
        let wrong = |operation, counts: &[u64]| What::of(&counted(operation, counts), 2).unwrap_err().message;
        assert!(wrong(local::Operation::Gather, &[1]).contains("it has 1 counts, but 2 ranks need 2"));
        assert!(wrong(local::Operation::Alltoall, &[1, 1]).contains("it has 2 counts, but 2 ranks need 4"));
        assert!(wrong(local::Operation::Bcast, &[1, 1]).contains("leave them out"));
        assert!(wrong(local::Operation::Allgather, &[9, 2]).contains("output has 80 bytes and needs 88"));
        assert!(wrong(local::Operation::Allgather, &[u64::MAX, 2]).contains("split it"));
    }

    #[test]
    fn a_plan_that_does_not_fit_is_answered_with_those_that_do() {
        let e = What::of(&by("cool-q", request(local::Operation::Bcast, 0, 1)), 2).unwrap_err().message;
        assert!(e.contains("rank 1 cannot call bcast") && e.contains("there is no plan \"cool-q\""), "{e}");
        assert_eq!(wrong_plan(local::Operation::Bcast, "multicast"), None);
        let e = wrong_plan(local::Operation::Scan, "multicast").unwrap();
        assert!(e.contains("cannot run scan") && e.contains("these can: cool-p-p"), "{e}");
    }
}
