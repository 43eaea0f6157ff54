//! Simulates ranks on a network that loses, duplicates and reorders datagrams, with agents that
//! retransmit from the ranks' buffers. Agents execute some calls in place of the ranks, and ranks
//! leave calls because of errors.

mod pieces;
#[path = "../../../sim/tests/common/seeds.rs"]
mod seeds;

use super::*;
use crate::call_key::tests::call_key;
use crate::call_limits::LONG_MESSAGES_BYTES_MAX;
use crate::message_parts::{ArrivedParts, in_parts, missing_parts};
use cool_collective::{RankPlace, compile, interpret};
use cool_machine::Duration;
use cool_types::{Call, ElementType, Operation, ReduceOp, combine};
use seeds::{assert_none, on_every_seed};
use std::collections::BTreeSet;

/// Number of seeds, unless `COOL_SIM_SEEDS` is set.
const SEEDS: u64 = 400;

/// Number of events without a completed call after which the remaining ranks wait in vain for one
/// that has left a call.
const STUCK_EVENTS: u32 = 2_000;

const GROUP: (u64, u32) = (9, 2);
const OPERATIONS: [Operation; 11] = [
    Operation::Bcast,
    Operation::Reduce,
    Operation::Allreduce,
    Operation::Gather,
    Operation::Allgather,
    Operation::Scatter,
    Operation::Barrier,
    Operation::ReduceScatter,
    Operation::Alltoall,
    Operation::Scan,
    Operation::Exscan,
];

/// A generator of random numbers, SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn key() -> CallKey {
    call_key(3)
}

fn layout(nodes: u32, per_rack: u32) -> Layout {
    let places: Vec<RankPlace> = (0..nodes).map(|node| RankPlace { rack: node / per_rack, node }).collect();
    Layout::new(&places).unwrap()
}

/// A call of all ranks with its expected results.
struct Expected {
    number: u64,
    schedules: Vec<Arc<QuickSchedule>>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    combining: Option<(ElementType, ReduceOp)>,
}

impl Expected {
    /// Draws a random call. Returns `None` if it is not quick.
    fn draw(random: &mut Random, number: u64, layout: &Layout, limits: CallLimits) -> Option<Expected> {
        let operation = OPERATIONS[random.below(OPERATIONS.len() as u64) as usize];
        let size = layout.size();
        let root = Rank(random.below(size as u64) as u32);
        let is_long = limits == CallLimits::LONG && random.below(6) == 0;
        let most =
            if is_long { 1 << (10 + random.below(8)) } else { [1024, 20, 20, 20][random.below(4) as usize] };
        let bytes = 4 * (1 + random.below(most));
        let call = Call::new(operation, root, bytes, 4);
        let combining = operation.combines().then_some((ElementType::F32, ReduceOp::Sum));
        let ranks = || (0..size as u32).map(Rank);
        let schedules: Vec<Arc<QuickSchedule>> = ranks()
            .map(|rank| QuickSchedule::for_call(&call, layout, rank, limits).map(Arc::new))
            .collect::<Option<_>>()?;
        let whole = compile(&call, layout, &schedules[0].plan(), |_| true).unwrap();
        // Sums of integers do not depend on the order, which differs between the whole and pieces.
        let divisor = if schedules[0].piece(1).is_some() { 1.0 } else { 7.0 };
        let input = |rank: Rank| {
            let is_message = operation == Operation::Bcast && rank == root;
            let bytes = if is_message { call.output_bytes(rank, size) } else { call.input_bytes(rank, size) };
            (0..bytes / 4).flat_map(|_| (random.below(1000) as f32 / divisor).to_ne_bytes()).collect()
        };
        let inputs: Vec<Vec<u8>> = ranks().map(input).collect();
        let add = |to: &mut [u8], from: &[u8]| combine(ElementType::F32, ReduceOp::Sum, to, from);
        let mut outputs = interpret(&whole, &inputs, add, 1).unwrap();
        if operation == Operation::Bcast {
            outputs[root.0 as usize].clear();
        }
        Some(Expected { number, schedules, inputs, outputs, combining })
    }

