//! Tests of ranks of a node that execute calls themselves and wait in some of them.

use super::*;
use crate::inputs_outputs::Work;
use crate::{CallRequest, ElementType, RankCommand, WatchReport};
use CallFailureKind::{Aborted, Invalid, Lost, Mismatch, Revoked, Timeout};
use cool_transport::unicast::Notice;
use cool_types::limits;

const RANKS: u32 = 4;

/// An engine with group 1, which contains all ranks, and the replies of the engine.
struct Node {
    engine: Engine,
    now: Time,
    answers: BTreeMap<u64, Result<crate::CallStats, CallFailure>>,
    /// Whether the group has failed.
    failed: bool,
    forgotten: bool,
}

impl Node {
    fn new() -> Node {
        let me = AgentId { node: "h0".to_owned(), incarnation: 0 };
        let engine = Engine::new(me, 0, Duration::from_secs(2));
        let mut node =
            Node { engine, now: Time::ZERO, answers: BTreeMap::new(), failed: false, forgotten: false };
        node.handle(Input::MakeGroup(&spec(RANKS)));
        node
    }

    /// Hands an input to the engine and executes its outputs.
    fn handle(&mut self, input: Input<'_>) {
        self.engine.handle(self.now, input);
        loop {
            match self.engine.poll(self.now) {
                Poll::Output(Output::Work { id, work: Work::Prepare(preparation) }) => {
                    self.engine.handle(self.now, Input::Prepared(id, preparation.run()));
                }
                Poll::Output(Output::Work { id, .. }) => self.engine.handle(self.now, Input::WorkDone(id)),
                Poll::Output(Output::Done { token, result }) => {
                    assert!(self.answers.insert(token, result).is_none(), "{token} is answered twice");
                }
                Poll::Output(Output::GroupFailed { group: 1 }) => {
                    assert!(!std::mem::replace(&mut self.failed, true), "it fails once");
                }
                Poll::Output(Output::GroupForgotten { group: 1 }) => self.forgotten = true,
                Poll::Output(_) => {}
                Poll::Idle(_) => break,
            }
        }
        assert_eq!(self.engine.has_failed(1), self.failed || self.forgotten);
    }

    /// Makes a watched call for a rank.
    fn watch(&mut self, token: u64, rank: u32, number: u64, operation: Operation) {
        let request = CallRequest { call_number: Some(number), watch: true, ..request(rank, operation) };
        self.handle(Input::Request { token, request: request.into() });
    }

    /// Requests a barrier for a rank.
    fn barrier(&mut self, token: u64, rank: u32, number: u64) {
        let request = CallRequest { call_number: Some(number), ..request(rank, Operation::Barrier) };
        self.handle(Input::Request { token, request: request.into() });
    }

    /// Reports on a rank's watched call.
    fn report(&mut self, rank: u32, number: u64, report: WatchReport) {
        self.handle(Input::Command {
            group: 1,
            rank,
            command: RankCommand::Watched { call_number: number, report },
        });
    }

    fn lose(&mut self, rank: u32, completed_calls: u64) {
        let why = "its process ended".to_owned();
        self.handle(Input::Command {
            group: 1,
            rank,
            command: RankCommand::Lost { why, completed_calls: Some(completed_calls) },
        });
    }

    /// Returns the result of a call.
    fn ended(&self, token: u64) -> &Result<crate::CallStats, CallFailure> {
        self.answers.get(&token).unwrap_or_else(|| panic!("{token} is not answered"))
    }

    fn failure(&self, token: u64) -> (CallFailureKind, &[u32]) {
        let failed = self.ended(token).as_ref().unwrap_err();
        (failed.kind, &failed.ranks)
    }

    /// Returns whether a rank must make its call again.
    fn is_by_agent(&self, token: u64) -> bool {
        self.ended(token).as_ref().unwrap().by_agent
    }

    fn words(&self, token: u64) -> &str {
        &self.ended(token).as_ref().unwrap_err().message
    }
}

