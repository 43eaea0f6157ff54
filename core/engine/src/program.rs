//! The progress of a rank through its program: which actions may start, which have completed, and
//! where their bytes are.

use crate::failure::CallStats;
use crate::memory::MemoryRange;
use cool_collective::{
    ActionKind, Dependents, FusedReductions, Plan, Program, ProgramProgress, Rank, RankBuffer, Schedule,
    Span, TransferId,
};
use cool_machine::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A compiled schedule with its dependencies inverted, so that the actions that depend on a
/// completed one are found quickly.
#[derive(Debug)]
pub(crate) struct CompiledSchedule {
    schedule: Schedule,
    pub(crate) plan: Plan,
    /// The call and the plan as text, for traces.
    pub(crate) text: (Arc<str>, Arc<str>),
    /// Distinguishes the call with this plan from other calls.
    pub(crate) digest: u64,
    /// The dependents of each action, for each rank that has a program.
    dependents: BTreeMap<u32, Dependents>,
    /// The reductions that read their operand directly from the sender's memory. This requires a
    /// sender on this node, because only the ranks of this node have programs here.
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

    /// Returns the call and its plan as text for other agents, so that a mismatch of plans is
    /// visible too. The text is prepared together with the call, because formatting the lengths of
    /// many parts takes long. If the ranks have `forced` the plan, the text of the call already
    /// contains it.
    pub(crate) fn called(&self, forced: bool) -> String {
        let (words, plan) = &self.text;
        if forced { words.to_string() } else { format!("{words} with plan {plan}") }
    }

    /// Returns whether an action receives nothing, because the reduction that uses the message
    /// reads it directly from the sender's memory.
    pub(crate) fn is_elided_receive(&self, rank: u32, action: u32) -> bool {
        self.fused.is_elided_receive(Rank(rank), action)
    }

    /// Returns the message that a reduction reads directly from its sender's memory.
    pub(crate) fn fused(&self, rank: u32, action: u32) -> Option<(Rank, TransferId)> {
        self.fused.message(Rank(rank), action)
    }

    /// Returns the rank whose message has arrived when an action completes.
    pub(crate) fn source(&self, rank: u32, action: u32) -> Option<Rank> {
        match self.program(rank).actions[action as usize].kind {
            ActionKind::Receive { .. } if self.is_elided_receive(rank, action) => None,
            ActionKind::Receive { from, .. } | ActionKind::ReceiveMulticast { from, .. } => Some(from),
            ActionKind::Reduce { .. } => self.fused(rank, action).map(|(from, _)| from),
            _ => None,
        }
    }

    /// Returns the program of a local rank.
    pub(crate) fn program(&self, rank: u32) -> &Program {
        self.schedule.programs[rank as usize].as_ref().expect("schedules are compiled for all local ranks")
    }
}

/// One rank in one call.
#[derive(Debug)]
pub(crate) struct ProgramRun {
    compiled: Arc<CompiledSchedule>,
    rank: u32,
    pub(crate) progress: ProgramProgress,
    /// The number of streams that still need the rank's buffers. The rank must not complete the
    /// call before it is 0.
    pub(crate) pins: usize,
    input: MemoryRange,
    output: MemoryRange,
    /// The program's working memory.
    pub(crate) scratch: MemoryRange,
    /// The driver's token of the call.
    pub(crate) token: u64,
    pub(crate) begun: Time,
    pub(crate) stats: CallStats,
}

impl ProgramRun {
    /// Returns the run of a rank with its input, its output and the working memory of its program.
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

    /// Returns the next multicast over a free tree.
    pub(crate) fn next_multicast(&mut self) -> Option<u32> {
        self.progress.next_multicast(self.compiled.program(self.rank)).map(|(action, _)| action)
    }

    /// Returns the schedule to which the program belongs.
    pub(crate) fn compiled(&self) -> &CompiledSchedule {
        &self.compiled
    }

    /// Returns the actions that depend on no other.
    pub(crate) fn first(&self) -> Vec<u32> {
        self.progress.first().collect()
    }

    /// Records that an action has completed, and returns the actions that may start now.
    pub(crate) fn complete(&mut self, action: u32) -> Vec<u32> {
        let mut ready = Vec::new();
        self.progress.complete(action, &self.compiled.dependents[&self.rank], |next| ready.push(next));
        ready
    }

    /// Returns whether the rank has completed the call.
    pub(crate) fn finished(&self) -> bool {
        self.progress.is_done() && self.pins == 0
    }

    /// Returns the memory of a span of the schedule.
    pub(crate) fn range(&self, span: Span) -> MemoryRange {
        let buffer = match span.buffer {
            RankBuffer::Input => self.input,
            RankBuffer::Output => self.output,
            RankBuffer::Scratch => self.scratch,
        };
        // A schedule stays within the sizes for which the call was checked.
        buffer.part(if span.len == 0 { 0 } else { span.offset }, span.len)
    }

    /// Returns whether a later action of the program changes bytes of `span`, the result of
    /// `action`.
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
    fn the_text_of_a_call_contains_its_plan_once() {
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
