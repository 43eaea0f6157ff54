//! Ranks of one node that carry out calls themselves, from seeds: in some they wait for long and say so, others the agent carries
//! out, for all or when one asks for it; and what goes wrong meanwhile. Nobody is told what did not happen, and all get to an end.

use cool_engine::testing::Collective;
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

/// How long a rank waits in a watched call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who carries out a call.
#[derive(Clone, Debug)]
enum By {
    /// The ranks. Who is not the root of a bcast waits for it, in other calls all wait for all.
    Ranks,
    /// The agent, which these ask for it at once, and others when they are told.
    Agent(BTreeSet<u32>),
}

#[derive(Clone, Debug)]
struct Call {
    operation: Operation,
    root: u32,
    by: By,
}

#[derive(Clone, Debug, PartialEq)]
enum Fault {
    None,
    /// A rank's process ends.
    Leave(u32),
    /// A rank does not come to a call.
    Absent(u32, usize),
    /// A rank calls something else.
    Differs(u32, usize),
    /// A rank revokes the group.
    Revoke(u32),
}

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Between,
    /// In a call that the agent knows nothing of.
    Sharing,
    /// It has said that it waits; and then that it waits no more.
    Watching(u64, bool),
    /// In a call that the agent carries out.
    Calling(u64),
    /// It is gone, has failed, or is through all.
    Over,
}

#[derive(Debug)]
struct Rank {
    stage: Stage,
    /// Calls that it is through: the number of the one that it is in.
    through: usize,
    /// The number behind the last that it carried out itself.
    shared: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Come(u32),
    /// It has waited for long enough to say so.
    Watch(u32, usize),
    /// It has what it waited for.
    Pass(u32, usize),
    Overdue(u32, usize),
    /// The segment has failed, and it wakes.
    Wake(u32, usize),
    Fault,
}

