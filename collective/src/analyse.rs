//! Counts what a schedule sends (the figures of paper 003, table 1). What it costs in time is for others.

use crate::layout::Layout;
use crate::order::order;
use crate::schedule::{ActionId, Kind, Program, Rank, Schedule, TransferId};
use std::collections::BTreeMap;

/// The counts of one schedule. Messages within a node are local copies and do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Analysis {
    /// Messages to one node.
    pub unicasts: usize,
    /// Messages along a tree.
    pub multicasts: usize,
    /// Those of both kinds that reach another rack than the sender's.
    pub across_racks: usize,
    /// Most messages that follow one from another.
    pub steps: usize,
    /// Most messages across racks that follow one from another.
    pub steps_across_racks: usize,
}

/// The longest ways to an event: in messages, and in messages across racks.
#[derive(Clone, Copy, Debug, Default)]
struct Depth {
    steps: usize,
    across: usize,
}

impl Depth {
    fn max(self, other: Depth) -> Depth {
        Depth { steps: self.steps.max(other.steps), across: self.across.max(other.across) }
    }
}

/// Counts the messages of a schedule for `layout`. None if it was not compiled for all of its ranks, or
/// comes to a stop.
pub fn analyse(schedule: &Schedule, layout: &Layout) -> Option<Analysis> {
    let programs: Vec<&Program> = schedule.programs.iter().map(Option::as_ref).collect::<Option<_>>()?;
    if programs.len() != layout.size() {
        return None;
    }
    let mut analysis = Analysis::default();
    let mut sent: BTreeMap<TransferId, (Rank, Depth)> = BTreeMap::new();
    let mut complete: Vec<BTreeMap<ActionId, Depth>> = vec![BTreeMap::new(); programs.len()];
    for (rank, id) in order(&programs, |_| 0).ok()? {
        let action = &programs[rank.0 as usize].actions[id.0 as usize];
        let before = action.after.iter().filter_map(|on| complete[rank.0 as usize].get(on));
        let mut depth = before.fold(Depth::default(), |depth, other| depth.max(*other));
        match action.kind {
            Kind::Send { to, transfer, .. } => {
                analysis.unicasts += usize::from(layout.node_of(to) != layout.node_of(rank));
                analysis.across_racks += usize::from(layout.rack_of(to) != layout.rack_of(rank));
                sent.insert(transfer, (rank, depth));
            }
            Kind::Multicast { scope, transfer, .. } => {
                let home = layout.rack_of(rank);
                let leaves = layout.nodes_of(scope).into_iter().any(|node| layout.rack_of_node(node) != home);
                analysis.multicasts += 1;
                analysis.across_racks += usize::from(leaves);
                sent.insert(transfer, (rank, depth));
            }
            Kind::Receive { transfer, .. } | Kind::Hear { transfer, .. } => {
                let (from, sent) = *sent.get(&transfer)?;
                depth = depth.max(Depth {
                    steps: sent.steps + usize::from(layout.node_of(from) != layout.node_of(rank)),
                    across: sent.across + usize::from(layout.rack_of(from) != layout.rack_of(rank)),
                });
            }
            Kind::Reduce { .. } | Kind::Copy { .. } => {}
        }
        analysis.steps = analysis.steps.max(depth.steps);
        analysis.steps_across_racks = analysis.steps_across_racks.max(depth.across);
        complete[rank.0 as usize].insert(id, depth);
    }
    Some(analysis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, Operation, Place, Plan, compile};

    const RACKS: u32 = 4;
    const NODES: u32 = 5;

    fn analysis(operation: Operation, plan: &str, root: u32) -> Analysis {
        let places: Vec<Place> = (0..RACKS * NODES).map(|node| Place { rack: node / NODES, node }).collect();
        let layout = Layout::new(&places).unwrap();
        let call = Call { operation, root: Rank(root), bytes: 64, element: 8 };
        let plan: Plan = plan.parse().unwrap();
        analyse(&compile(&call, &layout, &plan, |_| true).unwrap(), &layout).unwrap()
    }

    /// Table 1 counts a root that is no leader, and has the root of a gather or scatter send its own part
    /// to its leader and back, or its leader send it back; here it stays where it is, one message less.
    #[test]
    fn cool_p_p_sends_the_messages_of_table_1() {
        let (r, n) = (RACKS as usize, (RACKS * NODES) as usize);
        let three_steps = |unicasts, multicasts, across_racks| Analysis {
            unicasts,
            multicasts,
            across_racks,
            steps: 3,
            steps_across_racks: 1,
        };
        let follower = NODES + 2;
        for (operation, expected) in [
            (Operation::Reduce, three_steps(n, 0, r - 1)),
            (Operation::Gather, three_steps(n - 1, 0, r - 1)),
            (Operation::Scatter, three_steps(n - 1, 0, r - 1)),
            (Operation::Bcast, three_steps(1, r + 1, 1)),
            (Operation::Allreduce, three_steps(n - r, 2 * r, r)),
            (Operation::Allgather, three_steps(n - r, 2 * r, r)),
            (Operation::Barrier, three_steps(n - r, 2 * r, r)),
        ] {
            assert_eq!(analysis(operation, "cool-p-p", follower), expected, "{operation}");
        }
    }

    #[test]
    fn one_multicast_reaches_the_whole_group() {
        let bcast = analysis(Operation::Bcast, "multicast", NODES + 2);
        let one = Analysis { unicasts: 0, multicasts: 1, across_racks: 1, steps: 1, steps_across_racks: 1 };
        assert_eq!(bcast, one);
        for operation in [Operation::Allreduce, Operation::Allgather, Operation::Barrier] {
            assert_eq!(analysis(operation, "multicast", 0).multicasts, 1, "{operation}");
        }
        let each = analysis(Operation::Allgather, "multicast-each", 0);
        assert_eq!((each.unicasts, each.multicasts, each.steps), (0, (RACKS * NODES) as usize, 1));
    }
}
