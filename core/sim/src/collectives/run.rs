//! A scenario from beginning to end: ranks call, things go wrong, and every answer is judged.

use super::cluster::{SimulatedCluster, Step};
use super::coverage::Coverage;
use super::judge::{Blame, blame};
use super::quick::RankCall;
use super::quick_scenario::QuickScenario;
use super::scenario::{CallScenario, CollectiveScenario, Fault, GroupScenario};
use super::script::RunningGroup;
use cool_engine::testing::Collective;
use cool_engine::{CallFailure, CallFailureKind, CallRequest, CallStats, GroupSpec, Input, RankCommand};
use cool_machine::{Duration, Time};
use cool_types::Operation;
use std::collections::BTreeSet;

/// What may pass beside timeouts until a call is answered: asking who waits, and the last retries of what was lost.
const SLACK: Duration = Duration::from_secs(5);

/// The slowest that bytes may move where most is lost, in bytes per second.
const SLOWEST: u64 = 20_000;

/// The longest that connections and streams linger after all groups are released.
const LINGER: Duration = Duration::from_secs(300);

/// The first number of the groups in which survivors go on.
const AFTER: u64 = 100;

/// Alarms: the fault, then nodes start again; then for each outage its beginning and its end.
const FAULT: u32 = 0;
const RESTART: u32 = 1;
const OUTAGES: u32 = 2;

/// What was asked of an engine.
#[derive(Clone, Copy, Debug)]
enum What {
    Call(usize),
    Message(usize, bool),
    /// A barrier in a group that has failed, or should have.
    Probe,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    group: usize,
    rank: u32,
    what: What,
    answered: bool,
}

struct Runner<'s> {
    scenario: &'s CollectiveScenario,
    cluster: SimulatedCluster,
    groups: Vec<RunningGroup>,
    blames: Vec<Option<Blame>>,
    /// By token.
    asked: Vec<Asked>,
    open: usize,
    /// When a call was last made or answered, or something went wrong.
    moved: Time,
    struck: bool,
    /// Alarms that have not come.
    pending: usize,
    dead: BTreeSet<u16>,
    coverage: Coverage,
}

impl CollectiveScenario {
    /// Runs it to its end.
    ///
    /// # Errors
    /// What went wrong that must not, in words.
    pub fn run(&self) -> Result<Coverage, String> {
        let mut runner = Runner::new(self)?;
        runner.play()?;
        runner.probe()?;
        runner.go_on()?;
        runner.end()?;
        Ok(runner.covered())
    }
}

