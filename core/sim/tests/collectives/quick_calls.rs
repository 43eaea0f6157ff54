//! Ranks that execute quick calls, concurrently with calls that engines execute, from seeds: no
//! wrong byte, no stall, and lost ranks are named.

use super::seeded::{check_scenarios, run_all};
use cool_engine::CallFailureKind;
use cool_machine::Duration;
use cool_sim::Shape;
use cool_sim::collectives::{
    CallScenario, ClusterSettings, CollectiveScenario, Coverage, Fault, GroupScenario, QuickScenario,
};
use cool_types::Operation;

/// Number of seeds, unless `COOL_SIM_SEEDS` is set.
const SEEDS: u64 = 1_500;

#[test]
fn many_seeded_quick_calls() {
    run_all(SEEDS, CollectiveScenario::with_quick_calls);
}

/// Returns a scenario of two nodes with one rank each.
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
        tree_faults: Vec::new(),
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
fn a_rank_unaware_that_another_declines_is_no_mismatch() {
    // Rank 0 waits for rank 1, which cannot execute quick calls and calls through its agent. Rank 0
    // is paused when that becomes known (seed 158).
    let late = Duration::from_millis(100);
    let quick = QuickScenario {
        starts: vec![Duration::ZERO, late],
        declines: Some(1),
        still: vec![(0, Duration::from_millis(80), Duration::from_secs(3))],
        ..QuickScenario::plain(2)
    };
    let covered = ran(&two_ranks(quick, vec![allreduce(); 2]));
    assert_eq!((covered.quick, covered.failures.len()), (0, 0), "{covered}");
}

#[test]
fn agents_reply_for_paused_ranks_and_only_after_losses() {
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
fn a_mismatch_is_reported_by_a_root_many_calls_ahead() {
    // The description of its first call is no longer retained, and its message was retransmitted
    // repeatedly.
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
fn a_live_rank_that_receives_nothing_is_not_reported_lost() {
    // Agents execute the bcast, which its root completes at once. All ranks call again when another
    // group has completed. By then, the root's message has been given up, but not the call (seed
    // 7137959).
    let agents = QuickScenario { declines: Some(0), ..QuickScenario::plain(3) };
    let late = Duration::from_millis(2_500);
    let other = QuickScenario { starts: vec![Duration::ZERO, late], ..QuickScenario::plain(2) };
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

#[test]
fn a_call_in_which_only_some_ranks_wait_fails_on_all_nodes() {
    let bcast = |root| CallScenario { operation: Operation::Bcast, root, ..allreduce() };
    // The root of a bcast does not wait, so it completes the call and waits in the next one.
    for (first, starter) in [(allreduce(), 0), (allreduce(), 1), (bcast(0), 1), (bcast(0), 0), (bcast(1), 0)]
    {
        let mut scenario = two_ranks(QuickScenario::plain(2), vec![first.clone(), allreduce(), allreduce()]);
        scenario.fault = Fault::Started { group: 0, rank: starter, call: 0 };
        let covered = ran(&scenario);
        let failed: Vec<CallFailureKind> = covered.failures.keys().copied().collect();
        assert!(failed.contains(&CallFailureKind::Mismatch), "{first:?} {starter}: {covered}");
        assert!(!failed.contains(&CallFailureKind::Timeout), "{first:?} {starter}: {covered}");
    }
}

#[test]
fn the_call_that_reveals_a_mismatch_is_answered_too() {
    // An agent reported that it executes a call that a rank had executed itself. The rank's next
    // request revealed that, so the group failed, but this request was never answered.
    check_scenarios(&[10_011_180, 10_079_763], CollectiveScenario::with_quick_calls);
}
