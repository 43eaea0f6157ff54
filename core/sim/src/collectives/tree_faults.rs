//! Trees that nodes do not receive for some time, and a controller that lets the nodes of the group
//! prove their trees again.

use super::ContractViolation;
use super::cluster::{Alarm, DelayedInput, SimulatedCluster, node_at};
use super::scenario::{CallScenario, CollectiveScenario, GroupScenario, ScenarioGenerator};
use cool_engine::{GroupSpec, Input, MissingProbes};
use cool_machine::{Duration, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// The time within which nodes report missing probes.
pub(super) const PROOF_TIME: Duration = Duration::from_millis(200);

/// The longest time until a message of the controller reaches a node, so that nodes begin and end
/// the use of a tree at different times.
const MESSAGE_DELAY: Duration = Duration::from_millis(50);

/// Distinguishes the draws of tree faults from those of the scenarios in which they occur.
const TREE_SEED: u64 = 0x7ee5;

/// A node that receives no multicasts of a group for some time.
#[derive(Clone, Debug)]
pub struct TreeFault {
    /// The group, by index.
    pub group: usize,
    /// The node.
    pub node: u16,
    /// When the multicasts stop. If at once, the first proof withdraws the trees of the node.
    pub at: Duration,
    /// How long they do not arrive.
    pub long: Duration,
}

impl CollectiveScenario {
    /// Lets trees of each group fail for some time, drawn from a seed. In half of the groups, the
    /// planner picks all plans, because nodes must pick the same ones while they disagree about the
    /// trees.
    pub fn with_tree_faults(mut self, seed: u64) -> CollectiveScenario {
        let mut draw = ScenarioGenerator::new(seed ^ TREE_SEED);
        for (group, GroupScenario { places, calls, .. }) in self.groups.iter_mut().enumerate() {
            if draw.chance(0.5) {
                for CallScenario { plan, after, .. } in calls {
                    plan.clear();
                    let pause = draw.moment(2 * PROOF_TIME);
                    after.iter_mut().for_each(|after| *after += pause);
                }
            }
            for _ in 0..draw.pick(&[(50, 1), (50, 3)]) {
                let node = places[draw.below(places.len())];
                let at = match draw.pick(&[(20, true), (80, false)]) {
                    true => Duration::ZERO,
                    false => draw.moment(Duration::from_millis(200)),
                };
                let longest = Duration::from_millis(draw.pick(&[(50, 100), (50, 2_000)]));
                let long = draw.moment(longest);
                self.tree_faults.push(TreeFault { group, node, at, long });
            }
        }
        self
    }
}

/// An event of a group's trees.
#[derive(Clone, Copy, Debug)]
pub(super) enum TreeEvent {
    /// The node receives nothing over the trees any more.
    Lost(u16),
    /// The node receives multicasts again.
    Restored(u16),
    /// The trees are proven again.
    Proof,
}

/// The proofs of all groups with trees that fail.
#[derive(Debug, Default)]
pub(super) struct SimulatedProofs {
    groups: BTreeMap<u64, FailingGroup>,
    /// Number of concluded proofs, and of those that withdrew a tree.
    pub(super) concluded: [u64; 2],
}

#[derive(Debug, Default)]
struct FailingGroup {
    nodes: BTreeSet<u16>,
    trees: Vec<SocketAddr>,
    /// The trees that a node has lost.
    lost: BTreeSet<(u16, SocketAddr)>,
    number: u64,
    unreported: BTreeSet<u16>,
    failed: BTreeSet<IpAddr>,
    /// When all nodes have learned the result of the latest proof.
    known_at: Time,
}

impl SimulatedCluster {
    /// Lets nodes miss the multicasts of a group by those of the faults that are about its index.
    /// Ends the first proof of its trees, so this must be called before any rank makes a call. They
    /// are proven again a while after each change.
    pub(super) fn fail_trees(
        &mut self,
        spec: &GroupSpec,
        index: usize,
        faults: &[TreeFault],
    ) -> Result<(), ContractViolation> {
        let faults: Vec<&TreeFault> = faults.iter().filter(|fault| fault.group == index).collect();
        if faults.is_empty() {
            return Ok(());
        }
        let nodes: BTreeSet<u16> = spec.members.iter().map(|member| node_at(member.ip)).collect();
        let trees = spec.trees.iter().map(|tree| SocketAddr::new(tree.address, tree.port)).collect();
        let proven = FailingGroup { nodes: nodes.clone(), trees, ..FailingGroup::default() };
        self.tree_proofs.groups.insert(spec.id, proven);
        for TreeFault { node, at, long, .. } in faults {
            if at.is_zero() {
                self.on_tree_event(spec.id, TreeEvent::Lost(*node));
            } else {
                self.schedule(*at, Alarm::Trees(spec.id, TreeEvent::Lost(*node)));
            }
            self.schedule(*at + *long, Alarm::Trees(spec.id, TreeEvent::Restored(*node)));
            for changed in [*at, *at + *long] {
                let proof = changed + self.moment(*long);
                self.schedule(proof, Alarm::Trees(spec.id, TreeEvent::Proof));
            }
        }
        let lost = &self.tree_proofs.groups[&spec.id].lost;
        let withdrawn: BTreeSet<IpAddr> = lost.iter().map(|(_, tree)| tree.ip()).collect();
        nodes.into_iter().try_for_each(|node| {
            let withdrawn = withdrawn.clone();
            self.input(node, Input::ConcludeTreeProof { group: spec.id, withdrawn })
        })
    }

    pub(super) fn on_tree_event(&mut self, group: u64, event: TreeEvent) {
        let Some(proven) = self.tree_proofs.groups.get_mut(&group) else { return };
        match event {
            TreeEvent::Lost(node) => {
                for tree in &proven.trees {
                    if self.net.leave_tree(self.trees[tree], node) {
                        proven.lost.insert((node, *tree));
                    }
                }
            }
            TreeEvent::Restored(node) => {
                let is_member = self.nodes[usize::from(node)].groups.contains_key(&group);
                for (_, tree) in proven.lost.extract_if(.., |(of, _)| *of == node).filter(|_| is_member) {
                    self.net.join_tree(self.trees[&tree], node);
                }
            }
            TreeEvent::Proof => self.prove_again(group),
        }
    }

    /// Starts a proof of a group's trees, unless one runs or they never fail.
    pub(super) fn prove_again(&mut self, group: u64) {
        let now = self.now();
        let Some(proven) = self.tree_proofs.groups.get_mut(&group) else { return };
        if !proven.unreported.is_empty() {
            return;
        }
        if proven.known_at > now {
            let wait = proven.known_at - now;
            return self.schedule(wait, Alarm::Trees(group, TreeEvent::Proof));
        }
        proven.number += 1;
        proven.failed.clear();
        proven.unreported.clone_from(&proven.nodes);
        let (number, nodes) = (proven.number, proven.nodes.clone());
        for node in nodes {
            let delay = self.moment(MESSAGE_DELAY);
            self.later(node, delay, DelayedInput::ProveTrees { group, number });
        }
    }

    /// Handles the report of a node. The last one concludes the proof.
    pub(super) fn on_trees_probed(
        &mut self,
        node: u16,
        (group, number): (u64, u64),
        missing: &[MissingProbes],
    ) -> Result<(), ContractViolation> {
        let known_at = self.now() + MESSAGE_DELAY;
        let Some(proven) = self.tree_proofs.groups.get_mut(&group) else { return Ok(()) };
        if proven.number != number || !proven.unreported.remove(&node) {
            return Err(ContractViolation::UnexpectedReport { node, group });
        }
        proven.failed.extend(missing.iter().map(|missing| missing.tree));
        if !proven.unreported.is_empty() {
            return Ok(());
        }
        proven.known_at = known_at;
        let (failed, nodes) = (proven.failed.clone(), proven.nodes.clone());
        self.tree_proofs.concluded[0] += 1;
        self.tree_proofs.concluded[1] += u64::from(!failed.is_empty());
        for node in nodes {
            let (delay, withdrawn) = (self.moment(MESSAGE_DELAY), failed.clone());
            self.later(node, delay, DelayedInput::ConcludeTreeProof { group, withdrawn });
        }
        Ok(())
    }
}
