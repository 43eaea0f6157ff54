//! A rank's way through its program: which actions may start, which are done, where their bytes lie.

use super::fused::{self, Fused};
use super::memory::{HeapMemory, SharedSlice};
use cool_collective::{Buffer, Kind, Plan, Program, Rank, Schedule, Span, TransferId};
use cool_machine::Time;
use cool_proto::local::Stats;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// For each rank, what is combined where its sender has it.
    fused: BTreeMap<u32, Fused>,
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
        let dependents: BTreeMap<u32, Vec<Vec<u32>>> =
            programs.filter_map(|(rank, p)| Some((rank, turn(p.as_ref()?)))).collect();
        let words = (words.into(), plan.to_string().into());
        let fused = fused::find(&schedule, &dependents);
        Compiled { schedule, plan, words, digest, dependents, fused }
    }

    /// Whether nothing is to be received by an action, since what uses it takes it from its sender.
    pub(super) fn is_passed_over(&self, rank: u32, action: u32) -> bool {
        self.fused.get(&rank).is_some_and(|fused| fused.receives.contains(&action))
    }

    /// The message that a reduction takes from its sender.
    pub(super) fn fused(&self, rank: u32, action: u32) -> Option<(Rank, TransferId)> {
        self.fused.get(&rank)?.reductions.get(&action).copied()
    }

    /// Whose message is here when an action is done.
    pub(super) fn source(&self, rank: u32, action: u32) -> Option<Rank> {
        match self.program(rank).actions[action as usize].kind {
            Kind::Receive { .. } if self.is_passed_over(rank, action) => None,
            Kind::Receive { from, .. } | Kind::ReceiveMulticast { from, .. } => Some(from),
            Kind::Reduce { .. } => self.fused(rank, action).map(|(from, _)| from),
            _ => None,
        }
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
    /// Multicasts that wait for an earlier one of this rank over the same tree to be on its way.
    pub(super) queued: VecDeque<u32>,
    /// The stripes of this rank's multicasts that are being sent.
    pub(super) sending: BTreeSet<u32>,
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
        let scratch = HeapMemory::zeros(bytes).ok_or(NoMemory { bytes })?;
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
            sending: BTreeSet::new(),
            input: input.unwrap_or_else(|| HeapMemory::slice(Vec::new())),
            output: output.unwrap_or_else(|| HeapMemory::slice(Vec::new())),
            scratch,
            token,
            begun: now,
            stats: Stats::default(),
        })
    }

    pub(super) fn program(&self) -> &Program {
        self.compiled.program(self.rank)
    }

    /// Takes the next multicast over whose tree none is being sent.
    pub(super) fn next_multicast(&mut self) -> Option<u32> {
        let is_free = |action: &u32| {
            let stripe = self.program().actions[*action as usize].kind.stripe();
            stripe.is_some_and(|stripe| !self.sending.contains(&stripe.index))
        };
        let at = self.queued.iter().position(is_free)?;
        self.queued.remove(at)
    }

    /// The schedule that it is part of.
    pub(super) fn compiled(&self) -> &Compiled {
        &self.compiled
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
