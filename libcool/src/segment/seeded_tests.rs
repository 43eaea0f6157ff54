//! Ranks in a segment, from seeds: any step can fail, and no rank accepts data of another call.
//!
//! Each rank is a thread, but only one of them runs at a time. A rank passes its turn to another
//! one when it must wait, and often when it need not. The seed determines the order, so it repeats
//! a run. If all ranks wait, one of them times out.

#[path = "../../../core/sim/tests/common/seeds.rs"]
mod seeds;

use super::tests::Drawn;
use super::*;
use seeds::{assert_none, on_every_seed, seeds};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of seeds, unless `COOL_SIM_SEEDS` is set.
const SEEDS: u64 = 1_000;

/// Number of elements whose parts are long enough for direct copies.
const LONG: usize = 10_000;

/// A generator of random numbers, SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// The fault of a scenario. Each one concerns one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SegmentFault {
    None,
    /// A step of the rank fails after this many others. The group fails, as libcool ensures.
    Step {
        after: usize,
    },
    /// As `Step`, but the group does not fail, and the rank continues with its next call.
    SilentStep {
        after: usize,
    },
    /// The rank does not make a call.
    Skip {
        call: usize,
    },
    /// The rank makes a different call.
    Mismatch {
        call: usize,
    },
    /// The group fails when the rank has executed this many steps.
    GroupFailure {
        after: usize,
    },
    /// From a call on, the system refuses the rank to read other ranks' memory. No call fails.
    Unreadable {
        call: usize,
    },
}

/// The calls of the ranks of a segment. Everything follows from a seed.
#[derive(Debug)]
struct SegmentScenario {
    size: usize,
    calls: Vec<Drawn>,
    /// Whether each rank starts each call without waiting in it at once, by rank and call.
    starts: Vec<Vec<bool>>,
    /// The rank at which the fault occurs.
    at: usize,
    fault: SegmentFault,
}

impl SegmentScenario {
    fn of(seed: u64) -> SegmentScenario {
        let mut random = Random(seed ^ 0x5e9);
        let size = 2 + random.below(4);
        let calls: Vec<Drawn> = (0..1 + random.below(12)).map(|_| draw_call(&mut random, size)).collect();
        let mixes = random.chance(30);
        let starts = (0..size).map(|_| calls.iter().map(|_| mixes && random.chance(20)).collect()).collect();
        let (at, call, after) = (random.below(size), random.below(calls.len()), random.below(40));
        let fault = match random.below(12) {
            0 | 1 => SegmentFault::Step { after },
            2 | 3 => SegmentFault::SilentStep { after },
            4 | 5 => SegmentFault::Skip { call },
            6 => SegmentFault::Mismatch { call },
            7 => SegmentFault::GroupFailure { after },
            8 => SegmentFault::Unreadable { call },
            _ => SegmentFault::None,
        };
        SegmentScenario { size, calls, starts, at, fault }
    }

    /// Returns the call that a rank makes under a number.
    fn call(&self, rank: usize, number: usize) -> Drawn {
        let call = self.calls[number].clone();
        let differs = rank == self.at && self.fault == SegmentFault::Mismatch { call: number };
        match call.operation {
            _ if !differs => call,
            Operation::Allreduce => Drawn { operation: Operation::Scan, ..call },
            _ => Drawn { operation: Operation::Allreduce, counts: None, in_place: false, ..call },
        }
    }

    /// Returns whether all calls must succeed.
    fn is_clean(&self) -> bool {
        matches!(self.fault, SegmentFault::None | SegmentFault::Unreadable { .. })
    }
}

fn draw_call(random: &mut Random, size: usize) -> Drawn {
    let operation = Operation::ALL[random.below(Operation::ALL.len())];
    let count = match random.below(20) {
        0 => 0,
        1 => LONG,
        2 => 40_000 / size,
        _ => 1 + random.below(30),
    };
    let takes_counts = operation.takes_counts() && operation != Operation::Alltoall && random.chance(30);
    let counts = takes_counts.then(|| (0..size).map(|_| random.below(40)).collect());
    Drawn { operation, root: random.below(size), count, counts, in_place: random.chance(30) }
}

