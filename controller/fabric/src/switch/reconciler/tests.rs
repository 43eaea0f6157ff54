//! The reconciler against a model switch, with replies that arrive when the test lets them.

mod observe;

use super::*;
use crate::intent::tables::{FlowEntry, FlowKey, GROUPS, GroupBuckets};
use crate::switch::model::ModelSwitch;
use proptest::prelude::*;
use rs_openflow::{Action, EtherType, FlowMod, GroupId, Instruction, Masked, Match, Oxm, PortNo};
use std::collections::BTreeSet;

/// A reconciler and its switch.
struct Pair {
    reconciler: Reconciler,
    switch: ModelSwitch,
    now: Time,
    /// Messages on their way to the switch.
    towards: VecDeque<Message>,
    sent: usize,
    outputs: Vec<Output>,
    desired: SwitchTables,
    /// Time that the switch needs for each message.
    slowness: Duration,
}

impl Pair {
    fn new(switch: ModelSwitch) -> Pair {
        Pair::bounded(switch, None)
    }

    fn bounded(switch: ModelSwitch, max_flows: Option<u32>) -> Pair {
        let mut pair = Pair {
            reconciler: Reconciler::new(max_flows, false),
            switch,
            now: Time::ZERO,
            towards: VecDeque::new(),
            sent: 0,
            outputs: Vec::new(),
            desired: SwitchTables::default(),
            slowness: Duration::ZERO,
        };
        pair.input(Input::Start);
        pair
    }

    fn input(&mut self, input: Input) {
        self.reconciler.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) -> Option<Time> {
        loop {
            match self.reconciler.poll(self.now) {
                Poll::Output(Output::Send(message)) => {
                    self.sent += 1;
                    self.towards.push_back(message);
                }
                Poll::Output(other) => self.outputs.push(other),
                Poll::Idle(deadline) => return deadline,
            }
        }
    }

    /// The switch processes one message and replies.
    fn step(&mut self) {
        if let Some(message) = self.towards.pop_front() {
            self.now += self.slowness;
            self.drain();
            for answer in self.switch.answer(&message) {
                self.input(Input::Reply(answer));
            }
        }
    }

    fn run(&mut self) {
        while !self.towards.is_empty() {
            self.step();
        }
    }

    /// Sets these tables as the desired state.
    fn update(&mut self, version: u64, tables: &SwitchTables) {
        self.update_retaining(version, tables, StaleEntries::default());
    }

    fn update_retaining(&mut self, version: u64, tables: &SwitchTables, stale: StaleEntries) {
        let mut delta = TableDelta::default();
        delta.flows.extend(self.desired.flows.keys().map(|key| (key.clone(), None)));
        delta.groups.extend(self.desired.groups.keys().map(|id| (*id, None)));
        delta.append(TableDelta::from_empty(tables));
        self.desired = tables.clone();
        self.input(Input::Update(TableUpdate { version, delta, stale }));
    }

    /// Lets time pass until the reconciler has something to do.
    fn wait(&mut self) {
        self.now = self.drain().unwrap();
        self.drain();
    }
}

fn flow(priority: u16, port: u32, cookie: u64) -> (FlowKey, FlowEntry) {
    let matching = Match::new().in_port(PortNo(port)).eth_type(EtherType::IPV4);
    let group = Action::Group(GroupId(GROUPS.start));
    (
        FlowKey::new(priority, matching),
        FlowEntry { cookie, instructions: [Instruction::ApplyActions(vec![group])].into() },
    )
}

fn acknowledged(version: u64) -> Output {
    Output::Acknowledged(version, EntryRefusals::new())
}

/// Returns a group over these ports with a flow into it from each.
fn tables(ports: impl IntoIterator<Item = u32>) -> SwitchTables {
    let ports: BTreeSet<u32> = ports.into_iter().collect();
    let flows = ports.iter().map(|port| flow(9, *port, COOKIE)).collect();
    SwitchTables { flows, groups: BTreeMap::from([(GROUPS.start, Some(GroupBuckets::All(ports)))]) }
}

