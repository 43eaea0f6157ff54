//! Tests of the course of examinations.

use super::*;

const QUIET: Duration = Duration::from_secs(15);

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// Returns nodes of one rack: 1 sends, 2 is the member, and the others listen.
fn nodes(numbers: std::ops::RangeInclusive<u32>) -> Vec<ExaminedNode> {
    numbers.map(|number| ExaminedNode { rack: 0, number, may_listen: true }).collect()
}

/// An examiner with the time of the latest event.
struct TimedExaminer {
    examiner: FloodingExaminer,
    now: Time,
}

impl TimedExaminer {
    /// Returns an examiner of these nodes, which have been there since the beginning.
    fn of(nodes: &[ExaminedNode]) -> TimedExaminer {
        let mut timed = TimedExaminer { examiner: FloodingExaminer::new(QUIET, 0), now: at(0) };
        timed.examiner.handle(timed.now, FloodingInput::Nodes(nodes));
        timed
    }

    /// Returns the outputs that are due, and the next deadline.
    fn outputs(&mut self) -> (Vec<FloodingOutput>, Option<Time>) {
        let mut outputs = Vec::new();
        loop {
            match self.examiner.poll(self.now) {
                Poll::Output(output) => outputs.push(output),
                Poll::Idle(deadline) => return (outputs, deadline),
            }
        }
    }

    /// Lets the time pass until the next deadline, and returns the roles that are assigned then.
    fn wait(&mut self) -> Vec<(u32, NodeRole)> {
        self.now = self.outputs().1.expect("a deadline");
        self.assigned()
    }

    /// Returns the roles that are assigned now.
    fn assigned(&mut self) -> Vec<(u32, NodeRole)> {
        let assigned = self.outputs().0.into_iter().filter_map(|output| match output {
            FloodingOutput::Assign { node, role, .. } => Some((node, role)),
            FloodingOutput::Concluded(_) => None,
        });
        assigned.collect()
    }

    fn report(&mut self, node: u32, report: RoleReport) {
        let number = self.examiner.last_number;
        self.examiner.handle(self.now, FloodingInput::Report { node, number, report });
    }

    /// Begins an examination of the nodes 1 to 4, of which 3 and 4 listen, up to the train that
    /// counts.
    fn up_to_the_counted_train() -> TimedExaminer {
        let mut timed = TimedExaminer::of(&nodes(1..=4));
        assert_eq!(timed.wait(), [(2, NodeRole::Member), (3, NodeRole::Listener), (4, NodeRole::Listener)]);
        assert_eq!(timed.now, at(15));
        for node in [2, 3, 4] {
            assert_eq!(timed.assigned(), []);
            timed.report(node, RoleReport::Ready);
        }
        assert_eq!(timed.assigned(), [(1, NodeRole::Sender(FIRST_TRAIN))]);
        timed.report(3, RoleReport::Heard(FIRST_TRAIN));
        timed.report(2, RoleReport::Heard(FIRST_TRAIN));
        assert_eq!(timed.wait(), [(1, NodeRole::Sender(COUNTED_TRAIN))]);
        assert_eq!(timed.now, at(15) + SETTLE_TIME);
        timed
    }

    /// Returns the listeners and the reached nodes of the verdict.
    fn verdict(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let verdict = self.examiner.verdict()?;
        Some((Vec::from_iter(verdict.listeners.clone()), Vec::from_iter(verdict.reached.clone())))
    }
}

const ENDED: [(u32, NodeRole); 3] = [(2, NodeRole::None), (3, NodeRole::None), (4, NodeRole::None)];

#[test]
fn listeners_that_hear_the_counted_train_are_reached() {
    let mut timed = TimedExaminer::up_to_the_counted_train();
    timed.report(4, RoleReport::Heard(COUNTED_TRAIN));
    timed.report(2, RoleReport::Heard(COUNTED_TRAIN));
    assert_eq!((timed.assigned(), timed.verdict()), (vec![], None));
    assert_eq!(timed.wait(), ENDED);
    assert_eq!(timed.verdict(), Some((vec![3, 4], vec![4])));
    assert_eq!(timed.outputs().1, Some(timed.now + PERIOD));
}

#[test]
fn an_examination_ends_at_once_if_all_have_heard() {
    let mut timed = TimedExaminer::up_to_the_counted_train();
    [2, 3, 4].into_iter().for_each(|node| timed.report(node, RoleReport::Heard(COUNTED_TRAIN)));
    assert_eq!(timed.assigned(), ENDED);
    assert_eq!(timed.verdict(), Some((vec![3, 4], vec![3, 4])));
}

#[test]
fn early_multicasts_do_not_count() {
    // Listener 3 has heard the first train, before the switches knew the member.
    let mut timed = TimedExaminer::up_to_the_counted_train();
    timed.report(2, RoleReport::Heard(COUNTED_TRAIN));
    timed.wait();
    assert_eq!(timed.verdict(), Some((vec![3, 4], vec![])));
}

