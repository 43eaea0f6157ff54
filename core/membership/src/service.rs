//! The membership service. It brings enlisted ranks and survivors together, requests that their
//! groups be formed, reports the outcome, and releases each group that no node uses any more.
//!
//! The driver must form the groups (trees, messages to the members) and deliver the reports.

use crate::events::{EnlistOutcome, Input, Output, RankLocation, RecoveryOutcome};
use crate::recovery::{RecoveryPurpose, RecoveryRefusal, RecoveryRounds, RoundResult, Survivor};
use crate::rendezvous::{Enlistment, FailedRendezvous, Rendezvous};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum time for which a rank waits for the others, whatever timeout it requests.
pub const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Location of a rank that has enlisted, with its node's ticket for the request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EnlistedRank<P> {
    place: P,
    ticket: u64,
}

/// The ranks for which a group is formed.
enum Founders<P> {
    Enlisted { key: String, ranks: Vec<EnlistedRank<P>> },
    Survivors { of: u64, survivors: BTreeMap<u32, P>, lost: Vec<u32> },
}

/// A group that is being formed.
struct FormingGroup<P> {
    founders: Founders<P>,
    /// Nodes that are not ready yet.
    unready: BTreeSet<u32>,
    /// Why it cannot be formed.
    failure: Option<String>,
    /// Nodes that are lost.
    lost: BTreeSet<u32>,
    /// Time by which all nodes must be ready. `None` until the group has been announced, because
    /// its release must not overtake the announcement.
    deadline: Option<Time>,
}

enum GroupState<P> {
    Forming(FormingGroup<P>),
    Used { by: BTreeSet<u32> },
    Reserved { unused_by: BTreeSet<u32> },
}

struct ManagedGroup<P> {
    places: Vec<P>,
    state: GroupState<P>,
}

/// The membership service, for all groups that are formed by rendezvous or recovery.
pub struct Membership<P> {
    rendezvous: Rendezvous<EnlistedRank<P>>,
    recovery: RecoveryRounds<P>,
    groups: BTreeMap<u64, ManagedGroup<P>>,
    /// Returns a number that no group has had before.
    number: Box<dyn FnMut() -> u64 + Send>,
    /// How long the nodes of a group may take until all are ready.
    ready_within: Duration,
    out: VecDeque<Output<P>>,
}

impl<P: RankLocation> Membership<P> {
    /// Returns a service without waiting ranks. `number` must return a new number on each call,
    /// because a number identifies a group forever. `ready_within` is how long the nodes of a group
    /// may take until all are ready.
    pub fn new(number: impl FnMut() -> u64 + Send + 'static, ready_within: Duration) -> Membership<P> {
        Membership {
            rendezvous: Rendezvous::default(),
            recovery: RecoveryRounds::default(),
            groups: BTreeMap::new(),
            number: Box::new(number),
            ready_within,
            out: VecDeque::new(),
        }
    }

    fn enlist(&mut self, member: Enlistment<EnlistedRank<P>>) {
        let (key, rank, enlisted_rank) = (member.key.clone(), member.rank, member.place.clone());
        match self.rendezvous.enlist(member) {
            Ok(None) => {}
            Ok(Some(ranks)) => {
                let places = ranks.iter().map(|rank| rank.place.clone()).collect();
                self.form(Founders::Enlisted { key, ranks }, places);
            }
            Err(refusal) => {
                let refused = EnlistOutcome {
                    key,
                    reason: refusal.to_string(),
                    rank: Some(rank),
                    ..EnlistOutcome::default()
                };
                self.report_enlisted(&[enlisted_rank], &refused);
            }
        }
    }

    fn recover(&mut self, survivor: Survivor<P>) {
        let (group, rank, place) = (survivor.group.0, survivor.rank, survivor.place.clone());
        match self.recovery.arrive(survivor) {
            Ok(result) => self.complete_round(result),
            Err(refusal) => self.refuse(place, (group, rank), &refusal),
        }
    }

