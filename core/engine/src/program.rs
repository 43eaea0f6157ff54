//! A rank's way through its program: which actions may start, which are done, where their bytes lie.

use crate::failure::CallStats;
use crate::memory::MemoryRange;
use cool_collective::{
    ActionKind, Dependents, FusedReductions, Plan, Program, ProgramProgress, Rank, RankBuffer, Schedule,
    Span, TransferId,
};
use cool_machine::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A schedule with its dependencies turned around.
#[derive(Debug)]
pub(crate) struct CompiledSchedule {
    schedule: Schedule,
    pub(crate) plan: Plan,
    /// The call and the plan as text, for traces.
    pub(crate) text: (Arc<str>, Arc<str>),
    /// Tells the call, carried out by this plan, from others.
    pub(crate) digest: u64,
    /// Of each rank that has a program.
    dependents: BTreeMap<u32, Dependents>,
    /// What is combined where its sender has it. Only the ranks of this node have programs.
    fused: FusedReductions,
}

impl CompiledSchedule {
    pub(crate) fn new(schedule: Schedule, plan: Plan, text: &str, digest: u64) -> CompiledSchedule {
        let programs = (0..).zip(&schedule.programs);
        let dependents: BTreeMap<u32, Dependents> = programs
            .filter_map(|(rank, program)| Some((rank, Dependents::for_program(program.as_ref()?))))
            .collect();
        let text = (text.into(), plan.to_string().into());
        let fused = FusedReductions::find(&schedule, |rank| dependents.get(&rank.0), |_, _| true);
        CompiledSchedule { schedule, plan, text, digest, dependents, fused }
    }

    /// The call and the plan that carries it out, as agents tell each other, so that picks that differ are named too. Made of what
    /// was written when the call was prepared: to write out the lengths of many parts takes long. A plan that the ranks have
    /// `forced` is among the words of the call.
    pub(crate) fn called(&self, forced: bool) -> String {
        let (words, plan) = &self.text;
        if forced { words.to_string() } else { format!("{words} with plan {plan}") }
    }

    /// Whether nothing is to be received by an action, since what uses it takes it from its sender.
    pub(crate) fn is_passed_over(&self, rank: u32, action: u32) -> bool {
        self.fused.is_passed_over(Rank(rank), action)
    }

    /// The message that a reduction takes from its sender.
    pub(crate) fn fused(&self, rank: u32, action: u32) -> Option<(Rank, TransferId)> {
        self.fused.message(Rank(rank), action)
    }

    /// Whose message is here when an action is done.
    pub(crate) fn source(&self, rank: u32, action: u32) -> Option<Rank> {
        match self.program(rank).actions[action as usize].kind {
            ActionKind::Receive { .. } if self.is_passed_over(rank, action) => None,
            ActionKind::Receive { from, .. } | ActionKind::ReceiveMulticast { from, .. } => Some(from),
            ActionKind::Reduce { .. } => self.fused(rank, action).map(|(from, _)| from),
            _ => None,
        }
    }

    /// The program of a local rank.
    pub(crate) fn program(&self, rank: u32) -> &Program {
        self.schedule.programs[rank as usize].as_ref().expect("schedules are compiled for all local ranks")
    }
}

/// One rank within one call.
#[derive(Debug)]
pub(crate) struct ProgramRun {
    compiled: Arc<CompiledSchedule>,
    rank: u32,
    pub(crate) progress: ProgramProgress,
    /// Things outside the program that still need the rank's buffers: it may not leave yet.
    pub(crate) pins: usize,
    input: MemoryRange,
    output: MemoryRange,
    /// The program's working memory.
    pub(crate) scratch: MemoryRange,
    /// What the driver knows the call by.
    pub(crate) token: u64,
    pub(crate) begun: Time,
    pub(crate) stats: CallStats,
}

impl ProgramRun {
    /// The run of a rank with its input and output, and working memory for the program.
    pub(crate) fn new(
        compiled: Arc<CompiledSchedule>,
        rank: u32,
        (input, output, scratch): (MemoryRange, MemoryRange, MemoryRange),
        token: u64,
        now: Time,
    ) -> ProgramRun {
        let progress = ProgramProgress::new(compiled.program(rank));
        ProgramRun {
            compiled,
            rank,
            progress,
            pins: 0,
            input,
            output,
            scratch,
            token,
            begun: now,
            stats: CallStats::default(),
        }
    }

    pub(crate) fn program(&self) -> &Program {
        self.compiled.program(self.rank)
    }

    /// The next multicast over whose tree none is being sent.
    pub(crate) fn next_multicast(&mut self) -> Option<u32> {
        self.progress.next_multicast(self.compiled.program(self.rank)).map(|(action, _)| action)
    }

    /// The schedule that it is part of.
    pub(crate) fn compiled(&self) -> &CompiledSchedule {
        &self.compiled
    }

    /// The actions that wait for none.
    pub(crate) fn first(&self) -> Vec<u32> {
        self.progress.first().collect()
    }

    /// An action is done; answers with those that may start now.
    pub(crate) fn complete(&mut self, action: u32) -> Vec<u32> {
        let mut ready = Vec::new();
        self.progress.complete(action, &self.compiled.dependents[&self.rank], |next| ready.push(next));
        ready
    }

    /// Whether the rank may go on with its life.
    pub(crate) fn finished(&self) -> bool {
        self.progress.is_done() && self.pins == 0
    }

    /// Where the bytes of a schedule's span lie.
    pub(crate) fn range(&self, span: Span) -> MemoryRange {
        let buffer = match span.buffer {
            RankBuffer::Input => self.input,
            RankBuffer::Output => self.output,
            RankBuffer::Scratch => self.scratch,
        };
        // The schedule keeps within the sizes that the call was checked for.
        buffer.part(if span.len == 0 { 0 } else { span.offset }, span.len)
    }

    /// Whether a later action of the program changes bytes of `span`, the result of `action`.
    pub(crate) fn changed_later(&self, action: u32, span: Span) -> bool {
        let overlaps = |other: Span| {
            other.buffer == span.buffer
                && other.offset < span.offset + span.len
                && span.offset < other.offset + other.len
        };
        let later = &self.program().actions[action as usize + 1..];
        later.iter().filter_map(|a| a.kind.writes()).any(overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_collective::{Layout, RankPlace, compile};
    use cool_types::{Call, Operation};

    #[test]
    fn a_call_is_told_with_its_plan_once_whether_ranks_forced_that_or_it_was_picked() {
        let places = [0, 1].map(|node| RankPlace { node, rack: 0 });
        let (layout, plan) = (Layout::new(&places).unwrap(), "cool-p-p".parse().unwrap());
        let call = Call::new(Operation::Bcast, Rank(0), 8, 1);
        let compiled = |text| {
            let schedule = compile(&call, &layout, &plan, |_| true).unwrap();
            CompiledSchedule::new(schedule, plan, text, 7)
        };
        let (picked, forced) = ("bcast of 8 u8 from rank 0", "bcast of 8 u8 from rank 0 with plan cool-p-p");
        assert_eq!(compiled(picked).called(false), forced);
        assert_eq!(compiled(forced).called(true), forced);
    }
}
