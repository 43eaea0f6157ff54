//! Fused reductions: a reduction reads its operand directly from the memory of the sender, if that
//! is a rank of the same node. Agents execute schedules this way, and the timing of plans assumes
//! it.
//!
//! A receive is skipped if its message goes to working memory, only one reduction reads it there,
//! and no action of the sender depends on the send. The reduction then reads the message from the
//! sender's memory. The send completes only after that, which is safe because no action waits for
//! it.

use crate::progress::Dependents;
use crate::schedule::{ActionKind, Program, Rank, RankBuffer, Schedule, ScheduleAction, Span, TransferId};
use std::collections::{BTreeMap, BTreeSet};

/// The fused reductions of a schedule. Actions are numbered as in their rank's program.
#[derive(Clone, Debug, Default)]
pub struct FusedReductions {
    /// The receives that are skipped, by rank.
    receives: BTreeSet<(Rank, u32)>,
    /// The sender and message of each fused reduction, by rank.
    reductions: BTreeMap<(Rank, u32), (Rank, TransferId)>,
}

impl FusedReductions {
    /// Returns the fused reductions of a schedule. `dependents` must return those of a rank's
    /// program, if it has one, and `one_node` whether two ranks are on one node.
    pub fn find<'a>(
        schedule: &Schedule,
        dependents: impl Fn(Rank) -> Option<&'a Dependents>,
        one_node: impl Fn(Rank, Rank) -> bool,
    ) -> FusedReductions {
        let programs = || {
            let all = (0..).map(Rank).zip(&schedule.programs);
            all.filter_map(|(rank, program)| Some((rank, program.as_ref()?, dependents(rank)?)))
        };
        let mut free = BTreeSet::new();
        for (rank, program, waiting) in programs() {
            free.extend(sends_without_dependents(program, waiting, |to| one_node(rank, to)));
        }
        let mut fused = FusedReductions::default();
        if free.is_empty() {
            return fused;
        }
        for (rank, program, waiting) in programs() {
            for (index, action) in (0u32..).zip(&program.actions) {
                let ActionKind::Receive { from, transfer, dst } = action.kind else { continue };
                if free.contains(&transfer)
                    && let Some(reduction) = only_reader(&program.actions, index, dst)
                    && waiting.dependents_of(index).contains(&reduction)
                {
                    fused.receives.insert((rank, index));
                    fused.reductions.insert((rank, reduction), (from, transfer));
                }
            }
        }
        fused
    }

    /// Returns whether an action is a receive that is skipped, because a reduction reads its
    /// message from the sender's memory.
    pub fn is_elided_receive(&self, rank: Rank, action: u32) -> bool {
        self.receives.contains(&(rank, action))
    }

    /// Returns the sender and the message that a reduction reads, if it is fused.
    pub fn message(&self, rank: Rank, action: u32) -> Option<(Rank, TransferId)> {
        self.reductions.get(&(rank, action)).copied()
    }
}

/// Returns the messages to ranks of the node on which no action of the sender depends.
fn sends_without_dependents(
    program: &Program,
    waiting: &Dependents,
    on_node: impl Fn(Rank) -> bool,
) -> impl Iterator<Item = TransferId> {
    (0u32..).zip(&program.actions).filter_map(move |(index, action)| match action.kind {
        ActionKind::Send { to, transfer, .. } if on_node(to) && waiting.dependents_of(index).is_empty() => {
            Some(transfer)
        }
        _ => None,
    })
}

/// Returns the reduction that is the only reader of a received span before the span is overwritten.
fn only_reader(actions: &[ScheduleAction], receive: u32, received: Span) -> Option<u32> {
    if received.buffer != RankBuffer::Scratch || received.len == 0 {
        return None;
    }
    let mut reader = None;
    for (index, action) in (0u32..).zip(actions).skip(receive as usize + 1) {
        if action.kind.reads().any(|span| overlap(span, received)) {
            match action.kind {
                ActionKind::Reduce { src, dst }
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
    use crate::{Call, Layout, Operation, Plan, RankPlace, compile};

    /// Returns the number of messages that fused reductions read, for each of four ranks on one
    /// node.
    fn found(operation: Operation, plan: &str) -> [usize; 4] {
        let layout = Layout::new(&[RankPlace { rack: 0, node: 0 }; 4]).unwrap();
        let call = Call::new(operation, Rank(0), 1 << 20, 4);
        let schedule = compile(&call, &layout, &plan.parse::<Plan>().unwrap(), |_| true).unwrap();
        let dependents: Vec<Dependents> =
            schedule.programs.iter().flatten().map(Dependents::for_program).collect();
        let fused = FusedReductions::find(&schedule, |rank| dependents.get(rank.0 as usize), |_, _| true);
        assert_eq!(fused.receives.len(), fused.reductions.len());
        [0, 1, 2, 3].map(|rank| fused.reductions.keys().filter(|(of, _)| of.0 == rank).count())
    }

    #[test]
    fn a_leader_reduces_from_the_memory_of_its_senders() {
        for operation in [Operation::Reduce, Operation::Allreduce] {
            // Each segment consists of three messages.
            let [leader, others @ ..] = found(operation, "flat:linear");
            assert!(leader > 0 && leader % 3 == 0 && others == [0; 3], "{leader} {others:?}");
        }
    }

    #[test]
    fn messages_that_are_not_combined_are_copied() {
        assert_eq!(found(Operation::Bcast, "flat:linear"), [0; 4]);
        assert_eq!(found(Operation::Gather, "flat:linear"), [0; 4]);
    }

    #[test]
    fn messages_that_are_read_twice_or_forwarded_are_received() {
        let span = |buffer, offset| Span { buffer, offset, len: 8 };
        let action = |kind| ScheduleAction { kind, after: Vec::new() };
        let slot = span(RankBuffer::Scratch, 0);
        let receive = || action(ActionKind::Receive { from: Rank(1), transfer: TransferId(0), dst: slot });
        let reduce = || action(ActionKind::Reduce { src: slot, dst: span(RankBuffer::Output, 0) });
        let send = || {
            action(ActionKind::Send {
                to: Rank(2),
                transfer: TransferId(1),
                src: span(RankBuffer::Scratch, 4),
            })
        };
        assert_eq!(only_reader(&[receive(), reduce()], 0, slot), Some(1));
        assert_eq!(only_reader(&[receive(), reduce(), receive(), reduce()], 0, slot), Some(1));
        assert_eq!(only_reader(&[receive(), reduce(), reduce()], 0, slot), None);
        assert_eq!(only_reader(&[receive(), reduce(), send()], 0, slot), None);
        assert_eq!(only_reader(&[receive(), reduce(), receive(), send()], 0, slot), Some(1));
    }
}