fn request(rank: u32, operation: Operation) -> CallRequest {
    CallRequest {
        group: 1,
        rank,
        operation,
        root: 0,
        element: ElementType::U8,
        reduce: Some(crate::ReduceOp::Sum),
        count: 5,
        counts: None,
        plan: String::new(),
        input: None,
        output: None,
        timeout: None,
        call_number: None,
        watch: false,
        background: false,
    }
}

fn overdue(ranks: &[u32]) -> WatchReport {
    WatchReport::Overdue { ranks: ranks.to_vec(), timeout: Duration::from_secs(7) }
}

#[test]
fn a_rank_that_stops_waiting_gets_a_reply() {
    let mut node = Node::new();
    // There are calls in between that the engine does not see, and some ranks have joined fewer of
    // them.
    node.watch(1, 0, 3, Operation::Allreduce);
    node.watch(2, 1, 3, Operation::Allreduce);
    assert!(node.answers.is_empty());
    node.report(0, 3, WatchReport::Completed);
    assert!(!node.is_by_agent(1));
    node.report(1, 3, WatchReport::Completed);
    node.watch(3, 0, 900, Operation::Bcast);
    node.report(0, 900, WatchReport::Completed);
    // The call was answered already.
    node.report(0, 900, overdue(&[1]));
    assert_eq!(node.answers.len(), 3);
    assert!(node.engine.trace(10, None).is_empty());
    node.handle(Input::ReleaseGroup { group: 1 });
    assert!(node.forgotten && !node.failed);
}

#[test]
fn a_watching_rank_calls_again_if_others_ask_the_engine() {
    let mut node = Node::new();
    node.watch(10, 0, 5, Operation::Barrier);
    node.barrier(1, 1, 5);
    assert!(node.is_by_agent(10));
    node.watch(12, 2, 5, Operation::Barrier);
    assert!(node.is_by_agent(12));
    for rank in [0, 2, 3] {
        assert!(!node.answers.contains_key(&1));
        node.barrier(20 + u64::from(rank), rank, 5);
    }
    assert!([1, 20, 22, 23].iter().all(|token| node.ended(*token).is_ok()), "{:?}", node.answers);
    let calls: Vec<u64> = node.engine.trace(10, None).iter().map(|record| record.call).collect();
    assert_eq!(calls, [5]);
    // A call without a number is the next one.
    for rank in 0..RANKS {
        node.handle(Input::Request {
            token: 30 + u64::from(rank),
            request: request(rank, Operation::Barrier).into(),
        });
    }
    assert_eq!(node.engine.trace(1, None)[0].call, 6);
    node.handle(Input::ReleaseGroup { group: 1 });
    assert!(node.forgotten && !node.failed);
}

#[test]
fn a_call_waits_for_ranks_that_must_call_again() {
    let mut node = Node::new();
    node.watch(1, 1, 0, Operation::Barrier);
    // A call of no bytes: no rank waits for another.
    for (token, rank) in [(10, 0), (12, 2), (13, 3), (11, 1)] {
        let nothing = CallRequest { call_number: Some(0), count: 0, ..request(rank, Operation::Bcast) };
        assert!(node.engine.trace(1, None).is_empty(), "not all have come");
        node.handle(Input::Request { token, request: nothing.into() });
        assert!(node.ended(token).is_ok(), "{:?}", node.ended(token));
    }
    assert_eq!(node.engine.trace(10, None).len(), 1);
}

#[test]
fn ranks_waiting_in_different_calls_get_the_mismatch() {
    let mut node = Node::new();
    node.watch(1, 0, 2, Operation::Barrier);
    node.watch(2, 3, 2, Operation::Allreduce);
    for token in [1, 2] {
        assert_eq!(node.failure(token), (Mismatch, &[0, 3][..]));
        assert!(
            node.words(token).contains("rank 3 called allreduce of 5 u8 by sum"),
            "{}",
            node.words(token)
        );
    }
    assert!(node.failed);
    // A rank that wakes up after the failure of the group requests the call from the engine.
    node.barrier(3, 1, 2);
    node.barrier(4, 1, 3);
    assert_eq!((node.failure(3).0, node.failure(4).0), (Mismatch, Aborted));
}