    fn begin(&self, rank: usize) -> BeginCall {
        BeginCall {
            number: self.number,
            digest: self.number * 31,
            schedule: Arc::clone(&self.schedules[rank]),
            combining: self.combining,
        }
    }
}

struct World {
    random: Random,
    ranks: Vec<QuickCalls>,
    /// The retransmission buffer of each rank, oldest message first.
    kept: Vec<VecDeque<QuickMessage>>,
    /// The call that each rank began last, and its output.
    begun: Vec<Option<usize>>,
    outputs: Vec<Vec<u8>>,
    /// Messages of each rank that were retransmitted.
    retransmitted: Vec<u64>,
    /// The number of calls that each rank has completed, and whether it is in the next one.
    through: Vec<(usize, bool)>,
    errors: Errors,
    /// Number of events since a rank last completed a call.
    quiet_events: u32,
    /// Datagrams in flight.
    network: Vec<(SendTo, u32, Vec<u8>)>,
    loss_percent: u64,
    /// Length of the datagrams into which messages are divided; 0 if they are not.
    datagram_bytes: usize,
    now: Time,
}

/// The calls that ranks do not complete themselves.
#[derive(Default)]
struct Errors {
    /// Calls, by index, that the agents execute, each with the ranks that request it from them at
    /// once. The other ranks begin the call and then abandon it.
    by_agents: BTreeMap<usize, BTreeSet<usize>>,
    /// A rank that leaves a call because of an error, although it has sent messages, and begins the
    /// next call.
    leaves: Option<(usize, usize)>,
}

impl Errors {
    fn draw(random: &mut Random, calls: &[Expected], size: usize) -> Errors {
        let mut errors = Errors::default();
        for (index, call) in calls.iter().enumerate() {
            // No rank can complete such a call before all have begun it.
            let never_completes = call.schedules.iter().all(|schedule| schedule.synchronizes());
            if never_completes && random.below(20) == 0 {
                let requests = (0..size).filter(|_| random.below(2) == 0).collect::<BTreeSet<usize>>();
                let first = random.below(size as u64) as usize;
                errors.by_agents.insert(index, requests.into_iter().chain([first]).collect());
            }
        }
        if random.below(5) == 0 && !calls.is_empty() {
            let (rank, call) =
                (random.below(size as u64) as usize, random.below(calls.len() as u64) as usize);
            errors.leaves = Some((rank, call));
        }
        errors
    }
}

impl World {
    fn new(seed: u64, layout: &Layout, limits: CallLimits) -> World {
        let size = layout.size() as u32;
        let mut random = Random(seed);
        let loss_percent = [0, 1, 5, 20][random.below(4) as usize];
        World {
            ranks: (0..size)
                .map(|rank| QuickCalls::new(key(), GROUP, Rank(rank), layout.clone(), limits).unwrap())
                .collect(),
            kept: vec![VecDeque::new(); size as usize],
            begun: vec![None; size as usize],
            outputs: vec![Vec::new(); size as usize],
            retransmitted: vec![0; size as usize],
            through: vec![(0, false); size as usize],
            errors: Errors::default(),
            quiet_events: 0,
            network: Vec::new(),
            datagram_bytes: if limits == CallLimits::LONG {
                [1252, 1472, 8972][random.below(3) as usize]
            } else {
                0
            },
            random,
            loss_percent,
            now: Time::ZERO,
        }
    }

