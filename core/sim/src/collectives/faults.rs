//! Faults of the nodes of a simulated cluster.

use super::ContractViolation;
use super::cluster::SimulatedCluster;
use super::node::{ClusterNode, Host};
use super::scenario::FailedStep;

/// The step of a node that fails.
#[derive(Debug)]
pub(super) struct StepFailure {
    node: u16,
    step: FailedStep,
    /// Number of such steps that succeed before it.
    remaining: u64,
}

impl SimulatedCluster {
    /// Makes a step of a node fail, after `before` steps of the same kind.
    pub fn fail_step(&mut self, node: u16, step: FailedStep, before: u64) {
        self.step_failure = Some(StepFailure { node, step, remaining: before });
    }

    /// Makes no further step fail.
    pub fn fail_no_step(&mut self) {
        self.step_failure = None;
    }

    /// Returns whether the step of [`SimulatedCluster::fail_step`] has failed.
    pub fn has_step_failed(&self) -> bool {
        self.has_step_failed
    }

    /// Counts a step of a node. Returns whether it fails.
    pub(super) fn fails(&mut self, node: u16, step: FailedStep) -> bool {
        let Some(failure) = self.step_failure.as_mut().filter(|of| (of.node, of.step) == (node, step)) else {
            return false;
        };
        let fails = failure.remaining == 0;
        failure.remaining = failure.remaining.saturating_sub(1);
        if fails {
            self.step_failure = None;
            self.has_step_failed = true;
        }
        fails
    }

    /// Stops or isolates a node: it sends and receives nothing until [`SimulatedCluster::resume`].
    pub fn stop(&mut self, node: u16) {
        self.nodes[usize::from(node)].host = Host::Stopped;
        self.set_links(node, false);
    }

    /// Resumes a stopped node.
    pub fn resume(&mut self, node: u16) -> Result<(), ContractViolation> {
        self.nodes[usize::from(node)].host = Host::Running;
        self.set_links(node, true);
        self.run_ranks_of(node)?;
        self.pump(node)
    }

    fn set_links(&mut self, node: u16, up: bool) {
        let (from, to) = (self.net.from_node(node), self.net.to_node(node));
        self.net.set_up(from, up);
        self.net.set_up(to, up);
    }

    /// Ends the agent of a node. Its system still sends the queued bytes of all connections and
    /// then closes them.
    pub fn crash(&mut self, node: u16) {
        self.nodes[usize::from(node)].host = Host::Crashed;
        for side in self.connections.of_node(node) {
            self.connections.drop_end(side);
            self.connections.finish(side);
            self.send_on(side);
        }
    }

    /// Powers a node off. Its connections end without notice.
    pub fn power_off(&mut self, node: u16) {
        self.nodes[usize::from(node)].host = Host::Off;
        for side in self.connections.of_node(node) {
            self.connections.drop_end(side);
            self.connections.discard(side);
        }
    }

    /// Starts a new agent, without any state, on a node that has crashed or was powered off.
    pub fn restart(&mut self, node: u16) {
        let life = self.nodes[usize::from(node)].life + 1;
        let (bounce, timeout) = (self.settings.bounce_bytes, self.settings.peer_timeout);
        self.nodes[usize::from(node)] = ClusterNode::new(node, bounce, timeout, life);
    }
}