    fn refuse(&mut self, place: P, (group, rank): (u64, u32), refusal: &RecoveryRefusal) {
        if let RecoveryRefusal::Lost { .. } = refusal {
            self.out.push_back(Output::Excluded(place.clone()));
        }
        let failure = refusal.to_string();
        let refused = RecoveryOutcome { group, failure, rank: Some(rank), ..RecoveryOutcome::default() };
        self.out.push_back(Output::Recovered(place, refused));
    }

    /// Handles the result of a round, if there is one.
    fn complete_round(&mut self, result: Option<RoundResult<P>>) {
        let Some(RoundResult { group, purpose, survivors, lost, cut_off }) = result else { return };
        for (rank, place) in cut_off {
            self.refuse(place, (group, rank), &RecoveryRefusal::Lost { group, rank });
        }
        match purpose {
            RecoveryPurpose::Agree(flags) => {
                self.report_recovered(
                    survivors.values(),
                    &RecoveryOutcome { group, lost, flags, ..RecoveryOutcome::default() },
                );
            }
            RecoveryPurpose::Shrink => self.form_survivors(group, survivors, lost),
        }
    }

    fn form_survivors(&mut self, of: u64, survivors: BTreeMap<u32, P>, lost: Vec<u32>) {
        let places = survivors.values().cloned().collect();
        self.form(Founders::Survivors { of, survivors, lost }, places);
    }

    fn form(&mut self, founders: Founders<P>, places: Vec<P>) {
        let group = (self.number)();
        let unready = places.iter().map(RankLocation::node).collect();
        let forming =
            FormingGroup { founders, unready, failure: None, lost: BTreeSet::new(), deadline: None };
        self.groups
            .insert(group, ManagedGroup { places: places.clone(), state: GroupState::Forming(forming) });
        self.out.push_back(Output::Form { group, places });
    }

    /// Applies a change to a group that is being formed, and completes the group if nothing is
    /// pending. Does nothing if the group is not being formed.
    fn forming(&mut self, id: u64, change: impl FnOnce(&mut FormingGroup<P>)) {
        let Some(ManagedGroup { state: GroupState::Forming(forming), .. }) = self.groups.get_mut(&id) else {
            return;
        };
        change(forming);
        if forming.deadline.is_none() || forming.failure.is_none() && !forming.unready.is_empty() {
            return;
        }
        let Some(ManagedGroup { places, state: GroupState::Forming(forming) }) = self.groups.remove(&id)
        else {
            return;
        };
        let FormingGroup { founders, failure, lost, .. } = forming;
        match failure {
            Some(reason) => self.form_failed((id, places), founders, (reason, &lost)),
            None => self.formed((id, places), founders),
        }
    }

    fn formed(&mut self, (id, places): (u64, Vec<P>), founders: Founders<P>) {
        match founders {
            Founders::Enlisted { key, ranks } => {
                self.report_enlisted(&ranks, &EnlistOutcome { key, group: id, ..EnlistOutcome::default() });
            }
            Founders::Survivors { of, lost, .. } => {
                let recovered =
                    RecoveryOutcome { group: of, lost, new_group: id, ..RecoveryOutcome::default() };
                self.report_recovered(places.iter(), &recovered);
            }
        }
        let by = places.iter().map(RankLocation::node).collect();
        self.groups.insert(id, ManagedGroup { places, state: GroupState::Used { by } });
    }

    /// Handles the failure to form a group. Enlisted ranks receive the failure. Survivors try again
    /// without the ranks on lost nodes, if any rank remains.
    fn form_failed(
        &mut self,
        (id, places): (u64, Vec<P>),
        founders: Founders<P>,
        (reason, lost_nodes): (String, &BTreeSet<u32>),
    ) {
        let release = Output::Release { group: id, places: places.clone() };
        match founders {
            Founders::Enlisted { key, ranks } => {
                self.report_enlisted(&ranks, &EnlistOutcome { key, reason, ..EnlistOutcome::default() });
                self.out.push_back(release);
            }
            Founders::Survivors { of, mut survivors, mut lost } => {
                self.out.push_back(release);
                let before = lost.len();
                lost.extend(
                    survivors
                        .extract_if(.., |_, place| lost_nodes.contains(&place.node()))
                        .map(|(rank, _)| rank),
                );
                let fewer = lost.len() > before;
                lost.sort_unstable();
                if fewer && !survivors.is_empty() {
                    self.form_survivors(of, survivors, lost);
                } else {
                    let recovered =
                        RecoveryOutcome { group: of, lost, failure: reason, ..RecoveryOutcome::default() };
                    self.report_recovered(survivors.values(), &recovered);
                }
            }
        }
    }