    /// Runs all calls to completion, or until no rank can complete another one because a rank has
    /// left a call. Ranks begin their next calls at random times.
    fn run(&mut self, calls: &[Expected]) {
        while self.through.iter().any(|(done, _)| *done < calls.len()) {
            self.quiet_events += 1;
            if self.errors.leaves.is_some() && self.quiet_events > STUCK_EVENTS {
                return;
            }
            let rank = self.random.below(self.ranks.len() as u64) as usize;
            let (done, busy) = self.through[rank];
            if self.leaves(rank, calls) {
                self.through[rank] = (done + 1, false);
                self.quiet_events = 0;
            } else if !busy && done < calls.len() && self.random.below(3) > 0 {
                self.through[rank].1 = true;
                self.ranks[rank].handle(self.now, Input::Retransmitted(self.retransmitted[rank]));
                // Memory of the caller may contain anything.
                self.begun[rank] = Some(done);
                self.outputs[rank] = vec![0xa5; calls[done].outputs[rank].len()];
                let data = CallData { input: &calls[done].inputs[rank], output: &mut self.outputs[rank] };
                self.ranks[rank].handle(self.now, Input::Begin(calls[done].begin(rank), data));
                self.poll(rank, calls);
            } else if !self.network.is_empty() && self.random.below(8) > 0 {
                let at = self.random.below(self.network.len() as u64) as usize;
                let (to, from, bytes) = self.network.swap_remove(at);
                self.deliver(to, from, &bytes, calls);
            } else {
                self.now += Duration::from_millis(self.random.below(5));
                (0..self.ranks.len()).for_each(|rank| self.poll(rank, calls));
            }
        }
    }

    /// Returns whether a rank now leaves its call without completing it: because the agents execute
    /// the call, or because of an error.
    fn leaves(&mut self, rank: usize, calls: &[Expected]) -> bool {
        let (done, busy) = self.through[rank];
        if busy && self.errors.leaves == Some((rank, done)) {
            return self.random.below(4) == 0;
        }
        match self.errors.by_agents.get(&done) {
            Some(requests) if !busy => requests.contains(&rank),
            Some(_) if self.random.below(4) == 0 => {
                self.ranks[rank].handle(self.now, Input::Abandon(calls[done].number));
                true
            }
            _ => false,
        }
    }

    fn poll(&mut self, rank: usize, calls: &[Expected]) {
        while let Poll::Output(output) = self.ranks[rank].poll(self.now) {
            match output {
                Output::Send(message) => {
                    (0..message.copies).for_each(|_| self.send(message.to, rank, message.bytes.clone()));
                    self.keep(rank, message);
                }
                Output::Nak { to, bytes } => self.send(SendTo::AgentOf(to), rank, bytes),
                Output::Mismatch { .. } => panic!("all call alike"),
                Output::Done => {
                    let (done, busy) = self.through[rank];
                    if !busy {
                        // The result of a call that the rank has left, unless it has begun another.
                        let has_left = |(left, call)| left == rank && call < done;
                        assert!(self.errors.leaves.is_some_and(has_left), "rank {rank} is in no call");
                        continue;
                    }
                    assert_eq!(self.outputs[rank], calls[done].outputs[rank], "rank {rank}, call {done}");
                    self.through[rank] = (done + 1, false);
                    self.quiet_events = 0;
                }
            }
        }
    }

    /// Stores a message as the segment of the rank does.
    fn keep(&mut self, rank: usize, message: QuickMessage) {
        let kept = &mut self.kept[rank];
        kept.push_back(message);
        if kept.len() > RETRANSMIT_WINDOW as usize {
            kept.pop_front();
        }
        let mut long_bytes = 0;
        for message in kept.iter_mut().rev().filter(|message| message.payload_len() > 4096) {
            long_bytes += message.payload_len() as u64;
            if long_bytes > LONG_MESSAGES_BYTES_MAX {
                // Overwritten by later ones.
                message.name = (u64::MAX, 0);
            }
        }
    }

    fn send(&mut self, to: SendTo, from: usize, bytes: Vec<u8>) {
        self.send_datagrams(to, from, &in_parts(&bytes, self.datagram_bytes));
    }

    fn send_datagrams(&mut self, to: SendTo, from: usize, datagrams: &[u8]) {
        let each = if self.datagram_bytes > 0 { self.datagram_bytes } else { datagrams.len() };
        datagrams.chunks(each.max(1)).for_each(|datagram| self.send_datagram(to, from, datagram));
    }