#[test]
fn a_rank_that_sees_another_call_fails_the_group() {
    let mut node = Node::new();
    node.watch(1, 0, 2, Operation::Allreduce);
    node.watch(2, 1, 1, Operation::Barrier);
    node.report(0, 2, WatchReport::Differs { rank: 2, text: "bcast of 7 f32 from rank 1".to_owned() });
    for token in [1, 2] {
        assert_eq!(node.failure(token), (Mismatch, &[0, 2][..]));
        assert!(node.words(token).contains("but rank 2 called bcast of 7 f32 from rank 1"));
    }
    assert!(node.failed);
}

#[test]
fn executed_calls_are_compared_with_watched_ones() {
    let mut node = Node::new();
    node.watch(1, 0, 2, Operation::Barrier);
    let bcast = |rank| CallRequest { call_number: Some(2), count: 0, ..request(rank, Operation::Bcast) };
    node.handle(Input::Request { token: 2, request: bcast(1).into() });
    assert!(node.is_by_agent(1));
    node.barrier(3, 0, 2);
    assert_eq!(node.failure(3), (Mismatch, &[1, 0][..]));

    // The same holds for a call that was refused, after which the group continues if all ranks call
    // alike.
    for alike in [true, false] {
        let mut node = Node::new();
        let senseless = |rank| CallRequest { root: 99, ..bcast(rank) };
        node.handle(Input::Request { token: 1, request: senseless(1).into() });
        node.watch(2, 0, 2, Operation::Barrier);
        assert!(node.failure(1).0 == Invalid && node.is_by_agent(2));
        let request = if alike { senseless(0) } else { bcast(0) };
        node.handle(Input::Request { token: 3, request: request.into() });
        assert_eq!((node.failure(3).0, node.failed), if alike { (Invalid, false) } else { (Mismatch, true) });
    }
}

#[test]
fn an_invalid_watched_call_does_not_fail_the_group() {
    let mut node = Node::new();
    let senseless =
        CallRequest { call_number: Some(0), watch: true, root: 99, ..request(1, Operation::Bcast) };
    node.handle(Input::Request { token: 1, request: senseless.into() });
    assert_eq!(node.failure(1).0, Invalid);
    node.watch(2, 1, 1, Operation::Bcast);
    node.report(1, 1, WatchReport::Completed);
    assert!(node.ended(2).is_ok() && !node.failed);
}

#[test]
fn a_timeout_names_ranks_that_wait_nowhere() {
    let mut node = Node::new();
    node.watch(1, 0, 4, Operation::Allreduce);
    node.watch(2, 1, 3, Operation::Allreduce);
    node.report(0, 4, overdue(&[1, 2, 3]));
    for token in [1, 2] {
        assert_eq!(node.failure(token), (Timeout, &[2, 3][..]), "{}", node.words(token));
        let words = node.words(token);
        assert!(
            words.starts_with("allreduce of 5 u8 by sum (call 4 of group 1) made no progress for 7s"),
            "{words}"
        );
        assert!(words.contains("at rank 0 on h0: ranks 2, 3 on h0 did not make this call"), "{words}");
    }
    assert!(node.failed);
}

#[test]
fn if_all_joined_and_one_rank_stops_it_is_named() {
    let mut node = Node::new();
    for (token, rank) in [(1, 0), (2, 1), (3, 3)] {
        node.watch(token, rank, 4, Operation::Allreduce);
    }
    // Rank 1 has joined since rank 0 last checked.
    node.report(0, 4, overdue(&[1]));
    assert_eq!(node.failure(1), (Timeout, &[2][..]), "{}", node.words(1));
    assert!(node.words(1).contains("all ranks joined; data is missing from rank 2"), "{}", node.words(1));
}

