//! A simulated network delivers the announcements. The discovered graph is compared with the true
//! one.

use super::*;
use crate::samples::{connected, leaf_spine};
use proptest::prelude::*;

mod reports;
mod silence;

const INTERVAL: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(20);

/// Maximum number of frames in flight on a cable, in one direction.
const ON_A_CABLE: usize = 4;

fn mac(name: &str) -> MacAddr {
    let mut bytes = [2, 0, 0, 0, 0, 0];
    for (at, byte) in name.bytes().enumerate() {
        bytes[1 + at % 5] ^= byte;
    }
    MacAddr::from(bytes)
}

fn key(of: &str) -> Key {
    Key::from([9; 32]).derive(of.as_bytes())
}

/// Discovery on a simulated network: frames in flight, ports that are down, sessions.
struct World {
    truth: Graph,
    down: BTreeSet<Port>,
    connected: BTreeSet<DatapathId>,
    discovery: Discovery,
    now: Time,
    flying: VecDeque<(Port, Vec<u8>)>,
    warnings: Vec<Warning>,
    /// Last announcement of each port.
    announced: BTreeMap<Port, Vec<u8>>,
    /// Number of the last announcement of a node.
    number: u64,
}

impl World {
    fn new(truth: Graph) -> World {
        World {
            truth,
            down: BTreeSet::new(),
            connected: BTreeSet::new(),
            discovery: Discovery::new(INTERVAL, GRACE, key("controller")),
            now: Time::ZERO,
            flying: VecDeque::new(),
            warnings: Vec::new(),
            announced: BTreeMap::new(),
            number: 0,
        }
    }

    fn ports(&self, switch: DatapathId) -> Vec<(u32, MacAddr)> {
        let linked = self.truth.neighbors(switch).map(|(number, _)| number);
        let hosts = self.truth.hosts().filter(|(_, p)| p.switch == switch).map(|(_, p)| p.number);
        let up = |number: &u32| !self.down.contains(&Port { switch, number: *number });
        linked.chain(hosts).filter(up).map(|number| (number, MacAddr(2, 0, 0, 0, 0, number as u8))).collect()
    }

    fn input(&mut self, input: Input<'_>) {
        self.discovery.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Poll::Output(output) = self.discovery.poll(self.now) {
            match output {
                Output::Announce(port, frame) => {
                    assert!(self.connected.contains(&port.switch), "announced by a switch without a session");
                    self.announced.insert(port, frame.clone());
                    if let Some(peer) = self.truth.peer(port)
                        && !self.down.contains(&port)
                    {
                        self.flying.push_back((peer, frame));
                        // A cable holds no more frames, and the oldest is lost.
                        if self.flying.iter().filter(|(to, _)| *to == peer).count() > ON_A_CABLE {
                            let oldest = self.flying.iter().position(|(to, _)| *to == peer).unwrap();
                            self.flying.remove(oldest);
                        }
                    }
                }
                Output::Warning(warning) => self.warnings.push(warning),
                _ => {}
            }
        }
    }

    /// Delivers one frame in flight; `pick` selects it.
    fn arrive(&mut self, pick: usize) {
        if self.flying.is_empty() {
            return;
        }
        let port = self.flying[pick % self.flying.len()].0;
        let first = self.flying.iter().position(|(to, _)| *to == port).unwrap();
        let (_, frame) = self.flying.remove(first).unwrap();
        if self.connected.contains(&port.switch) && !self.down.contains(&port) {
            self.input(Input::Received(port, &frame));
            self.input(Input::CaughtUp(port.switch));
        }
    }

    fn connect(&mut self, switch: DatapathId) {
        self.connected.insert(switch);
        let ports = self.ports(switch);
        self.input(Input::SwitchUp { switch, ports: &ports });
    }

    fn disconnect(&mut self, switch: DatapathId) {
        if self.connected.remove(&switch) {
            self.input(Input::SwitchDown(switch));
        }
    }

    /// Takes a port and the other end of its cable down or up.
    fn flip(&mut self, port: Port) {
        let up = self.down.contains(&port);
        for end in [Some(port), self.truth.peer(port)].into_iter().flatten() {
            match up {
                true => self.down.remove(&end),
                false => self.down.insert(end),
            };
            if self.connected.contains(&end.switch) {
                self.input(match up {
                    true => Input::PortUp(end, MacAddr(2, 0, 0, 0, 0, end.number as u8)),
                    false => Input::PortDown(end),
                });
            }
        }
    }

