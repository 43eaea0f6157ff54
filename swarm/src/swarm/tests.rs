//! One machine, told what the others would say.

use super::*;
use crate::holdings::{Division, Share};
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
        source: (me == SOURCE).then_some(Share { index: 0, of: 1 }),
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

fn tell(swarm: &mut Swarm, from: Member, signal: Signal) -> Vec<Output> {
    swarm.handle(Time::ZERO, Input::Signal { from, signal: &signal });
    outputs(swarm, Time::ZERO)
}

/// The number of the offer to a member.
fn offered(outputs: &[Output], whom: Member) -> Option<u32> {
    outputs.iter().find_map(|output| match output {
        Output::Signal { to, signal: Signal::Offer { transfer, .. } } if *to == whom => Some(*transfer),
        _ => None,
    })
}

#[test]
fn rows_that_are_none_of_the_content_are_refused() {
    let mut sink = swarm(SINK);
    tell(&mut sink, SOURCE, Signal::Offer { transfer: 7, ring: 0, pace: Pace::default() });
    for (generation, row) in
        [(2, Row::Block(0)), (0, Row::Block(2)), (0, Row::Coded([1].into())), (1, Row::Coded([0, 0].into()))]
    {
        let head = BlockHead { transfer: 7, generation, row, round: 1 };
        let stop = Output::Signal { to: SOURCE, signal: Signal::Stop { transfer: 7 } };
        assert_eq!(tell(&mut sink, SOURCE, Signal::Head(head)), [stop]);
    }
    let strangers = Member { rack: 9, slot: 9 };
    assert_eq!(tell(&mut sink, strangers, Signal::Offer { transfer: 1, ring: 0, pace: Pace::default() }), []);
}

#[test]
fn one_block_at_a_time_and_the_next_when_it_is_nearly_through() {
    let mut source = swarm(SOURCE);
    let mut transfer = offered(&outputs(&mut source, Time::ZERO), SINK).unwrap();
    for nearly in [false, true] {
        let grant = Signal::Grant { transfer, ring: 0, pace: Pace::default(), have: Have::default() };
        let granted = tell(&mut source, SINK, grant);
        assert!(matches!(granted[..], [Output::Signal { .. }, Output::Transmit { .. }]), "{granted:?}");
        let input = match nearly {
            false => Input::Sent { to: SINK, transfer, arrived: true },
            true => Input::Nearly { peer: SINK, transfer, sent: true },
        };
        source.handle(Time::ZERO, input);
        let next = offered(&outputs(&mut source, Time::ZERO), SINK).unwrap();
        assert!(next > transfer);
        transfer = next;
    }
}

#[test]
fn who_lacks_what_nobody_sends_says_so_once() {
    let mut sink = swarm(SINK);
    sink.handle(Time::ZERO, Input::Placed { block: 1 });
    let later = Time::ZERO + Duration::from_secs(2);
    let starved =
        |outputs: &[Output]| outputs.iter().filter(|output| matches!(output, Output::Starved { .. })).count();
    let said = outputs(&mut sink, later);
    assert!(said.contains(&Output::Starved { lacking: vec![(0, 1), (1, 2)] }), "{said:?}");
    assert_eq!(starved(&outputs(&mut sink, later + Duration::from_secs(9))), 0);
}

#[test]
fn blocks_that_come_by_other_ways_are_enough() {
    let mut sink = swarm(SINK);
    (0..4).for_each(|block| sink.handle(Time::ZERO, Input::Placed { block }));
    assert!(outputs(&mut sink, Time::ZERO).contains(&Output::Done));
    assert!(sink.holdings().is_whole());
}

