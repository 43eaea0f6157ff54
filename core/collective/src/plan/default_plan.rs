//! The rule that selects the default plan of a call, based on the load that each plan puts on the
//! links.

use super::Plan;
use crate::layout::Layout;
use crate::schedule::{Call, Operation, Rank};

/// Length of a vector in bytes from which on the arrivals at a leader cost a reduction more time
/// than additional steps do.
const LARGE_VECTOR: u64 = 4 * 1024;

/// From this many bytes per node on, full links make up for as many steps as there are nodes.
const LARGE_SHARE: u64 = 2 * 1024;

/// From this many bytes per node on, an allreduce along a chain is faster than around the ring or
/// by shards.
const FAIR_SHARE: u64 = 256;

/// From this many bytes per node on, messages are sent directly. Below, many small messages cost
/// more than the leader's link, which all of them would pass.
const WORTHY_SHARE: u64 = 512;

/// On more nodes than this, the steps of a ring allgather cost more than a second pass over one
/// link.
const MANY_NODES: usize = 64;

impl Plan {
    /// Returns the default plan for a call, for a network with equal links. On one node it is
    /// cool-p-p. On several nodes:
    ///
    /// | operation | bytes | plan | reason |
    /// | --- | --- | --- | --- |
    /// | bcast, barrier | any | multicast | every link carries the message once |
    /// | gather, scatter | any | cool-p-p | one message per rack on the uplinks |
    /// | reduce | < 4 KiB | cool-p-p | three steps |
    /// | reduce | more | racked:chain | every link carries the vector once |
    /// | allreduce | < 4 KiB | cool-p-p | three steps, the last inside the racks |
    /// | allreduce | < 2 KiB a node | racked:chain; below 256 B a node sharded | fewer steps than around a ring |
    /// | allreduce | more | racked:ring | every link carries the minimum |
    /// | reduce_scatter | < 4 KiB | cool-p-p | three steps |
    /// | reduce_scatter | < 2 KiB a node | sharded | two steps |
    /// | reduce_scatter | more | racked:ring | every link carries the minimum |
    /// | allgather, 64 nodes at most | < 512 B a node | cool-p-p | three steps |
    /// | allgather, 64 nodes at most | more | racked:ring | every link carries every part once |
    /// | allgather, more nodes | any | multicast | one stream instead of a step per node |
    /// | alltoall | < 512 B a block | cool-p-p | one message between two racks, each way |
    /// | alltoall | more | flat:linear | each block is sent directly |
    /// | scan, exscan | < 512 B a node | cool-p-p | three steps |
    /// | scan, exscan | more | flat:chain | every link carries the vector once |
    ///
    /// With one leader per rack, `(k - 1) + (r - 1)` vectors arrive through the link of the root's
    /// leader, for r racks of k nodes. With sharded leaders one vector arrives, but from `k + r`
    /// senders at a time. Along a chain or ring that enters each rack once, every node receives
    /// from one other node and every uplink carries one message each way. No queue fills and no
    /// packet is lost, whatever the placement of ranks.
    pub fn default_for(call: &Call, layout: &Layout) -> Plan {
        name(call, layout).parse().expect("a test checks that the rule names plans")
    }
}

fn name(call: &Call, layout: &Layout) -> &'static str {
    let nodes = layout.nodes();
    let size = layout.size();
    // The bytes that one rank has to move or combine: the longer of the buffers of rank 0.
    let vector = call.input_bytes(Rank(0), size).max(call.output_bytes(Rank(0), size));
    let share = vector / nodes as u64;
    let worthy = share >= WORTHY_SHARE;
    match call.operation {
        _ if nodes == 1 => "cool-p-p",
        Operation::Bcast | Operation::Barrier => "multicast",
        Operation::Reduce | Operation::Allreduce | Operation::ReduceScatter if vector < LARGE_VECTOR => {
            "cool-p-p"
        }
        Operation::Reduce => "racked:chain",
        Operation::Allreduce | Operation::ReduceScatter if share >= LARGE_SHARE => "racked:ring",
        Operation::Allreduce if share >= FAIR_SHARE => "racked:chain",
        Operation::Allreduce | Operation::ReduceScatter => "sharded",
        Operation::Gather | Operation::Scatter => "cool-p-p",
        Operation::Allgather if nodes > MANY_NODES => "multicast",
        Operation::Allgather if worthy => "racked:ring",
        Operation::Allgather => "cool-p-p",
        Operation::Alltoall if vector / size as u64 >= WORTHY_SHARE => "flat:linear",
        Operation::Alltoall => "cool-p-p",
        Operation::Scan | Operation::Exscan if worthy => "flat:chain",
        Operation::Scan | Operation::Exscan => "cool-p-p",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RankPlace;

    #[test]
    fn the_default_plan_is_one_and_fits_its_call() {
        let places: Vec<RankPlace> = (0..6).map(|i| RankPlace { rack: i / 3, node: i }).collect();
        let layout = Layout::new(&places).unwrap();
        for operation in Operation::ALL {
            for bytes in [0, 8, 4096, 1 << 30] {
                let call = Call::new(operation, Rank(0), bytes, 1);
                assert!(name(&call, &layout).parse::<Plan>().is_ok());
                assert!(Plan::default_for(&call, &layout).fits(operation), "{operation} {bytes}");
            }
        }
    }
}
