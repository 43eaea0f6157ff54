//! Orders in which a schedule's actions may happen: each after those it waits for, and a message's receipt
//! after its sending.

use crate::schedule::{ActionId, Kind, Program, Rank, TransferId};
use std::collections::BTreeMap;

/// One such order; `pick` chooses among a number of actions that may be next. If the schedule comes to a
/// stop, an action that never happens.
pub(crate) fn topological_order(
    programs: &[&Program],
    mut pick: impl FnMut(usize) -> usize,
) -> Result<Vec<(Rank, ActionId)>, (Rank, ActionId)> {
    let mut waiting = Waiting::new(programs);
    let mut order = Vec::new();
    while !waiting.ready.is_empty() {
        let (rank, id) = waiting.ready.swap_remove(pick(waiting.ready.len()));
        order.push((rank, id));
        for follower in std::mem::take(&mut waiting.followers[rank.0 as usize][id.0 as usize]) {
            waiting.happened((rank, follower));
        }
        let kind = programs[rank.0 as usize].actions[id.0 as usize].kind;
        if let Kind::Send { transfer, .. } | Kind::Multicast { transfer, .. } = kind {
            for receipt in waiting.receipts.remove(&transfer).unwrap_or_default() {
                waiting.happened(receipt);
            }
        }
    }
    match waiting.stuck() {
        Some(action) => Err(action),
        None => Ok(order),
    }
}

struct Waiting {
    /// For each action the events that it still waits for.
    counts: Vec<Vec<usize>>,
    /// For each action those of its rank that wait for it.
    followers: Vec<Vec<Vec<ActionId>>>,
    receipts: BTreeMap<TransferId, Vec<(Rank, ActionId)>>,
    ready: Vec<(Rank, ActionId)>,
}

impl Waiting {
    fn new(programs: &[&Program]) -> Waiting {
        let mut waiting = Waiting {
            counts: Vec::new(),
            followers: Vec::new(),
            receipts: BTreeMap::new(),
            ready: Vec::new(),
        };
        for (rank, program) in (0..).map(Rank).zip(programs) {
            let mut followers = vec![Vec::new(); program.actions.len()];
            let mut counts = Vec::with_capacity(program.actions.len());
            for (id, action) in (0..).map(ActionId).zip(&program.actions) {
                let mut count = action.after.len();
                for on in &action.after {
                    if let Some(followers) = followers.get_mut(on.0 as usize) {
                        followers.push(id);
                    }
                }
                if let Kind::Receive { transfer, .. } | Kind::ReceiveMulticast { transfer, .. } = action.kind
                {
                    waiting.receipts.entry(transfer).or_default().push((rank, id));
                    count += 1;
                }
                if count == 0 {
                    waiting.ready.push((rank, id));
                }
                counts.push(count);
            }
            waiting.followers.push(followers);
            waiting.counts.push(counts);
        }
        waiting
    }

    fn happened(&mut self, (rank, id): (Rank, ActionId)) {
        let count = &mut self.counts[rank.0 as usize][id.0 as usize];
        *count -= 1;
        if *count == 0 {
            self.ready.push((rank, id));
        }
    }

    fn stuck(&self) -> Option<(Rank, ActionId)> {
        (0..).map(Rank).zip(&self.counts).find_map(|(rank, counts)| {
            let id = counts.iter().position(|count| *count > 0)?;
            Some((rank, ActionId(id as u32)))
        })
    }
}