    fn unused(&mut self, id: u64, node: u32) {
        match self.groups.get_mut(&id).map(|group| &mut group.state) {
            Some(GroupState::Used { by }) => {
                by.remove(&node);
            }
            Some(GroupState::Reserved { unused_by }) => {
                unused_by.insert(node);
            }
            // A node cannot stop using a group before it has received it.
            Some(GroupState::Forming(_)) | None => {}
        }
        self.release_if_unused(id);
    }

    fn resume(&mut self, id: u64, places: Vec<P>, users: &BTreeSet<u32>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if let GroupState::Reserved { unused_by } = &group.state {
            *group = ManagedGroup { places, state: GroupState::Used { by: users - unused_by } };
        }
        self.release_if_unused(id);
    }

    fn release_if_unused(&mut self, id: u64) {
        if let Some(ManagedGroup { state: GroupState::Used { by }, .. }) = self.groups.get(&id)
            && by.is_empty()
            && let Some(ManagedGroup { places, .. }) = self.groups.remove(&id)
        {
            self.out.push_back(Output::Release { group: id, places });
        }
    }

    fn node_lost(&mut self, node: u32, name: &str, reason: &str) {
        let failed =
            self.rendezvous.lose(&format!("node {name}: {reason}"), |rank| rank.place.node() == node);
        failed.into_iter().for_each(|failed| self.report_failed(failed));
        let ids: Vec<u64> = self.groups.keys().copied().collect();
        for id in ids {
            self.unused(id, node);
            if self.groups.get(&id).is_some_and(|group| group.places.iter().any(|place| place.node() == node))
            {
                self.forming(id, |forming| {
                    forming.failure.get_or_insert_with(|| format!("node {name} was lost: {reason}"));
                    forming.lost.insert(node);
                });
            }
        }
    }

    fn report_failed(&mut self, failed: FailedRendezvous<EnlistedRank<P>>) {
        let FailedRendezvous { key, places, reason } = failed;
        self.report_enlisted(&places, &EnlistOutcome { key, reason, ..EnlistOutcome::default() });
    }

    fn groups_in_use(&mut self, groups: &BTreeSet<u64>) {
        for (group, waiting) in self.recovery.retain(|group| groups.contains(&group)) {
            let failure = format!("group {group} was released");
            self.report_recovered(
                waiting.values(),
                &RecoveryOutcome { group, failure, ..RecoveryOutcome::default() },
            );
        }
    }

    fn on_time(&mut self, now: Time) {
        for failed in self.rendezvous.expire(now) {
            self.report_failed(failed);
        }
        for result in self.recovery.expire(now) {
            self.complete_round(Some(result));
        }
        let late = self.groups.iter().filter(|(_, group)| group.deadline().is_some_and(|at| at <= now));
        let late: Vec<(u64, String)> = late.map(|(id, group)| (*id, group.unready())).collect();
        for (id, unready) in late {
            let within = self.ready_within;
            let reason =
                format!("not ready on {unready} within {within:?}; check the logs of the agents there");
            self.forming(id, |forming| forming.failure = Some(reason));
        }
    }

    fn deadline(&self) -> Option<Time> {
        let forming = self.groups.values().filter_map(ManagedGroup::deadline).min();
        earliest(forming, earliest(self.rendezvous.deadline(), self.recovery.deadline()))
    }

    /// Reports an outcome to each node with at least one of these ranks. The report lists their
    /// tickets, because another process on the node may wait with the same key and not belong to
    /// this group.
    fn report_enlisted(&mut self, ranks: &[EnlistedRank<P>], enlisted: &EnlistOutcome) {
        let reports = one_per_node(ranks.iter().map(|rank| &rank.place)).map(|place| {
            let on_node = ranks.iter().filter(|rank| rank.place.node() == place.node());
            let tickets: Vec<u64> = on_node.map(|rank| rank.ticket).collect();
            let tickets = if tickets.contains(&0) { Vec::new() } else { tickets };
            Output::Enlisted(place.clone(), EnlistOutcome { tickets, ..enlisted.clone() })
        });
        self.out.extend(reports);
    }

