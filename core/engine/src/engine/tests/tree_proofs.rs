//! Proofs of trees among engines whose multicasts may be lost.

use super::*;
use crate::inputs_outputs::MissingProbes;
use crate::{TreeScope, TreeSpec};
use cool_collective::{MulticastScope, Rank};
use std::net::IpAddr;

const NODES: usize = 4;
const TIME_MAX: Duration = Duration::from_millis(500);

/// A tree over all nodes, one over the leaders of the racks, which are nodes 0 and 2, and one in
/// each rack.
const TREES: [(TreeScope, &[usize]); 4] = [
    (TreeScope::All, &[0, 1, 2, 3]),
    (TreeScope::Leaders, &[0, 2]),
    (TreeScope::Rack(0), &[0, 1]),
    (TreeScope::Rack(1), &[2, 3]),
];

fn tree_address(tree: usize) -> IpAddr {
    [239, 192, 0, tree as u8].into()
}

fn node_address(node: usize) -> SocketAddr {
    SocketAddr::new([10, 0, 0, node as u8].into(), 7420)
}

/// Engines with one group, connected by a network that drops multicasts.
struct World {
    engines: Vec<Engine>,
    now: Time,
    /// The reports of the nodes: missing probes, and the number of those that have arrived.
    reports: Vec<Option<(Vec<MissingProbes>, usize)>>,
    /// The trees of which each node has renewed its membership.
    renewed: Vec<Vec<SocketAddr>>,
    /// Number of probes that each node has sent.
    sent: Vec<usize>,
}

impl World {
    fn new() -> World {
        let member = |rank: u32| MemberSpec {
            rank,
            node: format!("h{rank}"),
            incarnation: 0,
            rack: rank / 2,
            ip: node_address(rank as usize).ip(),
            udp_port: 7420,
            tcp_port: 7420,
            key: None,
        };
        let trees = (0..).zip(TREES).map(|(tree, (scope, _))| TreeSpec {
            scope,
            address: tree_address(tree),
            port: 7420,
            bytes_per_second: 0,
        });
        let group = GroupSpec {
            members: (0..NODES as u32).map(member).collect(),
            trees: trees.collect(),
            on_demand: true,
            ..spec(1)
        };
        let engine = |node| {
            let me = AgentId { node: format!("h{node}"), incarnation: 0 };
            let mut engine = Engine::new(me, 0, Duration::from_secs(2));
            engine.handle(Time::ZERO, Input::MakeGroup(&group));
            engine
        };
        World {
            engines: (0..NODES).map(engine).collect(),
            now: Time::ZERO,
            reports: vec![None; NODES],
            renewed: vec![Vec::new(); NODES],
            sent: vec![0; NODES],
        }
    }

    /// Polls all engines until they are idle. `arrives` decides which multicasts arrive, by tree,
    /// sender and receiver.
    fn exchange(&mut self, mut arrives: impl FnMut(usize, usize, usize) -> bool) -> Option<Time> {
        loop {
            let mut sent = Vec::new();
            let mut next = None;
            for node in 0..NODES {
                loop {
                    match self.engines[node].poll(self.now) {
                        Poll::Output(Output::Control { to, bytes, .. }) => sent.push((node, to.ip(), bytes)),
                        Poll::Output(Output::TreesProbed { missing, received, .. }) => {
                            assert_eq!(self.reports[node].replace((missing, received)), None);
                        }
                        Poll::Output(Output::RenewTrees { trees }) => self.renewed[node].extend(trees),
                        Poll::Output(_) => {}
                        Poll::Idle(at) => break next = cool_machine::earliest(next, at),
                    }
                }
            }
            if sent.is_empty() {
                return next;
            }
            for (from, to, bytes) in sent {
                assert_eq!(
                    bytes.len(),
                    cool_transport::packet::DATA_HEADER + 1424,
                    "probes have full length"
                );
                self.sent[from] += 1;
                let tree = (0..TREES.len()).find(|tree| tree_address(*tree) == to).expect("a tree");
                for node in TREES[tree].1.iter().filter(|node| **node != from) {
                    if arrives(tree, from, *node) {
                        let from = node_address(from);
                        self.engines[*node]
                            .handle(self.now, Input::Datagram { from, bytes: &bytes, proven: None });
                    }
                }
            }
        }
    }

    fn prove(&mut self, node: usize, number: u64) {
        let request = Input::ProveTrees { group: 1, number, time_max: TIME_MAX };
        self.engines[node].handle(self.now, request);
    }

    /// Lets all nodes prove the trees until all have reported.
    fn prove_all(&mut self, number: u64, mut arrives: impl FnMut(usize, usize, usize) -> bool) {
        self.reports.fill(None);
        (0..NODES).for_each(|node| self.prove(node, number));
        while let Some(next) = self.exchange(&mut arrives)
            && self.reports.contains(&None)
        {
            self.now = next;
        }
    }

    /// Ends a proof at all nodes. These trees are withdrawn.
    fn conclude(&mut self, withdrawn: &[usize]) {
        let withdrawn: BTreeSet<IpAddr> = withdrawn.iter().map(|tree| tree_address(*tree)).collect();
        for engine in &mut self.engines {
            engine.handle(self.now, Input::ConcludeTreeProof { group: 1, withdrawn: withdrawn.clone() });
        }
        self.exchange(|_, _, _| true);
    }

