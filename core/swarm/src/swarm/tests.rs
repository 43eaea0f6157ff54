//! Tests of one machine, to which the signals of the other members are delivered.

use super::*;
use crate::division::Division;
use crate::holdings::{REPORTED_MAX, SourceIndex};
use crate::order::Order;

const SOURCE: Member = Member { rack: 0, slot: 0 };
const SINK: Member = Member { rack: 0, slot: 1 };
const FAR: Member = Member { rack: 1, slot: 0 };

fn swarm(me: Member) -> Swarm {
    let spec = SwarmSpec {
        seed: 1,
        epoch: 1,
        members: vec![SOURCE, SINK, FAR],
        me,
        chance: 1,
        division: Division { blocks: 4, generation: 2 },
        code: Code::Linear,
        order: Order::LowestRank { window: 2 },
        source: (me == SOURCE).then_some(SourceIndex { index: 0, of: 1 }),
        waits: Waits {
            answer: Duration::from_millis(2),
            block: Duration::from_millis(10),
            transfer: Duration::from_millis(100),
            starved: Duration::from_secs(1),
        },
    };
    Swarm::new(Time::ZERO, spec)
}

fn outputs(swarm: &mut Swarm, now: Time) -> Vec<Output> {
    core::iter::from_fn(|| match swarm.poll(now) {
        Poll::Output(output) => Some(output),
        Poll::Idle(_) => None,
    })
    .collect()
}

fn deliver(swarm: &mut Swarm, from: Member, signal: Signal) -> Vec<Output> {
    swarm.handle(Time::ZERO, Input::Signal { from, signal: &signal });
    outputs(swarm, Time::ZERO)
}

/// Returns the transfer number of the offer to a member.
fn offered(outputs: &[Output], member: Member) -> Option<u32> {
    outputs.iter().find_map(|output| match output {
        Output::Signal { to, signal: Signal::Offer { transfer, .. } } if *to == member => Some(*transfer),
        _ => None,
    })
}

#[test]
fn coded_blocks_of_another_content_are_refused() {
    let mut sink = swarm(SINK);
    deliver(&mut sink, SOURCE, Signal::Offer { transfer: 7, ring: 0, block_time: BlockTime::default() });
    for (generation, row) in [
        (2, CodedBlock::Original(0)),
        (0, CodedBlock::Original(2)),
        (0, CodedBlock::Coded([1].into())),
        (1, CodedBlock::Coded([0, 0].into())),
    ] {
        let head = BlockAnnouncement { transfer: 7, generation, row, checked: true, round: 1 };
        let stop = Output::Signal { to: SOURCE, signal: Signal::Stop { transfer: 7 } };
        assert_eq!(deliver(&mut sink, SOURCE, Signal::Head(head)), [stop]);
    }
    let strangers = Member { rack: 9, slot: 9 };
    assert_eq!(
        deliver(
            &mut sink,
            strangers,
            Signal::Offer { transfer: 1, ring: 0, block_time: BlockTime::default() }
        ),
        []
    );
}

#[test]
fn the_next_block_is_offered_when_one_has_arrived() {
    let mut source = swarm(SOURCE);
    let mut transfer = offered(&outputs(&mut source, Time::ZERO), SINK).unwrap();
    for _ in 0..2 {
        let grant = Signal::Grant {
            transfer,
            ring: 0,
            block_time: BlockTime::default(),
            have: HoldingsReport::default(),
        };
        let replies = deliver(&mut source, SINK, grant);
        assert!(
            replies.iter().any(|output| matches!(output, Output::Transmit { to: SINK, .. })),
            "{replies:?}"
        );
        source.handle(Time::ZERO, Input::Sent { to: SINK, transfer, arrived: true });
        // The receiver of the last block is offered more while that block is under way.
        let next =
            offered(&replies, SINK).or_else(|| offered(&outputs(&mut source, Time::ZERO), SINK)).unwrap();
        assert!(next > transfer);
        transfer = next;
    }
}

