//! What befalls nodes of a simulated cluster.

use super::ContractViolation;
use super::cluster::SimulatedCluster;
use super::node::{Host, Node};

impl SimulatedCluster {
    /// A node stands still or is cut off: it says nothing and hears nothing, until [`SimulatedCluster::resume`].
    pub fn stop(&mut self, node: u16) {
        self.nodes[usize::from(node)].host = Host::Stopped;
        self.set_links(node, false);
    }

    /// A node that stood still goes on.
    ///
    /// # Errors
    /// If its engine breaks its contract.
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

    /// The agent of a node ends. Its system sends what connections still had to send, and closes them.
    ///
    /// # Errors
    /// If another engine breaks its contract.
    pub fn crash(&mut self, node: u16) {
        self.nodes[usize::from(node)].host = Host::Crashed;
        for side in self.connections.of_node(node) {
            self.connections.drop_end(side);
            self.connections.finish(side);
            self.send_on(side);
        }
    }

    /// A node loses its power: its connections end without a word.
    pub fn power_off(&mut self, node: u16) {
        self.nodes[usize::from(node)].host = Host::Off;
        for side in self.connections.of_node(node) {
            self.connections.drop_end(side);
            self.connections.discard(side);
        }
    }

    /// A node that has crashed or was without power starts its agent, which knows nothing.
    pub fn restart(&mut self, node: u16) {
        let life = self.nodes[usize::from(node)].life + 1;
        let (bounce, timeout) = (self.settings.bounce_bytes, self.settings.peer_timeout);
        self.nodes[usize::from(node)] = Node::new(node, bounce, timeout, life);
    }
}
