//! The service that ranks' agents ask for groups: it brings enlisted ranks and survivors together, has their groups
//! formed, tells them, and has groups released that no node uses any more.
//!
//! How a group is formed (trees, messages to its members) and how nodes are told is left to the driver.

use crate::events::{Enlisted, Input, Output, Place, Recovered};
use crate::recovery::{Met, Purpose, Recovery, Refusal as RecoverRefusal, Survivor};
use crate::rendezvous::{Failed, Member, Rendezvous};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// No rank waits longer than this for the others, whatever it asks for.
pub const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Where a rank is that has enlisted, and its node's ticket for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seat<P> {
    place: P,
    ticket: u64,
}

/// For whom a group is formed.
enum Founders<P> {
    Enlisted { key: String, seats: Vec<Seat<P>> },
    Survivors { of: u64, came: BTreeMap<u32, P>, gone: Vec<u32> },
}

/// A group that is being formed.
struct Forming<P> {
    founders: Founders<P>,
    /// Nodes that are not ready.
    unready: BTreeSet<u32>,
    /// Why it cannot be formed.
    failure: Option<String>,
    /// Nodes that are gone.
    gone: BTreeSet<u32>,
    /// When its nodes are to be ready; none while it is being announced, so that what releases it comes later.
    deadline: Option<Time>,
}

enum State<P> {
    Forming(Forming<P>),
    Used { by: BTreeSet<u32> },
    Reserved { unused_by: BTreeSet<u32> },
}

struct Group<P> {
    places: Vec<P>,
    state: State<P>,
}

/// The service: one for all groups whose ranks come by themselves.
pub struct Membership<P> {
    rendezvous: Rendezvous<Seat<P>>,
    recovery: Recovery<P>,
    groups: BTreeMap<u64, Group<P>>,
    /// Gives a number that no group had.
    number: Box<dyn FnMut() -> u64 + Send>,
    /// How long the nodes of a group may take until they are ready.
    ready_within: Duration,
    out: VecDeque<Output<P>>,
}

impl<P: Place> Membership<P> {
    /// Nobody waits yet. `number` gives numbers of new groups, `ready_within` is how long a group's nodes may take until
    /// all are ready.
    pub fn new(number: impl FnMut() -> u64 + Send + 'static, ready_within: Duration) -> Membership<P> {
        Membership {
            rendezvous: Rendezvous::default(),
            recovery: Recovery::default(),
            groups: BTreeMap::new(),
            number: Box::new(number),
            ready_within,
            out: VecDeque::new(),
        }
    }

    fn enlist(&mut self, member: Member<Seat<P>>) {
        let (key, rank, seat) = (member.key.clone(), member.rank, member.place.clone());
        match self.rendezvous.enlist(member) {
            Ok(None) => {}
            Ok(Some(seats)) => {
                let places = seats.iter().map(|seat| seat.place.clone()).collect();
                self.form(Founders::Enlisted { key, seats }, places);
            }
            Err(refusal) => {
                let refused =
                    Enlisted { key, reason: refusal.to_string(), rank: Some(rank), ..Enlisted::default() };
                self.tell_enlisted(&[seat], &refused);
            }
        }
    }

    fn recover(&mut self, survivor: Survivor<P>) {
        let (group, rank, place) = (survivor.group.0, survivor.rank, survivor.place.clone());
        match self.recovery.come(survivor) {
            Ok(met) => self.met(met),
            Err(refusal) => self.refuse(place, (group, rank), &refusal),
        }
    }

    fn refuse(&mut self, place: P, (group, rank): (u64, u32), refusal: &RecoverRefusal) {
        if let RecoverRefusal::Gone { .. } = refusal {
            self.out.push_back(Output::LeftBehind(place.clone()));
        }
        let failure = refusal.to_string();
        let refused = Recovered { group, failure, rank: Some(rank), ..Recovered::default() };
        self.out.push_back(Output::Recovered(place, refused));
    }

    /// Survivors have agreed, if they have.
    fn met(&mut self, met: Option<Met<P>>) {
        let Some(Met { group, purpose, came, gone, cut_off }) = met else { return };
        for (rank, place) in cut_off {
            self.refuse(place, (group, rank), &RecoverRefusal::Gone { group, rank });
        }
        match purpose {
            Purpose::Agree(flags) => {
                self.tell_survivors(came.values(), &Recovered { group, gone, flags, ..Recovered::default() });
            }
            Purpose::Shrink => self.form_survivors(group, came, gone),
        }
    }

    fn form_survivors(&mut self, of: u64, came: BTreeMap<u32, P>, gone: Vec<u32>) {
        let places = came.values().cloned().collect();
        self.form(Founders::Survivors { of, came, gone }, places);
    }

    fn form(&mut self, founders: Founders<P>, places: Vec<P>) {
        let group = (self.number)();
        let unready = places.iter().map(Place::node).collect();
        let forming = Forming { founders, unready, failure: None, gone: BTreeSet::new(), deadline: None };
        self.groups.insert(group, Group { places: places.clone(), state: State::Forming(forming) });
        self.out.push_back(Output::Form { group, places });
    }