#[test]
fn a_starved_member_reports_it_once() {
    let mut sink = swarm(SINK);
    sink.handle(Time::ZERO, Input::Placed { block: 1 });
    let later = Time::ZERO + Duration::from_secs(2);
    let starved =
        |outputs: &[Output]| outputs.iter().filter(|output| matches!(output, Output::Starved { .. })).count();
    let replies = outputs(&mut sink, later);
    assert!(replies.contains(&Output::Starved { missing: vec![(0, 1), (1, 2)] }), "{replies:?}");
    assert_eq!(starved(&outputs(&mut sink, later + Duration::from_secs(9))), 0);
}

#[test]
fn blocks_placed_by_other_means_are_enough() {
    let mut sink = swarm(SINK);
    (0..4).for_each(|block| sink.handle(Time::ZERO, Input::Placed { block }));
    assert!(outputs(&mut sink, Time::ZERO).contains(&Output::Done));
    assert!(sink.holdings().is_whole());
}

/// Returns the ranks of both generations in the grant that replies to an offer.
fn granted_ranks(sink: &mut Swarm, from: Member, transfer: u32) -> Vec<u16> {
    match &deliver(sink, from, Signal::Offer { transfer, ring: 0, block_time: BlockTime::default() })[..] {
        [Output::Signal { signal: Signal::Grant { have, .. }, .. }] => vec![have.rank(0), have.rank(1)],
        other => panic!("{other:?}"),
    }
}

fn refuses(sink: &mut Swarm, from: Member, transfer: u32) -> bool {
    let replies = deliver(sink, from, Signal::Offer { transfer, ring: 0, block_time: BlockTime::default() });
    matches!(replies[..], [Output::Signal { signal: Signal::Refuse { .. }, .. }])
}

#[test]
fn a_block_that_entered_the_rack_is_not_granted_again() {
    let mut sink = swarm(SINK);
    let entered = || Signal::Entered { generation: 1, row: CodedBlock::Coded([3, 4].into()) };
    deliver(&mut sink, FAR, entered());
    assert_eq!(
        granted_ranks(&mut sink, FAR, 1),
        [0, 0],
        "a member of another rack does not know the holdings of this one"
    );
    deliver(&mut sink, SOURCE, entered());
    assert_eq!(granted_ranks(&mut sink, FAR, 1), [0, 1]);
    assert_eq!(granted_ranks(&mut swarm(SINK), SOURCE, 1), [0, 0]);
    sink.handle(Time::ZERO, Input::Gone(SOURCE));
    assert_eq!(granted_ranks(&mut sink, FAR, 1), [0, 0], "the member that held it was lost");
}

#[test]
fn the_rack_is_notified_of_blocks_that_enter_it() {
    let mut sink = swarm(SINK);
    granted_ranks(&mut sink, FAR, 1);
    let row = CodedBlock::Coded([3, 4].into());
    let head = BlockAnnouncement { transfer: 1, generation: 0, row: row.clone(), checked: true, round: 1 };
    let signal = Signal::Entered { generation: 0, row };
    assert_eq!(deliver(&mut sink, FAR, Signal::Head(head)), [Output::Signal { to: SOURCE, signal }]);
}

#[test]
fn the_two_lanes_do_not_wait_for_each_other() {
    let mut source = swarm(SOURCE);
    let first = outputs(&mut source, Time::ZERO);
    assert!(offered(&first, FAR).is_some() && offered(&first, SINK).is_some(), "{first:?}");
    let mut sink = swarm(SINK);
    for (from, far) in [(FAR, true), (SOURCE, false)] {
        let most = crate::blocks_at_a_time(far) as u32;
        (0..most).for_each(|transfer| drop(granted_ranks(&mut sink, from, transfer)));
        assert!(refuses(&mut sink, from, most));
    }
}