    fn send_datagram(&mut self, to: SendTo, from: usize, bytes: &[u8]) {
        let all: Vec<SendTo> = match to {
            SendTo::All => (0..self.ranks.len() as u32).map(|rank| SendTo::Rank(Rank(rank))).collect(),
            one => vec![one],
        };
        for to in all.into_iter().filter(|to| *to != SendTo::Rank(Rank(from as u32))) {
            for _ in 0..1 + u64::from(self.random.below(20) == 0) {
                if self.random.below(100) >= self.loss_percent {
                    self.network.push((to, from as u32, bytes.to_vec()));
                }
            }
        }
    }

    fn deliver(&mut self, to: SendTo, from: u32, bytes: &[u8], calls: &[Expected]) {
        match to {
            SendTo::Rank(rank) => {
                let rank = rank.0 as usize;
                let begun = self.begun[rank].map(|call| &*calls[call].inputs[rank]);
                let data = CallData { input: begun.unwrap_or_default(), output: &mut self.outputs[rank] };
                self.ranks[rank].handle(self.now, Input::Datagram(bytes, data));
                self.poll(rank, calls);
            }
            SendTo::AgentOf(rank) => {
                let Datagram { header: nak, payload } = Datagram::verify(&key(), GROUP, bytes).unwrap();
                assert_eq!((nak.kind, nak.from, nak.requested), (DatagramKind::Nak, from, rank.0));
                let name = (nak.call, nak.transfer);
                let kept = self.kept[rank.0 as usize].iter().find(|message| message.name == name).cloned();
                if let Some(message) = kept {
                    self.retransmitted[rank.0 as usize] += 1;
                    let arrived = ArrivedParts::from_payload(payload);
                    let datagrams = missing_parts(&message.bytes, self.datagram_bytes, arrived);
                    self.send_datagrams(SendTo::Rank(Rank(from)), rank.0 as usize, &datagrams);
                }
            }
            SendTo::All => unreachable!("split as it was sent"),
        }
    }
}

fn run(seed: u64) {
    let mut random = Random(seed ^ 0x5eed);
    let nodes = 2 + random.below(11) as u32;
    let layout = layout(nodes, 1 + random.below(5) as u32);
    let limits = [CallLimits::SHORT, CallLimits::LONG][usize::from(seed.is_multiple_of(3))];
    let numbers = 0..(1 + random.below(60));
    // The missing numbers are those of calls that agents execute.
    let calls: Vec<Expected> =
        numbers.filter_map(|number| Expected::draw(&mut random, number * 2, &layout, limits)).collect();
    let mut world = World::new(seed, &layout, limits);
    world.errors = Errors::draw(&mut random, &calls, layout.size());
    world.run(&calls);
}

#[test]
fn many_seeded_quick_messages() {
    assert_none(&on_every_seed(seeds::seeds(SEEDS), |seed| {
        run(seed);
        Ok(())
    }));
}

/// Returns the number of messages that a rank sends in consecutive calls until it waits for others.
fn sent_ahead(rank: u32, call: &Call, input: &[u8]) -> usize {
    let layout = layout(3, 2);
    let mut ahead = QuickCalls::new(key(), GROUP, Rank(rank), layout.clone(), CallLimits::SHORT).unwrap();
    let schedule = Arc::new(QuickSchedule::for_call(call, &layout, Rank(rank), CallLimits::SHORT).unwrap());
    let mut sent = 0;
    for number in 0..1000 {
        let begin = BeginCall { number, digest: 1, schedule: Arc::clone(&schedule), combining: None };
        ahead.handle(Time::ZERO, Input::Begin(begin, CallData { input, output: &mut [] }));
        let mut done = false;
        while let Poll::Output(output) = ahead.poll(Time::ZERO) {
            sent += usize::from(matches!(output, Output::Send(_)));
            done |= output == Output::Done;
        }
        if !done {
            break;
        }
    }
    sent
}

#[test]
fn a_root_that_runs_ahead_keeps_all_unacknowledged_messages() {
    let sent = sent_ahead(0, &Call::new(Operation::Bcast, Rank(0), 4, 4), b"abcd");
    assert_eq!(sent, RETRANSMIT_WINDOW as usize / 2, "then it waits for the others");
}

