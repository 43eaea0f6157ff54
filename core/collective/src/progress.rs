//! How far a rank has come in its program: which actions may start, and whose turn it is to be multicast. Every reader that
//! carries out a schedule counts so: agents, the timing of plans, the interpreter, the verifier.

use crate::schedule::{Program, Stripe};
use std::collections::{BTreeSet, VecDeque};

/// The dependencies of a program turned around: for each action, those that wait for it, ascending.
#[derive(Clone, Debug, Default)]
pub struct Dependents {
    /// Where the list of each action begins in `actions`, and where the last one ends.
    starts: Vec<usize>,
    actions: Vec<u32>,
}

impl Dependents {
    /// Those of a program. What waits for an action that does not exist waits for ever.
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

    /// The actions that wait for this one.
    pub fn dependents_of(&self, action: u32) -> &[u32] {
        let action = action as usize;
        &self.actions[self.starts[action]..self.starts[action + 1]]
    }
}

/// A rank's way through its program. Whoever carries it out starts the [first](Progress::first) actions, and those that
/// [`ProgramProgress::complete`] tells of.
#[derive(Clone, Debug, Default)]
pub struct ProgramProgress {
    /// For each action, how many things that it waits for have not happened.
    waiting: Vec<u32>,
    /// Actions that are not complete.
    left: usize,
    /// Multicasts that may start, in order, and wait for an earlier one of the rank over the same tree.
    queued: VecDeque<u32>,
    /// The trees, by the index of their stripe, over which the rank's multicasts are being sent.
    sending: BTreeSet<u32>,
}

impl ProgramProgress {
    /// At the start of a program.
    pub fn new(program: &Program) -> ProgramProgress {
        let waiting = program.actions.iter().map(|action| action.after.len() as u32).collect();
        ProgramProgress { waiting, left: program.actions.len(), ..ProgramProgress::default() }
    }

    /// An action waits for something more than other actions, until it is [released](Progress::release).
    pub fn hold(&mut self, action: u32) {
        self.waiting[action as usize] += 1;
    }

    /// One thing that an action waits for has happened; whether it may start now.
    pub fn release(&mut self, action: u32) -> bool {
        let waiting = &mut self.waiting[action as usize];
        *waiting -= 1;
        *waiting == 0
    }

    /// The actions that wait for nothing.
    pub fn first(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.waiting).filter(|(_, waiting)| **waiting == 0).map(|(action, _)| action)
    }

    /// An action is complete: `ready` is called with those that may start now. The dependents are those of the program.
    pub fn complete(&mut self, action: u32, dependents: &Dependents, mut ready: impl FnMut(u32)) {
        self.left -= 1;
        for dependent in dependents.dependents_of(action) {
            if self.release(*dependent) {
                ready(*dependent);
            }
        }
    }

    /// Whether all actions are complete.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// An action that still waits for something, if one does.
    pub fn blocked(&self) -> Option<u32> {
        (0..).zip(&self.waiting).find(|(_, waiting)| **waiting > 0).map(|(action, _)| action)
    }

    /// A multicast may start. It is sent in its [turn](Progress::next_multicast).
    pub fn queue_multicast(&mut self, action: u32) {
        self.queued.push_back(action);
    }

    /// The next multicast over whose tree none of this rank is being sent; its tree is taken until
    /// [`ProgramProgress::multicast_sent`]. In order, the first bytes arrive early; at once, each would slow the others, and all
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

    /// The last byte of a multicast of this stripe has been sent: the tree is free for the next.
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