struct Run {
    rng: ChaCha8Rng,
    cluster: SimulatedCluster,
    calls: Vec<Call>,
    collectives: Vec<Collective>,
    odd: Option<Collective>,
    fault: Fault,
    struck: bool,
    ranks: Vec<Rank>,
    /// Who has entered each call that ranks carry out.
    entered: Vec<BTreeSet<u32>>,
    events: Vec<Event>,
    last_token: u64,
    tokens: BTreeMap<u64, u32>,
    /// Somebody has asked for a call that a rank which is gone was not through.
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
            Call {
                operation: operations[rng.random_range(0..3)],
                root: rng.random_range(0..size),
                by: if rng.random_bool(0.6) || by_agent.is_empty() { By::Ranks } else { By::Agent(by_agent) },
            }
        };
        let calls: Vec<Call> = (0..rng.random_range(1..=12)).map(|_| call(&mut rng)).collect();
        let (rank, at) = (rng.random_range(0..size), rng.random_range(0..calls.len()));
        let fault = match rng.random_range(0..8) {
            0..2 => Fault::Leave(rank),
            2 => Fault::Absent(rank, at),
            3 => Fault::Differs(rank, at),
            4 => Fault::Revoke(rank),
            _ => Fault::None,
        };
        let collective = |(number, call): (u64, &Call)| {
            Collective::new(GROUP, size, call.operation, call.root, 10 + number, number)
        };
        let odd = match fault {
            Fault::Differs(..) => Some(Collective::new(GROUP, size, Operation::Allgather, 0, 3, 0)),
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
            self.later(2_000, Event::Come(rank));
        }
        if matches!(self.fault, Fault::Leave(_) | Fault::Revoke(_)) {
            self.later(15_000, Event::Fault);
        }
        loop {
            let step = self.cluster.step().unwrap();
            assert!(self.cluster.now() < Time::ZERO + Duration::from_secs(600), "not over: {:?}", self.ranks);
            match step {
                Step::Idle => break,
                Step::Alarm(number) => self.happens(self.events[number as usize]),
                Step::Event => {}
            }
            self.look();
        }
        self.check_end();
    }

    /// Takes answers, and sees whether the group has failed.
    fn look(&mut self) {
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
        assert!(may, "the group has failed for nothing: {:?}", self.fault);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Come(rank) if self.ranks[rank as usize].stage == Stage::Between => self.come(rank),
            Event::Watch(rank, call) if self.shares(rank, call) => self.watch(rank),
            Event::Pass(rank, call) => self.pass(rank, call),
            Event::Overdue(rank, call) if self.waits(rank, call) => {
                let came = &self.entered[call];
                let ranks = (0..self.ranks.len() as u32).filter(|rank| !came.contains(rank)).collect();
                self.says(rank, call, WatchReport::Overdue { ranks, timeout: PATIENCE });
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
                let said = if self.rng.random_bool(0.5) { gone.shared } else { through } as u64;
                let open = matches!(was, Stage::Watching(..) | Stage::Calling(_));
                let asks = |other: &Rank| {
                    matches!(other.stage, Stage::Watching(..) | Stage::Calling(_)) && other.through >= through
                };
                self.needed = open || self.ranks.iter().any(asks);
                let why = "its process ended".to_owned();
                self.input(Input::Command {
                    group: GROUP,
                    rank,
                    command: RankCommand::Lost { why, completed_calls: Some(said) },
                });
            }
            Fault::Revoke(rank) => {
                self.input(Input::Command { group: GROUP, rank, command: RankCommand::Revoke })
            }
            _ => {}
        }
    }

    fn input(&mut self, input: Input<'_>) {
        self.cluster.input(NODE, input).unwrap();
    }

    /// A rank comes to its next call.
    fn come(&mut self, rank: u32) {
        let at = self.ranks[rank as usize].through;
        if at == self.calls.len() {
            self.ranks[rank as usize].stage = Stage::Over;
            return;
        }
        if self.fault == Fault::Absent(rank, at) {
            return;
        }
        let asks = matches!(&self.calls[at].by, By::Agent(first) if first.contains(&rank));
        if asks || self.failed {
            return self.call(rank);
        }
        self.ranks[rank as usize].stage = Stage::Sharing;
        self.entered[at].insert(rank);
        let patience = [0, 1_000, 10_000][self.rng.random_range(0..3)];
        self.later(patience, Event::Watch(rank, at));
        if matches!(self.calls[at].by, By::Ranks) {
            for other in self.entered[at].clone() {
                if self.has_all(other, at) {
                    self.later(1_000, Event::Pass(other, at));
                }
            }
        }
    }

    /// Whether a rank has what it needs in a call that ranks carry out.
    fn has_all(&self, rank: u32, at: usize) -> bool {
        let Call { operation, root, .. } = self.calls[at];
        let entered = &self.entered[at];
        match operation {
            Operation::Bcast => rank == root || entered.contains(&root),
            _ => entered.len() == self.ranks.len(),
        }
    }

    /// A rank has what it waited for, or sees that another has called something else.
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
                    self.look();
                }
                self.says(rank, at, WatchReport::Differs { rank: other, text: "something else".to_owned() });
            }
            (None, false) => self.through(rank, true),
            (None, true) => {
                if let Stage::Watching(_, over) = &mut self.ranks[rank as usize].stage {
                    *over = true;
                }
                self.says(rank, at, WatchReport::Completed);
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
        self.later(3_000, Event::Come(rank));
    }

    fn says(&mut self, rank: u32, call: usize, report: WatchReport) {
        self.input(Input::Command {
            group: GROUP,
            rank,
            command: RankCommand::Watched { call_number: call as u64, report },
        });
    }

    /// What a rank calls next, and a token for it.
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
        (self.last_token, CallRequest { call_number: Some(at as u64), timeout: Some(PATIENCE * 2), ..request })
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
                let by_agent = matches!(self.calls[at].by, By::Agent(_));
                assert_eq!((stats.by_agent, over), (by_agent, !by_agent), "rank {rank} in call {at}");
                if by_agent { self.call(rank) } else { self.through(rank, true) }
            }
            (Stage::Calling(asked), Ok(stats)) if asked == token => {
                assert!(!stats.by_agent && matches!(self.calls[at].by, By::Agent(_)));
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

    /// All have got to an end, what the agent carried out is remembered and nothing else, and nothing is left.
    fn check_end(&mut self) {
        let absent = |rank: &u32| matches!(self.fault, Fault::Absent(missing, _) if missing == *rank);
        for (rank, state) in (0..).zip(&self.ranks) {
            assert!(state.stage == Stage::Over || absent(&rank), "rank {rank} is not over: {state:?}");
        }
        let by_agent = |at: &u64| matches!(self.calls[*at as usize].by, By::Agent(_));
        let carried_out: Vec<u64> = (0..self.calls.len() as u64).filter(by_agent).collect();
        let engine = self.cluster.engine(NODE);
        let mut recorded: Vec<u64> = engine.trace(100, Some(GROUP)).iter().map(|r| r.call).collect();
        recorded.sort_unstable();
        match self.fault {
            Fault::None => assert_eq!(recorded, carried_out),
            _ => assert!(recorded.iter().all(|call| carried_out.contains(call)), "{recorded:?}"),
        }
        self.cluster.release_group(GROUP).unwrap();
        while self.cluster.step().unwrap() != Step::Idle {}
        assert!(self.cluster.leftovers().is_empty(), "{:?}", self.cluster.leftovers());
    }
}

#[test]
fn many_seeded_calls_that_ranks_carry_out_themselves() {
    for seed in 0..SEEDS {
        let run = Run::new(seed);
        let words = format!("{:?}, {:?}", run.fault, run.calls);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.run()));
        assert!(ran.is_ok(), "seed {seed}: {words}");
    }
}
