//! A rank's way through its program: which actions may start, which are done, where their bytes lie.

use super::memory::{HeapMemory, SharedSlice};
use cool_collective::{Buffer, Plan, Program, Schedule, Span};
use cool_machine::Time;
use cool_proto::local::Stats;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A schedule with its dependencies turned around.
#[derive(Debug)]
pub(super) struct Compiled {
    schedule: Schedule,
    pub(super) plan: Plan,
    /// The call and the plan in words, for traces.
    pub(super) words: (Arc<str>, Arc<str>),
    /// Tells the call, carried out by this plan, from others.
    pub(super) digest: u64,
    /// For each rank that has a program, for each action, the actions that wait for it.
    dependents: BTreeMap<u32, Vec<Vec<u32>>>,
}

impl Compiled {
    pub(super) fn new(schedule: Schedule, plan: Plan, words: &str, digest: u64) -> Compiled {
        let turn = |program: &Program| {
            let mut dependents = vec![Vec::new(); program.actions.len()];
            for (index, action) in (0..).zip(&program.actions) {
                action.after.iter().for_each(|before| dependents[before.0 as usize].push(index));
            }
            dependents
        };
        let programs = (0..).zip(&schedule.programs);
        let dependents = programs.filter_map(|(rank, p)| Some((rank, turn(p.as_ref()?)))).collect();
        let words = (words.into(), plan.to_string().into());
        Compiled { schedule, plan, words, digest, dependents }
    }

    /// The program of a local rank.
    pub(super) fn program(&self, rank: u32) -> &Program {
        self.schedule.programs[rank as usize].as_ref().expect("schedules are compiled for all local ranks")
    }
}

/// One rank within one call.
#[derive(Debug)]
pub(super) struct Run {
    compiled: Arc<Compiled>,
    rank: u32,
    /// For each action, how many that it waits for are not done.
    waiting: Vec<u32>,
    /// Actions that are not done.
    left: usize,
    /// Things outside the program that still need the rank's buffers: it may not leave yet.
    pub(super) holds: usize,
    /// Multicasts that wait for an earlier one of this rank to be on its way.
    pub(super) queued: VecDeque<u32>,
    /// Whether a multicast of this rank is being sent.
    pub(super) sending: bool,
    input: SharedSlice,
    output: SharedSlice,
    scratch: SharedSlice,
    /// What the driver knows the call by.
    pub(super) token: u64,
    pub(super) begun: Time,
    pub(super) stats: Stats,
}

/// There is no room for a call's working memory.
#[derive(Debug)]
pub(super) struct NoMemory {
    pub(super) bytes: u64,
}

impl Run {
    pub(super) fn new(
        compiled: Arc<Compiled>,
        rank: u32,
        buffers: (Option<SharedSlice>, Option<SharedSlice>),
        token: u64,
        now: Time,
    ) -> Result<Run, NoMemory> {
        let program = compiled.program(rank);
        let bytes = program.scratch;
        let mut scratch = Vec::new();
        usize::try_from(bytes)
            .ok()
            .and_then(|bytes| scratch.try_reserve_exact(bytes).ok())
            .ok_or(NoMemory { bytes })?;
        scratch.resize(bytes as usize, 0);
        let waiting = program.actions.iter().map(|a| a.after.len() as u32).collect();
        let left = program.actions.len();
        let (input, output) = buffers;
        Ok(Run {
            compiled,
            rank,
            waiting,
            left,
            holds: 0,
            queued: VecDeque::new(),
            sending: false,
            input: input.unwrap_or_else(|| HeapMemory::slice(Vec::new())),
            output: output.unwrap_or_else(|| HeapMemory::slice(Vec::new())),
            scratch: HeapMemory::slice(scratch),
            token,
            begun: now,
            stats: Stats::default(),
        })
    }

    pub(super) fn program(&self) -> &Program {
        self.compiled.program(self.rank)
    }

    /// The actions that wait for none.
    pub(super) fn first(&self) -> Vec<u32> {
        (0..).zip(&self.waiting).filter(|(_, waiting)| **waiting == 0).map(|(action, _)| action).collect()
    }

    /// An action is done; answers with those that may start now.
    pub(super) fn complete(&mut self, action: u32) -> Vec<u32> {
        self.left -= 1;
        let mut ready = Vec::new();
        for dependent in &self.compiled.dependents[&self.rank][action as usize] {
            let waiting = &mut self.waiting[*dependent as usize];
            *waiting -= 1;
            if *waiting == 0 {
                ready.push(*dependent);
            }
        }
        ready
    }

    /// Whether the rank may go on with its life.
    pub(super) fn finished(&self) -> bool {
        self.left == 0 && self.holds == 0
    }

    /// Where a span's bytes lie.
    pub(super) fn slice(&self, span: Span) -> SharedSlice {
        let buffer = match span.buffer {
            Buffer::Input => &self.input,
            Buffer::Output => &self.output,
            Buffer::Scratch => &self.scratch,
        };
        // The schedule keeps within the sizes that the call was checked for.
        buffer.part(if span.len == 0 { 0 } else { span.offset }, span.len)
    }

    /// Whether a later action of the program changes bytes of `span`, the result of `action`.
    pub(super) fn changed_later(&self, action: u32, span: Span) -> bool {
        let overlaps = |other: Span| {
            other.buffer == span.buffer
                && other.offset < span.offset + span.len
                && span.offset < other.offset + other.len
        };
        let later = &self.program().actions[action as usize + 1..];
        later.iter().filter_map(|a| a.kind.writes()).any(overlaps)
    }
}
