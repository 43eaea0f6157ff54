//! Verifies barriers: no rank may leave before all ranks have entered. Every rank's end must follow
//! from every rank's start through messages and dependencies alone.

use super::VerifyError;
use crate::schedule::{ActionKind, Program, Rank, TransferId};
use crate::topological_order::topological_order;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(programs: &[&Program]) -> Result<(), VerifyError> {
    let order = topological_order(programs, |_| 0)
        .map_err(|(rank, action)| VerifyError::Deadlock { rank, action })?;
    // The ranks that must have entered when a message is sent, when an action is complete, and when
    // a rank is done.
    let mut sent: BTreeMap<TransferId, BTreeSet<Rank>> = BTreeMap::new();
    let mut complete: Vec<Vec<BTreeSet<Rank>>> =
        programs.iter().map(|program| vec![BTreeSet::new(); program.actions.len()]).collect();
    let mut done: Vec<BTreeSet<Rank>> =
        (0..programs.len() as u32).map(|rank| BTreeSet::from([Rank(rank)])).collect();
    for (rank, id) in order {
        let r = rank.0 as usize;
        let action = &programs[r].actions[id.0 as usize];
        let mut entered = BTreeSet::from([rank]);
        for on in &action.after {
            entered.extend(&complete[r][on.0 as usize]);
        }
        match action.kind {
            ActionKind::Send { transfer, .. } | ActionKind::Multicast { transfer, .. } => {
                sent.insert(transfer, entered.clone());
            }
            ActionKind::Receive { transfer, .. } | ActionKind::ReceiveMulticast { transfer, .. } => {
                entered.extend(sent.get(&transfer).into_iter().flatten());
            }
            ActionKind::Reduce { .. } | ActionKind::Copy { .. } => {}
        }
        done[r].extend(&entered);
        complete[r][id.0 as usize] = entered;
    }
    for (rank, entered) in (0..).map(Rank).zip(done) {
        if let Some(before) = (0..programs.len() as u32).map(Rank).find(|other| !entered.contains(other)) {
            return Err(VerifyError::Barrier { rank, before });
        }
    }
    Ok(())
}