/// The ranks that a grant tells.
fn granted_ranks(sink: &mut Swarm, from: Member, transfer: u32) -> Vec<u16> {
    match &tell(sink, from, Signal::Offer { transfer, ring: 0, pace: Pace::default() })[..] {
        [Output::Signal { signal: Signal::Grant { have, .. }, .. }] => have.ranks.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_has_entered_the_rack_need_not_enter_again() {
    let mut sink = swarm(SINK);
    let entered = || Signal::Entered { generation: 1, row: Row::Coded([3, 4].into()) };
    tell(&mut sink, FAR, entered());
    assert_eq!(
        granted_ranks(&mut sink, FAR, 1),
        [0, 0],
        "who is in another rack does not know what this one has"
    );
    tell(&mut sink, SOURCE, entered());
    assert_eq!(granted_ranks(&mut sink, FAR, 1), [0, 1]);
    assert_eq!(granted_ranks(&mut swarm(SINK), SOURCE, 1), [0, 0]);
    sink.handle(Time::ZERO, Input::Gone(SOURCE));
    assert_eq!(granted_ranks(&mut sink, FAR, 1), [0, 0], "who had it may be gone");
}

#[test]
fn all_in_the_rack_are_told_what_enters_it() {
    let mut sink = swarm(SINK);
    granted_ranks(&mut sink, FAR, 1);
    let row = Row::Coded([3, 4].into());
    let head = BlockHead { transfer: 1, generation: 0, row: row.clone(), round: 1 };
    let signal = Signal::Entered { generation: 0, row };
    assert_eq!(tell(&mut sink, FAR, Signal::Head(head)), [Output::Signal { to: SOURCE, signal }]);
}

#[test]
fn what_goes_beyond_the_rack_and_what_goes_within_it_do_not_wait_for_each_other() {
    let mut source = swarm(SOURCE);
    let first = outputs(&mut source, Time::ZERO);
    assert!(offered(&first, FAR).is_some() && offered(&first, SINK).is_some(), "{first:?}");
    let mut sink = swarm(SINK);
    granted_ranks(&mut sink, FAR, 1);
    granted_ranks(&mut sink, SOURCE, 1);
    let again = tell(&mut sink, SOURCE, Signal::Offer { transfer: 2, ring: 0, pace: Pace::default() });
    assert!(matches!(again[..], [Output::Signal { signal: Signal::Refuse { .. }, .. }]), "{again:?}");
}

#[test]
fn a_block_that_was_lost_is_not_waited_for() {
    let mut source = swarm(SOURCE);
    let transfer = offered(&outputs(&mut source, Time::ZERO), SINK).unwrap();
    tell(
        &mut source,
        SINK,
        Signal::Grant { transfer, ring: 0, pace: Pace::default(), have: Have::default() },
    );
    source.handle(Time::ZERO, Input::Sent { to: SINK, transfer, arrived: false });
    let withdraw = Signal::Withdraw { transfer };
    let said = outputs(&mut source, Time::ZERO);
    assert!(said.contains(&Output::Signal { to: SINK, signal: withdraw.clone() }), "{said:?}");

    let mut sink = swarm(SINK);
    granted_ranks(&mut sink, SOURCE, transfer);
    let head = BlockHead { transfer, generation: 0, row: Row::Block(0), round: 1 };
    tell(&mut sink, SOURCE, Signal::Head(head));
    let refused =
        |said: &[Output]| matches!(said[..], [Output::Signal { signal: Signal::Refuse { .. }, .. }]);
    let offer = |transfer| Signal::Offer { transfer, ring: 0, pace: Pace::default() };
    assert!(refused(&tell(&mut sink, SOURCE, offer(transfer + 1))));
    let discarded = tell(&mut sink, SOURCE, withdraw);
    assert!(discarded.contains(&Output::Discard { from: SOURCE, transfer }), "{discarded:?}");
    assert_eq!(granted_ranks(&mut sink, SOURCE, transfer + 2), [0, 0]);
}

#[test]
fn of_two_blocks_under_way_the_one_that_was_lost_is_given_up() {
    let mut sink = swarm(SINK);
    granted_ranks(&mut sink, SOURCE, 1);
    tell(
        &mut sink,
        SOURCE,
        Signal::Head(BlockHead { transfer: 1, generation: 0, row: Row::Block(0), round: 1 }),
    );
    sink.handle(Time::ZERO, Input::Nearly { peer: SOURCE, transfer: 1, sent: false });
    granted_ranks(&mut sink, SOURCE, 2);
    let discarded = tell(&mut sink, SOURCE, Signal::Withdraw { transfer: 1 });
    assert!(discarded.contains(&Output::Discard { from: SOURCE, transfer: 1 }), "{discarded:?}");
    let head = BlockHead { transfer: 2, generation: 0, row: Row::Block(1), round: 1 };
    assert_eq!(tell(&mut sink, SOURCE, Signal::Head(head)), [], "what was granted beside it comes");
}
