//! Runs a scenario from beginning to end: ranks make calls, faults occur, and every result is
//! checked.

use super::cluster::{SimulatedCluster, Step};
use super::coverage::Coverage;
use super::judge::{PermittedFailure, permitted_failure};
use super::quick::RankCall;
use super::scenario::{CallScenario, CollectiveScenario, Fault, GroupScenario, QuickScenario};
use super::script::RunningGroup;
use cool_engine::testing::ReferenceCollective;
use cool_engine::{CallFailure, CallFailureKind, CallRequest, CallStats, GroupSpec, Input, RankCommand};
use cool_machine::{Duration, Time};
use cool_types::Operation;
use std::collections::BTreeSet;

/// Time that may pass in addition to timeouts until a call completes: to find out which ranks wait,
/// and for the last retransmissions.
const SLACK: Duration = Duration::from_secs(5);

/// The lowest rate at high loss, in bytes per second.
const SLOWEST: u64 = 20_000;

/// The longest time for which connections and streams remain after all groups are released.
const LINGER: Duration = Duration::from_secs(300);

/// The first number of the groups in which survivors continue.
const AFTER: u64 = 100;

/// Numbers of alarms: the fault, the restart of nodes, and two for each outage (its start and its
/// end).
const FAULT: u32 = 0;
const RESTART: u32 = 1;
const OUTAGES: u32 = 2;

/// The kind of a request to an engine.
#[derive(Clone, Copy, Debug)]
enum RequestKind {
    Call(usize),
    Message(usize, bool),
    /// A barrier in a group that has failed, or should have.
    Probe,
}

#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    group: usize,
    rank: u32,
    what: RequestKind,
    answered: bool,
}

struct Runner<'s> {
    scenario: &'s CollectiveScenario,
    cluster: SimulatedCluster,
    groups: Vec<RunningGroup>,
    permitted_failures: Vec<Option<PermittedFailure>>,
    /// All requests, indexed by token.
    asked: Vec<PendingRequest>,
    open: usize,
    /// When a call was last made or completed, or a fault last occurred.
    moved: Time,
    struck: bool,
    /// Number of alarms that are still due.
    pending: usize,
    dead: BTreeSet<u16>,
    coverage: Coverage,
}