    /// Returns an authentic announcement of a node.
    fn announcement_of(&mut self, node: &str) -> Vec<u8> {
        self.number += 1;
        let announcement = Announcement::Node { name: node.into(), mac: mac(node) };
        announcement.encode(mac(node), &key(node), self.number).unwrap()
    }

    fn agents_speak(&mut self) {
        let hosts: Vec<(String, Port)> = self.truth.hosts().map(|(n, p)| (n.to_owned(), p)).collect();
        for (name, port) in hosts {
            if !self.down.contains(&port) {
                let frame = self.announcement_of(&name);
                self.flying.push_back((port, frame));
            }
        }
    }

    fn interval(&mut self) {
        // Frames that have been in flight for so long are lost.
        let old = self.flying.len();
        self.now += INTERVAL;
        self.drain();
        self.flying.drain(..old / 2);
        self.agents_speak();
    }

    fn register_all(&mut self) {
        let names: Vec<String> = self.truth.hosts().map(|(n, _)| n.to_owned()).collect();
        for name in names {
            self.input(Input::NodeRegistered(&name, mac(&name), &key(&name)));
        }
    }

    /// Brings everything up, registers all nodes, and waits until the network is quiet.
    fn settle(&mut self) {
        for port in self.down.clone() {
            if self.down.contains(&port) {
                self.flip(port);
            }
        }
        for switch in self.truth.switches().collect::<Vec<_>>() {
            self.connect(switch);
        }
        self.register_all();
        self.agents_speak();
        self.all_arrive();
        for _ in 0..2 * u32::from(MISSED_MAX) + SPARSE_PERIOD {
            self.interval();
            self.all_arrive();
        }
    }

    fn all_arrive(&mut self) {
        while !self.flying.is_empty() {
            self.arrive(0);
        }
    }
}

#[test]
fn a_new_network_is_found_in_the_first_interval() {
    let mut world = World::new(leaf_spine(3, 2, 2));
    for switch in world.truth.switches().collect::<Vec<_>>() {
        world.connect(switch);
    }
    world.register_all();
    world.agents_speak();
    world.all_arrive();
    assert_eq!(world.now, Time::ZERO);
    assert_eq!(*world.discovery.graph(), world.truth);
    assert_eq!(world.warnings, []);
}

#[test]
fn a_link_is_lost_after_three_missed_announcements() {
    let mut world = World::new(leaf_spine(3, 1, 1));
    world.settle();
    let links: Vec<Link> = world.truth.links().collect();
    world.flip(links[2].a);
    assert_eq!(world.discovery.graph().links().collect::<Vec<_>>(), links[..2]);
    // From now on, frames over one link are lost.
    for missed in 0..=MISSED_MAX {
        assert_eq!(world.discovery.graph().links().count(), 2, "after {missed}");
        world.interval();
        world.flying.retain(|(port, _)| *port != links[0].a && *port != links[0].b);
        world.all_arrive();
    }
    assert_eq!(world.discovery.graph().links().collect::<Vec<_>>(), links[1..2]);
}

#[test]
fn old_ports_without_a_switch_are_announced_seldom() {
    let mut discovery = Discovery::new(INTERVAL, GRACE, key("controller"));
    let switch = DatapathId(1);
    let ports: Vec<(u32, MacAddr)> = (1..=SPARSE_PERIOD).map(|number| (number, mac("port"))).collect();
    discovery.handle(Time::ZERO, Input::SwitchUp { switch, ports: &ports });
    let mut announced = |now: Time| {
        std::iter::from_fn(|| match discovery.poll(now) {
            Poll::Output(output) => Some(output),
            Poll::Idle(_) => None,
        })
        .filter(|output| matches!(output, Output::Announce(..)))
        .count()
    };
    let mut now = Time::ZERO;
    assert_eq!(announced(now), ports.len());
    for interval in 1..=4 * SPARSE_PERIOD {
        now += INTERVAL;
        // All ports are announced while they are new, then one port per interval.
        assert_eq!(announced(now), if interval <= SPARSE_PERIOD { ports.len() } else { 1 });
    }
}