/// The root of these gathers has two such leaves.
#[test]
fn ranks_that_run_ahead_do_not_fill_a_port_queue() {
    let bytes = 2048;
    let sent = sent_ahead(2, &Call::new(Operation::Gather, Rank(0), bytes, 1), &[7; 2048]);
    let queue = 64 << 10;
    // One of them is the message of the barrier in which the leaf waits.
    assert!((3..=queue / (2 * bytes as usize) + 1).contains(&sent), "{sent}");
}

#[test]
fn a_mismatched_call_is_reported_even_after_it_completed() {
    let layout = layout(2, 2);
    let schedule = |operation, rank| {
        let call = Call::new(operation, Rank(0), 4, 4);
        Arc::new(QuickSchedule::for_call(&call, &layout, Rank(rank), CallLimits::SHORT).unwrap())
    };
    let calls = |rank| QuickCalls::new(key(), GROUP, Rank(rank), layout.clone(), CallLimits::SHORT).unwrap();
    let (mut root, mut leaf) = (calls(0), calls(1));
    let outputs = |calls: &mut QuickCalls| {
        let mut all = Vec::new();
        while let Poll::Output(output) = calls.poll(Time::ZERO) {
            all.push(output);
        }
        all
    };
    let bcast = schedule(Operation::Bcast, 0);
    let begin = |digest, schedule| BeginCall { number: 5, digest, schedule, combining: None };
    let data = || CallData { input: b"abcd", output: &mut [] };
    root.handle(Time::ZERO, Input::Begin(begin(50, bcast), data()));
    // The call of rank 1 does not wait for any other rank.
    let combining = Some((ElementType::F32, ReduceOp::Sum));
    let reduce = schedule(Operation::Reduce, 1);
    leaf.handle(Time::ZERO, Input::Begin(BeginCall { combining, ..begin(51, reduce) }, data()));
    assert_eq!(outputs(&mut leaf).last(), Some(&Output::Done));
    let sent = outputs(&mut root).into_iter().find_map(|output| match output {
        Output::Send(message) => Some(message.bytes),
        _ => None,
    });
    leaf.handle(Time::ZERO, Input::Datagram(&sent.unwrap(), data()));
    let [Output::Nak { to: Rank(0), bytes }] = &outputs(&mut leaf)[..] else { panic!("it sends a NAK") };
    let nak = Datagram::verify(&key(), GROUP, bytes).unwrap().header;
    assert_eq!((nak.kind, nak.call, nak.digest), (DatagramKind::Nak, 5, 51));
    // The agent of rank 0 answers with the call that its rank made.
    let header = DatagramHeader { kind: DatagramKind::Mismatch, from: 0, digest: 50, ..nak };
    let answer = Datagram { header, payload: b"bcast of 1 f32" }.encode(&key());
    leaf.handle(Time::ZERO, Input::Datagram(&answer, data()));
    let differs = Output::Mismatch { rank: 0, number: 5, text: "bcast of 1 f32".into() };
    assert_eq!(outputs(&mut leaf), [differs]);
}

#[test]
fn naks_are_repeated_promptly_and_then_backed_off() {
    let layout = layout(2, 2);
    let schedule = QuickSchedule::for_call(
        &Call::new(Operation::Bcast, Rank(0), 4, 4),
        &layout,
        Rank(1),
        CallLimits::SHORT,
    );
    let mut calls = QuickCalls::new(key(), GROUP, Rank(1), layout, CallLimits::SHORT).unwrap();
    let begin = BeginCall { number: 0, digest: 1, schedule: Arc::new(schedule.unwrap()), combining: None };
    calls.handle(Time::ZERO, Input::Begin(begin, CallData { input: &[], output: &mut [0; 4] }));
    let (mut times, mut now) = (BTreeSet::new(), Time::ZERO);
    while times.len() < 7 {
        match calls.poll(now) {
            Poll::Output(Output::Nak { to: Rank(0), .. }) => drop(times.insert(now.as_nanos() / 1_000_000)),
            Poll::Output(other) => panic!("{other:?}"),
            Poll::Idle(next) => now = next.expect("it sends another NAK"),
        }
    }
    assert_eq!(times.into_iter().collect::<Vec<u64>>(), [20, 40, 60, 100, 180, 340, 660]);
    assert_eq!(calls.awaited().collect::<Vec<Rank>>(), [Rank(0)]);
}