#[test]
fn after_the_first_barrier_only_differences_are_sent() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    assert_eq!(pair.outputs, [Output::Read(InheritedState::default())]);
    pair.update(1, &tables([1, 2, 3]));
    let before = pair.sent;
    pair.run();
    assert_eq!(pair.outputs[1..], [acknowledged(1)]);
    assert_eq!(pair.switch.tables(), tables([1, 2, 3]));
    assert_eq!(pair.sent - before, 3 + 1); // the group and its barrier went out with the want
    let before = pair.sent;
    pair.update(2, &tables([1, 2]));
    pair.run();
    // The group, a barrier, the deletion, a barrier.
    assert_eq!((pair.sent - before, pair.switch.tables()), (4, tables([1, 2])));
    pair.update(3, &tables([1, 2]));
    assert_eq!((pair.outputs.last(), pair.towards.len()), (Some(&acknowledged(3)), 0));
}

#[test]
fn installed_entries_and_those_of_others_are_left_alone() {
    let mut before = Pair::new(ModelSwitch::default());
    before.run();
    before.update(1, &tables([1, 2, 3]));
    before.run();
    let mut switch = before.switch;
    let foreign =
        FlowMod { cookie: 7, priority: 9, matching: Match::new().in_port(PortNo(8)), ..FlowMod::default() };
    switch.obey(&Body::FlowMod(foreign.clone())).unwrap();
    let mut pair = Pair::new(switch);
    pair.run();
    let sent = pair.sent;
    pair.update(1, &tables([1, 2, 3]));
    assert_eq!((pair.sent, pair.outputs.last()), (sent, Some(&acknowledged(1))));
    pair.update(2, &SwitchTables::default());
    pair.run();
    assert_eq!(pair.switch.flows, [foreign]);
    assert!(pair.switch.groups.is_empty());
}

#[test]
fn a_refusal_names_the_entry_and_is_tried_again_later() {
    let mut pair = Pair::new(ModelSwitch { capacity: Some(2), ..ModelSwitch::default() });
    pair.run();
    pair.update(1, &tables([1, 2, 3]));
    pair.run();
    let Some(Output::Acknowledged(1, refusals)) = pair.outputs.last() else { panic!("{:?}", pair.outputs) };
    let [(None, why)] = refusals.iter().collect::<Vec<_>>()[..] else { panic!("{refusals:?}") };
    assert!(why.contains("in_port=3") && why.contains("table_full"), "{why}");
    pair.switch.capacity = None;
    pair.wait();
    pair.run();
    assert_eq!(pair.outputs.last(), Some(&acknowledged(1)));
    assert_eq!(pair.switch.tables(), tables([1, 2, 3]));
}

#[test]
fn a_group_that_exists_unexpectedly_is_taken_over() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    let ports = BTreeSet::from([5]);
    pair.switch.obey(&TableChange::AddGroup(GROUPS.start, GroupBuckets::All(ports)).message()).unwrap();
    pair.update(1, &tables([1, 2]));
    pair.run();
    let Some(Output::Acknowledged(1, refusals)) = pair.outputs.last() else { panic!("{:?}", pair.outputs) };
    assert!(refusals[&Some(GROUPS.start)].contains("group_exists"), "{refusals:?}");
    pair.update(2, &tables([1, 2]));
    pair.run();
    assert_eq!(pair.outputs.last(), Some(&acknowledged(2)));
    assert_eq!(pair.switch.tables(), tables([1, 2]));
}

#[test]
fn changes_by_others_are_detected_and_reverted() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    pair.update(1, &tables([1, 2, 3]));
    pair.run();
    pair.switch.flows.pop();
    pair.switch.groups.clear();
    pair.wait();
    pair.run();
    assert_eq!(pair.outputs[2..], [Output::Drifted(2), acknowledged(1)]);
    assert_eq!(pair.switch.tables(), tables([1, 2, 3]));
}