#[test]
fn a_lost_block_is_withdrawn_and_not_awaited() {
    let mut source = swarm(SOURCE);
    let transfer = offered(&outputs(&mut source, Time::ZERO), SINK).unwrap();
    deliver(
        &mut source,
        SINK,
        Signal::Grant {
            transfer,
            ring: 0,
            block_time: BlockTime::default(),
            have: HoldingsReport::default(),
        },
    );
    source.handle(Time::ZERO, Input::Sent { to: SINK, transfer, arrived: false });
    let withdraw = Signal::Withdraw { transfer };
    let replies = outputs(&mut source, Time::ZERO);
    assert!(replies.contains(&Output::Signal { to: SINK, signal: withdraw.clone() }), "{replies:?}");

    let mut sink = swarm(SINK);
    granted_ranks(&mut sink, SOURCE, transfer);
    let head =
        BlockAnnouncement { transfer, generation: 0, row: CodedBlock::Original(0), checked: true, round: 1 };
    deliver(&mut sink, SOURCE, Signal::Head(head));
    let others = transfer + crate::blocks_at_a_time(false) as u32;
    (transfer + 1..others).for_each(|other| drop(granted_ranks(&mut sink, SOURCE, other)));
    assert!(refuses(&mut sink, SOURCE, others));
    let discarded = deliver(&mut sink, SOURCE, withdraw);
    assert!(discarded.contains(&Output::Discard { from: SOURCE, transfer }), "{discarded:?}");
    assert_eq!(granted_ranks(&mut sink, SOURCE, others), [0, 0]);
}

#[test]
fn of_two_blocks_under_way_only_the_lost_one_is_given_up() {
    let mut sink = swarm(SINK);
    granted_ranks(&mut sink, SOURCE, 1);
    deliver(
        &mut sink,
        SOURCE,
        Signal::Head(BlockAnnouncement {
            transfer: 1,
            generation: 0,
            row: CodedBlock::Original(0),
            checked: true,
            round: 1,
        }),
    );
    sink.handle(Time::ZERO, Input::Nearly { peer: SOURCE, transfer: 1, sent: false });
    granted_ranks(&mut sink, SOURCE, 2);
    let discarded = deliver(&mut sink, SOURCE, Signal::Withdraw { transfer: 1 });
    assert!(discarded.contains(&Output::Discard { from: SOURCE, transfer: 1 }), "{discarded:?}");
    let head = BlockAnnouncement {
        transfer: 2,
        generation: 0,
        row: CodedBlock::Original(1),
        checked: true,
        round: 1,
    };
    assert_eq!(deliver(&mut sink, SOURCE, Signal::Head(head)), [], "the other granted block still arrives");
}

#[test]
fn blocks_that_left_the_rack_are_sent_again_only_when_needed() {
    let source = |left: &[(u32, u16)]| {
        let mut source = swarm(SOURCE);
        outputs(&mut source, Time::ZERO);
        outputs(&mut source, Time::ZERO + Duration::from_millis(10));
        for (generation, block) in left {
            deliver(
                &mut source,
                SINK,
                Signal::Left { generation: *generation, row: CodedBlock::Original(*block) },
            );
        }
        source
    };
    let all = [(0, 0), (0, 1), (1, 0), (1, 1)];
    // At `later`, the timeout of members that did not reply has passed; at `much_later`, nothing
    // has left the rack for too long.
    let later = Time::ZERO + Duration::from_millis(60);
    let much_later = Time::ZERO + Duration::from_millis(100);
    assert!(offered(&outputs(&mut source(&all[..3]), later), FAR).is_some());
    assert_eq!(offered(&outputs(&mut source(&all), later), FAR), None);
    assert!(offered(&outputs(&mut source(&all), much_later), FAR).is_some());
    let mut asked = source(&all);
    let ask = Signal::Ask { have: HoldingsReport::default() };
    asked.handle(later, Input::Signal { from: FAR, signal: &ask });
    assert!(offered(&outputs(&mut asked, later), FAR).is_some());

    let mut source = source(&all[..2]);
    source.handle(later, Input::Gone(FAR));
    source.handle(later, Input::Joined(FAR));
    assert!(offered(&outputs(&mut source, later), FAR).is_some(), "the member that received it was lost");
}

#[test]
fn the_rack_is_notified_of_blocks_that_leave_it() {
    let mut source = swarm(SOURCE);
    let transfer = offered(&outputs(&mut source, Time::ZERO), FAR).unwrap();
    let grant = Signal::Grant {
        transfer,
        ring: 0,
        block_time: BlockTime::default(),
        have: HoldingsReport::default(),
    };
    let replies = deliver(&mut source, FAR, grant);
    let left = replies.iter().find_map(|output| match output {
        Output::Signal { to: SINK, signal: Signal::Left { generation, row } } => {
            Some((*generation, row.clone()))
        }
        _ => None,
    });
    let head = replies.iter().find_map(|output| match output {
        Output::Signal { to: FAR, signal: Signal::Head(head) } => Some((head.generation, head.row.clone())),
        _ => None,
    });
    assert!(left.is_some() && left == head, "{replies:?}");
}

