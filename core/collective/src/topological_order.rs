//! Topological orders of a schedule's actions (Kahn's algorithm): each action follows its
//! dependencies, and each receive follows its send.

use crate::progress::{Dependents, ProgramProgress};
use crate::schedule::{ActionId, ActionKind, Program, Rank, TransferId};
use std::collections::BTreeMap;

/// Returns one such order. `pick` must select among the actions that may be next: it is passed
/// their number and returns an index below it.
///
/// # Errors
/// Returns an action that can never run, if the schedule deadlocks.
pub(crate) fn topological_order(
    programs: &[&Program],
    mut pick: impl FnMut(usize) -> usize,
) -> Result<Vec<(Rank, ActionId)>, (Rank, ActionId)> {
    let dependents: Vec<Dependents> =
        programs.iter().map(|program| Dependents::for_program(program)).collect();
    let mut progress: Vec<ProgramProgress> =
        programs.iter().map(|program| ProgramProgress::new(program)).collect();
    let mut receipts = receipts(programs);
    for (rank, action) in receipts.values().flatten() {
        progress[*rank].hold(*action);
    }
    let mut ready: Vec<(usize, u32)> = Vec::new();
    for (rank, progress) in progress.iter().enumerate() {
        ready.extend(progress.first().map(|action| (rank, action)));
    }
    let mut order = Vec::new();
    while !ready.is_empty() {
        let (rank, action) = ready.swap_remove(pick(ready.len()));
        order.push((Rank(rank as u32), ActionId(action)));
        progress[rank].complete(action, &dependents[rank], |next| ready.push((rank, next)));
        let kind = programs[rank].actions[action as usize].kind;
        if let ActionKind::Send { transfer, .. } | ActionKind::Multicast { transfer, .. } = kind {
            let arrived = receipts.remove(&transfer).unwrap_or_default();
            ready.extend(arrived.into_iter().filter(|(rank, action)| progress[*rank].release(*action)));
        }
    }
    let blocked = |(rank, progress): (usize, &ProgramProgress)| {
        Some((Rank(rank as u32), ActionId(progress.blocked()?)))
    };
    match progress.iter().enumerate().find_map(blocked) {
        Some(action) => Err(action),
        None => Ok(order),
    }
}

/// Returns the actions that receive each message: rank and number.
fn receipts(programs: &[&Program]) -> BTreeMap<TransferId, Vec<(usize, u32)>> {
    let mut receipts: BTreeMap<TransferId, Vec<(usize, u32)>> = BTreeMap::new();
    for (rank, program) in programs.iter().enumerate() {
        for (action, number) in program.actions.iter().zip(0..) {
            if let ActionKind::Receive { transfer, .. } | ActionKind::ReceiveMulticast { transfer, .. } =
                action.kind
            {
                receipts.entry(transfer).or_default().push((rank, number));
            }
        }
    }
    receipts
}