#[test]
fn intervals_grow_with_the_number_of_announcements() {
    let mut discovery = Discovery::new(INTERVAL, GRACE, key("controller"));
    let ports: Vec<(u32, MacAddr)> = (1..=20_000).map(|number| (number, mac("port"))).collect();
    discovery.handle(Time::ZERO, Input::SwitchUp { switch: DatapathId(1), ports: &ports });
    let mut next_after = |now: Time| loop {
        if let Poll::Idle(next) = discovery.poll(now) {
            return next.unwrap();
        }
    };
    let first = next_after(Time::ZERO);
    assert_eq!(first, Time::ZERO + INTERVAL);
    assert_eq!(next_after(first), first + Duration::from_secs(2));
}

#[test]
fn one_direction_makes_no_link() {
    let mut world = World::new(leaf_spine(2, 1, 0));
    let link = world.truth.links().next().unwrap();
    for switch in world.truth.switches().collect::<Vec<_>>() {
        world.connect(switch);
    }
    let deaf = link.a;
    for _ in 0..4 {
        world.flying.retain(|(port, _)| *port != deaf);
        while let Some(at) = world.flying.iter().position(|(port, _)| *port != deaf) {
            world.arrive(at);
            world.flying.retain(|(port, _)| *port != deaf);
        }
        world.interval();
    }
    assert!(!world.discovery.graph().links().any(|l| l == link));
    assert_eq!(world.discovery.graph().links().count(), 1);
}

#[test]
fn a_switch_without_a_session_stays_for_the_grace_time() {
    let mut world = World::new(leaf_spine(2, 1, 2));
    world.settle();
    let tor = DatapathId(101);
    for _ in 0..2 {
        world.disconnect(tor);
        for _ in 0..GRACE.as_secs() {
            world.interval();
            world.all_arrive();
            assert_eq!(*world.discovery.graph(), world.truth);
        }
        world.connect(tor);
        world.interval();
        world.all_arrive();
    }
    world.disconnect(tor);
    for _ in 0..=GRACE.as_secs() {
        world.interval();
        world.all_arrive();
    }
    let graph = world.discovery.graph();
    assert!(!graph.contains(tor));
    assert_eq!((graph.links().count(), graph.hosts().count()), (1, 2));
}

#[test]
fn a_switch_without_session_and_links_is_lost_soon() {
    let mut world = World::new(leaf_spine(2, 1, 2));
    world.settle();
    let tor = DatapathId(101);
    world.disconnect(tor);
    for port in world.truth.neighbors(tor).map(|(_, peer)| peer).collect::<Vec<_>>() {
        world.flip(port);
    }
    for _ in 0..=MISSED_MAX {
        assert!(world.discovery.graph().contains(tor));
        world.interval();
        world.all_arrive();
    }
    assert!(!world.discovery.graph().contains(tor));
}

#[test]
fn nothing_is_lost_while_no_switch_has_a_session() {
    let mut world = World::new(leaf_spine(2, 1, 2));
    world.settle();
    let switches: Vec<DatapathId> = world.truth.switches().collect();
    switches.iter().for_each(|switch| world.disconnect(*switch));
    for _ in 0..10 * GRACE.as_secs() {
        world.interval();
    }
    assert_eq!(*world.discovery.graph(), world.truth);
    switches.iter().for_each(|switch| world.connect(*switch));
    for _ in 0..MISSED_MAX {
        world.interval();
        world.all_arrive();
        assert_eq!(*world.discovery.graph(), world.truth);
    }
}

#[test]
fn a_node_is_located_only_with_its_registered_address() {
    let mut world = World::new(leaf_spine(1, 1, 1));
    world.connect(DatapathId(101));
    let port = world.truth.host("h1").unwrap();
    let frame = world.announcement_of("h1");
    world.input(Input::Received(port, &frame));
    assert_eq!(world.discovery.graph().host("h1"), None);
    world.input(Input::NodeRegistered("h1", mac("other"), &key("h1")));
    let frame = world.announcement_of("h1");
    world.input(Input::Received(port, &frame));
    assert_eq!(world.discovery.graph().host("h1"), None);
    assert!(world.warnings[0].to_string().contains("h1"), "{:?}", world.warnings);
    world.input(Input::NodeRegistered("h1", mac("h1"), &key("h1")));
    assert_eq!(world.discovery.graph().host("h1"), Some(port));
    world.input(Input::NodeUnregistered("h1"));
    assert_eq!(world.discovery.graph().host("h1"), None);
}

