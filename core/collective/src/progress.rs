//! The progress of a rank in its program: which actions may start, and which multicast is next. All
//! executors of schedules use this: agents, the timing of plans, the interpreter, and the verifier.

use crate::schedule::{Program, Stripe};
use std::collections::{BTreeSet, VecDeque};

/// The inverse of a program's dependencies: for each action the actions that wait for it,
/// ascending.
#[derive(Clone, Debug, Default)]
pub struct Dependents {
    /// The start of each action's list in `actions`, and the end of the last list.
    starts: Vec<usize>,
    actions: Vec<u32>,
}

impl Dependents {
    /// Returns the dependents of a program. Dependencies on actions that do not exist are omitted,
    /// so their dependents never start.
    pub fn for_program(program: &Program) -> Dependents {
        let count = program.actions.len();
        let dependencies = || {
            let after = (0u32..)
                .zip(&program.actions)
                .flat_map(|(i, action)| action.after.iter().map(move |on| (i, on.0)));
            after.map(|(action, on)| (action, on as usize)).filter(move |(_, on)| *on < count)
        };
        let mut starts = vec![0; count + 1];
        dependencies().for_each(|(_, on)| starts[on + 1] += 1);
        for i in 0..count {
            starts[i + 1] += starts[i];
        }
        let mut actions = vec![0; starts[count]];
        let mut next = starts.clone();
        for (action, on) in dependencies() {
            actions[next[on]] = action;
            next[on] += 1;
        }
        Dependents { starts, actions }
    }

    /// Returns the actions that wait for this one.
    pub fn dependents_of(&self, action: u32) -> &[u32] {
        let action = action as usize;
        &self.actions[self.starts[action]..self.starts[action + 1]]
    }
}

/// The progress of a rank in its program. The executor must start the
/// [first](ProgramProgress::first) actions, and those that [`ProgramProgress::complete`] reports.
#[derive(Clone, Debug, Default)]
pub struct ProgramProgress {
    /// For each action, the number of events for which it waits.
    waiting: Vec<u32>,
    /// Actions that are not complete.
    left: usize,
    /// Multicasts that may start, in order, but wait for an earlier multicast of the rank over the
    /// same tree.
    queued: VecDeque<u32>,
    /// The trees, by the index of their stripe, over which a multicast of the rank is being sent.
    sending: BTreeSet<u32>,
}

impl ProgramProgress {
    /// Returns the progress at the start of a program.
    pub fn new(program: &Program) -> ProgramProgress {
        let waiting = program.actions.iter().map(|action| action.after.len() as u32).collect();
        ProgramProgress { waiting, left: program.actions.len(), ..ProgramProgress::default() }
    }

    /// Makes an action wait for one more event until it is [released](ProgramProgress::release).
    pub fn hold(&mut self, action: u32) {
        self.waiting[action as usize] += 1;
    }

    /// Records one event for which an action waits. Returns whether the action may start now.
    pub fn release(&mut self, action: u32) -> bool {
        let waiting = &mut self.waiting[action as usize];
        *waiting -= 1;
        *waiting == 0
    }

    /// Returns the actions that wait for no event.
    pub fn first(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.waiting).filter(|(_, waiting)| **waiting == 0).map(|(action, _)| action)
    }

    /// Records that an action is complete, and calls `ready` with each action that may start now.
    /// `dependents` must be those of the program.
    pub fn complete(&mut self, action: u32, dependents: &Dependents, mut ready: impl FnMut(u32)) {
        self.left -= 1;
        for dependent in dependents.dependents_of(action) {
            if self.release(*dependent) {
                ready(*dependent);
            }
        }
    }

    /// Returns whether all actions are complete.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Returns an action that still waits, if any.
    pub fn blocked(&self) -> Option<u32> {
        (0..).zip(&self.waiting).find(|(_, waiting)| **waiting > 0).map(|(action, _)| action)
    }

    /// Queues a multicast that may start. [`ProgramProgress::next_multicast`] returns it when its
    /// tree is free.
    pub fn queue_multicast(&mut self, action: u32) {
        self.queued.push_back(action);
    }

    /// Returns the next multicast with a free tree, which stays busy until
    /// [`ProgramProgress::multicast_sent`]. Multicasts of a rank share a tree in order, because the
    /// first bytes then arrive early. If they were sent at once, each would slow the others and all
    /// would be late.
    pub fn next_multicast(&mut self, program: &Program) -> Option<(u32, Stripe)> {
        let stripe_of = |action: u32| program.actions[action as usize].kind.stripe();
        let is_free =
            |action: &u32| stripe_of(*action).is_some_and(|stripe| !self.sending.contains(&stripe.index));
        let action = self.queued.iter().position(is_free).and_then(|at| self.queued.remove(at))?;
        let stripe = stripe_of(action)?;
        self.sending.insert(stripe.index);
        Some((action, stripe))
    }

    /// Records that the last byte of a multicast of this stripe has been sent, which frees its
    /// tree.
    pub fn multicast_sent(&mut self, stripe: Stripe) {
        self.sending.remove(&stripe.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::MulticastScope;
    use crate::schedule::{ActionId, ActionKind, RankBuffer, ScheduleAction, Span, TransferId};

    const SPAN: Span = Span { buffer: RankBuffer::Output, offset: 0, len: 8 };

    fn copy(after: &[u32]) -> ScheduleAction {
        ScheduleAction {
            kind: ActionKind::Copy { src: SPAN, dst: SPAN },
            after: after.iter().copied().map(ActionId).collect(),
        }
    }

    #[test]
    fn an_action_may_start_when_all_that_it_waits_for_is_complete() {
        let program = Program { actions: vec![copy(&[]), copy(&[]), copy(&[0, 1]), copy(&[2])], scratch: 0 };
        let dependents = Dependents::for_program(&program);
        let mut progress = ProgramProgress::new(&program);
        let mut ready: Vec<u32> = progress.first().collect();
        assert_eq!(ready, [0, 1]);
        progress.hold(3);
        for action in [1, 0, 2] {
            progress.complete(action, &dependents, |action| ready.push(action));
        }
        assert_eq!((ready, progress.blocked()), (vec![0, 1, 2], Some(3)));
        assert!(progress.release(3));
        progress.complete(3, &dependents, |_| {});
        assert!(progress.is_done());
    }

    #[test]
    fn an_action_that_waits_for_a_missing_one_is_blocked() {
        let program = Program { actions: vec![copy(&[7])], scratch: 0 };
        assert!(Dependents::for_program(&program).dependents_of(0).is_empty());
        assert_eq!(ProgramProgress::new(&program).blocked(), Some(0));
    }

    #[test]
    fn one_multicast_at_a_time_is_sent_over_a_tree() {
        let multicast = |index| ScheduleAction {
            kind: ActionKind::Multicast {
                scope: MulticastScope::All,
                stripe: Stripe { index, of: 2 },
                transfer: TransferId(0),
                src: SPAN,
                concurrent_senders: 1,
            },
            after: Vec::new(),
        };
        let program = Program { actions: vec![multicast(0), multicast(0), multicast(1)], scratch: 0 };
        let mut progress = ProgramProgress::new(&program);
        (0..3).for_each(|action| progress.queue_multicast(action));
        let mut next = || progress.next_multicast(&program);
        assert_eq!(next().map(|(action, _)| action), Some(0));
        let (action, second) = next().unwrap();
        assert_eq!((action, second.index), (2, 1));
        assert_eq!(next(), None);
        progress.multicast_sent(Stripe { index: 0, of: 2 });
        assert_eq!(progress.next_multicast(&program).map(|(action, _)| action), Some(1));
    }
}