#[test]
fn a_stopped_rank_is_named_because_it_is_silent() {
    // Rank 3 waits in the same call as the others, or in the one before.
    for number in [4, 3] {
        let mut node = Node::new();
        for rank in 0..RANKS {
            node.watch(rank.into(), rank, if rank == 3 { number } else { 4 }, Operation::Allreduce);
        }
        for _ in 0..10 {
            node.now += Duration::from_millis(200);
            (0..3).for_each(|rank| node.report(rank, 4, WatchReport::StillWaits));
        }
        node.report(0, 4, overdue(if number == 4 { &[] } else { &[3] }));
        assert_eq!(node.failure(1), (Timeout, &[3][..]), "{}", node.words(1));
    }
}

#[test]
fn a_lost_rank_fails_the_calls_it_has_not_completed() {
    let mut node = Node::new();
    node.watch(1, 0, 4, Operation::Barrier);
    node.lose(3, 5);
    assert!(node.answers.is_empty() && !node.failed);
    node.watch(2, 1, 4, Operation::Barrier);
    node.report(0, 4, WatchReport::Completed);
    node.watch(3, 0, 5, Operation::Barrier);
    assert_eq!((node.failure(2), node.failure(3)), ((Lost, &[3][..]), (Lost, &[3][..])));

    // Rank 3 has completed the call that the engine has watched for it, and rank 0 waits in the
    // next one.
    let mut node = Node::new();
    node.watch(1, 3, 4, Operation::Barrier);
    node.report(3, 4, WatchReport::Completed);
    node.watch(2, 0, 5, Operation::Barrier);
    node.lose(3, 5);
    assert_eq!(node.failure(2), (Lost, &[3][..]));

    // Rank 3 should have made the call again, but it was lost first.
    let mut node = Node::new();
    node.watch(1, 3, 4, Operation::Barrier);
    node.barrier(2, 0, 4);
    assert!(node.is_by_agent(1));
    node.lose(3, 4);
    assert_eq!(node.failure(2), (Lost, &[3][..]));
}

#[test]
fn a_rank_that_is_lost_while_it_waits_fails_the_group() {
    let mut node = Node::new();
    node.watch(1, 0, 2, Operation::Barrier);
    node.watch(2, 3, 7, Operation::Barrier);
    node.lose(3, 7);
    assert_eq!(node.failure(1), (Lost, &[3][..]));
    assert!(node.failed);
}

#[test]
fn a_lost_rank_has_completed_the_calls_of_the_engine() {
    let mut node = Node::new();
    for rank in 0..RANKS {
        node.barrier(u64::from(rank), rank, 6);
    }
    // The number of completed calls that rank 3 reports is lower than that of the engine.
    node.lose(3, 0);
    node.watch(10, 0, 6, Operation::Barrier);
    assert_eq!(node.failure(10).0, Invalid);
    node.watch(11, 0, 7, Operation::Barrier);
    assert_eq!(node.failure(11), (Lost, &[3][..]));
}

#[test]
fn revoking_or_releasing_a_group_answers_waiting_ranks() {
    let mut node = Node::new();
    node.watch(1, 0, 2, Operation::Barrier);
    node.handle(Input::Command { group: 1, rank: 2, command: RankCommand::Revoke { cause: String::new() } });
    assert_eq!((node.failure(1), node.failed), ((Revoked, &[2][..]), true));
    node.watch(2, 1, 2, Operation::Barrier);
    assert_eq!(node.failure(2).0, Revoked);

    let mut node = Node::new();
    node.watch(1, 0, 2, Operation::Barrier);
    node.handle(Input::ReleaseGroup { group: 1 });
    assert_eq!((node.failure(1).0, node.failed, node.forgotten), (Aborted, true, true));
}