#[test]
fn a_node_heard_twice_keeps_its_place_until_silent_there() {
    let mut world = World::new(leaf_spine(2, 1, 1));
    world.settle();
    let frame = world.announcement_of("h1");
    let (old, new) = (world.truth.host("h1").unwrap(), Port { switch: DatapathId(102), number: 9 });
    world.input(Input::PortUp(new, mac("port")));
    world.input(Input::Received(new, &frame));
    assert_eq!(world.discovery.graph().host("h1"), Some(old));
    assert!(matches!(&world.warnings[0].cause, Cause::NodeElsewhere { at, .. } if *at == old));
    world.input(Input::PortDown(old));
    assert_eq!(world.discovery.graph().host("h1"), Some(new));
}

#[test]
fn a_port_believes_one_neighbour_and_warns_once_of_others() {
    let mut world = World::new(leaf_spine(2, 1, 1));
    world.settle();
    let link = world.truth.links().next().unwrap();
    let lie = Announcement::Switch { switch: DatapathId(77), port: 1 };
    let lie = lie.encode(mac("liar"), &key("liar"), 1).unwrap();
    for _ in 0..100 {
        world.input(Input::Received(link.a, &lie));
        world.input(Input::Received(link.a, &lie[..20]));
    }
    assert_eq!(*world.discovery.graph(), world.truth);
    assert_eq!(world.warnings.len(), 2);
    for _ in 0..WARNING_INTERVALS {
        world.all_arrive();
        world.interval();
    }
    assert_eq!(world.discovery.warnings().count(), 0);
}

/// Returns a network with h1 and h2 at two switches, both found, and at each switch a host without
/// an agent at port 9.
fn with_strangers() -> (World, Port, Port) {
    let mut world = World::new(leaf_spine(2, 1, 1));
    world.settle();
    let ports = [101, 102].map(|switch| Port { switch: DatapathId(switch), number: 9 });
    ports.iter().for_each(|port| world.input(Input::PortUp(*port, mac("port"))));
    (world, ports[0], ports[1])
}

/// Returns the next announcement of a port, while the rest of the network continues.
fn announced(world: &mut World, from: Port) -> Vec<u8> {
    let before = world.announced[&from].clone();
    while world.announced[&from] == before {
        world.interval();
        world.all_arrive();
    }
    world.announced[&from].clone()
}

#[test]
fn forged_frames_are_refused_reported_and_counted() {
    let (mut world, stranger, _) = with_strangers();
    let (victim, wrong) = (world.truth.host("h2").unwrap(), key("wrong"));
    for lie in [
        Announcement::Switch { switch: victim.switch, port: victim.number },
        Announcement::Node { name: "h2".into(), mac: mac("h2") },
    ] {
        world.warnings.clear();
        let frame = lie.encode(mac("h2"), &wrong, u64::MAX).unwrap();
        world.discovery.warnings.clear();
        world.input(Input::Received(stranger, &frame));
        assert_eq!(world.warnings, [Warning { port: stranger, cause: Cause::Forged(lie) }]);
    }
    assert_eq!(*world.discovery.graph(), world.truth);
    assert_eq!(world.discovery.refused(), RefusedFrames { forged: 2, ..RefusedFrames::default() });
}

#[test]
fn a_captured_frame_is_refused_when_it_is_sent_again() {
    let (mut world, stranger, other) = with_strangers();
    let frame = world.announcement_of("h1");
    let home = world.truth.host("h1").unwrap();
    world.input(Input::Received(home, &frame));
    world.input(Input::Received(stranger, &frame));
    assert!(matches!(&world.warnings[0].cause, Cause::Replayed(Announcement::Node { .. })));
    // A host receives a frame from its own switch and forwards it to another host, twice.
    let frame = announced(&mut world, stranger);
    world.input(Input::Received(other, &frame));
    world.input(Input::Received(other, &frame));
    assert_eq!(world.discovery.refused(), RefusedFrames { replayed: 2, ..RefusedFrames::default() });
    let old = announced(&mut world, stranger);
    for _ in 0..20 {
        announced(&mut world, stranger);
    }
    world.input(Input::Received(other, &old));
    assert_eq!(world.discovery.refused().replayed, 3);
    assert_eq!(*world.discovery.graph(), world.truth);
}

#[test]
fn announcements_that_arrive_late_are_no_replays() {
    let (mut world, stranger, other) = with_strangers();
    let frames = [announced(&mut world, stranger), announced(&mut world, stranger)];
    for frame in frames.iter().rev() {
        world.input(Input::Received(other, frame));
    }
    assert_eq!(world.discovery.refused(), RefusedFrames::default());
    for frame in &frames {
        world.input(Input::Received(other, frame));
    }
    assert_eq!(world.discovery.refused().replayed, 2);
}