impl<'s> Runner<'s> {
    fn new(scenario: &'s CollectiveScenario) -> Result<Runner<'s>, String> {
        let mut cluster = SimulatedCluster::new(scenario.cluster.clone());
        for (link, spec) in &scenario.odd_links {
            *cluster.network().link_mut(*link) = *spec;
        }
        let mut runner = Runner {
            scenario,
            cluster,
            groups: Vec::new(),
            blames: Vec::new(),
            asked: Vec::new(),
            open: 0,
            moved: Time::ZERO,
            struck: false,
            pending: 0,
            dead: BTreeSet::new(),
            coverage: Coverage::default(),
        };
        for (index, group) in scenario.groups.iter().enumerate() {
            runner.add_group(index, group)?;
        }
        runner.set_alarms();
        Ok(runner)
    }

    fn spec(&mut self, id: u64, group: &GroupScenario) -> GroupSpec {
        let spec = self.cluster.group(id, &group.places, group.stripes);
        group.deaf.iter().for_each(|node| self.cluster.deafen(&spec, *node));
        GroupSpec { chunk_bytes: group.chunk_bytes, quick: group.quick.is_some(), ..spec }
    }

    fn add_group(&mut self, index: usize, group: &GroupScenario) -> Result<(), String> {
        let spec = self.spec(index as u64 + 1, group);
        self.cluster.make_group(&spec).map_err(|wrong| wrong.to_string())?;
        self.blames.push(blame(&self.scenario.fault, index, &group.places));
        self.come(index, spec.id, group);
        let now = self.cluster.now();
        self.groups.push(RunningGroup::new(index, spec, group, &self.scenario.fault, now));
        Ok(())
    }

    /// The ranks of a group with quick calls come; one that makes no call does not in one scenario of two.
    fn come(&mut self, index: usize, id: u64, group: &GroupScenario) {
        let Some(quick) = &group.quick else { return };
        let is_away = |rank: u32| {
            let away = Fault::Absent { group: index, rank, call: 0 };
            self.scenario.fault == away && self.scenario.cluster.seed.is_multiple_of(2)
        };
        let coming: Vec<u32> = (0..quick.come.len() as u32).filter(|rank| !is_away(*rank)).collect();
        for rank in coming {
            let able = quick.declines != Some(rank);
            self.cluster.rank_comes((id, rank), able, quick.room, quick.come[rank as usize]);
        }
        for (rank, from, long) in &quick.still {
            self.cluster.rank_stands_still((id, *rank), *from, *long);
        }
    }

    fn set_alarms(&mut self) {
        let at = match &self.scenario.fault {
            Fault::Crash { at, restart, .. } | Fault::PowerOff { at, restart, .. } => Some((*at, *restart)),
            Fault::Leave { at, .. } | Fault::Revoke { at, .. } => Some((*at, None)),
            _ => None,
        };
        let mut alarms = Vec::new();
        if let Some((at, restart)) = at {
            alarms.push((FAULT, at));
            alarms.extend(restart.map(|after| (RESTART, at + after)));
        }
        for (number, (_, from, long)) in (0..).zip(&self.scenario.outages) {
            alarms.extend([(OUTAGES + 2 * number, *from), (OUTAGES + 2 * number + 1, *from + *long)]);
        }
        self.pending = alarms.len();
        alarms.into_iter().for_each(|(number, after)| self.cluster.alarm(number, after));
    }

    /// Ranks make their calls, until all are answered and all that was to go wrong has.
    fn play(&mut self) -> Result<(), String> {
        for group in 0..self.groups.len() {
            for rank in 0..self.groups[group].places.len() {
                self.advance(group, rank as u32);
            }
            for number in 0..self.groups[group].scenario.messages.len() {
                self.exchange(group, number);
            }
        }
        while self.open > 0 || self.pending > 0 {
            self.step()?;
        }
        Ok(())
    }

    fn ask(&mut self, group: usize, rank: u32, what: What) -> u64 {
        self.asked.push(Asked { group, rank, what, answered: false });
        self.open += 1;
        self.asked.len() as u64 - 1
    }

    fn lives(&self, group: usize, rank: u32) -> bool {
        !self.dead.contains(&self.groups[group].places[rank as usize])
    }

    /// A rank makes the calls that it may have open.
    fn advance(&mut self, group: usize, rank: u32) {
        let now = self.cluster.now();
        loop {
            let this = &mut self.groups[group];
            let script = &mut this.scripts[rank as usize];
            let number = script.made;
            let has_all_open = script.waits_in.is_some() || script.open >= this.scenario.open;
            if script.over || number >= this.collectives.len() || has_all_open {
                return;
            }
            if self.scenario.fault == (Fault::Absent { group, rank, call: number }) {
                script.over = true;
                return;
            }
            let at = now.max(script.last) + this.scenario.calls[number].after[rank as usize];
            let waits = this.scenario.calls[number].waits;
            (script.made, script.open, script.last) = (number + 1, script.open + 1, at);
            script.waits_in = waits.then_some(number);
            let tally = &mut this.tallies[number];
            tally.last_came = tally.last_came.max(at);
            let timeout = Some(self.scenario.timeout);
            let request = CallRequest { timeout, ..this.collectives[number].requests[rank as usize].clone() };
            self.moved = self.moved.max(at);
            let token = self.ask(group, rank, What::Call(number));
            self.call(group, RankCall { token, request, waits }, at - now);
        }
    }

    /// A rank calls after some time.
    fn call(&mut self, group: usize, call: RankCall, after: Duration) {
        let (this, rank) = (&self.groups[group], call.request.rank);
        if this.spec.quick {
            self.cluster.rank_calls((this.spec.id, rank), call, after);
        } else {
            self.cluster.call(this.places[rank as usize], call.token, call.request, after);
        }
    }

    fn exchange(&mut self, group: usize, number: usize) {
        for sending in [true, false] {
            let request = self.groups[group].transfer(number, sending, self.scenario.timeout);
            let at = self.groups[group].scenario.messages[number].at[usize::from(!sending)];
            let (rank, node) = (request.rank, self.groups[group].places[request.rank as usize]);
            let token = self.ask(group, rank, What::Message(number, sending));
            self.cluster.transfer(node, token, request, at);
        }
    }

    /// The longest that no call is made or answered while some are open.
    fn patience(&self) -> Duration {
        let moving = Duration::from_secs(self.scenario.bytes() / SLOWEST);
        self.scenario.timeout + self.scenario.cluster.peer_timeout + SLACK + moving
    }

    fn step(&mut self) -> Result<(), String> {
        match self.cluster.step().map_err(|wrong| wrong.to_string())? {
            Step::Alarm(number) => self.strike(number)?,
            Step::Event => {}
            Step::Idle => return Err(format!("nothing will ever happen: {}", self.waiting())),
        }
        for token in self.cluster.take_answered() {
            self.answered(token)?;
        }
        if self.open > 0 && self.cluster.now() - self.moved > self.patience() {
            return Err(format!(
                "at {:?}, nothing since {:?}: {}",
                self.cluster.now(),
                self.moved,
                self.waiting()
            ));
        }
        Ok(())
    }

    /// Who waits for what.
    fn waiting(&self) -> String {
        let open = self.asked.iter().filter(|asked| !asked.answered && self.lives(asked.group, asked.rank));
        let open: Vec<String> = open.map(|asked| self.name(asked)).collect();
        open.join("; ")
    }

    fn name(&self, Asked { group, rank, what, .. }: &Asked) -> String {
        let this = &self.groups[*group];
        let what = match what {
            What::Call(number) => format!("call {number}, {:?}", this.scenario.calls[*number]),
            What::Message(number, _) => format!("{:?}", this.scenario.messages[*number]),
            What::Probe => "a barrier afterwards".to_owned(),
        };
        format!("rank {rank} of group {} in {what}", this.spec.id)
    }

    /// Something goes wrong, or is over.
    fn strike(&mut self, number: u32) -> Result<(), String> {
        self.pending -= 1;
        self.moved = self.cluster.now();
        match (&self.scenario.fault, number) {
            (Fault::Crash { nodes, .. } | Fault::PowerOff { nodes, .. }, RESTART) => {
                nodes
                    .iter()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .for_each(|node| self.cluster.restart(*node));
            }
            (Fault::Crash { nodes, .. }, FAULT) => self.kill(nodes, SimulatedCluster::crash),
            (Fault::PowerOff { nodes, .. }, FAULT) => self.kill(nodes, SimulatedCluster::power_off),
            (Fault::Leave { group, rank, .. }, FAULT) => {
                let why = "its process ended".to_owned();
                if self.groups[*group].spec.quick {
                    return self.end_rank(*group, *rank, why);
                }
                return self.tell(*group, *rank, |group| Input::Command {
                    group,
                    rank: *rank,
                    command: RankCommand::Lost { why, completed_calls: None },
                });
            }
            (Fault::Revoke { group, rank, .. }, FAULT) => {
                return self.tell(*group, *rank, |group| Input::Command {
                    group,
                    rank: *rank,
                    command: RankCommand::Revoke,
                });
            }
            (_, outage) => {
                let (link, ..) = self.scenario.outages[((outage - OUTAGES) / 2) as usize];
                self.cluster.network().set_up(link, outage % 2 == 1);
            }
        }
        Ok(())
    }

    /// The process of a rank with quick calls ends: how its calls go, nobody asks any more.
    fn end_rank(&mut self, group: usize, rank: u32, why: String) -> Result<(), String> {
        self.struck = true;
        let this = &mut self.groups[group];
        this.scripts[rank as usize].over = true;
        let is_its = |asked: &&mut Asked| {
            (asked.group, asked.rank) == (group, rank) && matches!(asked.what, What::Call(_))
        };
        for asked in self.asked.iter_mut().filter(is_its).filter(|asked| !asked.answered) {
            asked.answered = true;
            self.open -= 1;
        }
        self.cluster.rank_ends((this.spec.id, rank), why).map_err(|wrong| wrong.to_string())
    }

    /// The engine of a rank's node is told something about it.
    fn tell<'i>(
        &mut self,
        group: usize,
        rank: u32,
        input: impl FnOnce(u64) -> Input<'i>,
    ) -> Result<(), String> {
        self.struck = true;
        let this = &mut self.groups[group];
        if let Fault::Leave { .. } = self.scenario.fault {
            this.scripts[rank as usize].over = true;
        }
        let (id, node) = (this.spec.id, this.places[rank as usize]);
        self.cluster.input(node, input(id)).map_err(|wrong| wrong.to_string())
    }