/// Delivers a block of a member that states whether it has checked the generation. Returns the
/// outputs of the sink.
fn send(sink: &mut Swarm, from: Member, transfer: u32, row: CodedBlock, checked: bool) -> Vec<Output> {
    granted_ranks(sink, from, transfer);
    let head = BlockAnnouncement { transfer, generation: 0, row, checked, round: 1 };
    let mut replies = deliver(sink, from, Signal::Head(head));
    sink.handle(Time::ZERO, Input::Received { from, transfer, took: None });
    replies.extend(outputs(sink, Time::ZERO));
    replies
}

fn stored(replies: &[Output]) -> usize {
    replies.iter().filter(|output| matches!(output, Output::Store { .. })).count()
}

fn polluted(sink: &mut Swarm) -> Vec<Output> {
    sink.handle(Time::ZERO, Input::Polluted { generation: 0 });
    outputs(sink, Time::ZERO)
}

const OTHER: Member = Member { rack: 0, slot: 2 };

/// Returns a sink with two members from which it can receive blocks.
fn sink() -> Swarm {
    let mut sink = swarm(SINK);
    sink.handle(Time::ZERO, Input::Joined(OTHER));
    sink
}

#[test]
fn a_polluted_generation_is_taken_from_one_member_and_audited() {
    let mut sink = sink();
    send(&mut sink, OTHER, 1, CodedBlock::Original(0), false);
    let replies = send(&mut sink, SOURCE, 1, CodedBlock::Coded([1, 1].into()), true);
    assert!(
        replies.iter().any(|output| matches!(output, Output::Decode { generation: 0, .. })),
        "{replies:?}"
    );
    let replies = polluted(&mut sink);
    assert!(
        !replies.iter().any(|output| matches!(output, Output::Expelled(_))),
        "either may have lied: {replies:?}"
    );
    assert!(!sink.holdings().is_complete() && sink.holdings().have().ranks == [0, 0]);
    assert_eq!(
        stored(&send(&mut sink, OTHER, 2, CodedBlock::Original(0), false)),
        0,
        "the member has not checked the generation"
    );
    assert_eq!(stored(&send(&mut sink, SOURCE, 2, CodedBlock::Original(0), true)), 1);
    assert_eq!(granted_ranks(&mut sink, OTHER, 3), [2, 0], "no block is requested from another member");
    assert_eq!(stored(&send(&mut sink, SOURCE, 3, CodedBlock::Original(1), true)), 1);
    sink.handle(Time::ZERO, Input::Decoded { generation: 0 });
    let replies = outputs(&mut sink, Time::ZERO);
    let suspects = replies.iter().find_map(|output| match output {
        Output::Audit { generation: 0, suspects } => Some(suspects.iter().map(|row| (row.from, row.checked))),
        _ => None,
    });
    assert_eq!(suspects.unwrap().collect::<Vec<_>>(), [(OTHER, false), (SOURCE, true)]);
}

#[test]
fn liars_are_expelled_and_relays_of_lies_are_doubted() {
    let mut sink = sink();
    for block in 0..2 {
        send(&mut sink, OTHER, u32::from(block), CodedBlock::Original(block), true);
    }
    let replies = polluted(&mut sink);
    assert!(replies.contains(&Output::Expelled(OTHER)), "it sent all of the blocks: {replies:?}");
    sink.handle(Time::ZERO, Input::Joined(OTHER));
    assert_eq!(
        deliver(&mut sink, OTHER, Signal::Offer { transfer: 9, ring: 0, block_time: BlockTime::default() }),
        []
    );

    let mut sink = self::sink();
    sink.handle(Time::ZERO, Input::Refuted { from: OTHER, checked: false });
    assert_eq!(outputs(&mut sink, Time::ZERO).iter().filter(|o| matches!(o, Output::Expelled(_))).count(), 0);
    assert_eq!(stored(&send(&mut sink, OTHER, 1, CodedBlock::Original(0), false)), 0);
    assert_eq!(stored(&send(&mut sink, OTHER, 2, CodedBlock::Original(0), true)), 1);
    sink.handle(Time::ZERO, Input::Refuted { from: OTHER, checked: true });
    assert!(outputs(&mut sink, Time::ZERO).contains(&Output::Expelled(OTHER)));
}