#[test]
fn the_port_of_an_agent_never_becomes_a_link() {
    let (mut world, stranger, _) = with_strangers();
    let home = world.truth.host("h2").unwrap();
    for _ in 0..3 {
        let of_stranger = announced(&mut world, stranger);
        world.input(Input::Received(home, &of_stranger));
        let of_home = announced(&mut world, home);
        world.input(Input::Received(stranger, &of_home));
    }
    assert_eq!(*world.discovery.graph(), world.truth);
    let node = "h2".to_owned();
    assert!(world.warnings.iter().all(|w| matches!(&w.cause, Cause::Relayed { node: n, .. } if *n == node)));
    assert_eq!(world.discovery.refused(), RefusedFrames { relayed: 6, ..RefusedFrames::default() });
}

#[test]
fn a_new_agent_ends_the_link_that_its_host_had_faked() {
    let (mut world, one, other) = with_strangers();
    let frame = announced(&mut world, one);
    world.input(Input::Received(other, &frame));
    let frame = world.announced[&other].clone();
    world.input(Input::Received(one, &frame));
    // Two hosts without agents that forward frames between them look like a cable.
    assert_eq!(world.discovery.graph().peer(one), Some(other));
    world.input(Input::NodeRegistered("h9", mac("h9"), &key("h9")));
    let frame = world.announcement_of("h9");
    world.input(Input::Received(one, &frame));
    assert_eq!(world.discovery.graph().peer(one), None);
    assert_eq!(world.discovery.graph().host("h9"), Some(one));
}

#[derive(Clone, Debug)]
enum Event {
    Connect(prop::sample::Index),
    Disconnect(prop::sample::Index),
    Flip(prop::sample::Index),
    Arrive(usize),
    Lose(prop::sample::Index),
    Interval,
    Register(prop::sample::Index),
    Leave(prop::sample::Index),
}

fn events() -> impl Strategy<Value = Event> {
    use any as a;
    prop_oneof![
        3 => a::<prop::sample::Index>().prop_map(Event::Connect),
        1 => a::<prop::sample::Index>().prop_map(Event::Disconnect),
        2 => a::<prop::sample::Index>().prop_map(Event::Flip),
        12 => a::<usize>().prop_map(Event::Arrive),
        1 => a::<prop::sample::Index>().prop_map(Event::Lose),
        2 => Just(Event::Interval),
        2 => a::<prop::sample::Index>().prop_map(Event::Register),
        1 => a::<prop::sample::Index>().prop_map(Event::Leave),
    ]
}

impl World {
    fn happen(&mut self, event: &Event) {
        let switches: Vec<DatapathId> = self.truth.switches().collect();
        let hosts: Vec<String> = self.truth.hosts().map(|(n, _)| n.to_owned()).collect();
        let ports: Vec<Port> =
            self.truth.links().flat_map(|l| [l.a, l.b]).chain(self.truth.hosts().map(|(_, p)| p)).collect();
        match event {
            Event::Connect(i) => self.connect(switches[i.index(switches.len())]),
            Event::Disconnect(i) => self.disconnect(switches[i.index(switches.len())]),
            Event::Flip(i) => self.flip(ports[i.index(ports.len())]),
            Event::Arrive(pick) => self.arrive(*pick),
            Event::Lose(i) if !self.flying.is_empty() => {
                self.flying.remove(i.index(self.flying.len()));
            }
            Event::Lose(_) => {}
            Event::Interval => self.interval(),
            Event::Register(i) => {
                let name = &hosts[i.index(hosts.len())];
                self.input(Input::NodeRegistered(name, mac(name), &key(name)));
            }
            Event::Leave(i) => self.input(Input::NodeUnregistered(&hosts[i.index(hosts.len())])),
        }
    }
}

proptest! {
    #[test]
    fn discovery_always_converges_to_the_true_network(
        truth in connected(), history in prop::collection::vec(events(), 0..200),
    ) {
        let mut world = World::new(truth);
        for event in &history {
            world.happen(event);
            // Nothing may be believed that was never true.
            let truth = &world.truth;
            prop_assert!(world.discovery.graph().links().all(|l| truth.peer(l.a) == Some(l.b)));
            prop_assert!(world.discovery.graph().hosts().all(|(n, p)| truth.host(n) == Some(p)));
        }
        world.settle();
        prop_assert_eq!(world.discovery.graph(), &world.truth);
        prop_assert_eq!(&world.warnings, &[]);
    }
}
