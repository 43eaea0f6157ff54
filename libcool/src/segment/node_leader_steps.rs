//! Calls over several nodes, some with several ranks, from the view of one rank.
//!
//! The ranks of a node exchange data in their segment. Their leader, which is the first of them,
//! communicates with other nodes. Data moves **up** to the leaders, between the leaders, and
//! **down** to the receivers (the first and last of the three steps in the COOL paper, III.B).

use super::operations::CombineRule;
use super::{DescribedCall, Interrupted, PeerWait, SegmentCalls};
use crate::Operation;
use crate::call::CallBuffers;
use cool_quick::NodeLeaders;
use cool_types::{Call, Rank};

/// Index of the leader in its segment.
const LEADER: usize = 0;

/// The ranks of a node within their group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRanks<'a> {
    pub(crate) leaders: &'a NodeLeaders,
    /// Index of this node's leader.
    pub(crate) leader: usize,
}

impl NodeRanks<'_> {
    fn ranks(&self) -> usize {
        self.leaders.ranks_of(self.leader).len()
    }

    /// Returns the index of a rank in the segment, if it is on this node.
    fn index_of(&self, rank: Rank) -> Option<usize> {
        self.leaders.ranks_of(self.leader).iter().position(|here| *here == rank)
    }
}

/// A call that was begun.
struct NodeLeaderCall<'a, W> {
    calls: &'a mut SegmentCalls,
    node: NodeRanks<'a>,
    call: &'a Call,
    combining: Option<CombineRule>,
    waits: &'a mut W,
}

impl SegmentCalls {
    /// Executes a call with the ranks of this node and, as the leader, with other nodes. `between`
    /// sends this node's data to the other leaders and returns the data for this node.
    ///
    /// # Errors
    /// If other ranks do not join the call, called a different operation, or cannot be reached.
    pub(crate) fn execute_over_nodes<W: PeerWait>(
        &mut self,
        (number, called): (u64, &DescribedCall),
        node: NodeRanks<'_>,
        buffers: &mut CallBuffers<'_>,
        waits: &mut W,
        between: impl FnOnce(&[u8]) -> Result<Vec<u8>, Interrupted<W::Error>>,
    ) -> Result<(), Interrupted<W::Error>> {
        let combining = called.dtype.zip(called.op);
        self.begin(number);
        let mut steps = NodeLeaderCall { calls: self, node, call: &called.call, combining, waits };
        let given = steps.gather_at_leader(buffers)?;
        let received = if steps.leads() { between(&given)? } else { Vec::new() };
        steps.distribute_from_leader(&received, buffers)?;
        self.complete(number);
        Ok(())
    }
}

impl<W: PeerWait> NodeLeaderCall<'_, W> {
    fn leads(&self) -> bool {
        self.calls.rank == LEADER
    }

    /// Returns this node's data at its leader, and no data at other ranks.
    fn gather_at_leader(&mut self, buffers: &CallBuffers<'_>) -> Result<Vec<u8>, Interrupted<W::Error>> {
        let Call { operation, root, bytes, element, .. } = *self.call;
        let root = self.node.index_of(root);
        match operation {
            Operation::Bcast => self.fetch(root, bytes, buffers),
            Operation::Scatter => {
                let all = bytes * self.node.leaders.size() as u64;
                let parts = self.fetch(root, all, buffers)?;
                Ok(self.node.leaders.to_node_order(&parts))
            }
            Operation::Reduce | Operation::Allreduce => {
                self.collect(&Call::new(Operation::Reduce, Rank(0), bytes, element), bytes, buffers)
            }
            _ => {
                let all = bytes * self.node.ranks() as u64;
                self.collect(&Call::new(Operation::Gather, Rank(0), bytes, element), all, buffers)
            }
        }
    }

    /// Distributes the data for this node to its receivers.
    fn distribute_from_leader(
        &mut self,
        received: &[u8],
        buffers: &mut CallBuffers<'_>,
    ) -> Result<(), Interrupted<W::Error>> {
        let Call { operation, root, bytes, element, .. } = *self.call;
        let (leaders, is_root) = (self.node.leaders, self.node.index_of(root) == Some(self.calls.rank));
        let all = bytes * leaders.size() as u64;
        match operation {
            Operation::Reduce => self.hand_over(received, bytes, buffers),
            Operation::Gather => self.hand_over(&leaders.to_rank_order(received), all, buffers),
            Operation::Allgather => self.spread(&leaders.to_rank_order(received), all, true, buffers),
            Operation::Scatter => {
                let call = Call::new(Operation::Scatter, Rank(0), bytes, element);
                let mut parts = CallBuffers::new(received, buffers.output(0..bytes as usize));
                self.calls.step(&call, None, &mut parts, self.waits)
            }
            // The root of a bcast has the data already.
            Operation::Bcast => self.spread(received, bytes, !is_root, buffers),
            _ => self.spread(received, bytes, true, buffers),
        }
    }

    /// Returns the root's data at the leader, if the root is on this node.
    fn fetch(
        &mut self,
        root: Option<usize>,
        bytes: u64,
        buffers: &CallBuffers<'_>,
    ) -> Result<Vec<u8>, Interrupted<W::Error>> {
        let Some(root) = root else { return Ok(Vec::new()) };
        let has = if self.calls.rank == root { buffers.input(0..bytes as usize) } else { &[] };
        if root == LEADER {
            return Ok(has.to_vec());
        }
        let mut fetched = vec![0; if self.leads() { bytes as usize } else { 0 }];
        let takes = self.leads();
        self.calls.spread((root, takes), bytes, &mut CallBuffers::new(has, &mut fetched), self.waits)?;
        Ok(fetched)
    }

    /// Returns the data of all ranks of this node at the leader, `bytes` in total.
    fn collect(
        &mut self,
        call: &Call,
        bytes: u64,
        buffers: &CallBuffers<'_>,
    ) -> Result<Vec<u8>, Interrupted<W::Error>> {
        let mut collected = vec![0; if self.leads() { bytes as usize } else { 0 }];
        let gives = buffers.input(0..call.bytes as usize);
        self.calls.step(call, self.combining, &mut CallBuffers::new(gives, &mut collected), self.waits)?;
        Ok(collected)
    }

    /// Passes the received data from the leader to the root, if the root is on this node.
    fn hand_over(
        &mut self,
        received: &[u8],
        bytes: u64,
        buffers: &mut CallBuffers<'_>,
    ) -> Result<(), Interrupted<W::Error>> {
        match self.node.index_of(self.call.root) {
            None => Ok(()),
            Some(LEADER) if self.leads() => {
                buffers.output(0..bytes as usize).copy_from_slice(received);
                Ok(())
            }
            Some(LEADER) => Ok(()),
            Some(root) => {
                let takes = self.calls.rank == root;
                let output = buffers.output(0..if takes { bytes as usize } else { 0 });
                self.calls.spread((LEADER, takes), bytes, &mut CallBuffers::new(received, output), self.waits)
            }
        }
    }

    /// Passes the received data from the leader to all ranks that need it. `takes` states whether
    /// this rank is one of them.
    fn spread(
        &mut self,
        received: &[u8],
        bytes: u64,
        takes: bool,
        buffers: &mut CallBuffers<'_>,
    ) -> Result<(), Interrupted<W::Error>> {
        let output = buffers.output(0..if takes { bytes as usize } else { 0 });
        if self.leads() && takes {
            output.copy_from_slice(received);
        }
        self.calls.spread((LEADER, takes), bytes, &mut CallBuffers::new(received, output), self.waits)
    }
}

#[cfg(test)]
mod tests;
