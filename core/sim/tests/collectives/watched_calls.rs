//! Ranks of one node execute calls that are drawn from seeds. In some calls they wait for long and
//! report that; others are executed by the agent, for all ranks or when one requests it. Faults
//! occur in the meantime. The test checks that no rank receives a false report, and that all ranks
//! complete.

use cool_engine::testing::ReferenceCollective;
use cool_engine::{
    CallFailure, CallFailureKind, CallRequest, CallStats, Input, MemoryRange, RankCommand, WatchReport,
};
use cool_machine::{Duration, Time};
use cool_sim::collectives::{ClusterSettings, SimulatedCluster, Step};
use cool_types::Operation;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 4_000;
const GROUP: u64 = 1;
const NODE: u16 = 0;

/// Time that a rank waits in a watched call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which processes execute a call.
#[derive(Clone, Debug)]
enum Executor {
    /// The ranks. In a bcast all ranks wait for the root; in other calls all wait for all.
    Ranks,
    /// The agent. These ranks request it at once, and the others when they are notified.
    Agent(BTreeSet<u32>),
}

#[derive(Clone, Debug)]
struct WatchedCall {
    operation: Operation,
    root: u32,
    by: Executor,
}

#[derive(Clone, Debug, PartialEq)]
enum Fault {
    None,
    /// A rank's process ends.
    Leave(u32),
    /// A rank does not make a call.
    Absent(u32, usize),
    /// A rank makes a different call.
    Differs(u32, usize),
    /// A rank revokes the group.
    Revoke(u32),
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Between,
    /// In a call that the agent does not know about.
    Sharing,
    /// The rank has requested, under this token, that the agent watches its call. The flag states
    /// whether it has reported since then that it has completed the call.
    Watching(u64, bool),
    /// In a call that the agent executes.
    Calling(u64),
    /// The rank is lost, has failed, or has completed all calls.
    Over,
}

#[derive(Debug)]
struct Rank {
    stage: Stage,
    /// Number of completed calls, which is the number of the current one.
    through: usize,
    /// One more than the number of the last call that it executed itself.
    shared: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    NextCall(u32),
    /// The rank has waited long enough to report it.
    Watch(u32, usize),
    /// The rank has received everything that it waited for.
    Pass(u32, usize),
    Overdue(u32, usize),
    /// The group has failed, which wakes the rank.
    Wake(u32, usize),
    Fault,
}