/// The order in which the ranks run.
#[derive(Debug)]
struct Turns {
    state: Mutex<TurnState>,
    /// Wakes each rank when its turn begins.
    wakers: Vec<Condvar>,
}

#[derive(Debug)]
struct TurnState {
    random: Random,
    /// The rank whose turn it is.
    current: usize,
    running: BTreeSet<usize>,
    /// The ranks that have waited in vain since a rank last made progress.
    blocked: BTreeSet<usize>,
}

/// The result of a wait for other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Other ranks have run.
    Next,
    /// All ranks wait.
    Stuck,
}

impl Turns {
    fn new(seed: u64, size: usize) -> Turns {
        let mut random = Random(seed ^ 0x7a4);
        let current = random.below(size);
        let state = TurnState { random, current, running: (0..size).collect(), blocked: BTreeSet::new() };
        Turns { state: Mutex::new(state), wakers: (0..size).map(|_| Condvar::new()).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// StepWaits for the first turn of a rank.
    fn begin(&self, rank: usize) {
        drop(self.until_turn(self.lock(), rank));
    }

    fn until_turn<'a>(&self, mut state: MutexGuard<'a, TurnState>, rank: usize) -> MutexGuard<'a, TurnState> {
        while state.current != rank {
            state = self.wakers[rank].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Passes the turn to another rank, which is not blocked.
    fn pass(&self, state: &mut TurnState) {
        let able: Vec<usize> = state.running.difference(&state.blocked).copied().collect();
        if !able.is_empty() {
            state.current = able[state.random.below(able.len())];
            self.wakers[state.current].notify_one();
        }
    }

    /// Records that a rank makes progress. Other ranks run before it now and then.
    fn progress(&self, rank: usize) {
        let mut state = self.lock();
        state.blocked.clear();
        if state.random.chance(40) {
            self.pass(&mut state);
            drop(self.until_turn(state, rank));
        }
    }

    /// Lets other ranks run, because this one must wait.
    fn wait(&self, rank: usize) -> Turn {
        let mut state = self.lock();
        state.blocked.insert(rank);
        if state.running.is_subset(&state.blocked) {
            state.blocked.clear();
            return Turn::Stuck;
        }
        self.pass(&mut state);
        drop(self.until_turn(state, rank));
        Turn::Next
    }

    /// Ends the turns of a rank.
    fn end(&self, rank: usize) {
        let mut state = self.lock();
        state.running.remove(&rank);
        state.blocked.clear();
        self.pass(&mut state);
    }
}

/// The agent: the ranks that have requested each call from it.
#[derive(Debug)]
struct SegmentAgent(Mutex<Vec<BTreeSet<usize>>>);

impl SegmentAgent {
    fn request(&self, call: usize, rank: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[call].insert(rank);
    }

    /// Returns how many ranks have requested a call.
    fn requests(&self, call: usize) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[call].len()
    }
}

/// How a rank waits.
struct StepWaits<'a> {
    world: &'a World,
    rank: usize,
    /// The current call and its digest.
    number: usize,
    digest: u64,
    steps: usize,
}