#[test]
fn a_lost_sender_of_a_polluted_generation_is_replaced() {
    let mut sink = sink();
    send(&mut sink, OTHER, 1, CodedBlock::Original(0), false);
    send(&mut sink, SOURCE, 1, CodedBlock::Original(1), true);
    polluted(&mut sink);
    assert_eq!(stored(&send(&mut sink, SOURCE, 2, CodedBlock::Original(0), true)), 1);
    sink.handle(Time::ZERO, Input::Gone(SOURCE));
    assert_eq!(stored(&send(&mut sink, OTHER, 2, CodedBlock::Original(1), true)), 1);
    assert_eq!(sink.holdings().have().ranks, [1, 0], "all blocks must be from one member");
}

#[test]
fn extreme_numbers_of_a_member_do_no_harm() {
    let mut source = swarm(SOURCE);
    let transfer = offered(&outputs(&mut source, Time::ZERO), SINK).unwrap();
    let row = CodedBlock::Original(0);
    let head = BlockAnnouncement { transfer: 1, generation: 0, row, checked: true, round: u64::MAX };
    deliver(&mut source, SINK, Signal::Head(head));
    let beyond = HoldingsReport { first: u32::MAX, ranks: vec![1; 9], ..HoldingsReport::default() };
    deliver(&mut source, SINK, Signal::Ask { have: beyond.clone() });
    let grant = Signal::Grant { transfer, ring: 0, block_time: BlockTime::default(), have: beyond };
    let withdrawn = deliver(&mut source, SINK, grant);
    assert!(withdrawn.contains(&Output::Signal { to: SINK, signal: Signal::Withdraw { transfer } }));
    let asked = deliver(&mut source, SINK, Signal::Ask { have: HoldingsReport::default() });
    let transfer = offered(&asked, SINK).unwrap();
    let have = HoldingsReport { ranks: vec![0, u16::MAX], ..HoldingsReport::default() };
    let grant = Signal::Grant { transfer, ring: u64::MAX, block_time: BlockTime::default(), have };
    let sent = deliver(&mut source, SINK, grant);
    assert!(sent.iter().any(|output| matches!(output, Output::Transmit { to: SINK, .. })), "{sent:?}");
}

#[test]
fn a_report_lists_only_generations_in_progress() {
    let (division, lowest) = (Division { blocks: 200_000, generation: 2 }, Order::LowestRank { window: 8 });
    let mut held = Holdings::empty(division, Code::Linear, lowest);
    let report = |held: &Holdings| held.expected(core::iter::empty());
    assert_eq!(report(&held), HoldingsReport::default());
    for generation in 0..3 {
        assert!((0..2).all(|block| held.insert(generation, &CodedBlock::Original(block)).is_some()));
    }
    held.insert(5, &CodedBlock::Original(0));
    let under_way = [(6, CodedBlock::Original(1))];
    assert_eq!((report(&held).first, report(&held).ranks), (3, vec![0, 0, 1]));
    assert_eq!(held.expected(under_way.iter()).ranks, [0, 0, 1, 1]);
    assert_eq!([2, 3, 5, 6].map(|number| report(&held).rank(number)), [u16::MAX, 0, 1, 0]);
    held.insert(99_999, &CodedBlock::Original(0));
    assert_eq!(report(&held).ranks.len(), REPORTED_MAX);
    held.reset(1);
    assert_eq!((report(&held).first, &report(&held).ranks[..5]), (1, &[0, 2, 0, 0, 1][..]));
    let source = Holdings::source(division, Code::Linear, lowest, SourceIndex { index: 0, of: 1 });
    assert_eq!((report(&source).first, report(&source).ranks.len()), (100_000, 0));
    assert!(held.suffices(&report(&source)) && !source.suffices(&report(&held)));
    assert!(source.exceeds(&held) && !held.exceeds(&source));
}