struct Run {
    rng: ChaCha8Rng,
    cluster: SimulatedCluster,
    calls: Vec<WatchedCall>,
    collectives: Vec<ReferenceCollective>,
    odd: Option<ReferenceCollective>,
    fault: Fault,
    struck: bool,
    ranks: Vec<Rank>,
    /// The ranks that have entered each call that ranks execute.
    entered: Vec<BTreeSet<u32>>,
    events: Vec<Event>,
    last_token: u64,
    tokens: BTreeMap<u64, u32>,
    /// Whether a rank has requested a call that a lost rank had not completed.
    needed: bool,
    failed: bool,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut cluster = SimulatedCluster::new(ClusterSettings::clean(seed, vec![1], 125_000_000));
        let size = rng.random_range(2..=5);
        let spec = cluster.group(GROUP, &vec![NODE; size as usize], 0);
        cluster.make_group(&spec).unwrap();
        let call = |rng: &mut ChaCha8Rng| {
            let operations = [Operation::Bcast, Operation::Allreduce, Operation::Barrier];
            let by_agent: BTreeSet<u32> = (0..size).filter(|_| rng.random_bool(0.5)).collect();
            WatchedCall {
                operation: operations[rng.random_range(0..3)],
                root: rng.random_range(0..size),
                by: if rng.random_bool(0.6) || by_agent.is_empty() {
                    Executor::Ranks
                } else {
                    Executor::Agent(by_agent)
                },
            }
        };
        let calls: Vec<WatchedCall> = (0..rng.random_range(1..=12)).map(|_| call(&mut rng)).collect();
        let (rank, at) = (rng.random_range(0..size), rng.random_range(0..calls.len()));
        let fault = match rng.random_range(0..8) {
            0..2 => Fault::Leave(rank),
            2 => Fault::Absent(rank, at),
            3 => Fault::Differs(rank, at),
            4 => Fault::Revoke(rank),
            _ => Fault::None,
        };
        let collective = |(number, call): (u64, &WatchedCall)| {
            ReferenceCollective::new(GROUP, size, call.operation, call.root, 10 + number, number)
        };
        let odd = match fault {
            Fault::Differs(..) => Some(ReferenceCollective::new(GROUP, size, Operation::Allgather, 0, 3, 0)),
            _ => None,
        };
        Run {
            collectives: (0..).zip(&calls).map(collective).collect(),
            entered: vec![BTreeSet::new(); calls.len()],
            ranks: (0..size).map(|_| Rank { stage: Stage::Between, through: 0, shared: 0 }).collect(),
            rng,
            cluster,
            calls,
            odd,
            fault,
            struck: false,
            events: Vec::new(),
            last_token: 0,
            tokens: BTreeMap::new(),
            needed: false,
            failed: false,
        }
    }

    fn later(&mut self, longest_us: u64, event: Event) {
        let after = Duration::from_micros(self.rng.random_range(0..=longest_us));
        self.at(after, event);
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.cluster.alarm(self.events.len() as u32, after);
        self.events.push(event);
    }

    fn run(mut self) {
        for rank in 0..self.ranks.len() as u32 {
            self.later(2_000, Event::NextCall(rank));
        }
        if matches!(self.fault, Fault::Leave(_) | Fault::Revoke(_)) {
            self.later(15_000, Event::Fault);
        }
        loop {
            let step = self.cluster.step().unwrap();
            assert!(
                self.cluster.now() < Time::ZERO + Duration::from_secs(600),
                "not completed: {:?}",
                self.ranks
            );
            match step {
                Step::Idle => break,
                Step::Alarm(number) => self.on_event(self.events[number as usize]),
                Step::Event => {}
            }
            self.check_results();
        }
        self.check_end();
    }

    /// Handles results, and detects whether the group has failed.
    fn check_results(&mut self) {
        loop {
            if !self.failed && self.cluster.engine(NODE).has_failed(GROUP) {
                self.failed = true;
                self.check_may_fail();
                for rank in 0..self.ranks.len() as u32 {
                    let at = self.ranks[rank as usize].through;
                    self.later(100, Event::Wake(rank, at));
                }
            }
            let answered = self.cluster.take_answered();
            if answered.is_empty() {
                return;
            }
            for token in answered {
                let result = self.cluster.answers()[&token].result.clone();
                self.answered(token, result);
            }
        }
    }

    fn check_may_fail(&self) {
        let may = match self.fault {
            Fault::None => false,
            Fault::Leave(_) => self.struck && self.needed,
            Fault::Revoke(_) => self.struck,
            Fault::Absent(..) | Fault::Differs(..) => true,
        };
        assert!(may, "the group has failed without a reason: {:?}", self.fault);
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::NextCall(rank) if self.ranks[rank as usize].stage == Stage::Between => {
                self.make_next_call(rank)
            }
            Event::Watch(rank, call) if self.shares(rank, call) => self.watch(rank),
            Event::Pass(rank, call) => self.pass(rank, call),
            Event::Overdue(rank, call) if self.waits(rank, call) => {
                let entered = &self.entered[call];
                let ranks = (0..self.ranks.len() as u32).filter(|rank| !entered.contains(rank)).collect();
                self.report_watched(rank, call, WatchReport::Overdue { ranks, timeout: PATIENCE });
            }
            Event::Wake(rank, call) if self.shares(rank, call) => self.call(rank),
            Event::Fault => self.strike(),
            _ => {}
        }
    }

    fn shares(&self, rank: u32, call: usize) -> bool {
        let rank = &self.ranks[rank as usize];
        rank.stage == Stage::Sharing && rank.through == call
    }

    fn waits(&self, rank: u32, call: usize) -> bool {
        let rank = &self.ranks[rank as usize];
        matches!(rank.stage, Stage::Watching(_, false)) && rank.through == call
    }

    fn strike(&mut self) {
        self.struck = true;
        match self.fault {
            Fault::Leave(rank) => {
                let gone = &mut self.ranks[rank as usize];
                let through = gone.through;
                let was = std::mem::replace(&mut gone.stage, Stage::Over);
                let reported = if self.rng.random_bool(0.5) { gone.shared } else { through } as u64;
                let open = matches!(was, Stage::Watching(..) | Stage::Calling(_));
                let asks = |other: &Rank| {
                    matches!(other.stage, Stage::Watching(..) | Stage::Calling(_)) && other.through >= through
                };
                self.needed = open || self.ranks.iter().any(asks);
                let why = "its process ended".to_owned();
                self.input(Input::Command {
                    group: GROUP,
                    rank,
                    command: RankCommand::Lost { why, completed_calls: Some(reported) },
                });
            }
            Fault::Revoke(rank) => self.input(Input::Command {
                group: GROUP,
                rank,
                command: RankCommand::Revoke { cause: String::new() },
            }),
            _ => {}
        }
    }

    fn input(&mut self, input: Input<'_>) {
        self.cluster.input(NODE, input).unwrap();
    }

    /// Makes the next call of a rank.
    fn make_next_call(&mut self, rank: u32) {
        let at = self.ranks[rank as usize].through;
        if at == self.calls.len() {
            self.ranks[rank as usize].stage = Stage::Over;
            return;
        }
        if self.fault == Fault::Absent(rank, at) {
            return;
        }
        let asks = matches!(&self.calls[at].by, Executor::Agent(first) if first.contains(&rank));
        if asks || self.failed {
            return self.call(rank);
        }
        self.ranks[rank as usize].stage = Stage::Sharing;
        self.entered[at].insert(rank);
        let patience = [0, 1_000, 10_000][self.rng.random_range(0..3)];
        self.later(patience, Event::Watch(rank, at));
        if matches!(self.calls[at].by, Executor::Ranks) {
            for other in self.entered[at].clone() {
                if self.has_all(other, at) {
                    self.later(1_000, Event::Pass(other, at));
                }
            }
        }
    }

    /// Returns whether a rank has everything that it needs in a call that ranks execute.
    fn has_all(&self, rank: u32, at: usize) -> bool {
        let WatchedCall { operation, root, .. } = self.calls[at];
        let entered = &self.entered[at];
        match operation {
            Operation::Bcast => rank == root || entered.contains(&root),
            _ => entered.len() == self.ranks.len(),
        }
    }

    /// Handles that a rank has everything that it waited for, or detects a different call of
    /// another rank.
    fn pass(&mut self, rank: u32, at: usize) {
        if !self.shares(rank, at) && !self.waits(rank, at) {
            return;
        }
        let other = match self.fault {
            Fault::Differs(odd, call) if call == at => {
                let others = self.entered[at].iter().copied().filter(|other| *other != rank);
                others.filter(|other| rank == odd || *other == odd).min()
            }
            _ => None,
        };
        match (other, self.waits(rank, at)) {
            (Some(other), watching) => {
                if !watching {
                    self.watch(rank);
                    self.check_results();
                }
                self.report_watched(
                    rank,
                    at,
                    WatchReport::Differs { rank: other, text: "something else".to_owned() },
                );
            }
            (None, false) => self.through(rank, true),
            (None, true) => {
                if let Stage::Watching(_, over) = &mut self.ranks[rank as usize].stage {
                    *over = true;
                }
                self.report_watched(rank, at, WatchReport::Completed);
            }
        }
    }

    fn through(&mut self, rank: u32, shared: bool) {
        let this = &mut self.ranks[rank as usize];
        this.through += 1;
        if shared {
            this.shared = this.through;
        }
        this.stage = Stage::Between;
        self.later(3_000, Event::NextCall(rank));
    }

    fn report_watched(&mut self, rank: u32, call: usize, report: WatchReport) {
        self.input(Input::Command {
            group: GROUP,
            rank,
            command: RankCommand::Watched { call_number: call as u64, report },
        });
    }

    /// Returns a rank's next call, and a token for it.
    fn request(&mut self, rank: u32) -> (u64, CallRequest<cool_engine::testing::Buffer>) {
        let at = self.ranks[rank as usize].through;
        let odd = self.odd.as_ref().filter(|_| self.fault == Fault::Differs(rank, at));
        let collective = odd.unwrap_or(&self.collectives[at]);
        let request = collective.requests[rank as usize].clone();
        self.last_token += 1;
        self.tokens.insert(self.last_token, rank);
        if let Fault::Leave(gone) = self.fault {
            self.needed |= self.struck && at >= self.ranks[gone as usize].through;
        }
        (
            self.last_token,
            CallRequest { call_number: Some(at as u64), timeout: Some(PATIENCE * 2), ..request },
        )
    }

    fn watch(&mut self, rank: u32) {
        let at = self.ranks[rank as usize].through;
        let (token, request) = self.request(rank);
        self.ranks[rank as usize].stage = Stage::Watching(token, false);
        self.at(PATIENCE, Event::Overdue(rank, at));
        let request = CallRequest { input: None, output: None, watch: true, ..request };
        self.input(Input::Request { token, request: request.map(|_| MemoryRange::EMPTY).into() });
    }

    fn call(&mut self, rank: u32) {
        let (token, request) = self.request(rank);
        self.ranks[rank as usize].stage = Stage::Calling(token);
        self.cluster.call(NODE, token, request, Duration::ZERO);
    }

    fn answered(&mut self, token: u64, result: Result<CallStats, CallFailure>) {
        let rank = self.tokens[&token];
        let (stage, at) = (self.ranks[rank as usize].stage, self.ranks[rank as usize].through);
        match (stage, result) {
            // Its process has ended.
            (Stage::Over, _) => {}
            (_, Err(failure)) => {
                self.check_failure(rank, &failure);
                self.ranks[rank as usize].stage = Stage::Over;
            }
            (Stage::Watching(asked, over), Ok(stats)) if asked == token => {
                let by_agent = matches!(self.calls[at].by, Executor::Agent(_));
                assert_eq!((stats.by_agent, over), (by_agent, !by_agent), "rank {rank} in call {at}");
                if by_agent { self.call(rank) } else { self.through(rank, true) }
            }
            (Stage::Calling(asked), Ok(stats)) if asked == token => {
                assert!(!stats.by_agent && matches!(self.calls[at].by, Executor::Agent(_)));
                if !matches!(self.fault, Fault::Differs(_, call) if call == at) {
                    self.collectives[at].check_rank(rank as usize).unwrap();
                }
                self.through(rank, false);
            }
            (stage, _) => panic!("rank {rank} of call {at} is answered as {stage:?}"),
        }
    }

    fn check_failure(&self, rank: u32, failure: &CallFailure) {
        assert!(self.failed || self.cluster.engine(NODE).has_failed(GROUP), "{failure:?}");
        let (kind, blamed) = match self.fault {
            Fault::None => panic!("rank {rank} has failed for nothing: {failure:?}"),
            Fault::Leave(gone) => (CallFailureKind::Lost, gone),
            Fault::Absent(missing, _) => (CallFailureKind::Timeout, missing),
            Fault::Differs(odd, _) => (CallFailureKind::Mismatch, odd),
            Fault::Revoke(by) => (CallFailureKind::Revoked, by),
        };
        assert!(failure.kind == kind || failure.kind == CallFailureKind::Aborted, "{failure:?}");
        assert!(failure.ranks.contains(&blamed), "{blamed} is not named: {failure:?}");
        if kind != CallFailureKind::Mismatch {
            assert_eq!(failure.ranks, [blamed], "{failure:?} {:?}", self.ranks);
        }
    }

    /// Checks that all ranks have completed, that exactly the calls executed by the agent are
    /// recorded, and that no state remains.
    fn check_end(&mut self) {
        let absent = |rank: &u32| matches!(self.fault, Fault::Absent(missing, _) if missing == *rank);
        for (rank, state) in (0..).zip(&self.ranks) {
            assert!(state.stage == Stage::Over || absent(&rank), "rank {rank} is not over: {state:?}");
        }
        let by_agent = |at: &u64| matches!(self.calls[*at as usize].by, Executor::Agent(_));
        let executed: Vec<u64> = (0..self.calls.len() as u64).filter(by_agent).collect();
        let engine = self.cluster.engine(NODE);
        let mut recorded: Vec<u64> = engine.trace(100, Some(GROUP)).iter().map(|r| r.call).collect();
        recorded.sort_unstable();
        match self.fault {
            Fault::None => assert_eq!(recorded, executed),
            _ => assert!(recorded.iter().all(|call| executed.contains(call)), "{recorded:?}"),
        }
        self.cluster.release_group(GROUP).unwrap();
        while self.cluster.step().unwrap() != Step::Idle {}
        assert!(self.cluster.leftovers().is_empty(), "{:?}", self.cluster.leftovers());
    }
}

#[test]
fn many_seeded_calls_that_ranks_execute_themselves() {
    for seed in 0..SEEDS {
        let run = Run::new(seed);
        let words = format!("{:?}, {:?}", run.fault, run.calls);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.run()));
        assert!(ran.is_ok(), "seed {seed}: {words}");
    }
}