    /// Nodes die, and what their ranks wait for is never answered.
    fn kill(&mut self, nodes: &[u16], how: impl Fn(&mut SimulatedCluster, u16)) {
        self.struck = true;
        self.dead.extend(nodes);
        self.dead.clone().into_iter().for_each(|node| how(&mut self.cluster, node));
        for group in &mut self.groups {
            let scripts = group.places.iter().zip(&mut group.scripts);
            scripts.filter(|(node, _)| nodes.contains(node)).for_each(|(_, script)| script.over = true);
        }
        let (groups, dead) = (&self.groups, &self.dead);
        let is_dead = |asked: &Asked| dead.contains(&groups[asked.group].places[asked.rank as usize]);
        // How the calls of the dead go, nobody asks any more, though their processes may go on.
        self.asked.iter_mut().filter(|asked| is_dead(asked)).for_each(|asked| asked.answered = true);
        self.open = self.asked.iter().filter(|asked| !asked.answered).count();
    }

    fn answered(&mut self, token: u64) -> Result<(), String> {
        let now = self.cluster.now();
        self.moved = self.moved.max(now);
        let asked = &mut self.asked[token as usize];
        let is_asked = !std::mem::replace(&mut asked.answered, true);
        let asked = *asked;
        if !is_asked {
            return Ok(());
        }
        self.open -= 1;
        let result = self.cluster.answers()[&token].result.clone();
        let judged = match &result {
            Ok(stats) => self.well(&asked, stats),
            Err(failure) => self.failed(&asked, failure),
        };
        judged.map_err(|wrong| format!("at {now:?}, {}: {wrong}", self.name(&asked)))?;
        if let What::Call(number) = asked.what {
            let script = &mut self.groups[asked.group].scripts[asked.rank as usize];
            script.open -= 1;
            script.waits_in = script.waits_in.filter(|waits| *waits != number);
            self.advance(asked.group, asked.rank);
        }
        Ok(())
    }

