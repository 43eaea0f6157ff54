//! A silent link or node is lost in time, but not one with announcements that merely wait to be
//! processed.

use super::*;
use crate::discovery::silent_switches::DEFERRED_INTERVALS_MAX;

impl World {
    /// Runs an interval in which all frames arrive except those over a link. If `caught_up`, all
    /// switches are reported as caught up first; otherwise none is.
    fn interval_without(&mut self, link: Link, caught_up: bool) {
        self.interval();
        let ends = [link.a, link.b];
        for switch in self.truth.switches().filter(|_| caught_up).collect::<Vec<_>>() {
            self.input(Input::CaughtUp(switch));
        }
        while let Some((port, frame)) = self.flying.pop_front() {
            if !ends.contains(&port) {
                self.input(Input::Received(port, &frame));
            }
        }
    }
}

#[test]
fn a_silent_network_stays_until_its_sessions_end() {
    let mut world = World::new(leaf_spine(2, 1, 2));
    world.settle();
    for _ in 0..2 * MISSED_MAX {
        world.interval();
        world.flying.clear();
    }
    assert_eq!(*world.discovery.graph(), world.truth);
}

impl World {
    /// Runs an interval in which a switch receives nothing, and nothing is received from it.
    fn interval_without_switch(&mut self, switch: DatapathId) {
        self.interval();
        let ends =
            |port: &Port| port.switch == switch || self.truth.peer(*port).is_some_and(|p| p.switch == switch);
        self.flying.retain(|(port, _)| !ends(port));
        self.all_arrive();
    }
}

#[test]
fn a_switch_that_answers_but_receives_nothing_loses_its_links() {
    for silent in [1, 101] {
        let mut world = World::new(leaf_spine(3, 2, 2));
        world.settle();
        let silent = DatapathId(silent);
        let concerns = |link: &Link| link.a.switch == silent || link.b.switch == silent;
        for missed in 0..=MISSED_MAX {
            assert_eq!(*world.discovery.graph(), world.truth, "after {missed}");
            world.interval_without_switch(silent);
            world.input(Input::CaughtUp(silent));
        }
        world.interval_without_switch(silent);
        let graph = world.discovery.graph();
        let others: Vec<Link> = world.truth.links().filter(|link| !concerns(link)).collect();
        assert_eq!(graph.links().collect::<Vec<_>>(), others);
        let elsewhere = world.truth.hosts().filter(|(_, port)| port.switch != silent);
        assert!(graph.hosts().eq(elsewhere));
        world.settle();
        assert_eq!(*world.discovery.graph(), world.truth);
    }
}

#[test]
fn a_switch_that_does_not_answer_stays_until_its_session_ends() {
    for silent in [1, 101] {
        let mut world = World::new(leaf_spine(3, 2, 2));
        world.settle();
        for _ in 0..5 * MISSED_MAX {
            world.interval_without_switch(DatapathId(silent));
            assert_eq!(*world.discovery.graph(), world.truth);
        }
    }
}

#[test]
fn nothing_is_missed_while_no_switch_hands_in_frames() {
    let mut world = World::new(leaf_spine(2, 1, 2));
    world.settle();
    for _ in 0..5 * MISSED_MAX {
        world.interval();
        world.flying.clear();
        for switch in world.truth.switches().collect::<Vec<_>>() {
            world.input(Input::CaughtUp(switch));
        }
    }
    assert_eq!(*world.discovery.graph(), world.truth);
}

#[test]
fn nothing_is_missed_while_frames_of_a_switch_still_wait() {
    let mut world = World::new(leaf_spine(2, 1, 2));
    world.settle();
    let at = world.truth.host("h1").unwrap();
    let other = world.truth.hosts().find(|(name, port)| *name != "h1" && port.switch == at.switch).unwrap();
    let (other, place, mut announced) = (other.0.to_owned(), other.1, Vec::new());
    let uplink = world
        .truth
        .neighbors(at.switch)
        .map(|(number, _)| Port { switch: at.switch, number })
        .next()
        .unwrap();
    for _ in 0..2 * MISSED_MAX {
        world.interval();
        world.flying.clear();
        // Some frames of this switch are processed, and the rest waits for longer than an interval.
        let frame = world.announcement_of("h1");
        world.input(Input::Received(at, &frame));
        announced.push(world.announced[&uplink].clone());
    }
    assert_eq!(*world.discovery.graph(), world.truth);
    // No further announcements are sent to it either.
    announced.dedup();
    assert_eq!(announced.len(), 1);
    for _ in 0..=MISSED_MAX {
        world.interval();
        world.flying.retain(|(port, _)| *port != place);
        world.all_arrive();
    }
    let graph = world.discovery.graph();
    assert_eq!((graph.host(&other), graph.host("h1")), (None, Some(at)));
    assert_eq!(graph.links().count(), world.truth.links().count());
}

#[test]
fn a_silent_link_is_lost_although_switches_hand_in_more() {
    let mut world = World::new(leaf_spine(2, 2, 1));
    world.settle();
    let links: Vec<Link> = world.truth.links().collect();
    for missed in 0..=MISSED_MAX {
        assert_eq!(world.discovery.graph().links().count(), links.len(), "after {missed}");
        world.interval_without(links[0], true);
    }
    assert_eq!(world.discovery.graph().links().collect::<Vec<_>>(), links[1..]);
}

#[test]
fn a_silent_link_is_lost_although_frames_always_wait() {
    let mut world = World::new(leaf_spine(2, 2, 1));
    world.settle();
    let link = world.truth.links().next().unwrap();
    let mut intervals = 0;
    while world.discovery.graph().peer(link.a).is_some() {
        world.interval_without(link, false);
        intervals += 1;
        assert!(intervals <= u32::from(DEFERRED_INTERVALS_MAX) + 2 * u32::from(MISSED_MAX));
    }
    assert!(intervals > u32::from(DEFERRED_INTERVALS_MAX));
}

#[test]
fn a_port_may_hear_a_switch_without_a_link() {
    let mut discovery = Discovery::new(INTERVAL, GRACE, key("controller"));
    let [one, two] = [1, 2].map(|number| Port { switch: DatapathId(1), number });
    let ports = [(1, mac("a")), (2, mac("b"))];
    discovery.handle(Time::ZERO, Input::SwitchUp { switch: DatapathId(1), ports: &ports });
    let frame = loop {
        match discovery.poll(Time::ZERO) {
            Poll::Output(Output::Announce(port, frame)) if port == one => break frame,
            Poll::Output(_) => {}
            Poll::Idle(_) => panic!("port 1 is not announced"),
        }
    };
    // A cable connects both ports of the switch, or LLDP passes in one direction only.
    discovery.handle(Time::ZERO, Input::Received(two, &frame));
    assert!(discovery.heard_switch(two).is_some() && discovery.heard_switch(one).is_none());
    assert_eq!(discovery.graph().links().count(), 0);
    discovery.handle(Time::ZERO, Input::PortDown(two));
    discovery.handle(Time::ZERO, Input::PortUp(two, mac("b")));
    assert!(discovery.heard_switch(two).is_none());
}