#[test]
fn flows_that_are_reported_in_another_form_are_kept() {
    let form = |matching: Match| {
        let mut fields = matching.fields;
        fields.retain(|field| !matches!(field, Oxm::InPhyPort(_)));
        let port = fields.iter().find_map(|field| match field {
            Oxm::InPort(port) => Some(port.value),
            _ => None,
        });
        Match { fields }.in_phy_port(port.unwrap_or(PortNo(0)))
    };
    let mut pair = Pair::new(ModelSwitch { form: Some(form), ..ModelSwitch::default() });
    pair.run();
    pair.update(1, &tables([1, 2, 3]));
    pair.run();
    for _ in 0..3 {
        let before = pair.sent;
        pair.wait();
        pair.run();
        assert_eq!((pair.sent - before, pair.switch.flows.len()), (2, 3), "only requests for the tables");
    }
    assert_eq!(pair.outputs[1..], [acknowledged(1)]);
    // Another controller recognizes them as well.
    let mut pair = Pair::new(pair.switch);
    pair.run();
    let before = pair.sent;
    pair.update(1, &tables([1, 2, 3]));
    pair.run();
    assert_eq!((pair.sent - before, pair.switch.flows.len()), (0, 3));
}

#[test]
fn entries_that_stay_different_are_not_restored_forever() {
    // The switch replaces the protocol by one of its own, so its flows cannot be recognized.
    let form = |matching: Match| Match {
        fields: matching
            .fields
            .into_iter()
            .map(|field| match field {
                Oxm::EthType(_) => Oxm::EthType(Masked::exact(EtherType(0x1234))),
                other => other,
            })
            .collect(),
    };
    let mut pair = Pair::new(ModelSwitch { form: Some(form), ..ModelSwitch::default() });
    pair.run();
    pair.update(1, &tables([1, 2]));
    pair.run();
    for _ in 0..RESTORATIONS_MAX {
        pair.wait();
        pair.run();
        assert_eq!(pair.switch.flows.len(), 2, "the last change of a flow is not its deletion");
    }
    for _ in 0..2 {
        let before = pair.sent;
        pair.wait();
        pair.run();
        assert_eq!(pair.sent - before, 2, "only requests for the tables");
    }
    let unrestorable = pair.outputs.iter().filter(|output| matches!(output, Output::Unrestorable(4, _)));
    assert_eq!((unrestorable.count(), pair.switch.flows.len()), (1, 2));
    // An entry that another program deletes is restored nevertheless.
    pair.switch.flows.pop();
    pair.wait();
    pair.run();
    assert_eq!(pair.switch.flows.len(), 2);
}

#[test]
fn retained_entries_stay_until_they_are_released() {
    let unicast = COOKIE | 2 << 24;
    let mut had = tables([1, 2]);
    had.flows.extend([flow(5, 1, unicast), flow(6, 1, COOKIE | 1 << 24)]);
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    pair.update(1, &had);
    pair.run();
    let mut pair = Pair::new(pair.switch);
    pair.run();
    let Output::Read(inherited) = &pair.outputs[0] else { panic!("{:?}", pair.outputs) };
    assert_eq!(inherited.trees, BTreeMap::from([(GROUPS.start, BTreeSet::from([1, 2]))]));
    let priorities =
        |pair: &Pair| pair.switch.tables().flows.keys().map(|key| key.priority).collect::<Vec<_>>();
    let trees = |numbers: &[u32]| std::sync::Arc::new(numbers.iter().copied().collect());
    let none = SwitchTables::default();
    pair.update_retaining(1, &none, StaleEntries { unicast: true, trees: trees(&[GROUPS.start]) });
    pair.run();
    assert_eq!((priorities(&pair), pair.switch.groups.len()), (vec![5, 6], 1));
    pair.update_retaining(2, &none, StaleEntries { unicast: false, trees: trees(&[GROUPS.start]) });
    pair.run();
    assert_eq!((priorities(&pair), pair.switch.groups.len()), (vec![6], 1));
    pair.update(3, &none);
    pair.run();
    assert_eq!(pair.switch.tables(), none);
}

#[test]
fn the_cost_of_a_change_does_not_depend_on_the_table_size() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    pair.update(1, &tables(1..=500));
    pair.run();
    let before = pair.sent;
    let (key, new) = flow(9, 77, COOKIE | 5);
    let delta = TableDelta { flows: BTreeMap::from([(key, Some(new))]), ..TableDelta::default() };
    pair.input(Input::Update(TableUpdate { version: 2, delta, stale: StaleEntries::default() }));
    pair.run();
    assert_eq!((pair.sent - before, pair.outputs.last()), (2, Some(&acknowledged(2))));
}

