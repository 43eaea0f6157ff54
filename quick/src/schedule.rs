//! Which calls are quick, and how: decided alike by all ranks, from the call and the layout alone.

use cool_collective::{
    Buffer, Dependents, Kind, Layout, Plan, Program, Rank, Schedule, Scope, Span, compile,
};
use cool_types::{Call, Operation};

/// Bytes of the longest message: three packets of an Ethernet, which the system puts together (IP fragments).
pub const MESSAGE_MAX: u64 = 4096;

/// Messages that a rank keeps, at least, for others that may lack them. Before a call with which somebody would send more than half as
/// many since all last heard of each other, the ranks meet in a barrier.
pub const WINDOW: u32 = 128;

/// A quick call as one rank carries it out.
#[derive(Debug)]
pub struct QuickSchedule {
    pub(crate) call: Call,
    pub(crate) program: Program,
    pub(crate) dependents: Dependents,
    /// Messages that one rank sends at most.
    pub(crate) messages: u32,
    /// The plan.
    plan: Plan,
}

impl QuickSchedule {
    /// The program of `rank` for a call, if the call is quick: without parts of unequal lengths, by multicast over the tree of all nodes and
    /// by unicast, with messages of at most [`MESSAGE_MAX`] bytes, of which nobody sends more than half of [`WINDOW`].
    pub fn of(call: &Call, layout: &Layout, rank: Rank) -> Option<QuickSchedule> {
        let is_short = call.counts.is_none() && call.bytes <= MESSAGE_MAX;
        let carries = call.operation == Operation::Barrier || call.bytes > 0;
        let alone = layout.nodes() < 2 || layout.nodes() != layout.size();
        if !is_short || !carries || alone {
            return None;
        }
        let plan: Plan = plan(call.operation).parse().ok()?;
        let schedule = compile(call, layout, &plan, |_| true).ok()?;
        let messages = schedule.programs.iter().flatten().map(sent).collect::<Option<Vec<u32>>>()?;
        let messages = messages.into_iter().max().filter(|most| *most <= WINDOW / 2)?;
        let Schedule { call, mut programs } = schedule;
        let program = programs.get_mut(rank.0 as usize)?.take()?;
        Some(QuickSchedule { call, dependents: Dependents::of(&program), program, messages, plan })
    }

    /// The barrier in which ranks meet between calls.
    pub(crate) fn barrier(layout: &Layout, rank: Rank) -> Option<QuickSchedule> {
        QuickSchedule::of(&Call::new(Operation::Barrier, Rank(0), 0, 1), layout, rank)
    }

    /// The plan by which it goes.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Whether messages that all get go over the tree.
    pub fn is_multicast(&self) -> bool {
        plan(self.call.operation) == MULTICAST
    }

    /// Whether a rank that is through has heard, over others, of all ranks.
    pub(crate) fn synchronizes(&self) -> bool {
        matches!(self.call.operation, Operation::Barrier | Operation::Allreduce | Operation::Allgather)
    }

    /// Whether a rank is the root of a bcast, whose only buffer is the output.
    pub(crate) fn is_root_of_bcast(&self, rank: Rank) -> bool {
        self.call.operation == Operation::Bcast && rank == self.call.root
    }

    /// Bytes of a rank's input, output and working memory.
    pub(crate) fn bytes(&self, rank: Rank, size: usize) -> [u64; 3] {
        let input = if self.is_root_of_bcast(rank) { 0 } else { self.call.input_bytes(rank, size) };
        [input, self.call.output_bytes(rank, size), self.program.scratch]
    }
}

/// By which all get the same at once.
const MULTICAST: &str = "multicast";

/// The plan for an operation: where all get the same, one collects it and multicasts it over the whole group.
fn plan(operation: Operation) -> &'static str {
    match operation {
        Operation::Bcast | Operation::Barrier | Operation::Allreduce | Operation::Allgather => MULTICAST,
        _ => "cool-p-p",
    }
}

/// How many messages a program sends; `None` if one is too long, or goes over other trees.
fn sent(program: &Program) -> Option<u32> {
    let mut sent = 0;
    for action in &program.actions {
        match action.kind {
            Kind::Send { src, .. } => {
                sent += 1;
                (src.len <= MESSAGE_MAX).then_some(())?;
            }
            Kind::Multicast { src, scope, .. } => {
                sent += 1;
                (src.len <= MESSAGE_MAX && scope == Scope::All).then_some(())?;
            }
            Kind::Receive { .. }
            | Kind::ReceiveMulticast { .. }
            | Kind::Reduce { .. }
            | Kind::Copy { .. } => {}
        }
    }
    Some(sent)
}

/// Where a span lies: which of the three buffers, and from which byte to which.
pub(crate) fn place(span: Span) -> (usize, core::ops::Range<usize>) {
    let buffer = match span.buffer {
        Buffer::Input => 0,
        Buffer::Output => 1,
        Buffer::Scratch => 2,
    };
    // No message is longer than a `usize` counts.
    (buffer, span.offset as usize..span.end() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_collective::Place;

    fn layout(nodes: u32) -> Layout {
        let places: Vec<Place> = (0..nodes).map(|node| Place { rack: node / 4, node }).collect();
        Layout::new(&places).unwrap()
    }

    fn is_quick(operation: Operation, bytes: u64, nodes: u32) -> bool {
        QuickSchedule::of(&Call::new(operation, Rank(0), bytes, 8), &layout(nodes), Rank(1)).is_some()
    }

    #[test]
    fn short_calls_are_quick_and_long_ones_are_not() {
        for operation in [Operation::Bcast, Operation::Reduce, Operation::Allreduce, Operation::Scan] {
            assert!(is_quick(operation, 8, 16), "{operation}");
            assert!(is_quick(operation, MESSAGE_MAX, 16), "{operation}");
            assert!(!is_quick(operation, MESSAGE_MAX + 8, 16), "{operation}");
            assert!(!is_quick(operation, 0, 16), "{operation} of nothing");
        }
        assert!(is_quick(Operation::Barrier, 0, 16));
        // What is collected is as long as all ranks' parts.
        assert!(is_quick(Operation::Allgather, 256, 16) && !is_quick(Operation::Allgather, 264, 16));
    }

    #[test]
    fn ranks_of_one_node_do_not_call_by_datagrams() {
        let places = [Place { rack: 0, node: 0 }, Place { rack: 0, node: 0 }, Place { rack: 0, node: 1 }];
        let call = Call::new(Operation::Bcast, Rank(0), 8, 8);
        assert!(QuickSchedule::of(&call, &Layout::new(&places).unwrap(), Rank(0)).is_none());
    }

    #[test]
    fn a_call_in_which_somebody_sends_to_very_many_is_not_quick() {
        assert!(is_quick(Operation::Barrier, 0, 64));
        assert!(!is_quick(Operation::Scatter, 8, 300));
    }
}
