//! Groups whose ranks come by themselves: those that another launcher started, those that split a group, and the survivors
//! of one that lost ranks.
//!
//! Who has come, and what becomes of it, is decided by [`cool_membership`]; this drives it with what agents say, has its
//! groups made and released by [`Groups`], and tells the agents.

use crate::agents::Session;
use cool_daemon::clock::Clock;
use cool_fabric::Fabric;
use crate::groups::{FIRST_EPOCH, Groups, Place};
use crate::jobs::job::{Limits, SessionEvent};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_membership::{self as membership, Input, Membership, Output, RecoveryPurpose};
use cool_proto::control::{
    Enlist, Enlisted, RanksLeft, Recover, Recovered, Withdraw, controller_message::Body,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::{Instrument, info, info_span};

impl membership::RankLocation for Place {
    fn node(&self) -> u32 {
        self.session.number
    }

    fn name(&self) -> &str {
        &self.session.agent.name
    }
}

/// The service by which ranks come to their groups, for all agents.
pub struct Registrar {
    network: Arc<dyn Fabric>,
    groups: Arc<Groups>,
    /// The time of its machine.
    clock: Clock,
    membership: Mutex<Membership<Place>>,
    /// Something has happened: the next deadline may be another.
    changed: Notify,
}

impl Registrar {
    /// Nobody waits yet.
    pub fn new(network: Arc<dyn Fabric>, groups: Arc<Groups>, limits: Limits) -> Registrar {
        let numbers = groups.clone();
        let membership = Membership::new(move || numbers.number(), limits.group_ready);
        Registrar {
            network,
            groups,
            clock: Clock::start(),
            membership: Mutex::new(membership),
            changed: Notify::new(),
        }
    }

    /// A process has come.
    pub fn enlist(self: &Arc<Registrar>, session: &Arc<Session>, enlist: Enlist) {
        let Enlist { key, rank, size, timeout_ms, ticket } = enlist;
        let name = &session.agent.name;
        let Some(rack) = self.network.topology().node(name).and_then(|n| n.location).map(|l| l.rack) else {
            let reason = format!("node {name} has not been found on the network yet; try again");
            let tickets = Vec::from_iter((ticket > 0).then_some(ticket));
            return tell(
                session,
                Body::Enlisted(Enlisted { key, rank: Some(rank), reason, group: 0, tickets }),
            );
        };
        let place = Place { session: session.clone(), rack };
        let timeout = Duration::from_millis(timeout_ms);
        self.take(Input::Enlist { place, key, rank, size, timeout, ticket });
    }

    /// A process that waited is gone.
    pub fn withdraw(self: &Arc<Registrar>, session: &Session, Withdraw { key, rank }: &Withdraw) {
        self.take(Input::Withdraw { node: session.number, key, rank: *rank });
    }

    /// A rank meets the other survivors of its group.
    pub fn recover(self: &Arc<Registrar>, session: &Arc<Session>, recover: Recover) {
        let Recover { group, rank, timeout_ms, agree, misses } = recover;
        let node = &session.agent.name;
        let Some((size, rack)) = self.groups.rank_on(group, rank, node) else {
            let failure =
                format!("rank {rank} of group {group} is not on node {node}, or the group was released");
            let refused = Recovered { group, failure, rank: Some(rank), ..Recovered::default() };
            return tell(session, Body::Recovered(refused));
        };
        self.take(Input::Recover {
            place: Place { session: session.clone(), rack },
            group: (group, size),
            rank,
            purpose: agree.map_or(RecoveryPurpose::Shrink, RecoveryPurpose::Agree),
            timeout: Duration::from_millis(timeout_ms),
            unreachable: misses,
        });
    }

    /// Ranks have left their group.
    pub fn ranks_left(self: &Arc<Registrar>, session: &Session, left: &RanksLeft) {
        let on_node = |rank: &u32| self.groups.rank_on(left.group, *rank, &session.agent.name);
        let ranks: Vec<u32> = left.ranks.iter().copied().filter(|rank| on_node(rank).is_some()).collect();
        if let Some((size, _)) = ranks.first().and_then(on_node) {
            self.take(Input::RanksLeft { group: (left.group, size), ranks: &ranks });
        }
    }

    /// A node's session has ended, and all its ranks with it.
    pub fn node_left(self: &Arc<Registrar>, session: &Session, reason: &str) {
        let name = &session.agent.name;
        let ranks = self.groups.on_node(name);
        self.take(Input::NodeLost { node: session.number, name, reason, ranks });
    }

    /// What an agent says of a group that is no job's.
    pub fn group_event(self: &Arc<Registrar>, session: &Session, group: u64, event: SessionEvent) {
        let node = session.number;
        match event {
            SessionEvent::Ready(FIRST_EPOCH) => self.take(Input::Ready { group, node }),
            SessionEvent::Unused => self.take(Input::Unused { group, node }),
            SessionEvent::GroupFailed(reason) => {
                let reason = format!("{}: {reason}", session.agent.name);
                self.take(Input::FormFailed { group, reason, lost: BTreeSet::new() });
            }
            _ => {}
        }
    }

    /// A group of an earlier controller: what concerns it is kept until it is resumed.
    pub fn reserve(self: &Arc<Registrar>, group: u64) {
        self.take(Input::Reserve(group));
    }

    /// A reserved group will not be resumed.
    pub fn forget(self: &Arc<Registrar>, group: u64) {
        self.take(Input::Forget(group));
    }

    /// Resumes a reserved group whose nodes have all come back; `users` are the sessions that use it.
    pub fn resume(self: &Arc<Registrar>, group: u64, places: Vec<Place>, users: BTreeSet<u32>) {
        info!(group, ranks = places.len(), "group goes on");
        self.take(Input::Resume { group, places, users });
    }

    /// Gives up those who wait for too long, or for survivors of a group that was released. Never ends.
    pub async fn watch(self: Arc<Registrar>) {
        let mut in_use = self.groups.busy();
        loop {
            let deadline = self.poll();
            tokio::select! {
                () = self.clock.wait(deadline) => {}
                () = self.changed.notified() => {}
                // The sender lives as long as the groups.
                Ok(()) = in_use.changed() => {
                    let groups = in_use.borrow_and_update().clone();
                    self.take(Input::GroupsInUse(&groups));
                }
            }
        }
    }

    /// Hands the service what has happened, and does what it asks for.
    fn take(self: &Arc<Registrar>, input: Input<'_, Place>) {
        self.membership.lock().handle(self.clock.now(), input);
        self.poll();
        self.changed.notify_one();
    }

    /// Tells agents what the service says, and begins what it asks for, in this order; when it is to be polled again.
    fn poll(self: &Arc<Registrar>) -> Option<Time> {
        let mut work = Vec::new();
        let deadline = {
            let mut membership = self.membership.lock();
            loop {
                match membership.poll(self.clock.now()) {
                    Poll::Idle(deadline) => break deadline,
                    Poll::Output(output) => work.extend(told(output)),
                }
            }
        };
        if !work.is_empty() {
            let registrar = self.clone();
            tokio::spawn(async move {
                for work in work {
                    registrar.carry_out(work).await;
                }
            });
        }
        deadline
    }

    async fn carry_out(self: &Arc<Registrar>, work: Work) {
        match work {
            Work::Form(group, places) => {
                let span = info_span!("group", group);
                info!(parent: &span, ranks = places.len(), "all have come");
                let made = self.groups.make(&*self.network, group, 0, &places).instrument(span).await;
                if let Err(reason) = made {
                    let ended = places.iter().filter(|place| place.session.has_ended());
                    let lost = ended.map(|place| place.session.number).collect();
                    self.take(Input::FormFailed { group, reason, lost });
                }
                self.take(Input::Announced(group));
            }
            Work::Release(group, places) => {
                self.groups.release(&*self.network, group, &places).await;
                info!(group, "group released");
            }
        }
    }
}

/// What takes a while.
enum Work {
    Form(u64, Vec<Place>),
    Release(u64, Vec<Place>),
}

/// Tells an agent what the service says, or what is to be done instead.
fn told(output: Output<Place>) -> Option<Work> {
    match output {
        Output::Form { group, places } => return Some(Work::Form(group, places)),
        Output::Release { group, places } => return Some(Work::Release(group, places)),
        Output::Excluded(place) => place.session.set_left_behind(true),
        Output::Enlisted(place, membership::EnlistOutcome { key, group, reason, rank, tickets }) => {
            info!(node = place.session.agent.name, key, group, reason, "enlisted");
            tell(&place.session, Body::Enlisted(Enlisted { key, group, reason, rank, tickets }));
        }
        Output::Recovered(place, recovered) => {
            let membership::RecoveryOutcome { group, lost, flags, new_group, failure, rank } = recovered;
            info!(node = place.session.agent.name, group, gone = ?lost, new_group, failure, "recovered");
            let recovered = Recovered { group, gone: lost, flags, new_group, failure, rank };
            tell(&place.session, Body::Recovered(recovered));
        }
    }
    None
}

/// An agent that is gone has nobody who waits.
fn tell(session: &Session, body: Body) {
    let _ = session.send(body);
}
