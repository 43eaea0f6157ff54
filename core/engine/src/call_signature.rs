//! A rank's call without its buffers, which is the part of the call that ranks compare.

use crate::api::CallRequest;
use crate::failure::{CallFailure, CallFailureKind};
use cool_collective::Plan;
use cool_types::limits::ARRAY_BYTES;
use cool_types::{Call, CallDescription, CallError, ElementType, Operation, Rank, ReduceOp, check_reduction};
use std::fmt;

/// A call without its buffers. It is equal for ranks that make the same call. It prints as, for
/// example, "reduce of 5 f64 by sum to rank 3".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallSignature {
    /// The call for which a schedule is compiled.
    pub(crate) call: Call,
    /// The element type; `None` for a barrier.
    pub(crate) element: Option<ElementType>,
    /// The operation on two elements; `None` if the call does not combine elements.
    pub(crate) reduce: Option<ReduceOp>,
    /// The plan that the ranks force, if any.
    pub(crate) plan: Option<Plan>,
}

impl CallSignature {
    /// Returns the signature of a request. It does not check whether the call is valid for a group.
    ///
    /// # Errors
    /// Returns [`CallFailureKind::Invalid`] if the lengths overflow, or if there is no plan of the
    /// requested name.
    pub(crate) fn from_request(request: &CallRequest) -> Result<CallSignature, CallFailure> {
        let operation = request.operation;
        let element = (operation != Operation::Barrier).then_some(request.element);
        let element_bytes = element.map_or(1, |element| element.bytes() as u64);
        let bytes = |count: &u64| {
            let bytes = count.checked_mul(element_bytes).filter(|bytes| *bytes <= ARRAY_BYTES);
            bytes.ok_or_else(|| invalid(request, &CallError::TooLarge))
        };
        let plan = (!request.plan.is_empty()).then(|| request.plan.parse::<Plan>()).transpose();
        let plan = plan.map_err(|e| invalid(request, &e))?;
        // Fields that an operation ignores are normalized, because they must not make calls differ.
        let root = Rank(if operation.rooted() { request.root } else { 0 });
        let count = if element.is_none() || request.counts.is_some() { 0 } else { request.count };
        let mut call = Call::new(operation, root, bytes(&count)?, element_bytes as u32);
        if let Some(counts) = &request.counts {
            call = call.with_counts(counts.iter().map(bytes).collect::<Result<Vec<u64>, CallFailure>>()?);
        }
        let reduce = request.reduce.filter(|_| operation.combines());
        Ok(CallSignature { call, element, reduce, plan })
    }

    /// Checks that the call is valid for a group of `size` ranks and that the request's buffers are
    /// long enough. A watched call has no buffers.
    ///
    /// # Errors
    /// Returns [`CallFailureKind::Invalid`] if the call is not valid.
    pub(crate) fn check(&self, request: &CallRequest, size: usize) -> Result<(), CallFailure> {
        let wrong = |e: CallError| invalid(request, &e);
        if self.call.operation.combines() {
            check_reduction(self.call.operation, self.element, self.reduce).map_err(wrong)?;
        }
        self.call.check(size).map_err(wrong)?;
        if request.watch {
            return Ok(());
        }
        let len = |range: &Option<crate::MemoryRange>| range.map_or(0, |range| range.len);
        let (input, output) = (len(&request.input), len(&request.output));
        self.call.check_buffers(Rank(request.rank), size, input, output).map_err(wrong)
    }

    /// Returns a number that is very likely different for any other call or plan.
    pub(crate) fn digest(&self, plan: &Plan) -> u64 {
        let forced = self.plan.map(|plan| format!(" with plan {plan}")).unwrap_or_default();
        self.words().digest(format_args!("{forced} by {plan}"))
    }

    fn words(&self) -> CallDescription<'_> {
        CallDescription { call: &self.call, element: self.element, reduce: self.reduce }
    }
}

impl fmt::Display for CallSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.words())?;
        self.plan.map_or(Ok(()), |plan| write!(f, " with plan {plan}"))
    }
}

/// Returns the reason why a plan cannot execute an operation, with the plans that can; `None` if it
/// can.
pub fn wrong_plan(operation: Operation, plan: &str) -> Option<String> {
    match plan.parse::<Plan>() {
        Ok(plan) => plan.check(operation).err().map(|e| e.to_string()),
        Err(e) => Some(e.to_string()),
    }
}