impl StepWaits<'_> {
    /// Executes a step, which may fail.
    fn step(&mut self) -> Result<(), Interrupted<&'static str>> {
        let World { scenario, segment, turns, .. } = self.world;
        self.steps += 1;
        turns.progress(self.rank);
        if scenario.at != self.rank {
            return Ok(());
        }
        match scenario.fault {
            SegmentFault::Step { after } | SegmentFault::SilentStep { after } if after + 1 == self.steps => {
                Err(Interrupted::Failed("a step has failed"))
            }
            SegmentFault::GroupFailure { after } if after + 1 == self.steps => {
                segment.fail();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn differs(&self, on: usize) -> bool {
        let digest = self.world.segment.rank(on).digest(self.number as u64);
        digest.is_some_and(|digest| digest != self.digest)
    }
}

impl PeerWait for StepWaits<'_> {
    type Error = &'static str;

    fn wait(&mut self, on: usize, condition: &dyn Fn() -> bool) -> Result<(), Interrupted<&'static str>> {
        self.step()?;
        let World { segment, turns, agent, .. } = self.world;
        loop {
            if condition() {
                return self.check(on);
            }
            if segment.has_failed() {
                return Err(Interrupted::Fallback);
            }
            if self.differs(on) {
                return Err(Interrupted::Failed("ranks disagree"));
            }
            match turns.wait(self.rank) {
                Turn::Next => {}
                Turn::Stuck if agent.requests(self.number) > 0 => return Err(Interrupted::Fallback),
                Turn::Stuck => return Err(Interrupted::Failed("the call has timed out")),
            }
        }
    }

    fn check(&mut self, on: usize) -> Result<(), Interrupted<&'static str>> {
        self.step()?;
        if self.differs(on) { Err(Interrupted::Failed("ranks disagree")) } else { Ok(()) }
    }
}

/// Ranks that run.
struct World {
    scenario: SegmentScenario,
    segment: Arc<Segment>,
    turns: Turns,
    agent: SegmentAgent,
}

/// The side that has completed a call of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompletedBy {
    Ranks,
    SegmentAgent,
}

impl World {
    /// Makes all calls of a rank. Returns which side has completed each one, or what is wrong.
    fn run_rank(&self, rank: usize) -> Result<Vec<Option<CompletedBy>>, String> {
        let World { scenario, segment, turns, .. } = self;
        turns.begin(rank);
        let mut calls = SegmentCalls::new(Arc::clone(segment), rank, scenario.size);
        let mut waits = StepWaits { world: self, rank, number: 0, digest: 0, steps: 0 };
        let mut completed = Vec::new();
        for number in 0..scenario.calls.len() {
            turns.progress(rank);
            let is_at = scenario.at == rank;
            let unreadable =
                matches!(scenario.fault, SegmentFault::Unreadable { call } if is_at && number >= call);
            direct::tests::IS_REFUSED.set(unreadable);
            if is_at && scenario.fault == (SegmentFault::Skip { call: number }) {
                completed.push(None);
                continue;
            }
            let call = scenario.call(rank, number);
            let mut result = Ok(CompletedBy::Ranks);
            let found = call.call((number, rank, scenario.size), |described, buffers| {
                (waits.number, waits.digest) = (number, described.digest);
                result =
                    self.make_call(&mut calls, scenario.starts[rank][number], described, buffers, &mut waits);
            });
            if result == Ok(CompletedBy::Ranks) && found != call.expected(number, rank, scenario.size) {
                return Err(format!("rank {rank} accepted wrong data in call {number}, {call:?}"));
            }
            if let Err(error) = result
                && scenario.is_clean()
            {
                return Err(format!("rank {rank} has failed in call {number}, {call:?}: {error}"));
            }
            if result.is_err()
                && !matches!(scenario.fault, SegmentFault::SilentStep { .. } | SegmentFault::Skip { .. })
            {
                // As libcool does: a rank that leaves a call incomplete makes the group fail.
                segment.fail();
            }
            completed.push(result.ok());
        }
        Ok(completed)
    }