impl CollectiveScenario {
    /// Runs the scenario to its end. Returns the cases that it covered.
    ///
    /// # Errors
    /// Returns a description of the result or state that is wrong.
    pub fn run(&self) -> Result<Coverage, String> {
        let mut runner = Runner::new(self)?;
        runner.play()?;
        runner.probe()?;
        runner.continue_after_fault()?;
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
            permitted_failures: Vec::new(),
            asked: Vec::new(),
            open: 0,
            moved: Time::ZERO,
            struck: false,
            pending: 0,
            dead: BTreeSet::new(),
            coverage: Coverage::default(),
        };
        if let Fault::Step { node, step, before } = &scenario.fault {
            runner.cluster.fail_step(*node, *step, *before);
        }
        for (index, group) in scenario.groups.iter().enumerate() {
            runner.add_group(index, group)?;
        }
        runner.set_alarms();
        Ok(runner)
    }

    fn spec(&mut self, id: u64, group: &GroupScenario) -> GroupSpec {
        let spec = self.cluster.group(id, &group.places, group.stripes);
        group.deaf.iter().for_each(|node| self.cluster.deafen(&spec, *node));
        let (quick, quick_datagram_bytes) = (group.quick.is_some(), group.quick_datagram_bytes());
        GroupSpec { chunk_bytes: group.chunk_bytes, quick, probe_quick: quick, quick_datagram_bytes, ..spec }
    }

    fn add_group(&mut self, index: usize, group: &GroupScenario) -> Result<(), String> {
        let spec = self.spec(index as u64 + 1, group);
        self.cluster.make_group(&spec).map_err(|wrong| wrong.to_string())?;
        self.permitted_failures.push(permitted_failure(&self.scenario.fault, index, &group.places));
        self.cluster.fail_trees(&spec, index, &self.scenario.tree_faults).map_err(|e| e.to_string())?;
        self.start_quick_ranks(index, spec.id, group);
        let now = self.cluster.now();
        self.groups.push(RunningGroup::new(index, spec, group, &self.scenario.fault, now));
        Ok(())
    }

    /// Starts the ranks of a group with quick calls. In half of the scenarios, a rank that makes no
    /// call does not start.
    fn start_quick_ranks(&mut self, index: usize, id: u64, group: &GroupScenario) {
        let Some(quick) = &group.quick else { return };
        let is_away = |rank: u32| {
            let away = Fault::Absent { group: index, rank, call: 0 };
            self.scenario.fault == away && self.scenario.cluster.seed.is_multiple_of(2)
        };
        let present: Vec<u32> = (0..quick.starts.len() as u32).filter(|rank| !is_away(*rank)).collect();
        for rank in present {
            let able = quick.declines != Some(rank);
            self.cluster.start_rank_process((id, rank), able, quick.room, quick.starts[rank as usize]);
        }
        for (rank, from, long) in &quick.still {
            self.cluster.pause_rank((id, *rank), *from, *long);
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

    /// Makes all calls of all ranks, until all have completed and all faults have occurred.
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

    fn ask(&mut self, group: usize, rank: u32, what: RequestKind) -> u64 {
        self.asked.push(PendingRequest { group, rank, what, answered: false });
        self.open += 1;
        self.asked.len() as u64 - 1
    }

    fn lives(&self, group: usize, rank: u32) -> bool {
        !self.dead.contains(&self.groups[group].places[rank as usize])
    }

    /// Makes as many calls of a rank as it may have pending.
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
            let waits = this.scenario.calls[number].waits
                && self.scenario.fault != (Fault::Started { group, rank, call: number });
            (script.made, script.open, script.last) = (number + 1, script.open + 1, at);
            script.waits_in = waits.then_some(number);
            let tally = &mut this.tallies[number];
            tally.last_call = tally.last_call.max(at);
            let timeout = Some(self.scenario.timeout);
            let request = CallRequest { timeout, ..this.collectives[number].requests[rank as usize].clone() };
            self.moved = self.moved.max(at);
            let token = self.ask(group, rank, RequestKind::Call(number));
            let fails_after = self.scenario.fault.fails_after(group, rank, number);
            self.call(group, RankCall { token, request, waits, fails_after }, at - now);
        }
    }

    /// Makes a call of a rank after some time.
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
            let token = self.ask(group, rank, RequestKind::Message(number, sending));
            self.cluster.transfer(node, token, request, at);
        }
    }

    /// Returns the longest time without any new or completed call while some are pending.
    fn patience(&self) -> Duration {
        let moving = Duration::from_secs(self.scenario.bytes() / SLOWEST);
        self.scenario.timeout + self.scenario.cluster.peer_timeout + SLACK + moving
    }

    fn step(&mut self) -> Result<(), String> {
        match self.cluster.step().map_err(|wrong| wrong.to_string())? {
            Step::Alarm(number) => self.strike(number)?,
            Step::Event => {}
            Step::Idle => return Err(format!("no more events, but pending: {}", self.waiting())),
        }
        for token in self.cluster.take_answered() {
            self.answered(token)?;
        }
        if self.open > 0 && self.cluster.now() - self.moved > self.patience() {
            return Err(format!(
                "at {:?}, no progress since {:?}: {}",
                self.cluster.now(),
                self.moved,
                self.waiting()
            ));
        }
        Ok(())
    }

    /// Returns a description of the pending requests.
    fn waiting(&self) -> String {
        let open = self.asked.iter().filter(|asked| !asked.answered && self.lives(asked.group, asked.rank));
        let open: Vec<String> = open.map(|asked| self.name(asked)).collect();
        open.join("; ")
    }

    fn name(&self, PendingRequest { group, rank, what, .. }: &PendingRequest) -> String {
        let this = &self.groups[*group];
        let what = match what {
            RequestKind::Call(number) => format!("call {number}, {:?}", this.scenario.calls[*number]),
            RequestKind::Message(number, _) => format!("{:?}", this.scenario.messages[*number]),
            RequestKind::Probe => "a barrier afterwards".to_owned(),
        };
        format!("rank {rank} of group {} in {what}", this.spec.id)
    }

    /// Starts or ends a fault.
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
                return self.report_input(*group, *rank, |group| Input::Command {
                    group,
                    rank: *rank,
                    command: RankCommand::Lost { why, completed_calls: None },
                });
            }
            (Fault::Revoke { group, rank, .. }, FAULT) => {
                return self.report_input(*group, *rank, |group| Input::Command {
                    group,
                    rank: *rank,
                    command: RankCommand::Revoke { cause: String::new() },
                });
            }
            (_, outage) => {
                let (link, ..) = self.scenario.outages[((outage - OUTAGES) / 2) as usize];
                self.cluster.network().set_up(link, outage % 2 == 1);
            }
        }
        Ok(())
    }

    /// Ends the process of a rank with quick calls. The results of its calls are no longer checked.
    fn end_rank(&mut self, group: usize, rank: u32, why: String) -> Result<(), String> {
        self.struck = true;
        let this = &mut self.groups[group];
        this.scripts[rank as usize].over = true;
        let is_its = |asked: &&mut PendingRequest| {
            (asked.group, asked.rank) == (group, rank) && matches!(asked.what, RequestKind::Call(_))
        };
        for asked in self.asked.iter_mut().filter(is_its).filter(|asked| !asked.answered) {
            asked.answered = true;
            self.open -= 1;
        }
        self.cluster.end_rank_process((this.spec.id, rank), why).map_err(|wrong| wrong.to_string())
    }

    /// Reports an input about a rank to the engine of its node.
    fn report_input<'i>(
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

    /// Ends nodes. The pending requests of their ranks are never completed.
    fn kill(&mut self, nodes: &[u16], how: impl Fn(&mut SimulatedCluster, u16)) {
        self.struck = true;
        self.dead.extend(nodes);
        self.dead.clone().into_iter().for_each(|node| how(&mut self.cluster, node));
        for group in &mut self.groups {
            let scripts = group.places.iter().zip(&mut group.scripts);
            scripts.filter(|(node, _)| nodes.contains(node)).for_each(|(_, script)| script.over = true);
        }
        let (groups, dead) = (&self.groups, &self.dead);
        let is_dead =
            |asked: &PendingRequest| dead.contains(&groups[asked.group].places[asked.rank as usize]);
        // The results of their calls are no longer checked, although their processes may continue.
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
            Ok(stats) => self.check_success(&asked, stats),
            Err(failure) => self.check_failure(&asked, failure),
        };
        judged.map_err(|wrong| format!("at {now:?}, {}: {wrong}", self.name(&asked)))?;
        if let RequestKind::Call(number) = asked.what {
            let script = &mut self.groups[asked.group].scripts[asked.rank as usize];
            script.open -= 1;
            script.waits_in = script.waits_in.filter(|waits| *waits != number);
            self.advance(asked.group, asked.rank);
        }
        Ok(())
    }

    /// Checks a call or message that succeeded.
    fn check_success(&mut self, asked: &PendingRequest, stats: &CallStats) -> Result<(), String> {
        let (group, rank) = (asked.group, asked.rank as usize);
        match asked.what {
            RequestKind::Call(number) => {
                self.check_bytes(group, rank, number)?;
                let this = &mut self.groups[group];
                this.tallies[number].well += 1;
                let plan = stats.plan.split('/').next().unwrap_or_default();
                self.coverage.quick += u64::from(plan.starts_with("quick "));
                *self.coverage.plans.entry(plan.to_owned()).or_default() += 1;
                if self.permitted_failures[group].is_none() {
                    let took = self.cluster.now() - this.tallies[number].last_call;
                    self.coverage.slowest = self.coverage.slowest.max(took);
                }
                Ok(())
            }
            RequestKind::Message(_, true) => Ok(()),
            RequestKind::Message(number, false) => {
                self.coverage.messages += 1;
                self.coverage.bytes += self.groups[group].scenario.messages[number].bytes;
                self.groups[group].message_arrived(number).then_some(()).ok_or("the bytes differ".to_owned())
            }
            // Calls without payload may have sent nothing that would have shown the disagreement.
            RequestKind::Probe if matches!(self.scenario.fault, Fault::Mismatch { .. }) => Ok(()),
            // The step may have been for another group, or may not have occurred. Agents may have
            // executed the call for all ranks.
            RequestKind::Probe
                if matches!(
                    self.scenario.fault,
                    Fault::Step { .. } | Fault::IncompleteCall { .. } | Fault::Started { .. }
                ) =>
            {
                Ok(())
            }
            RequestKind::Probe if self.permitted_failures[group].is_some() => {
                Err(format!("the group continues after {:?}", self.scenario.fault))
            }
            RequestKind::Probe => Ok(()),
        }
    }

    fn check_bytes(&mut self, group: usize, rank: usize, number: usize) -> Result<(), String> {
        let this = &self.groups[group];
        match &self.scenario.fault {
            // Its result depends on data that others gave to a different call.
            Fault::Mismatch { group: odd, call, .. } if (*odd, *call) == (group, number) => return Ok(()),
            Fault::Senseless { group: odd, call } if (*odd, *call) == (group, number) => {
                return Err("an invalid call was not refused".to_owned());
            }
            _ => {}
        }
        let output = &this.collectives[number].requests[rank].output;
        self.coverage.bytes += output.as_ref().map_or(0, |output| output.with(|bytes| bytes.len() as u64));
        this.collectives[number].check_rank(rank)
    }

    fn check_failure(&mut self, asked: &PendingRequest, failure: &CallFailure) -> Result<(), String> {
        *self.coverage.failures.entry(failure.kind).or_default() += 1;
        if let RequestKind::Call(number) = asked.what {
            self.groups[asked.group].tallies[number].failed += 1;
            let senseless = Fault::Senseless { group: asked.group, call: number };
            if self.scenario.fault == senseless && failure.kind == CallFailureKind::Invalid {
                return Ok(());
            }
        }
        let timed = matches!(
            self.scenario.fault,
            Fault::Absent { .. } | Fault::Mismatch { .. } | Fault::Started { .. }
        ) || self.cluster.has_step_failed()
            || self.cluster.has_incomplete_call();
        match &self.permitted_failures[asked.group] {
            Some(permitted_failure) if (self.struck || timed) && permitted_failure.permits(failure) => Ok(()),
            // Agents do not know which calls ranks have already executed themselves.
            Some(permitted_failure)
                if self.groups[asked.group].spec.quick && permitted_failure.is_unseen(failure) =>
            {
                Ok(())
            }
            _ => Err(format!("it failed although the fault is {:?}: {failure:?}", self.scenario.fault)),
        }
    }

    /// Makes every surviving rank call a barrier. Groups that cannot continue must have failed at
    /// all of them.
    fn probe(&mut self) -> Result<(), String> {
        for group in 0..self.groups.len() {
            let absent = match self.scenario.fault {
                Fault::Leave { group: of, rank, .. } | Fault::Absent { group: of, rank, .. }
                    if of == group =>
                {
                    Some(rank)
                }
                _ => None,
            };
            let size = self.groups[group].places.len() as u32;
            let barrier =
                ReferenceCollective::new(self.groups[group].spec.id, size, Operation::Barrier, 0, 0, 0);
            let calls = |rank: &u32| self.lives(group, *rank) && absent != Some(*rank);
            let ranks: Vec<u32> = (0..size).filter(calls).collect();
            for rank in ranks {
                let token = self.ask(group, rank, RequestKind::Probe);
                let request = barrier.requests[rank as usize].clone();
                let request = CallRequest { timeout: Some(self.scenario.timeout), ..request };
                let call = RankCall { token, request, waits: true, fails_after: None };
                self.call(group, call, Duration::ZERO);
            }
        }
        self.moved = self.cluster.now();
        while self.open > 0 {
            self.step()?;
        }
        Ok(())
    }

    /// Creates a new group of the survivors and of restarted nodes. It must behave as if there had
    /// been no fault.
    fn continue_after_fault(&mut self) -> Result<(), String> {
        let restarted = matches!(
            self.scenario.fault,
            Fault::Crash { restart: Some(_), .. } | Fault::PowerOff { restart: Some(_), .. }
        );
        let nodes: u16 = self.scenario.cluster.shape.iter().sum();
        let places: Vec<u16> = (0..nodes).filter(|node| restarted || !self.dead.contains(node)).collect();
        self.cluster.fail_no_step();
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
        self.permitted_failures.push(None);
        self.start_quick_ranks(index, spec.id, &group);
        let now = self.cluster.now();
        self.groups.push(RunningGroup::new(index, spec, &group, &Fault::None, now));
        (0..size).for_each(|rank| self.advance(index, rank as u32));
        while self.open > 0 {
            self.step()?;
        }
        self.cluster.release_group(AFTER + index as u64).map_err(|wrong| wrong.to_string())
    }

    /// Runs until there are no more events. Engines must then hold no state.
    fn end(&mut self) -> Result<(), String> {
        let until = self.cluster.now() + LINGER;
        self.coverage.simulated = self.cluster.now() - Time::ZERO;
        while self.cluster.step().map_err(|wrong| wrong.to_string())? != Step::Idle {
            if self.cluster.now() > until {
                return Err(format!("events continue after {LINGER:?}: {:?}", self.cluster.leftovers()));
            }
        }
        match self.cluster.leftovers() {
            none if none.is_empty() => Ok(()),
            some => Err(format!("state that was not freed: {}", some.join("; "))),
        }
    }

    fn covered(mut self) -> Coverage {
        self.coverage.faults.insert(self.scenario.fault.name(), 1);
        self.coverage.datagrams = self.cluster.datagrams();
        self.coverage.tree_proofs = self.cluster.tree_proofs.concluded;
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