#[test]
fn arrivals_list_senders_times_and_the_message_count() {
    let layout = layout(3, 3);
    let call = Call::new(Operation::Reduce, Rank(0), 4, 4);
    let schedules = [0, 1, 2].map(|rank| {
        Arc::new(QuickSchedule::for_call(&call, &layout, Rank(rank), CallLimits::SHORT).unwrap())
    });
    let begin = |number, rank: usize| {
        let schedule = Arc::clone(&schedules[rank]);
        let combining = Some((ElementType::F32, ReduceOp::Sum));
        BeginCall { number, digest: 1, schedule, combining }
    };
    let [mut root, mut near, mut far] = [0, 1, 2]
        .map(|rank| QuickCalls::new(key(), GROUP, Rank(rank), layout.clone(), CallLimits::SHORT).unwrap());
    let sent = |calls: &mut QuickCalls, rank: usize| {
        let data = CallData { input: b"abcd", output: &mut [] };
        calls.handle(Time::ZERO, Input::Begin(begin(0, rank), data));
        let Poll::Output(Output::Send(message)) = calls.poll(Time::ZERO) else { panic!("it sends") };
        assert_eq!((message.payload_len(), message.to), (4, SendTo::Rank(Rank(0))));
        message.bytes
    };
    let [from_near, from_far] = [sent(&mut near, 1), sent(&mut far, 2)];
    let at = Time::from_nanos;
    // One message arrives before the root has called, one after, and then a duplicate of the
    // latter.
    let mut output = [0; 4];
    root.handle(at(5), Input::Datagram(&from_far, CallData::default()));
    root.handle(at(7), Input::Begin(begin(0, 0), CallData { input: b"abcd", output: &mut output }));
    root.handle(at(9), Input::Datagram(&from_near, CallData { input: b"abcd", output: &mut output }));
    root.handle(at(11), Input::Datagram(&from_near, CallData::default()));
    let arrivals = root.arrivals();
    assert_eq!(arrivals.latest().collect::<Vec<_>>(), [(Rank(2), at(7)), (Rank(1), at(9))]);
    assert_eq!(arrivals.messages(), 2);
    root.handle(at(20), Input::Begin(begin(1, 0), CallData { input: b"abcd", output: &mut output }));
    assert_eq!(root.arrivals(), &CallArrivals::default());
}

#[test]
fn an_early_message_of_the_wrong_length_is_awaited_again() {
    let layout = layout(2, 2);
    let call = Call::new(Operation::Bcast, Rank(0), 4, 4);
    let schedules = [0, 1].map(|rank| {
        Arc::new(QuickSchedule::for_call(&call, &layout, Rank(rank), CallLimits::SHORT).unwrap())
    });
    let [mut root, mut other] = [0, 1]
        .map(|rank| QuickCalls::new(key(), GROUP, Rank(rank), layout.clone(), CallLimits::SHORT).unwrap());
    let begin = |rank: usize| {
        let schedule = Arc::clone(&schedules[rank]);
        BeginCall { number: 0, digest: 1, schedule, combining: None }
    };
    root.handle(Time::ZERO, Input::Begin(begin(0), CallData { input: b"abcd", output: &mut [] }));
    let Poll::Output(Output::Send(message)) = root.poll(Time::ZERO) else { panic!("it sends") };
    let header = Datagram::verify(&key(), GROUP, &message.bytes).unwrap().header;
    let longer = Datagram { header, payload: b"abcdefgh" }.encode(&key());
    let mut output = [0; 4];
    other.handle(Time::ZERO, Input::Datagram(&longer, CallData::default()));
    other.handle(Time::ZERO, Input::Begin(begin(1), CallData { input: &[], output: &mut output }));
    assert_eq!(other.awaited().collect::<Vec<_>>(), [Rank(0)]);
    let nak = other.poll(Time::ZERO);
    assert!(matches!(nak, Poll::Output(Output::Nak { to: Rank(0), .. })), "{nak:?}");
    other.handle(Time::ZERO, Input::Datagram(&message.bytes, CallData { input: &[], output: &mut output }));
    assert_eq!(other.poll(Time::ZERO), Poll::Output(Output::Done));
    assert_eq!(output, *b"abcd");
}