    /// Something has become known of a group that is being formed, if it is.
    fn forming(&mut self, id: u64, change: impl FnOnce(&mut Forming<P>)) {
        let Some(Group { state: State::Forming(forming), .. }) = self.groups.get_mut(&id) else { return };
        change(forming);
        if forming.deadline.is_none() || forming.failure.is_none() && !forming.unready.is_empty() {
            return;
        }
        let Some(Group { places, state: State::Forming(forming) }) = self.groups.remove(&id) else { return };
        let Forming { founders, failure, gone, .. } = forming;
        match failure {
            Some(reason) => self.form_failed((id, places), founders, (reason, &gone)),
            None => self.formed((id, places), founders),
        }
    }

    fn formed(&mut self, (id, places): (u64, Vec<P>), founders: Founders<P>) {
        match founders {
            Founders::Enlisted { key, seats } => {
                self.tell_enlisted(&seats, &Enlisted { key, group: id, ..Enlisted::default() });
            }
            Founders::Survivors { of, gone, .. } => {
                let recovered = Recovered { group: of, gone, new_group: id, ..Recovered::default() };
                self.tell_survivors(places.iter(), &recovered);
            }
        }
        let by = places.iter().map(Place::node).collect();
        self.groups.insert(id, Group { places, state: State::Used { by } });
    }

    /// Enlisted ranks have no group then; survivors may have one without those on nodes that are gone.
    fn form_failed(
        &mut self,
        (id, places): (u64, Vec<P>),
        founders: Founders<P>,
        (reason, lost): (String, &BTreeSet<u32>),
    ) {
        let release = Output::Release { group: id, places: places.clone() };
        match founders {
            Founders::Enlisted { key, seats } => {
                self.tell_enlisted(&seats, &Enlisted { key, reason, ..Enlisted::default() });
                self.out.push_back(release);
            }
            Founders::Survivors { of, mut came, mut gone } => {
                self.out.push_back(release);
                let before = gone.len();
                gone.extend(
                    came.extract_if(.., |_, place| lost.contains(&place.node())).map(|(rank, _)| rank),
                );
                let fewer = gone.len() > before;
                gone.sort_unstable();
                if fewer && !came.is_empty() {
                    self.form_survivors(of, came, gone);
                } else {
                    let recovered = Recovered { group: of, gone, failure: reason, ..Recovered::default() };
                    self.tell_survivors(came.values(), &recovered);
                }
            }
        }
    }

    fn unused(&mut self, id: u64, node: u32) {
        match self.groups.get_mut(&id).map(|group| &mut group.state) {
            Some(State::Used { by }) => {
                by.remove(&node);
            }
            Some(State::Reserved { unused_by }) => {
                unused_by.insert(node);
            }
            // Who is still to be told of a group cannot have stopped using it.
            Some(State::Forming(_)) | None => {}
        }
        self.release_if_unused(id);
    }

    fn resume(&mut self, id: u64, places: Vec<P>, users: &BTreeSet<u32>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if let State::Reserved { unused_by } = &group.state {
            *group = Group { places, state: State::Used { by: users - unused_by } };
        }
        self.release_if_unused(id);
    }

    fn release_if_unused(&mut self, id: u64) {
        if let Some(Group { state: State::Used { by }, .. }) = self.groups.get(&id)
            && by.is_empty()
            && let Some(Group { places, .. }) = self.groups.remove(&id)
        {
            self.out.push_back(Output::Release { group: id, places });
        }
    }

    fn node_left(&mut self, node: u32, name: &str, reason: &str) {
        let failed =
            self.rendezvous.lose(&format!("node {name}: {reason}"), |seat| seat.place.node() == node);
        failed.into_iter().for_each(|failed| self.give_up(failed));
        let ids: Vec<u64> = self.groups.keys().copied().collect();
        for id in ids {
            self.unused(id, node);
            if self.groups.get(&id).is_some_and(|group| group.places.iter().any(|place| place.node() == node))
            {
                self.forming(id, |forming| {
                    forming.failure.get_or_insert_with(|| format!("node {name} is gone: {reason}"));
                    forming.gone.insert(node);
                });
            }
        }
    }

    fn give_up(&mut self, failed: Failed<Seat<P>>) {
        let Failed { key, places, reason } = failed;
        self.tell_enlisted(&places, &Enlisted { key, reason, ..Enlisted::default() });
    }

    fn in_use(&mut self, groups: &BTreeSet<u64>) {
        for (group, waiting) in self.recovery.retain(|group| groups.contains(&group)) {
            let failure = format!("group {group} was released");
            self.tell_survivors(waiting.values(), &Recovered { group, failure, ..Recovered::default() });
        }
    }

