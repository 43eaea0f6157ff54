//! Tests details of agents that affect the time: fused reductions, and the credit of short
//! messages.

use super::*;
use crate::layout::RankPlace;
use crate::schedule::{ActionKind, Call, Operation, Program, RankBuffer, ScheduleAction, Span, TransferId};
use crate::{Plan, compile};
use cool_types::limits::{CREDIT_BYTES, EAGER_BYTES, MESSAGE_CREDIT_BYTES};

/// The time of every message, however long.
const WAY: Duration = Duration::from_secs(1);

/// A network on which no message delays another.
struct Wide;

impl NetworkModel for Wide {
    fn latency(&self, _: usize, _: usize, _: u64) -> u64 {
        nanos(WAY)
    }

    fn unicast(&mut self, now: u64, message: u32, _: (usize, usize), _: u64, events: &mut NetworkEvents) {
        events.at(now, NetworkEvent::Departed { message });
        events.at(now + nanos(WAY), NetworkEvent::Arrived { message, receiver: 0 });
    }

    fn multicast(
        &mut self,
        _: u64,
        _: u32,
        _: (usize, &[usize]),
        _: MulticastMessage,
        _: &mut NetworkEvents,
    ) {
        unreachable!("nothing is multicast here");
    }

    fn wake(&mut self, _: u64, _: (u32, u32), _: &mut NetworkEvents) {}
}

fn timed(schedule: &Schedule, nodes: [u32; 2]) -> Duration {
    let layout = Layout::new(&nodes.map(|node| RankPlace { rack: 0, node })).unwrap();
    time(schedule, &layout, &AgentCosts::default(), Wide, Duration::MAX).unwrap().time
}

#[test]
fn a_local_reduction_reads_the_senders_memory_without_a_copy() {
    let bytes = 1 << 20;
    let layout = Layout::new(&[RankPlace { rack: 0, node: 0 }; 2]).unwrap();
    let plan = "flat:linear".parse::<Plan>().unwrap().with_segment(bytes);
    let call = Call::new(Operation::Reduce, Rank(0), bytes, 4);
    let schedule = compile(&call, &layout, &plan, |_| true).unwrap();
    let costs = AgentCosts::default();
    // The root copies its own vector to its output, then adds the other one.
    let work = Duration::from_nanos(costs.copying(bytes) + costs.reducing(bytes));
    assert_eq!(timed(&schedule, [0, 0]), costs.call + work);
}

/// Returns a schedule in which rank 0 sends eager messages to rank 1, which waits for all of them.
fn messages(count: u32) -> Schedule {
    let span =
        |buffer, number: u32| Span { buffer, offset: u64::from(number) * EAGER_BYTES, len: EAGER_BYTES };
    let action = |kind| ScheduleAction { kind, after: Vec::new() };
    let program = |kind: &dyn Fn(u32) -> ActionKind| {
        Some(Program { actions: (0..count).map(|number| action(kind(number))).collect(), scratch: 0 })
    };
    let send = |number| ActionKind::Send {
        to: Rank(1),
        transfer: TransferId(number),
        src: span(RankBuffer::Input, number),
    };
    let receive = |number| ActionKind::Receive {
        from: Rank(0),
        transfer: TransferId(number),
        dst: span(RankBuffer::Output, number),
    };
    let call = Call::new(Operation::Gather, Rank(1), u64::from(count) * EAGER_BYTES, 1);
    Schedule { call, programs: vec![program(&send), program(&receive)] }
}

#[test]
fn short_messages_beyond_the_credit_are_announced() {
    let within = (CREDIT_BYTES / (EAGER_BYTES + MESSAGE_CREDIT_BYTES)) as u32;
    let ways = |count| timed(&messages(count), [0, 1]).as_secs();
    assert_eq!(ways(within), 1);
    assert_eq!(ways(within + 1), 3, "there, back with the grant, and there");
}