    /// Returns whether a node uses each of the trees.
    fn uses(&self, node: usize) -> [bool; TREES.len()] {
        let members = &self.engines[node].groups[&1].members;
        let scopes = [
            MulticastScope::All,
            MulticastScope::Leaders,
            MulticastScope::Rack(members.layout.rack_of(Rank(0))),
            MulticastScope::Rack(members.layout.rack_of(Rank(2))),
        ];
        scopes.map(|scope| members.has_tree(scope))
    }

    /// Returns whether the plans of each node count on a tree that reaches all nodes.
    fn plans_for_tree(&self) -> [bool; NODES] {
        std::array::from_fn(|node| self.engines[node].groups[&1].members.layout.has_tree())
    }

    /// Returns the missing probes of a node's report, by tree.
    fn missing(&self, node: usize) -> Vec<(IpAddr, Vec<String>)> {
        let (missing, _) = self.reports[node].as_ref().expect("the node has reported");
        missing.iter().map(|missing| (missing.tree, missing.from.clone())).collect()
    }
}

fn names<const N: usize>(nodes: [usize; N]) -> Vec<String> {
    nodes.map(|node| format!("h{node}")).to_vec()
}

#[test]
fn trees_that_carry_all_probes_are_proven_at_once() {
    let mut world = World::new();
    world.prove_all(1, |_, _, _| true);
    assert_eq!(world.now, Time::ZERO);
    let received = world.reports.iter().flatten().map(|(missing, received)| (missing.len(), *received));
    assert_eq!(received.collect::<Vec<_>>(), [(0, 5), (0, 4), (0, 5), (0, 4)]);
    // Probes continue for nodes that may miss some, until the controller concludes the proof.
    let sent = world.sent[0];
    world.now = world.exchange(|_, _, _| true).unwrap();
    world.exchange(|_, _, _| true);
    assert!(world.sent[0] > sent);
    world.conclude(&[]);
    assert_eq!((world.exchange(|_, _, _| true), world.uses(0)), (None, [true; 4]));
}

#[test]
fn lost_probes_are_repeated_until_they_arrive() {
    let (mut world, mut attempts) = (World::new(), BTreeMap::new());
    world.prove_all(1, |tree, from, to| {
        let attempt = attempts.entry((tree, from, to)).or_insert(0);
        *attempt += 1;
        *attempt > 3
    });
    assert!(world.now > Time::ZERO && world.now < Time::ZERO + TIME_MAX);
    (0..NODES).for_each(|node| assert_eq!(world.missing(node), [], "node {node}"));
}

#[test]
fn a_deaf_node_and_a_mute_one_are_reported_in_time() {
    let mut world = World::new();
    world.prove_all(1, |tree, from, to| to != 3 && !(tree == 0 && from == 1));
    assert_eq!(world.now, Time::ZERO + TIME_MAX);
    assert_eq!(world.missing(0), [(tree_address(0), names([1]))]);
    assert_eq!(world.missing(1), []);
    assert_eq!(world.missing(2), [(tree_address(0), names([1]))]);
    assert_eq!(world.missing(3), [(tree_address(0), names([0, 1, 2])), (tree_address(3), names([2]))]);
}

#[test]
fn withdrawn_trees_return_with_a_later_proof() {
    let mut world = World::new();
    world.prove_all(1, |_, _, to| to != 3);
    world.conclude(&[0, 3]);
    (0..NODES).for_each(|node| assert_eq!(world.uses(node), [false, true, true, false]));
    assert!(world.renewed.iter().all(Vec::is_empty));
    // Probes cross the withdrawn trees, too, and the memberships there are renewed before.
    world.prove_all(2, |_, _, _| true);
    (0..NODES).for_each(|node| assert_eq!(world.missing(node), [], "node {node}"));
    let renewed = |node: usize| world.renewed[node].iter().map(|tree| tree.ip()).collect::<Vec<_>>();
    assert_eq!((renewed(0), renewed(2)), (vec![tree_address(0)], vec![tree_address(0), tree_address(3)]));
    world.conclude(&[]);
    (0..NODES).for_each(|node| assert_eq!(world.uses(node), [true; 4]));
}

#[test]
fn only_the_first_conclusion_of_a_proof_changes_plans() {
    for (first, later) in [(&[][..], &[0, 1][..]), (&[1], &[0]), (&[0], &[])] {
        let mut world = World::new();
        world.prove_all(1, |_, _, _| true);
        world.conclude(first);
        let has_tree = !first.contains(&0);
        assert_eq!(world.plans_for_tree(), [has_tree; NODES], "{first:?}");
        // Probes of a later proof may arrive before its request.
        world.prove(0, 2);
        world.exchange(|_, _, _| true);
        world.conclude(later);
        assert_eq!(world.plans_for_tree(), [has_tree; NODES], "{first:?}, then {later:?}");
    }
}

#[test]
fn probes_of_an_earlier_proof_do_not_count() {
    let mut world = World::new();
    world.prove_all(1, |_, _, _| true);
    world.prove_all(2, |_, _, to| to != 1);
    assert_eq!(world.missing(1), [(tree_address(0), names([0, 2, 3])), (tree_address(2), names([0]))]);
}

#[test]
fn probes_that_arrive_before_the_request_count() {
    let mut world = World::new();
    (1..NODES).for_each(|node| world.prove(node, 1));
    world.exchange(|_, _, _| true);
    assert_eq!(world.reports[0], None);
    world.prove(0, 1);
    world.exchange(|_, _, to| to != 0);
    assert_eq!(world.missing(0), []);
}