#[test]
fn used_and_watched_call_numbers_are_refused() {
    let mut node = Node::new();
    for rank in 0..RANKS {
        node.barrier(u64::from(rank), rank, 6);
    }
    node.barrier(10, 0, 6);
    node.barrier(11, 0, u64::MAX);
    node.watch(12, 0, 5, Operation::Barrier);
    for token in [10, 11, 12] {
        assert_eq!(node.failure(token), (Invalid, &[0][..]));
        let text = "its next call must have number 7 or higher";
        assert!(node.words(token).contains(text), "{}", node.words(token));
    }
    node.watch(20, 1, 8, Operation::Barrier);
    node.watch(21, 1, 8, Operation::Barrier);
    assert!(node.words(21).contains("it waits in call 8 already"), "{}", node.words(21));
    node.report(1, 8, WatchReport::Completed);
    // The rank waits in the same call once more, and then all ranks request that call.
    node.watch(22, 1, 8, Operation::Barrier);
    for rank in 0..RANKS {
        node.barrier(30 + u64::from(rank), rank, 8);
    }
    assert!(node.is_by_agent(22) && (30..34).all(|token| node.ended(token).is_ok()));
    node.handle(Input::ReleaseGroup { group: 1 });
    assert!(node.forgotten && !node.failed);
}

/// Another agent reports that it executes call 0, which rank 0 has executed itself, as its later
/// calls show. Its call 2 waits for its schedule when the report arrives.
#[test]
fn a_report_on_an_earlier_call_reaches_ranks_with_queued_calls() {
    let mut group = spec(2);
    group.members[1].node = "h1".to_owned();
    let mut engine =
        Engine::new(AgentId { node: "h0".to_owned(), incarnation: 0 }, 0, Duration::from_secs(2));
    let now = Time::ZERO;
    engine.handle(now, Input::MakeGroup(&group));
    let request_empty = |engine: &mut Engine, number, operation| {
        let request = CallRequest { call_number: Some(number), count: 0, ..request(0, operation) };
        engine.handle(now, Input::Request { token: number, request: request.into() });
        turn(engine, now).0
    };
    let preparation = |outputs: Vec<Output>| {
        outputs.into_iter().find_map(|output| match output {
            Output::Work { id, work: Work::Prepare(preparation) } => Some((id, preparation.run())),
            _ => None,
        })
    };
    let (id, prepared) = preparation(request_empty(&mut engine, 1, Operation::Bcast)).unwrap();
    engine.handle(now, Input::Prepared(id, prepared));
    let (id, prepared) = preparation(request_empty(&mut engine, 2, Operation::Scatter)).unwrap();

    let text = "allreduce of 5 u8 by sum".to_owned();
    let notice = Notice::RanksArrived { group: 1, epoch: 1, call: 0, digest: 7, ranks: vec![1], text };
    let peer = engine.groups[&1].members.nodes[1].id;
    engine.with_group(now, 1, |group, resources| group.on_notice(now, resources, peer, notice));
    engine.handle(now, Input::Prepared(id, prepared));
    let failures = turn(&mut engine, now).0.into_iter().filter_map(|output| match output {
        Output::Done { token, result } => {
            Some((token, result.err().map(|failed| (failed.kind, failed.ranks))))
        }
        _ => None,
    });
    assert_eq!(failures.last(), Some((2, Some((Mismatch, vec![1, 0])))));
}

#[test]
fn a_rank_that_waits_in_too_many_calls_is_refused() {
    let mut node = Node::new();
    let most = (limits::OPEN_CALLS + limits::WAITING_CALLS) as u64;
    (0..=most).for_each(|number| node.watch(number, 0, number, Operation::Barrier));
    assert_eq!((node.answers.len(), node.failure(most).0), (1, Invalid));
    (0..most).for_each(|number| node.report(0, number, WatchReport::Completed));
    assert_eq!(node.answers.len() as u64, most + 1);
}