#[test]
fn a_switch_that_refuses_to_list_groups_has_none() {
    let mut pair = Pair::new(ModelSwitch::default());
    let asked = pair.towards.pop_back().unwrap();
    pair.run();
    assert_eq!(pair.outputs, []);
    let refused = ErrorMessage::new(rs_openflow::ErrorType::BAD_REQUEST, 2, Vec::new());
    pair.input(Input::Reply(Message::new(asked.xid, Body::Error(refused))));
    assert_eq!(pair.outputs, [Output::Read(InheritedState::default())]);
    let flows = SwitchTables { groups: BTreeMap::new(), ..tables([]) };
    pair.update(1, &flows);
    assert_eq!(pair.outputs.last(), Some(&acknowledged(1)));
}

#[test]
fn groups_that_a_switch_does_not_list_are_not_added_again() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    pair.update(1, &tables([1, 2]));
    pair.run();
    pair.wait();
    let asked = pair.towards.pop_back().unwrap();
    pair.run();
    let refused = ErrorMessage::new(rs_openflow::ErrorType::BAD_REQUEST, 2, Vec::new());
    pair.input(Input::Reply(Message::new(asked.xid, Body::Error(refused))));
    assert_eq!((pair.towards.len(), &pair.outputs[1..]), (0, &[acknowledged(1)][..]));
}

#[test]
fn a_change_does_not_wait_for_a_check_of_the_tables() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    pair.update(1, &tables([1]));
    pair.run();
    pair.wait();
    let check = std::mem::take(&mut pair.towards);
    assert_eq!(check.len(), 2, "the switch is slow to report its tables");
    pair.update(2, &tables([1, 2]));
    pair.run();
    assert_eq!((pair.outputs.last(), pair.switch.tables()), (Some(&acknowledged(2)), tables([1, 2])));
    // The late reports change nothing.
    pair.towards = check;
    pair.run();
    assert_eq!((pair.outputs.last(), pair.switch.tables()), (Some(&acknowledged(2)), tables([1, 2])));
}

#[test]
fn flows_towards_nodes_precede_those_of_hosts_in_a_full_table() {
    use crate::intent::cookies::{FOR_HOST, FOR_NODE};
    let mut pair = Pair::bounded(ModelSwitch::default(), Some(10));
    pair.run();
    let hosts = (1..=20).map(|port| flow(5, port, COOKIE | FOR_HOST));
    let nodes = (1..=5).map(|port| flow(6, port, COOKIE | FOR_NODE));
    let desired = SwitchTables { flows: hosts.chain(nodes).collect(), ..tables([]) };
    pair.update(1, &desired);
    pair.run();
    let installed = pair.switch.tables().flows;
    assert_eq!(installed.keys().filter(|key| key.priority == 6).count(), 5);
    assert_eq!(installed.len(), 10);
    // Further nodes displace hosts, which return when there is room.
    let nodes = (1..=9).map(|port| flow(6, port, COOKIE | FOR_NODE));
    let more = SwitchTables { flows: desired.flows.clone().into_iter().chain(nodes).collect(), ..tables([]) };
    pair.update(2, &more);
    pair.run();
    let priorities = |pair: &Pair, priority| {
        pair.switch.tables().flows.keys().filter(|key| key.priority == priority).count()
    };
    assert_eq!((priorities(&pair, 6), priorities(&pair, 5)), (9, 1));
    pair.update(3, &desired);
    pair.run();
    assert_eq!((priorities(&pair, 6), priorities(&pair, 5)), (5, 5));
}

#[test]
fn a_slow_switch_receives_small_batches() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    pair.slowness = Duration::from_millis(200);
    pair.update(1, &tables(1..=600));
    pair.run();
    assert_eq!((pair.outputs.last(), pair.switch.flows.len()), (Some(&acknowledged(1)), 600));
}

#[test]
fn a_switch_that_does_not_answer_is_given_up() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.wait();
    assert!(matches!(pair.outputs[..], [Output::Failed(_)]), "{:?}", pair.outputs);
    let mut pair = Pair::new(ModelSwitch::default());
    pair.run();
    pair.update(1, &tables([1]));
    pair.wait();
    assert!(
        matches!(&pair.outputs[1..], [Output::Failed(why)] if why.contains("barrier")),
        "{:?}",
        pair.outputs
    );
}