    fn report_recovered<'a>(&mut self, places: impl Iterator<Item = &'a P>, recovered: &RecoveryOutcome)
    where
        P: 'a,
    {
        let reports = one_per_node(places).map(|place| Output::Recovered(place.clone(), recovered.clone()));
        self.out.extend(reports);
    }
}

impl<P: RankLocation> ManagedGroup<P> {
    fn deadline(&self) -> Option<Time> {
        match &self.state {
            GroupState::Forming(forming) => forming.deadline,
            GroupState::Used { .. } | GroupState::Reserved { .. } => None,
        }
    }

    /// Returns the names of the nodes that are not ready.
    fn unready(&self) -> String {
        let GroupState::Forming(FormingGroup { unready, .. }) = &self.state else { return String::new() };
        let unready = one_per_node(self.places.iter()).filter(|place| unready.contains(&place.node()));
        unready.map(RankLocation::name).collect::<Vec<_>>().join(", ")
    }
}

/// Returns one location for each node, ordered by node.
fn one_per_node<'a, P: RankLocation + 'a>(
    places: impl Iterator<Item = &'a P>,
) -> impl Iterator<Item = &'a P> {
    places.map(|place| (place.node(), place)).collect::<BTreeMap<_, _>>().into_values()
}

impl<P: RankLocation> Machine for Membership<P> {
    type Input<'a> = Input<'a, P>;
    type Output = Output<P>;

    fn handle(&mut self, now: Time, input: Input<'_, P>) {
        let until = |timeout: Duration| now + timeout.min(MAX_WAIT);
        match input {
            Input::Enlist { place, key, rank, size, timeout, ticket } => {
                let place = EnlistedRank { place, ticket };
                self.enlist(Enlistment { key, rank, size, place, deadline: until(timeout) });
            }
            Input::Withdraw { node, key, rank } => {
                let failed = self.rendezvous.withdraw(key, rank, |rank| rank.place.node() == node);
                failed.into_iter().for_each(|failed| self.report_failed(failed));
            }
            Input::Recover { place, group, rank, purpose, timeout, unreachable } => {
                let deadline = until(timeout);
                self.recover(Survivor { group, rank, purpose, place, deadline, unreachable });
            }
            Input::RanksLeft { group, ranks } => {
                for rank in ranks {
                    let result = self.recovery.lose(group, *rank);
                    self.complete_round(result);
                }
            }
            Input::Unused { group, node } => self.unused(group, node),
            Input::NodeLost { node, name, reason, ranks } => {
                for (group, rank) in
                    ranks.iter().flat_map(|(group, ranks)| ranks.iter().map(|r| (*group, *r)))
                {
                    let result = self.recovery.lose(group, rank);
                    self.complete_round(result);
                }
                self.node_lost(node, name, reason);
            }
            Input::Announced(group) => {
                let deadline = Some(now + self.ready_within);
                self.forming(group, |forming| forming.deadline = deadline);
            }
            Input::Ready { group, node } => self.forming(group, |forming| {
                forming.unready.remove(&node);
            }),
            Input::FormFailed { group, reason, lost } => self.forming(group, |forming| {
                forming.failure.get_or_insert(reason);
                forming.lost.extend(lost);
            }),
            Input::Reserve(group) => {
                let state = GroupState::Reserved { unused_by: BTreeSet::new() };
                self.groups.entry(group).or_insert(ManagedGroup { places: Vec::new(), state });
            }
            Input::Resume { group, places, users } => self.resume(group, places, &users),
            Input::Forget(group) => drop(self.groups.remove(&group)),
            Input::GroupsInUse(groups) => self.groups_in_use(groups),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output<P>> {
        if self.out.is_empty() {
            self.on_time(now);
        }
        match self.out.pop_front() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.deadline()),
        }
    }
}

#[cfg(test)]
mod tests;
