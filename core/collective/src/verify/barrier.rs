//! Nobody may leave a barrier before all have come: every rank's end must follow, through messages and
//! dependencies alone, from every rank's start.

use super::VerifyError;
use crate::schedule::{ActionKind, Program, Rank, TransferId};
use crate::topological_order::topological_order;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(programs: &[&Program]) -> Result<(), VerifyError> {
    let order = topological_order(programs, |_| 0)
        .map_err(|(rank, action)| VerifyError::Deadlock { rank, action })?;
    // Who has surely come when a message is sent, when an action is complete, and when a rank is done.
    let mut sent: BTreeMap<TransferId, BTreeSet<Rank>> = BTreeMap::new();
    let mut complete: Vec<Vec<BTreeSet<Rank>>> =
        programs.iter().map(|program| vec![BTreeSet::new(); program.actions.len()]).collect();
    let mut done: Vec<BTreeSet<Rank>> =
        (0..programs.len() as u32).map(|rank| BTreeSet::from([Rank(rank)])).collect();
    for (rank, id) in order {
        let r = rank.0 as usize;
        let action = &programs[r].actions[id.0 as usize];
        let mut come = BTreeSet::from([rank]);
        for on in &action.after {
            come.extend(&complete[r][on.0 as usize]);
        }
        match action.kind {
            ActionKind::Send { transfer, .. } | ActionKind::Multicast { transfer, .. } => {
                sent.insert(transfer, come.clone());
            }
            ActionKind::Receive { transfer, .. } | ActionKind::ReceiveMulticast { transfer, .. } => {
                come.extend(sent.get(&transfer).into_iter().flatten());
            }
            ActionKind::Reduce { .. } | ActionKind::Copy { .. } => {}
        }
        done[r].extend(&come);
        complete[r][id.0 as usize] = come;
    }
    for (rank, come) in (0..).map(Rank).zip(done) {
        if let Some(before) = (0..programs.len() as u32).map(Rank).find(|other| !come.contains(other)) {
            return Err(VerifyError::Barrier { rank, before });
        }
    }
    Ok(())
}