    /// A call or message was answered well: is all there?
    fn well(&mut self, asked: &Asked, stats: &CallStats) -> Result<(), String> {
        let (group, rank) = (asked.group, asked.rank as usize);
        match asked.what {
            What::Call(number) => {
                self.check_bytes(group, rank, number)?;
                let this = &mut self.groups[group];
                this.tallies[number].well += 1;
                let plan = stats.plan.split('/').next().unwrap_or_default();
                self.coverage.quick += u64::from(plan.starts_with("quick "));
                *self.coverage.plans.entry(plan.to_owned()).or_default() += 1;
                if self.blames[group].is_none() {
                    let took = self.cluster.now() - this.tallies[number].last_came;
                    self.coverage.slowest = self.coverage.slowest.max(took);
                }
                Ok(())
            }
            What::Message(_, true) => Ok(()),
            What::Message(number, false) => {
                self.coverage.messages += 1;
                self.coverage.bytes += self.groups[group].scenario.messages[number].bytes;
                self.groups[group].message_came(number).then_some(()).ok_or("it has other bytes".to_owned())
            }
            // Calls of no bytes may have sent nothing by which others could have seen that they disagree.
            What::Probe if matches!(self.scenario.fault, Fault::Mismatch { .. }) => Ok(()),
            What::Probe if self.blames[group].is_some() => {
                Err(format!("the group goes on after {:?}", self.scenario.fault))
            }
            What::Probe => Ok(()),
        }
    }

    fn check_bytes(&mut self, group: usize, rank: usize, number: usize) -> Result<(), String> {
        let this = &self.groups[group];
        match &self.scenario.fault {
            // Of what others gave to a call that was another one.
            Fault::Mismatch { group: odd, call, .. } if (*odd, *call) == (group, number) => return Ok(()),
            Fault::Senseless { group: odd, call } if (*odd, *call) == (group, number) => {
                return Err("it makes no sense and was not refused".to_owned());
            }
            _ => {}
        }
        let output = &this.collectives[number].requests[rank].output;
        self.coverage.bytes += output.as_ref().map_or(0, |output| output.with(|bytes| bytes.len() as u64));
        this.collectives[number].check_rank(rank)
    }

    fn failed(&mut self, asked: &Asked, failure: &CallFailure) -> Result<(), String> {
        *self.coverage.failures.entry(failure.kind).or_default() += 1;
        if let What::Call(number) = asked.what {
            self.groups[asked.group].tallies[number].failed += 1;
            let senseless = Fault::Senseless { group: asked.group, call: number };
            if self.scenario.fault == senseless && failure.kind == CallFailureKind::Invalid {
                return Ok(());
            }
        }
        let timed = matches!(self.scenario.fault, Fault::Absent { .. } | Fault::Mismatch { .. });
        match &self.blames[asked.group] {
            Some(blame) if (self.struck || timed) && blame.permits(failure) => Ok(()),
            // Agents do not know what ranks have carried out themselves and are through.
            Some(blame) if self.groups[asked.group].spec.quick && blame.is_unseen(failure) => Ok(()),
            _ => Err(format!("it failed, though the fault is {:?}: {failure:?}", self.scenario.fault)),
        }
    }