/// A part of a message that was tagged for another transfer is written to the destination of the
/// transfer that it claims, and must not complete it.
#[test]
fn a_relabelled_message_completes_no_other_transfer() {
    let layout = layout(2, 2);
    let call = Call::new(Operation::Bcast, Rank(0), 114_688, 4);
    let schedule =
        |rank| Arc::new(QuickSchedule::for_call(&call, &layout, Rank(rank), CallLimits::LONG).unwrap());
    let [mut root, mut other] = [0, 1]
        .map(|rank| QuickCalls::new(key(), GROUP, Rank(rank), layout.clone(), CallLimits::LONG).unwrap());
    let begin = |rank| BeginCall { number: 0, digest: 1, schedule: schedule(rank), combining: None };
    let message: Vec<u8> = (0..114_688).map(|at| (at % 251) as u8).collect();
    root.handle(Time::ZERO, Input::Begin(begin(0), CallData { input: &message, output: &mut [] }));
    let mut sent = Vec::new();
    while let Poll::Output(Output::Send(message)) = root.poll(Time::ZERO) {
        sent.push(message.bytes);
    }
    let mut output = vec![0; message.len()];
    other.handle(Time::ZERO, Input::Begin(begin(1), CallData { input: &[], output: &mut output }));
    let datagrams: Vec<Vec<u8>> = sent.iter().map(|sent| in_parts(sent, 1472).into_owned()).collect();
    assert_eq!(datagrams.len(), 2);
    // The parts of the first message claim to be of another transfer of the same length.
    let mut relabelled = datagrams[0].clone();
    relabelled.chunks_mut(1472).for_each(|part| part[24..28].copy_from_slice(&datagrams[1][24..28]));
    for (datagrams, left) in [(&relabelled, 2), (&datagrams[0], 1), (&datagrams[1], 0)] {
        other.handle(Time::ZERO, Input::Datagram(datagrams, CallData { input: &[], output: &mut output }));
        assert_eq!(other.awaited().count(), left);
    }
    assert_eq!(other.poll(Time::ZERO), Poll::Output(Output::Done));
    assert!(output == message);
}

/// Makes a rank begin a call, and discards its messages.
fn begin(rank: &mut QuickCalls, call: &Expected, index: usize) {
    let mut output = vec![0; call.outputs[index].len()];
    let data = CallData { input: &call.inputs[index], output: &mut output };
    rank.handle(Time::ZERO, Input::Begin(call.begin(index), data));
    while let Poll::Output(_) = rank.poll(Time::ZERO) {}
}

#[test]
fn an_abandoned_call_leaves_ranks_in_agreement_about_barriers() {
    let layout = layout(3, 2);
    let mut random = Random(7);
    let mut drawn = (0..).filter_map(|number| {
        let call = Expected::draw(&mut random, number, &layout, CallLimits::SHORT)?;
        call.schedules[0].synchronizes().then_some(call)
    });
    let [first, second] = [drawn.next().unwrap(), drawn.next().unwrap()];
    let rank = |index| QuickCalls::new(key(), GROUP, Rank(index), layout.clone(), CallLimits::SHORT).unwrap();
    let [mut waits, mut starts] = [rank(0), rank(1)];
    // Rank 1 has started this call, so the agents execute it for both.
    begin(&mut waits, &first, 0);
    assert!(waits.current.is_some() && waits.unacknowledged != starts.unacknowledged);
    waits.handle(Time::ZERO, Input::Abandon(first.number + 1));
    assert!(waits.current.is_some(), "the rank is not in that call");
    waits.handle(Time::ZERO, Input::Abandon(first.number));
    assert_eq!(waits.poll(Time::ZERO), Poll::Idle(None));
    begin(&mut waits, &second, 0);
    begin(&mut starts, &second, 1);
    assert_eq!(waits.unacknowledged, starts.unacknowledged);
}
