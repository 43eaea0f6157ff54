//! Plans that the user forces with `--plan`.

use super::plan::BenchOp;
use cool_collective::{CompileError, Operation, Plan};
use std::str::FromStr;

/// A plan for one operation, or for every measured one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForcedPlan {
    operation: Option<Operation>,
    plan: Plan,
}

impl FromStr for ForcedPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<ForcedPlan, String> {
        let (operation, plan) = match text.split_once('=') {
            Some((operation, plan)) => {
                (Some(operation.parse::<Operation>().map_err(|e| e.to_string())?), plan)
            }
            None => (None, text),
        };
        Ok(ForcedPlan {
            operation,
            plan: plan.parse().map_err(|e: cool_collective::PlanError| e.to_string())?,
        })
    }
}

/// Returns the plan of each operation for which one is forced. A plan for one operation takes
/// precedence over a plan for all; among plans of the same kind, the last one does.
///
/// # Errors
/// If a plan cannot run its operation.
pub(crate) fn forced_plans(
    ops: &[BenchOp],
    plans: &[ForcedPlan],
) -> Result<Vec<(String, String)>, CompileError> {
    let named = |name: &str| Operation::ALL.into_iter().find(|operation| operation.to_string() == name);
    let measured = ops.iter().filter_map(|op| named(&op.operation.to_string()));
    let operations = Operation::ALL.into_iter().filter_map(|operation| {
        let last_for = |wanted| plans.iter().rev().find(move |forced| forced.operation == wanted);
        let for_all = || last_for(None).filter(|_| measured.clone().any(|measured| measured == operation));
        Some((operation, last_for(Some(operation)).or_else(for_all)?.plan))
    });
    operations
        .map(|(operation, plan)| {
            plan.check(operation)?;
            Ok((operation.to_string(), plan.to_string()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ops: &[&str], plans: &[&str]) -> Result<Vec<(String, String)>, String> {
        let ops: Vec<BenchOp> = ops.iter().map(|op| op.parse().unwrap()).collect();
        let plans: Vec<ForcedPlan> = plans.iter().map(|plan| plan.parse()).collect::<Result<_, _>>()?;
        forced_plans(&ops, &plans).map_err(|e| e.to_string())
    }

    #[test]
    fn a_plan_is_for_its_operation_or_for_all_measured_ones() {
        let pairs = all(
            &["bcast", "allreduce", "gatherv"],
            &["cool-p-p", "allreduce=flat:ring", "allreduce=cool-b-r", "scan=flat:chain"],
        );
        let expected = [
            ("bcast", "cool-p-p"),
            ("allreduce", "cool-b-r"),
            ("gather", "cool-p-p"),
            ("scan", "flat:chain"),
        ];
        assert_eq!(pairs.unwrap(), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(all(&["bcast"], &[]), Ok(Vec::new()));
    }

    #[test]
    fn the_error_for_an_unsuitable_plan_lists_suitable_ones() {
        let e = all(&["bcast", "scan"], &["multicast"]).unwrap_err();
        assert!(e.contains("multicast cannot run scan") && e.contains("these can: "), "{e}");
        let e = all(&["bcast"], &["cool"]).unwrap_err();
        assert!(e.contains("there is no plan \"cool\""), "{e}");
        let e = all(&["bcast"], &["gatherv=cool-p-p"]).unwrap_err();
        assert!(e.contains("there is no operation \"gatherv\""), "{e}");
    }
}