    /// Every rank that lives calls once more: groups that could not go on have failed at all of them.
    fn probe(&mut self) -> Result<(), String> {
        for group in 0..self.groups.len() {
            let gone = match self.scenario.fault {
                Fault::Leave { group: of, rank, .. } | Fault::Absent { group: of, rank, .. }
                    if of == group =>
                {
                    Some(rank)
                }
                _ => None,
            };
            let size = self.groups[group].places.len() as u32;
            let barrier = Collective::new(self.groups[group].spec.id, size, Operation::Barrier, 0, 0, 0);
            let calls = |rank: &u32| self.lives(group, *rank) && gone != Some(*rank);
            let ranks: Vec<u32> = (0..size).filter(calls).collect();
            for rank in ranks {
                let token = self.ask(group, rank, What::Probe);
                let request = barrier.requests[rank as usize].clone();
                let request = CallRequest { timeout: Some(self.scenario.timeout), ..request };
                self.call(group, RankCall { token, request, waits: true }, Duration::ZERO);
            }
        }
        self.moved = self.cluster.now();
        while self.open > 0 {
            self.step()?;
        }
        Ok(())
    }

    /// Survivors, and nodes that have started again, make a new group, in which all is as if nothing had been.
    fn go_on(&mut self) -> Result<(), String> {
        let restarted = matches!(
            self.scenario.fault,
            Fault::Crash { restart: Some(_), .. } | Fault::PowerOff { restart: Some(_), .. }
        );
        let nodes: u16 = self.scenario.cluster.shape.iter().sum();
        let places: Vec<u16> = (0..nodes).filter(|node| restarted || !self.dead.contains(node)).collect();
        for group in &self.groups {
            self.cluster.release_group(group.spec.id).map_err(|wrong| wrong.to_string())?;
        }
        if self.scenario.fault == Fault::None || places.is_empty() {
            return Ok(());
        }
        if restarted {
            self.dead.clear();
        }
        let index = self.groups.len();
        let size = places.len();
        let call = |operation, count, plan: &str| {
            let (counts, plan, after) = (None, plan.to_owned(), vec![Duration::ZERO; size]);
            CallScenario { operation, root: 0, count, counts, plan, after, waits: true }
        };
        let quick = self.groups.iter().any(|group| group.spec.quick) && size > 1;
        let group = GroupScenario {
            places,
            stripes: 1,
            deaf: Vec::new(),
            chunk_bytes: 1424,
            open: 1,
            calls: vec![
                call(Operation::Allreduce, 500, "cool-p-p"),
                call(Operation::Alltoall, 20, "flat:linear"),
                call(Operation::Allreduce, 5, ""),
            ],
            messages: Vec::new(),
            quick: quick.then(|| QuickScenario::plain(size)),
        };
        let spec = self.spec(AFTER + index as u64, &group);
        self.cluster.make_group(&spec).map_err(|wrong| wrong.to_string())?;
        self.blames.push(None);
        self.come(index, spec.id, &group);
        let now = self.cluster.now();
        self.groups.push(RunningGroup::new(index, spec, &group, &Fault::None, now));
        (0..size).for_each(|rank| self.advance(index, rank as u32));
        while self.open > 0 {
            self.step()?;
        }
        self.cluster.release_group(AFTER + index as u64).map_err(|wrong| wrong.to_string())
    }

    /// Until nothing happens any more, and engines hold nothing.
    fn end(&mut self) -> Result<(), String> {
        let until = self.cluster.now() + LINGER;
        self.coverage.simulated = self.cluster.now() - Time::ZERO;
        while self.cluster.step().map_err(|wrong| wrong.to_string())? != Step::Idle {
            if self.cluster.now() > until {
                return Err(format!(
                    "after {LINGER:?} something still happens: {:?}",
                    self.cluster.leftovers()
                ));
            }
        }
        match self.cluster.leftovers() {
            none if none.is_empty() => Ok(()),
            some => Err(format!("not all was let go of: {}", some.join("; "))),
        }
    }

    fn covered(mut self) -> Coverage {
        self.coverage.faults.insert(self.scenario.fault.name(), 1);
        self.coverage.datagrams = self.cluster.datagrams();
        (self.coverage.repaired, self.coverage.watched) = self.cluster.quick_repairs();
        for group in &self.groups {
            for (call, tally) in group.scenario.calls.iter().zip(&group.tallies) {
                if tally.well + tally.failed > 0 {
                    let counts = self.coverage.operations.entry(call.operation).or_default();
                    counts[usize::from(tally.failed > 0)] += 1;
                    self.coverage.counted += u64::from(call.counts.is_some());
                    self.coverage.picked += u64::from(call.plan.is_empty());
                }
            }
        }
        self.coverage
    }
}
