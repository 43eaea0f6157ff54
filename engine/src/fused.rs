//! Reductions that take what they need from the memory of its sender, a rank of the same node, without a copy in
//! between.
//!
//! A receive into working memory that only one reduction reads is passed over, and the reduction takes the message. That
//! is safe because no action depends on that send: it only completes later.

use cool_collective::{Action, Buffer, Dependents, Kind, Rank, Schedule, Span, TransferId};
use std::collections::{BTreeMap, BTreeSet};

/// The reductions of one rank that receive.
#[derive(Debug, Default)]
pub(crate) struct Fused {
    /// The receives that are passed over.
    pub(crate) receives: BTreeSet<u32>,
    /// By reduction: from whom it takes which message.
    pub(crate) reductions: BTreeMap<u32, (Rank, TransferId)>,
}

/// Finds them; `dependents` are those of each rank with a program.
pub(crate) fn find(schedule: &Schedule, dependents: &BTreeMap<u32, Dependents>) -> BTreeMap<u32, Fused> {
    let mut free = BTreeSet::new();
    for (rank, waiting) in dependents {
        for (index, action) in (0u32..).zip(actions(schedule, *rank)) {
            if let Kind::Send { to, transfer, .. } = action.kind
                && waiting.of_action(index).is_empty()
            {
                free.insert((*rank, to.0, transfer.0));
            }
        }
    }
    let mut all: BTreeMap<u32, Fused> = BTreeMap::new();
    for (rank, waiting) in dependents {
        let actions = actions(schedule, *rank);
        for (index, action) in (0u32..).zip(actions) {
            let Kind::Receive { from, transfer, dst } = action.kind else { continue };
            let Some(reduction) = only_reader(actions, index, dst) else { continue };
            if free.contains(&(from.0, *rank, transfer.0)) && waiting.of_action(index).contains(&reduction) {
                let fused = all.entry(*rank).or_default();
                fused.receives.insert(index);
                fused.reductions.insert(reduction, (from, transfer));
            }
        }
    }
    all
}

fn actions(schedule: &Schedule, rank: u32) -> &[Action] {
    schedule.programs.get(rank as usize).and_then(Option::as_ref).map_or(&[], |program| &program.actions)
}

/// The reduction that alone reads what a receive puts into working memory, before something else is put there.
fn only_reader(actions: &[Action], receive: u32, received: Span) -> Option<u32> {
    if received.buffer != Buffer::Scratch || received.len == 0 {
        return None;
    }
    let mut reader = None;
    for (index, action) in (0u32..).zip(actions).skip(receive as usize + 1) {
        if action.kind.reads().any(|span| overlap(span, received)) {
            match action.kind {
                Kind::Reduce { src, dst }
                    if src == received && !overlap(dst, received) && reader.is_none() =>
                {
                    reader = Some(index);
                }
                _ => return None,
            }
        }
        match action.kind.writes() {
            Some(span) if span == received => return reader,
            Some(span) if overlap(span, received) => return None,
            _ => {}
        }
    }
    reader
}

fn overlap(a: Span, b: Span) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_collective::{Call, Layout, Operation, Place, Plan, compile};

    /// The reductions of each rank that take from senders, of four ranks on one node.
    fn found(operation: Operation, plan: &str) -> [usize; 4] {
        let layout = Layout::new(&[Place { rack: 0, node: 0 }; 4]).unwrap();
        let call = Call::new(operation, Rank(0), 1 << 20, 4);
        let schedule = compile(&call, &layout, &plan.parse::<Plan>().unwrap(), |_| true).unwrap();
        let compiled = crate::program::Compiled::new(schedule, plan.parse().unwrap(), "", 0);
        [0, 1, 2, 3].map(|rank| {
            let actions = 0..compiled.program(rank).actions.len() as u32;
            actions.filter(|action| compiled.fused(rank, *action).is_some()).count()
        })
    }

    #[test]
    fn a_leader_takes_what_others_send_from_where_they_have_it() {
        for operation in [Operation::Reduce, Operation::Allreduce] {
            // In segments, of which it takes three messages each.
            let [leader, others @ ..] = found(operation, "flat:linear");
            assert!(leader > 0 && leader % 3 == 0 && others == [0; 3], "{leader} {others:?}");
        }
    }

    #[test]
    fn what_is_not_combined_is_copied() {
        assert_eq!(found(Operation::Bcast, "flat:linear"), [0; 4]);
        assert_eq!(found(Operation::Gather, "flat:linear"), [0; 4]);
    }

    #[test]
    fn what_is_read_twice_or_sent_on_is_received_first() {
        let span = |buffer, offset| Span { buffer, offset, len: 8 };
        let action = |kind| Action { kind, after: Vec::new() };
        let slot = span(Buffer::Scratch, 0);
        let receive = || action(Kind::Receive { from: Rank(1), transfer: TransferId(0), dst: slot });
        let reduce = || action(Kind::Reduce { src: slot, dst: span(Buffer::Output, 0) });
        let send =
            || action(Kind::Send { to: Rank(2), transfer: TransferId(1), src: span(Buffer::Scratch, 4) });
        assert_eq!(only_reader(&[receive(), reduce()], 0, slot), Some(1));
        assert_eq!(only_reader(&[receive(), reduce(), receive(), reduce()], 0, slot), Some(1));
        assert_eq!(only_reader(&[receive(), reduce(), reduce()], 0, slot), None);
        assert_eq!(only_reader(&[receive(), reduce(), send()], 0, slot), None);
        assert_eq!(only_reader(&[receive(), reduce(), receive(), send()], 0, slot), Some(1));
    }
}
