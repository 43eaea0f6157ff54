//! Ranks that carry out quick calls, beside what engines carry out, from seeds: no wrong byte, no stall, and who is gone is named.

use super::seeded::run_all;
use cool_engine::CallFailureKind;
use cool_machine::Duration;
use cool_sim::Shape;
use cool_sim::collectives::{
    CallScenario, ClusterSettings, CollectiveScenario, Coverage, Fault, GroupScenario, QuickScenario,
};
use cool_types::Operation;

/// How many seeds are run, unless `COOL_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 1_500;

#[test]
fn many_seeded_quick_calls() {
    run_all(SEEDS, CollectiveScenario::with_quick_calls);
}

/// Two nodes, each with a rank.
fn two_ranks(quick: QuickScenario, calls: Vec<CallScenario>) -> CollectiveScenario {
    let group = GroupScenario {
        places: vec![0, 1],
        stripes: 1,
        deaf: Vec::new(),
        chunk_bytes: 1424,
        open: 1,
        calls,
        messages: Vec::new(),
        quick: Some(quick),
    };
    CollectiveScenario {
        cluster: ClusterSettings::clean(3, Shape::from([2]), 125_000_000),
        odd_links: Vec::new(),
        outages: Vec::new(),
        groups: vec![group],
        timeout: Duration::from_secs(20),
        fault: Fault::None,
    }
}

fn allreduce() -> CallScenario {
    let (counts, plan, after) = (None, String::new(), vec![Duration::ZERO; 2]);
    CallScenario { operation: Operation::Allreduce, root: 0, count: 8, counts, plan, after, waits: true }
}

fn ran(scenario: &CollectiveScenario) -> Coverage {
    scenario.run().unwrap_or_else(|wrong| panic!("{wrong}"))
}

#[test]
fn a_rank_that_has_yet_to_see_that_not_all_can_is_not_taken_for_one_that_calls_something_else() {
    // Rank 0 waits for rank 1, which cannot and calls by its agent, and stands still when that is known (seed 158).
    let late = Duration::from_millis(100);
    let quick = QuickScenario {
        come: vec![Duration::ZERO, late],
        declines: Some(1),
        still: vec![(0, Duration::from_millis(80), Duration::from_secs(3))],
        ..QuickScenario::plain(2)
    };
    let covered = ran(&two_ranks(quick, vec![allreduce(); 2]));
    assert_eq!((covered.quick, covered.failures.len()), (0, 0), "{covered}");
}

#[test]
fn agents_answer_for_ranks_that_stand_still_and_are_not_woken_when_nothing_is_lost() {
    let clean = two_ranks(QuickScenario::plain(2), vec![allreduce(); 50]);
    let covered = ran(&clean);
    assert_eq!((covered.quick, covered.watched, covered.repaired), (100, 0, 0), "{covered}");
    let still = vec![(0, Duration::from_millis(1), Duration::from_secs(1))];
    let mut lossy = two_ranks(QuickScenario { still, ..QuickScenario::plain(2) }, vec![allreduce(); 50]);
    lossy.cluster.host.loss = 0.1;
    let covered = ran(&lossy);
    assert!(covered.quick == 100 && covered.watched > 0 && covered.repaired > 0, "{covered}");
}

#[test]
fn who_has_called_something_else_is_told_so_also_by_a_root_that_is_many_calls_ahead() {
    // The words of its first call are not kept any more, and its message was sent again and again.
    let late = vec![Duration::ZERO, Duration::from_millis(500)];
    let bcast = |after| CallScenario { operation: Operation::Bcast, count: 9, after, ..allreduce() };
    let calls = (0..60).map(|number| bcast(if number == 0 { late.clone() } else { vec![Duration::ZERO; 2] }));
    let mut scenario = two_ranks(QuickScenario::plain(2), calls.collect());
    scenario.fault = Fault::Mismatch { group: 0, rank: 1, call: 0 };
    let covered = ran(&scenario);
    let failed: Vec<CallFailureKind> = covered.failures.keys().copied().collect();
    assert!(
        failed.contains(&CallFailureKind::Mismatch) && !failed.contains(&CallFailureKind::Timeout),
        "{covered}"
    );
    assert!(covered.datagrams < 1_000, "{covered}");
}

#[test]
fn a_rank_whose_node_is_there_is_not_said_to_be_lost_though_it_never_takes_a_message() {
    // Agents carry the bcast out, whose root is through at once. All call again when another group is through, which takes so long
    // that its message has been given up before that call is (seed 7137959).
    let agents = QuickScenario { declines: Some(0), ..QuickScenario::plain(3) };
    let late = Duration::from_millis(2_500);
    let other = QuickScenario { come: vec![Duration::ZERO, late], ..QuickScenario::plain(2) };
    let bcast = CallScenario { operation: Operation::Bcast, after: vec![Duration::ZERO; 3], ..allreduce() };
    let mut scenario = two_ranks(other, vec![allreduce()]);
    scenario.cluster = ClusterSettings::clean(3, Shape::from([3]), 125_000_000);
    let first = GroupScenario {
        places: vec![0, 1, 2],
        calls: vec![bcast],
        quick: Some(agents),
        ..scenario.groups[0].clone()
    };
    scenario.groups.insert(0, first);
    scenario.fault = Fault::Absent { group: 0, rank: 2, call: 0 };
    let covered = ran(&scenario);
    assert_eq!(covered.failures.keys().collect::<Vec<_>>(), [&CallFailureKind::Timeout], "{covered}");
}
