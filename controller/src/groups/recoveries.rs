//! Groups that lost ranks: those that are left meet here, and hear who is gone; if they want a group of their own,
//! [`crate::groups::musters`] makes it.
//!
//! Who has come is kept by [`cool_membership::Recovery`].

use crate::agents::Session;
use crate::groups::musters::{LONGEST, Musters};
use crate::groups::{Groups, Place};
use cool_machine::{Duration, Time};
use cool_membership::{Met, Purpose, Recovery, Survivor, refusal};
use cool_proto::control::{RanksLeft, Recover, Recovered, controller_message::Body};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::info;

/// The survivors of all groups.
pub struct Recoveries {
    groups: Arc<Groups>,
    musters: Arc<Musters>,
    /// When time began.
    origin: Instant,
    survivors: Mutex<Recovery<Place>>,
    /// Someone has come: the next deadline may be another.
    came: Notify,
}

impl Recoveries {
    /// Nobody is gone yet.
    pub fn new(groups: Arc<Groups>, musters: Arc<Musters>) -> Recoveries {
        Recoveries {
            groups,
            musters,
            origin: Instant::now(),
            survivors: Mutex::default(),
            came: Notify::new(),
        }
    }

    /// A rank meets the other survivors of its group.
    pub fn recover(&self, session: &Arc<Session>, recover: &Recover) {
        self.forget_released();
        let Recover { group, rank, timeout_ms, agree, ref misses } = *recover;
        let node = &session.agent.name;
        let Some((size, rack)) = self.groups.rank_on(group, rank, node) else {
            let reason =
                format!("rank {rank} of group {group} is not on node {node}, or the group was released");
            return refuse(session, (group, rank), reason);
        };
        let survivor = Survivor {
            group: (group, size),
            rank,
            purpose: agree.map_or(Purpose::Shrink, Purpose::Agree),
            place: Place { session: session.clone(), rack },
            deadline: self.now() + Duration::from_millis(timeout_ms).min(LONGEST),
            misses: misses.clone(),
        };
        let came = self.survivors.lock().come(survivor);
        match came {
            Ok(None) => self.came.notify_one(),
            Ok(Some(met)) => self.met(met),
            Err(refusal) => {
                if let refusal::Recover::Gone { .. } = refusal {
                    session.set_left_behind(true);
                }
                refuse(session, (group, rank), refusal.to_string());
            }
        }
    }

    /// Ranks have left their group.
    pub fn ranks_left(&self, session: &Session, left: &RanksLeft) {
        self.forget_released();
        for rank in &left.ranks {
            if let Some((size, _)) = self.groups.rank_on(left.group, *rank, &session.agent.name) {
                self.lose((left.group, size), *rank);
            }
        }
    }

    /// A node's session has ended, and all its ranks with it.
    pub fn node_left(&self, session: &Session) {
        for (group, ranks) in self.groups.on_node(&session.agent.name) {
            ranks.into_iter().for_each(|rank| self.lose(group, rank));
        }
    }

    /// Ends the meetings that have lasted for long enough. Never ends.
    pub async fn watch(&self) {
        loop {
            let deadline = self.survivors.lock().deadline();
            match deadline {
                None => self.came.notified().await,
                Some(deadline) => tokio::select! {
                    () = sleep_until(self.origin + Duration::from_nanos(deadline.as_nanos())) => {}
                    () = self.came.notified() => {}
                },
            }
            let met = self.survivors.lock().overdue(self.now());
            met.into_iter().for_each(|met| self.met(met));
        }
    }

    fn lose(&self, group: (u64, u32), rank: u32) {
        let met = self.survivors.lock().lose(group, rank);
        if let Some(met) = met {
            self.met(met);
        }
    }

    fn met(&self, met: Met<Place>) {
        let Met { group, purpose, came, gone, cut_off } = met;
        info!(group, ?purpose, left = came.len(), ?gone, "survivors have met");
        for (rank, place) in cut_off {
            place.session.set_left_behind(true);
            refuse(&place.session, (group, rank), refusal::Recover::Gone { group, rank }.to_string());
        }
        match purpose {
            Purpose::Agree(flags) => {
                tell(&came, &Recovered { group, gone, flags, ..Recovered::default() });
            }
            Purpose::Shrink => self.musters.regroup(group, came, gone),
        }
    }

    fn forget_released(&self) {
        let in_vain = self.survivors.lock().retain(|group| self.groups.has(group));
        for (group, waiting) in in_vain {
            let failure = format!("group {group} was released");
            tell(&waiting, &Recovered { group, failure, ..Recovered::default() });
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Tells the agents of survivors.
pub(crate) fn tell(survivors: &BTreeMap<u32, Place>, recovered: &Recovered) {
    let sessions: BTreeMap<u32, &Arc<Session>> =
        survivors.values().map(|place| (place.session.number, &place.session)).collect();
    for session in sessions.into_values() {
        // An agent that is gone has nobody who waits.
        let _ = session.send(Body::Recovered(recovered.clone()));
    }
}

fn refuse(session: &Session, (group, rank): (u64, u32), failure: String) {
    let refused = Recovered { group, failure, rank: Some(rank), ..Recovered::default() };
    // As above.
    let _ = session.send(Body::Recovered(refused));
}
