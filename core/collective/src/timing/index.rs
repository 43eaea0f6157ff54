//! Indexes a schedule: which actions send and receive each message.

use crate::fused::FusedReductions;
use crate::schedule::{ActionKind, Rank, Schedule, TransferId};

/// An action: its rank and its index in that rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActionRef {
    pub(super) rank: u32,
    pub(super) action: u32,
}

/// Several lists, stored end to end.
#[derive(Debug, Default)]
struct Lists<T> {
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy> Lists<T> {
    /// Returns `count` lists of the items that `each` passes to its argument. `each` must pass the
    /// same items in the same order every time.
    fn new(count: usize, none: T, each: impl Fn(&mut dyn FnMut(u32, T))) -> Lists<T> {
        let mut starts = vec![0u32; count + 1];
        each(&mut |list, _| starts[list as usize + 1] += 1);
        for i in 0..count {
            starts[i + 1] += starts[i];
        }
        let mut items = vec![none; starts[count] as usize];
        let mut next = starts.clone();
        each(&mut |list, item| {
            let at = &mut next[list as usize];
            items[*at as usize] = item;
            *at += 1;
        });
        Lists { starts, items }
    }

    fn range(&self, list: usize) -> core::ops::Range<usize> {
        self.starts[list] as usize..self.starts[list + 1] as usize
    }
}

#[derive(Debug)]
pub(super) struct ScheduleIndex {
    /// The number of each rank's first action among all actions.
    first: Vec<u32>,
    actions: usize,
    receivers: Lists<ActionRef>,
    /// The sender of each message.
    senders: Vec<ActionRef>,
}

impl ScheduleIndex {
    /// Returns the index, or `None` if a rank has no program, or the numbers do not fit. The
    /// receiver of a message is the action that consumes it: a receive, or a fused reduction.
    pub(super) fn new(schedule: &Schedule, fused: &FusedReductions) -> Option<ScheduleIndex> {
        let mut first = vec![0u32];
        let mut transfers = 0;
        for program in &schedule.programs {
            let program = program.as_ref()?;
            first.push(first.last()?.checked_add(u32::try_from(program.actions.len()).ok()?)?);
            for action in &program.actions {
                if let ActionKind::Send { transfer, .. } | ActionKind::Multicast { transfer, .. } =
                    action.kind
                {
                    transfers = transfers.max(transfer.0 as usize + 1);
                }
            }
        }
        let actions = *first.last()? as usize;
        let nowhere = ActionRef { rank: u32::MAX, action: 0 };
        let mut senders = vec![nowhere; transfers];
        each_action(schedule, |at, kind| {
            if let ActionKind::Send { transfer, .. } | ActionKind::Multicast { transfer, .. } = kind {
                senders[transfer.0 as usize] = at;
            }
        });
        let receivers = Lists::new(transfers, nowhere, |add| {
            each_action(schedule, |at, kind| {
                if let Some(transfer) = taken(at, kind, fused).filter(|t| (t.0 as usize) < transfers) {
                    add(transfer.0, at);
                }
            });
        });
        Some(ScheduleIndex { first, actions, receivers, senders })
    }

    /// Returns the number of all actions.
    pub(super) fn actions(&self) -> usize {
        self.actions
    }

    /// Returns the number of an action among all.
    pub(super) fn number(&self, at: ActionRef) -> usize {
        (self.first[at.rank as usize] + at.action) as usize
    }

    pub(super) fn sender(&self, transfer: u32) -> ActionRef {
        self.senders[transfer as usize]
    }

    pub(super) fn receivers(&self, transfer: u32) -> &[ActionRef] {
        &self.receivers.items[self.receivers.range(transfer as usize)]
    }
}

/// Returns the message that an action consumes, if any.
pub(super) fn taken(at: ActionRef, kind: ActionKind, fused: &FusedReductions) -> Option<TransferId> {
    match kind {
        ActionKind::Receive { transfer, .. } => {
            (!fused.is_elided_receive(Rank(at.rank), at.action)).then_some(transfer)
        }
        ActionKind::ReceiveMulticast { transfer, .. } => Some(transfer),
        ActionKind::Reduce { .. } => fused.message(Rank(at.rank), at.action).map(|(_, transfer)| transfer),
        ActionKind::Send { .. } | ActionKind::Multicast { .. } | ActionKind::Copy { .. } => None,
    }
}

fn each_action(schedule: &Schedule, mut each: impl FnMut(ActionRef, ActionKind)) {
    for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
        for (action, number) in program.iter().flat_map(|program| &program.actions).zip(0..) {
            each(ActionRef { rank: rank.0, action: number }, action.kind);
        }
    }
}
