//! The reconciler of a switch that is only observed.

use super::*;

/// Returns a pair whose switch is only observed.
fn observed(switch: ModelSwitch) -> Pair {
    let mut pair = Pair::new(ModelSwitch::default());
    (pair.reconciler, pair.switch) = (Reconciler::new(None, true), switch);
    pair.towards.clear();
    pair.outputs.clear();
    pair.input(Input::Start);
    pair.run();
    pair
}

fn withheld(outputs: &[Output]) -> Vec<WithheldChanges> {
    let changes = |output: &Output| match output {
        Output::Withheld(changes) => Some(*changes),
        _ => None,
    };
    outputs.iter().filter_map(changes).collect()
}

fn counts(flows: usize, groups: usize) -> RuleCounts {
    RuleCounts { flows, groups }
}

#[test]
fn an_observer_acknowledges_and_sends_no_change() {
    let mut before = Pair::new(ModelSwitch::default());
    before.run();
    before.update(1, &tables([1, 2, 3]));
    before.run();
    let mut switch = before.switch;
    let foreign =
        FlowMod { cookie: 7, priority: 9, matching: Match::new().in_port(PortNo(8)), ..FlowMod::default() };
    switch.obey(&Body::FlowMod(foreign)).unwrap();
    let mut pair = observed(switch.clone());
    let sent = pair.sent;
    pair.update(1, &tables([2, 3, 4, 5]));
    assert_eq!((pair.sent, pair.outputs.last()), (sent, Some(&acknowledged(1))));
    let expected = WithheldChanges { present: counts(3, 1), put: counts(2, 1), deleted: counts(1, 0) };
    assert_eq!(withheld(&pair.outputs).last(), Some(&expected));
    // The checks find the same, and report nothing new.
    let reports = pair.outputs.len();
    for _ in 0..4 {
        pair.wait();
        pair.run();
    }
    assert_eq!(pair.outputs.len(), reports, "{:?}", pair.outputs);
    assert_eq!((&pair.switch.flows, &pair.switch.groups), (&switch.flows, &switch.groups));
}

#[test]
fn what_others_change_meanwhile_is_part_of_the_next_report() {
    let mut pair = observed(ModelSwitch::default());
    pair.update(1, &tables([1, 2]));
    let put = |pair: &Pair| withheld(&pair.outputs).last().unwrap().put;
    assert_eq!(put(&pair), counts(2, 1));
    let ports = BTreeSet::from([1, 2]);
    pair.switch.obey(&TableChange::AddGroup(GROUPS.start, GroupBuckets::All(ports)).message()).unwrap();
    pair.wait();
    pair.run();
    assert_eq!(put(&pair), counts(2, 0));
    pair.update(2, &tables([1]));
    assert_eq!(put(&pair), counts(1, 1));
    let drifted = pair.outputs.iter().any(|output| matches!(output, Output::Drifted(_)));
    assert!(!drifted, "{:?}", pair.outputs);
}
