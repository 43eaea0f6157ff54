//! Nobody may leave a barrier before all have come: every rank's end must follow, through messages and
//! dependencies alone, from every rank's start.

use super::{VerifyError, numbered};
use crate::schedule::{Kind, Program, Rank, TransferId};
use std::collections::{BTreeMap, BTreeSet};

type Ranks = BTreeSet<Rank>;

pub(super) fn check(programs: &[&Program]) -> Result<(), VerifyError> {
    let size = programs.len() as u32;
    // Who has surely come when an action is complete, when a message is sent, and when a rank is done.
    // The schedule runs to its end in program order, so repeating until nothing changes ends.
    let mut sent: BTreeMap<TransferId, Ranks> = BTreeMap::new();
    loop {
        let mut changed = false;
        let mut done: Vec<Ranks> = Vec::new();
        for (rank, program) in (0..).map(Rank).zip(programs) {
            let mut complete: Vec<Ranks> = Vec::with_capacity(program.actions.len());
            for (_, action) in numbered(program) {
                let mut come = Ranks::from([rank]);
                for on in &action.after {
                    come.extend(&complete[on.0 as usize]);
                }
                match action.kind {
                    Kind::Send { transfer, .. } | Kind::Multicast { transfer, .. } => {
                        if sent.get(&transfer) != Some(&come) {
                            sent.insert(transfer, come.clone());
                            changed = true;
                        }
                    }
                    Kind::Receive { transfer, .. } | Kind::Hear { transfer, .. } => {
                        come.extend(sent.get(&transfer).into_iter().flatten());
                    }
                    Kind::Reduce { .. } | Kind::Copy { .. } => {}
                }
                complete.push(come);
            }
            done.push(complete.into_iter().flatten().chain([rank]).collect());
        }
        if changed {
            continue;
        }
        for (rank, come) in (0..).map(Rank).zip(done) {
            if let Some(before) = (0..size).map(Rank).find(|other| !come.contains(other)) {
                return Err(VerifyError::Barrier { rank, before });
            }
        }
        return Ok(());
    }
}