#[test]
fn without_the_member_there_is_no_result() {
    let mut timed = TimedExaminer::up_to_the_counted_train();
    timed.report(3, RoleReport::Heard(COUNTED_TRAIN));
    timed.now += COUNTED_TIME_MAX;
    assert!(timed.outputs().0.contains(&FloodingOutput::Concluded(None)));
    assert_eq!((timed.verdict(), timed.outputs().1), (None, Some(timed.now + RETRY_AFTER)));
    timed.wait();
    [2, 3, 4].into_iter().for_each(|node| timed.report(node, RoleReport::Ready));
    let mut trains = Vec::from_iter(timed.assigned());
    (1..FIRST_TRAINS_MAX).for_each(|_| trains.extend(timed.wait()));
    assert_eq!(trains, [(1, NodeRole::Sender(FIRST_TRAIN)); FIRST_TRAINS_MAX as usize]);
    assert_eq!((timed.wait(), timed.verdict()), (ENDED.to_vec(), None));
    assert_eq!(timed.outputs().1, Some(timed.now + 2 * RETRY_AFTER), "pauses grow");
}

#[test]
fn silent_nodes_delay_an_examination_and_do_not_prevent_it() {
    let mut timed = TimedExaminer::of(&nodes(1..=4));
    timed.wait();
    timed.report(2, RoleReport::Ready);
    timed.report(4, RoleReport::Ready);
    assert_eq!(timed.wait(), [(1, NodeRole::Sender(FIRST_TRAIN))]);
    assert_eq!(timed.now, at(15) + READY_TIME_MAX);
    timed.report(2, RoleReport::Heard(FIRST_TRAIN));
    timed.wait();
    timed.report(2, RoleReport::Heard(COUNTED_TRAIN));
    timed.report(3, RoleReport::Heard(COUNTED_TRAIN));
    timed.wait();
    assert_eq!(timed.verdict(), Some((vec![4], vec![])), "node 3 was not ready");
}

#[test]
fn nodes_without_permission_are_asked_once() {
    let mut timed = TimedExaminer::of(&nodes(1..=3));
    assert_eq!(timed.wait(), [(2, NodeRole::Member), (3, NodeRole::Listener)]);
    timed.report(2, RoleReport::Ready);
    timed.report(3, RoleReport::Unable);
    assert_eq!(timed.assigned(), [(2, NodeRole::None), (3, NodeRole::None)]);
    // Node 3 sends now.
    assert_eq!(timed.wait(), [(1, NodeRole::Member), (2, NodeRole::Listener)]);
    timed.report(2, RoleReport::Unable);
    timed.report(1, RoleReport::Ready);
    timed.wait();
    timed.report(1, RoleReport::Unable);
    timed.report(2, RoleReport::Ready);
    timed.report(3, RoleReport::Ready);
    while let (outputs, Some(deadline)) = timed.outputs() {
        assert!(outputs.iter().all(|output| !matches!(output, FloodingOutput::Assign { role: NodeRole::Listener, node, .. } if *node != 1)));
        timed.now = deadline;
        timed.report(1, RoleReport::Unable);
    }
    assert_eq!(timed.verdict(), None);
}

#[test]
fn changes_postpone_and_repeat_an_examination() {
    let mut timed = TimedExaminer::up_to_the_counted_train();
    timed.report(2, RoleReport::Heard(COUNTED_TRAIN));
    timed.report(4, RoleReport::Heard(COUNTED_TRAIN));
    timed.wait();
    let number = timed.examiner.last_number;
    // The same nodes change nothing, and a lost one is not named any more.
    timed.examiner.handle(timed.now, FloodingInput::Nodes(&nodes(1..=4)));
    assert_eq!(timed.outputs().1, Some(timed.now + PERIOD));
    timed.examiner.handle(timed.now, FloodingInput::Nodes(&nodes(1..=3)));
    assert_eq!((timed.verdict(), timed.outputs().1), (Some((vec![3], vec![])), Some(timed.now + QUIET)));
    timed.wait();
    timed.examiner.handle(timed.now, FloodingInput::NetworkChanged);
    assert_eq!(timed.assigned(), [(2, NodeRole::None), (3, NodeRole::None)]);
    assert_eq!((timed.verdict(), timed.outputs().1), (None, Some(timed.now + QUIET)));
    // A late report of an earlier round is ignored.
    timed.wait();
    let late = FloodingInput::Report { node: 2, number, report: RoleReport::Unable };
    timed.examiner.handle(timed.now, late);
    assert_eq!(timed.assigned(), []);
    timed.examiner.handle(timed.now, FloodingInput::Nodes(&nodes(1..=2)));
    assert_eq!(timed.assigned(), [(2, NodeRole::None), (3, NodeRole::None)]);
    assert_eq!(timed.outputs().1, None, "no node remains to listen");
}

#[test]
fn the_rounds_of_all_racks_have_one_verdict() {
    let node = |number| ExaminedNode { rack: number / 10, number, may_listen: true };
    let mut timed = TimedExaminer::of(&[1, 2, 3, 11, 12, 13].map(node));
    timed.wait();
    for (sender, member, reached) in [(1, 2, 3), (11, 12, 13)] {
        let running = timed.examiner.running.as_ref().unwrap();
        assert_eq!((running.roles.sender, running.roles.member), (sender, member));
        let listeners = running.roles.listeners.clone();
        listeners.iter().chain([&member]).for_each(|node| timed.report(*node, RoleReport::Ready));
        timed.report(member, RoleReport::Heard(FIRST_TRAIN));
        timed.wait();
        timed.report(reached, RoleReport::Heard(COUNTED_TRAIN));
        timed.report(member, RoleReport::Heard(COUNTED_TRAIN));
        timed.now += REPORT_TIME;
        timed.assigned();
    }
    assert_eq!(timed.verdict(), Some((vec![1, 2, 3, 11, 12, 13], vec![3, 13])));
}