    /// Makes a call as a session does: in the segment if possible, otherwise by the agent.
    fn make_call(
        &self,
        calls: &mut SegmentCalls,
        starts: bool,
        described: &DescribedCall,
        buffers: &mut CallBuffers<'_>,
        waits: &mut StepWaits<'_>,
    ) -> Result<CompletedBy, &'static str> {
        let (rank, number, segment) = (waits.rank, waits.number as u64, &self.segment);
        let is_usable = segment.is_usable();
        if starts && !(is_usable && segment.decide_start(rank, number) == StartDecision::Ranks) {
            // The rank does not wait for the agent.
            self.agent.request(waits.number, rank);
            return Ok(CompletedBy::SegmentAgent);
        }
        if !is_usable {
            return self.by_agent(waits);
        }
        let executed = match calls.enter(number, described, waits) {
            Ok(BegunCall::ByRanks) => calls.execute(number, described, buffers, waits),
            Ok(BegunCall::ByAgent | BegunCall::Declined) => Err(Interrupted::Fallback),
            Err(stop) => Err(stop),
        };
        match executed {
            Ok(()) => Ok(CompletedBy::Ranks),
            Err(Interrupted::Fallback) => {
                if calls.must_decline() {
                    segment.decline();
                }
                self.by_agent(waits)
            }
            Err(Interrupted::Failed(error)) => Err(error),
            Err(Interrupted::OutOfStep(_)) => Err("ranks are out of step"),
            Err(Interrupted::OutOfBounds(_)) => Err("an offset lies outside the segment"),
        }
    }

    /// Requests a call from the agent, which executes it once all ranks have done so.
    fn by_agent(&self, waits: &mut StepWaits<'_>) -> Result<CompletedBy, &'static str> {
        let (rank, number, size) = (waits.rank, waits.number, self.scenario.size);
        self.agent.request(number, rank);
        self.turns.progress(rank);
        loop {
            if self.segment.has_failed() {
                return Err("the group has failed");
            }
            if self.agent.requests(number) == size {
                return Ok(CompletedBy::SegmentAgent);
            }
            if self.turns.wait(rank) == Turn::Stuck {
                return Err("the agent's call has timed out");
            }
        }
    }
}

/// Ends the turns of a rank, even if it panics.
struct EndOfTurns<'a>(&'a Turns, usize);

impl Drop for EndOfTurns<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

/// Runs a scenario. Returns how many calls ranks have completed themselves.
fn run(seed: u64) -> Result<usize, String> {
    let scenario = SegmentScenario::of(seed);
    let (size, calls) = (scenario.size, scenario.calls.len());
    let segment = Arc::new(Segment::create(size).map_err(|error| error.to_string())?);
    let agent = SegmentAgent(Mutex::new(vec![BTreeSet::new(); calls]));
    let world = World { scenario, segment, turns: Turns::new(seed, size), agent };
    let results: Vec<Result<Vec<Option<CompletedBy>>, String>> = std::thread::scope(|scope| {
        let run = |rank| {
            let world = &world;
            scope.spawn(move || {
                let _end = EndOfTurns(&world.turns, rank);
                world.run_rank(rank)
            })
        };
        let threads: Vec<_> = (0..size).map(run).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(result) => result,
            Err(_) => Err("a rank panicked".to_owned()),
        };
        threads.into_iter().map(join).collect()
    });
    let fault = world.scenario.fault;
    let describe = |wrong| format!("{wrong} ({size} ranks, {fault:?} at rank {})", world.scenario.at);
    let results: Vec<Vec<Option<CompletedBy>>> =
        results.into_iter().collect::<Result<_, _>>().map_err(describe)?;
    if world.scenario.is_clean() {
        let differs = (0..calls).find(|call| results.iter().any(|rank| rank[*call] != results[0][*call]));
        if let Some(call) = differs {
            return Err(describe(format!("ranks and agents have both executed call {call}")));
        }
    }
    Ok(results.iter().flatten().filter(|by| **by == Some(CompletedBy::Ranks)).count())
}

#[test]
fn many_seeded_segment_calls() {
    let completed = AtomicUsize::new(0);
    let wrong = on_every_seed(seeds(SEEDS), |seed| {
        completed.fetch_add(run(seed)?, Ordering::Relaxed);
        Ok(())
    });
    let (completed, runs) = (completed.into_inner(), seeds(SEEDS).count());
    println!("{runs} scenarios, {completed} calls of ranks by the segment");
    assert_none(&wrong);
    assert!(completed > 3 * runs || runs < SEEDS as usize, "the seeds cover too few calls");
}
