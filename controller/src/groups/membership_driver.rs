//! Groups that are formed by rendezvous or recovery: the worlds of other launchers, the parts of a
//! split, and the survivors of a group that lost ranks.
//!
//! [`cool_membership`] decides which ranks form a group. This module drives it with agents'
//! messages, lets [`GroupRegistry`] form and release the groups, and reports the outcome to the
//! agents.

use super::{FIRST_EPOCH, GroupRegistry, MemberPlace};
use crate::agents::{Session, SessionEvent};
use crate::timeouts::Timeouts;
use cool_daemon::clock::Clock;
use cool_fabric::Fabric;
use cool_machine::{Duration, Machine, Poll, Time};
use cool_membership::{self as membership, Input, Membership, Output, RecoveryPurpose};
use cool_proto::control::{
    Enlist, Enlisted, RanksLeft, Recover, Recovered, Withdraw, controller_message::Body,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::{Instrument, info, info_span, warn};

impl membership::RankLocation for MemberPlace {
    fn node(&self) -> u32 {
        self.session.number
    }

    fn name(&self) -> &str {
        &self.session.agent.name
    }
}

/// The membership service for all agents.
pub struct MembershipDriver {
    network: Arc<dyn Fabric>,
    groups: Arc<GroupRegistry>,
    /// Clock of the service.
    clock: Clock,
    membership: Mutex<Membership<MemberPlace>>,
    /// Signals a change that may have moved the next deadline.
    changed: Notify,
}

impl MembershipDriver {
    /// Returns a driver without waiting ranks.
    pub fn new(network: Arc<dyn Fabric>, groups: Arc<GroupRegistry>, timeouts: Timeouts) -> MembershipDriver {
        let ids = groups.clone();
        let membership = Membership::new(move || ids.next_id(), timeouts.group_ready);
        MembershipDriver {
            network,
            groups,
            clock: Clock::start(),
            membership: Mutex::new(membership),
            changed: Notify::new(),
        }
    }

    /// Handles the request of a process to join a group.
    pub fn enlist(self: &Arc<MembershipDriver>, session: &Arc<Session>, enlist: Enlist) {
        let Enlist { key, rank, size, timeout_ms, ticket } = enlist;
        let name = &session.agent.name;
        let Some(rack) = self.network.topology().node(name).and_then(|n| n.location).map(|l| l.rack) else {
            let reason =
                format!("node {name} has not been found on the network yet; `cool doctor` reports why");
            let tickets = Vec::from_iter((ticket > 0).then_some(ticket));
            return send(
                session,
                Body::Enlisted(Enlisted { key, rank: Some(rank), reason, group: 0, tickets }),
            );
        };
        let place = MemberPlace { session: session.clone(), rack };
        let timeout = Duration::from_millis(timeout_ms);
        self.handle(Input::Enlist { place, key, rank, size, timeout, ticket });
    }

    /// Handles the exit of a waiting process.
    pub fn withdraw(self: &Arc<MembershipDriver>, session: &Session, Withdraw { key, rank }: &Withdraw) {
        self.handle(Input::Withdraw { node: session.number, key, rank: *rank });
    }

    /// Handles the request of a rank to recover its group with the other survivors.
    pub fn recover(self: &Arc<MembershipDriver>, session: &Arc<Session>, recover: Recover) {
        let Recover { group, rank, timeout_ms, agree, misses } = recover;
        let node = &session.agent.name;
        let Some((size, rack)) = self.groups.rank_on(group, rank, node) else {
            let failure =
                format!("rank {rank} of group {group} is not on node {node}, or the group has been released");
            let refused = Recovered { group, failure, rank: Some(rank), ..Recovered::default() };
            return send(session, Body::Recovered(refused));
        };
        self.handle(Input::Recover {
            place: MemberPlace { session: session.clone(), rack },
            group: (group, size),
            rank,
            purpose: agree.map_or(RecoveryPurpose::Shrink, RecoveryPurpose::Agree),
            timeout: Duration::from_millis(timeout_ms),
            unreachable: misses,
        });
    }

    /// Handles ranks that have left their group.
    pub fn ranks_left(self: &Arc<MembershipDriver>, session: &Session, left: &RanksLeft) {
        let on_node = |rank: &u32| self.groups.rank_on(left.group, *rank, &session.agent.name);
        let ranks: Vec<u32> = left.ranks.iter().copied().filter(|rank| on_node(rank).is_some()).collect();
        if let Some((size, _)) = ranks.first().and_then(on_node) {
            self.handle(Input::RanksLeft { group: (left.group, size), ranks: &ranks });
        }
    }

    /// Handles the loss of a node and all its ranks.
    pub fn node_lost(self: &Arc<MembershipDriver>, session: &Session, reason: &str) {
        let name = &session.agent.name;
        let ranks = self.groups.on_node(name);
        self.handle(Input::NodeLost { node: session.number, name, reason, ranks });
    }

    /// Handles an agent's message about a group that does not belong to a job.
    pub fn group_event(self: &Arc<MembershipDriver>, session: &Session, group: u64, event: SessionEvent) {
        let node = session.number;
        match event {
            SessionEvent::Ready(FIRST_EPOCH) => self.handle(Input::Ready { group, node }),
            SessionEvent::Unused => self.handle(Input::Unused { group, node }),
            SessionEvent::GroupFailed(_) if !self.groups.has_member(group, &session.agent.name) => {
                warn!(
                    node = session.agent.name,
                    group, "an agent reported the failure of a group of other nodes"
                );
            }
            SessionEvent::GroupFailed(reason) => {
                let reason = format!("{}: {reason}", session.agent.name);
                self.handle(Input::FormFailed { group, reason, lost: BTreeSet::new() });
            }
            _ => {}
        }
    }

    /// Reserves a group of an earlier controller. Events that concern it are kept until it is
    /// resumed.
    pub fn reserve(self: &Arc<MembershipDriver>, group: u64) {
        self.handle(Input::Reserve(group));
    }

    /// Drops a reserved group, which will not be resumed.
    pub fn forget(self: &Arc<MembershipDriver>, group: u64) {
        self.handle(Input::Forget(group));
    }

    /// Resumes a reserved group after all of its nodes have reconnected. `users` are the sessions
    /// that use it.
    pub fn resume(self: &Arc<MembershipDriver>, group: u64, places: Vec<MemberPlace>, users: BTreeSet<u32>) {
        info!(group, ranks = places.len(), "group resumed");
        self.handle(Input::Resume { group, places, users });
    }

    /// Handles timeouts and released groups. Never returns.
    pub async fn watch(self: Arc<MembershipDriver>) {
        let mut in_use = self.groups.busy();
        loop {
            let deadline = self.poll();
            tokio::select! {
                () = self.clock.wait(deadline) => {}
                () = self.changed.notified() => {}
                // The sender exists as long as the groups.
                Ok(()) = in_use.changed() => {
                    let groups = in_use.borrow_and_update().clone();
                    self.handle(Input::GroupsInUse(&groups));
                }
            }
        }
    }

    /// Passes an event to the service and executes its outputs.
    fn handle(self: &Arc<MembershipDriver>, input: Input<'_, MemberPlace>) {
        self.membership.lock().handle(self.clock.now(), input);
        self.poll();
        self.changed.notify_one();
    }

    /// Sends the reports of the service to agents and starts the work that it requests, in order.
    /// Returns when the service must be polled next.
    fn poll(self: &Arc<MembershipDriver>) -> Option<Time> {
        let mut work = Vec::new();
        let deadline = {
            let mut membership = self.membership.lock();
            loop {
                match membership.poll(self.clock.now()) {
                    Poll::Idle(deadline) => break deadline,
                    Poll::Output(output) => work.extend(perform(output)),
                }
            }
        };
        if !work.is_empty() {
            let membership_driver = self.clone();
            tokio::spawn(async move {
                for work in work {
                    membership_driver.execute(work).await;
                }
            });
        }
        deadline
    }

    async fn execute(self: &Arc<MembershipDriver>, work: GroupWork) {
        match work {
            GroupWork::Form(group, places) => {
                let span = info_span!("group", group);
                info!(parent: &span, ranks = places.len(), "all ranks have joined");
                let made = self.groups.form(&*self.network, group, 0, &places).instrument(span).await;
                if let Err(reason) = made {
                    let ended = places.iter().filter(|place| place.session.has_ended());
                    let lost = ended.map(|place| place.session.number).collect();
                    self.handle(Input::FormFailed { group, reason, lost });
                }
                self.handle(Input::Announced(group));
            }
            GroupWork::Release(group, places) => {
                self.groups.release(&*self.network, group, &places).await;
                info!(group, "group released");
            }
        }
    }
}

/// Work that takes time.
enum GroupWork {
    Form(u64, Vec<MemberPlace>),
    Release(u64, Vec<MemberPlace>),
}

/// Sends a report to an agent, or returns the requested work.
fn perform(output: Output<MemberPlace>) -> Option<GroupWork> {
    match output {
        Output::Form { group, places } => return Some(GroupWork::Form(group, places)),
        Output::Release { group, places } => return Some(GroupWork::Release(group, places)),
        Output::Excluded(place) => place.session.set_excluded(true),
        Output::Enlisted(place, membership::EnlistOutcome { key, group, reason, rank, tickets }) => {
            info!(node = place.session.agent.name, key, group, reason, "enlisted");
            send(&place.session, Body::Enlisted(Enlisted { key, group, reason, rank, tickets }));
        }
        Output::Recovered(place, recovered) => {
            let membership::RecoveryOutcome { group, lost, flags, new_group, failure, rank } = recovered;
            info!(node = place.session.agent.name, group, gone = ?lost, new_group, failure, "recovered");
            let recovered = Recovered { group, gone: lost, flags, new_group, failure, rank };
            send(&place.session, Body::Recovered(recovered));
        }
    }
    None
}

/// Sends a message. If the agent's session has ended, no process there waits for it.
fn send(session: &Session, body: Body) {
    let _ = session.send(body);
}