#[test]
fn answers_to_nothing_that_was_asked_change_nothing() {
    let mut pair = Pair::new(ModelSwitch::default());
    for xid in [0, XID_BIT, XID_BIT | 77, u32::MAX] {
        pair.input(Input::Reply(Message::new(xid, Body::BarrierReply)));
        let flows = Body::MultipartReply(MultipartReply::Flow(Vec::new()).into());
        pair.input(Input::Reply(Message::new(xid, flows)));
    }
    pair.run();
    assert_eq!(pair.outputs, [Output::Read(InheritedState::default())]);
}

#[test]
fn a_switch_may_report_its_tables_before_it_acknowledges() {
    let mut pair = Pair::new(ModelSwitch::default());
    pair.update(1, &tables(1..20));
    pair.run();
    pair.wait();
    let check = pair.towards.pop_front().expect("a request for the flows");
    pair.towards.clear();
    // The change abandons the check, whose report the switch continues.
    pair.update(2, &tables(1..30));
    for part in 0..4 {
        pair.now += Duration::from_secs(6);
        let mut report = rs_openflow::Multipart::from(MultipartReply::Flow(Vec::new()));
        report.flags =
            if part < 3 { rs_openflow::MultipartFlags::MORE } else { rs_openflow::MultipartFlags::NONE };
        pair.input(Input::Reply(Message::new(check.xid, Body::MultipartReply(report))));
    }
    pair.run();
    assert_eq!(pair.outputs.last(), Some(&acknowledged(2)));
}

proptest! {
    /// Updates arrive at any time, the switch is slow, and its tables are changed by others:
    /// finally the last update must hold.
    #[test]
    fn the_last_desired_state_is_installed_after_any_others(
        updates in prop::collection::vec((prop::collection::btree_set(1u32..600, 0..400), 0usize..12), 1..6),
        meddle in any::<bool>(),
    ) {
        let mut pair = Pair::new(ModelSwitch::default());
        let mut last = SwitchTables::default();
        for (version, (ports, steps)) in (1..).zip(&updates) {
            last = if ports.is_empty() { SwitchTables::default() } else { tables(ports.iter().copied()) };
            pair.update(version, &last);
            (0..*steps).for_each(|_| pair.step());
        }
        pair.run();
        prop_assert_eq!(&pair.switch.tables(), &last);
        prop_assert_eq!(pair.outputs.last(), Some(&acknowledged(updates.len() as u64)));
        if meddle {
            pair.switch = ModelSwitch::default();
            pair.wait();
            pair.run();
            prop_assert_eq!(&pair.switch.tables(), &last);
        }
        prop_assert!(!pair.outputs.iter().any(|o| matches!(o, Output::Acknowledged(_, refusals) if !refusals.is_empty())));
        prop_assert!(!pair.outputs.iter().any(|o| matches!(o, Output::Failed(_))));
    }

    /// A switch never holds more flows than permitted. Of the desired ones it holds as many as fit,
    /// and a refusal is reported only if some do not fit.
    #[test]
    fn exactly_as_many_flows_are_installed_as_are_permitted(
        most in 0u32..30,
        updates in prop::collection::vec((prop::collection::btree_set(1u32..60, 1..40), 0usize..12), 1..6),
    ) {
        let mut pair = Pair::bounded(ModelSwitch::default(), Some(most));
        let most = most as usize;
        let mut last = SwitchTables::default();
        for (version, (ports, steps)) in (1..).zip(&updates) {
            last = tables(ports.iter().copied());
            pair.update(version, &last);
            for _ in 0..*steps {
                pair.step();
                prop_assert!(pair.switch.flows.len() <= most);
            }
        }
        while !pair.towards.is_empty() {
            pair.step();
            prop_assert!(pair.switch.flows.len() <= most);
        }
        let installed = pair.switch.tables().flows;
        prop_assert_eq!(installed.len(), last.flows.len().min(most));
        prop_assert!(installed.iter().all(|(key, flow)| last.flows.get(key) == Some(flow)));
        let Some(Output::Acknowledged(version, refusals)) = pair.outputs.last() else { panic!("{:?}", pair.outputs) };
        prop_assert_eq!((*version, refusals.is_empty()), (updates.len() as u64, last.flows.len() <= most));
    }
}