    fn on_time(&mut self, now: Time) {
        for failed in self.rendezvous.overdue(now) {
            self.give_up(failed);
        }
        for met in self.recovery.overdue(now) {
            self.met(Some(met));
        }
        let late = self.groups.iter().filter(|(_, group)| group.deadline().is_some_and(|at| at <= now));
        let late: Vec<(u64, String)> = late.map(|(id, group)| (*id, group.unready())).collect();
        for (id, unready) in late {
            let within = self.ready_within;
            let reason =
                format!("not ready on {unready} within {within:?}; look at the logs of the agents there");
            self.forming(id, |forming| forming.failure = Some(reason));
        }
    }

    fn deadline(&self) -> Option<Time> {
        let forming = self.groups.values().filter_map(Group::deadline).min();
        earliest(forming, earliest(self.rendezvous.deadline(), self.recovery.deadline()))
    }

    /// Tells each node of those who sit there: another process may wait there under the same key, which is in no group with them.
    fn tell_enlisted(&mut self, seats: &[Seat<P>], enlisted: &Enlisted) {
        let told = of_each_node(seats.iter().map(|seat| &seat.place)).map(|place| {
            let here = seats.iter().filter(|seat| seat.place.node() == place.node());
            let tickets: Vec<u64> = here.map(|seat| seat.ticket).collect();
            let tickets = if tickets.contains(&0) { Vec::new() } else { tickets };
            Output::Enlisted(place.clone(), Enlisted { tickets, ..enlisted.clone() })
        });
        self.out.extend(told);
    }

    fn tell_survivors<'a>(&mut self, places: impl Iterator<Item = &'a P>, recovered: &Recovered)
    where
        P: 'a,
    {
        let told = of_each_node(places).map(|place| Output::Recovered(place.clone(), recovered.clone()));
        self.out.extend(told);
    }
}

impl<P: Place> Group<P> {
    fn deadline(&self) -> Option<Time> {
        match &self.state {
            State::Forming(forming) => forming.deadline,
            State::Used { .. } | State::Reserved { .. } => None,
        }
    }

    /// The names of the nodes that are not ready.
    fn unready(&self) -> String {
        let State::Forming(Forming { unready, .. }) = &self.state else { return String::new() };
        let unready = of_each_node(self.places.iter()).filter(|place| unready.contains(&place.node()));
        unready.map(Place::name).collect::<Vec<_>>().join(", ")
    }
}

/// One place of each node, in the order of nodes.
fn of_each_node<'a, P: Place + 'a>(places: impl Iterator<Item = &'a P>) -> impl Iterator<Item = &'a P> {
    places.map(|place| (place.node(), place)).collect::<BTreeMap<_, _>>().into_values()
}

impl<P: Place> Machine for Membership<P> {
    type Input<'a> = Input<'a, P>;
    type Output = Output<P>;

    fn handle(&mut self, now: Time, input: Input<'_, P>) {
        let until = |timeout: Duration| now + timeout.min(LONGEST_WAIT);
        match input {
            Input::Enlist { place, key, rank, size, timeout, ticket } => {
                let place = Seat { place, ticket };
                self.enlist(Member { key, rank, size, place, deadline: until(timeout) });
            }
            Input::Withdraw { node, key, rank } => {
                let failed = self.rendezvous.withdraw(key, rank, |seat| seat.place.node() == node);
                failed.into_iter().for_each(|failed| self.give_up(failed));
            }
            Input::Recover { place, group, rank, purpose, timeout, misses } => {
                let deadline = until(timeout);
                self.recover(Survivor { group, rank, purpose, place, deadline, misses });
            }
            Input::RanksLeft { group, ranks } => {
                for rank in ranks {
                    let met = self.recovery.lose(group, *rank);
                    self.met(met);
                }
            }
            Input::Unused { group, node } => self.unused(group, node),
            Input::NodeLeft { node, name, reason, ranks } => {
                for (group, rank) in
                    ranks.iter().flat_map(|(group, ranks)| ranks.iter().map(|r| (*group, *r)))
                {
                    let met = self.recovery.lose(group, rank);
                    self.met(met);
                }
                self.node_left(node, name, reason);
            }
            Input::Announced(group) => {
                let deadline = Some(now + self.ready_within);
                self.forming(group, |forming| forming.deadline = deadline);
            }
            Input::Ready { group, node } => self.forming(group, |forming| {
                forming.unready.remove(&node);
            }),
            Input::FormFailed { group, reason, gone } => self.forming(group, |forming| {
                forming.failure.get_or_insert(reason);
                forming.gone.extend(gone);
            }),
            Input::Reserve(group) => {
                let state = State::Reserved { unused_by: BTreeSet::new() };
                self.groups.entry(group).or_insert(Group { places: Vec::new(), state });
            }
            Input::Resume { group, places, users } => self.resume(group, places, &users),
            Input::Forget(group) => drop(self.groups.remove(&group)),
            Input::InUse(groups) => self.in_use(groups),
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