/// Returns the failure of an invalid call.
pub(crate) fn invalid(request: &CallRequest, reason: &dyn fmt::Display) -> CallFailure {
    let CallRequest { rank, group, operation, .. } = request;
    let message = format!("rank {rank} cannot call {operation} on group {group}: {reason}");
    CallFailure::new(CallFailureKind::Invalid, message, vec![*rank])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryId, MemoryRange};

    fn request(operation: Operation, root: u32, count: u64) -> CallRequest {
        let buffer = |number| Some(MemoryRange { memory: MemoryId::Registered(number), offset: 0, len: 80 });
        CallRequest {
            group: 7,
            rank: 1,
            operation,
            root,
            element: ElementType::F64,
            reduce: Some(ReduceOp::Sum),
            count,
            counts: None,
            plan: String::new(),
            input: buffer(1),
            output: buffer(2),
            timeout: None,
            call_number: None,
            watch: false,
            background: false,
        }
    }

    fn text(request: &CallRequest) -> String {
        CallSignature::from_request(request).unwrap().to_string()
    }

    fn wrong(request: &CallRequest) -> String {
        CallSignature::from_request(request).and_then(|call| call.check(request, 2)).unwrap_err().message
    }

    #[test]
    fn fields_that_an_operation_ignores_make_no_difference() {
        let signature = |op, root| CallSignature::from_request(&request(op, root, 5)).unwrap();
        assert_eq!(signature(Operation::Allreduce, 0), signature(Operation::Allreduce, 1));
        assert_ne!(signature(Operation::Reduce, 0), signature(Operation::Reduce, 1));
        assert_eq!(text(&request(Operation::Barrier, 9, u64::MAX)), "barrier");
    }

    fn counted(operation: Operation, counts: &[u64]) -> CallRequest {
        CallRequest { counts: Some(counts.to_vec()), ..request(operation, 0, 0) }
    }

    fn by(plan: &str, request: CallRequest) -> CallRequest {
        CallRequest { plan: plan.to_owned(), ..request }
    }

    #[test]
    fn different_calls_have_different_digests_and_texts() {
        let reduce = |root, count| request(Operation::Reduce, root, count);
        let gather = |counts: &[u64]| counted(Operation::Gather, counts);
        let calls = [
            reduce(0, 5),
            reduce(1, 5),
            reduce(1, 4),
            by("cool-b-r", reduce(1, 4)),
            by("cool-b-r/4096", reduce(1, 4)),
            request(Operation::Scan, 0, 4),
            request(Operation::Exscan, 0, 4),
            request(Operation::Gather, 0, 4),
            gather(&[4, 4]),
            gather(&[3, 5]),
            gather(&[5, 3]),
        ];
        let signatures: Vec<CallSignature> =
            calls.iter().map(|call| CallSignature::from_request(call).unwrap()).collect();
        let default = "cool-p-p".parse().unwrap();
        for (i, a) in signatures.iter().enumerate() {
            for b in &signatures[..i] {
                let digest = |call: &CallSignature| call.digest(&call.plan.unwrap_or(default));
                assert_ne!(digest(a), digest(b), "{a} and {b}");
                assert_ne!(a.to_string(), b.to_string());
            }
        }
        assert_eq!(signatures[2].to_string(), "reduce of 4 f64 by sum to rank 1");
        assert_eq!(signatures[3].to_string(), "reduce of 4 f64 by sum to rank 1 with plan cool-b-r");
        assert_eq!(signatures[9].to_string(), "gather of 3, 5 f64 to rank 0");
    }

    #[test]
    fn many_counts_differ_in_a_short_text() {
        let text = |last| {
            let counts: Vec<u64> = (0..1000).map(|i| if i == 999 { last } else { 0 }).collect();
            text(&CallRequest { rank: 0, ..counted(Operation::Gather, &counts) })
        };
        assert!(text(0).starts_with("gather of 0, 0, 0, 0, 0, 0, 0, 0 and 992 more (all: "), "{}", text(0));
        assert!(text(0).len() < 100);
        assert_ne!(text(0), text(1));
    }

    #[test]
    fn short_buffers_wrong_roots_and_huge_calls_are_refused() {
        let error = |op, root, count| wrong(&request(op, root, count));
        assert!(error(Operation::Allgather, 0, 6).contains("output has 80 bytes and needs 96"));
        assert!(error(Operation::Bcast, 2, 1).contains("root is rank 2"));
        assert!(error(Operation::Bcast, 0, u64::MAX).contains("split it"));
        assert!(error(Operation::Alltoall, 0, u64::MAX / 8).contains("split it"));
    }

    #[test]
    fn counts_that_do_not_fit_are_refused() {
        let wrong = |operation, counts: &[u64]| wrong(&counted(operation, counts));
        assert!(wrong(Operation::Gather, &[1]).contains("it has 1 counts, but 2 ranks need 2"));
        assert!(wrong(Operation::Alltoall, &[1, 1]).contains("it has 2 counts, but 2 ranks need 4"));
        assert!(wrong(Operation::Bcast, &[1, 1]).contains("leave them out"));
        assert!(wrong(Operation::Allgather, &[9, 2]).contains("output has 80 bytes and needs 88"));
        assert!(wrong(Operation::Allgather, &[u64::MAX, 2]).contains("split it"));
    }

    #[test]
    fn a_plan_that_does_not_fit_is_answered_with_those_that_do() {
        let e = wrong(&by("cool-q", request(Operation::Bcast, 0, 1)));
        assert!(e.contains("rank 1 cannot call bcast") && e.contains("there is no plan \"cool-q\""), "{e}");
        assert_eq!(wrong_plan(Operation::Bcast, "multicast"), None);
        let e = wrong_plan(Operation::Scan, "multicast").unwrap();
        assert!(e.contains("cannot run scan") && e.contains("these can: cool-p-p"), "{e}");
    }
}
