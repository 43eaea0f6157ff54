//! The rule that picks a plan for a call when the caller does not, by what each plan puts on the links.

use super::Plan;
use crate::layout::Layout;
use crate::schedule::{Call, Operation, Rank};

/// From this vector size on, an allreduce ends in one multicast over the whole group instead of one per rack.
const LARGE_ALLREDUCE: u64 = 4 * 1024;

/// From this share of a node on, messages go straight: below, many small ones cost more than the link of a leader
/// that all of them pass.
const WORTHY_SHARE: u64 = 512;

/// Streams that a receiver may well follow at once.
const MANY_NODES: usize = 64;

/// How fast the links of a tree are, in any one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// A host's link.
    pub host: f64,
    /// The link between a rack's switch and the core.
    pub uplink: f64,
}

impl Default for Rates {
    /// An uplink as fast as a host's link: the most that racks are oversubscribed in practice.
    fn default() -> Rates {
        Rates { host: 1.0, uplink: 1.0 }
    }
}

impl Plan {
    /// The plan for a call when nobody forces one, on a network whose links are all alike.
    ///
    /// | operation | bytes | plan | why |
    /// | --- | --- | --- | --- |
    /// | bcast, barrier | any | multicast | every link carries the message once |
    /// | gather, scatter | any | cool-p-p | one message per rack on the uplinks |
    /// | reduce, reduce_scatter | any | cool-p-p | three steps, one message per rack on the uplinks |
    /// | allreduce | < 4 KiB | cool-p-p | three steps, the last inside the racks |
    /// | allreduce | more | multicast | as reduce, then every link carries the result once |
    /// | allgather, 64 nodes at most | any | multicast-each | every link carries every part once, in one step |
    /// | allgather, more nodes | any | multicast | one stream instead of one per node |
    /// | alltoall | < 512 B a block | cool-p-p | one message between two racks, each way |
    /// | alltoall | more | flat:linear | each block goes straight |
    /// | scan, exscan | < 512 B a node | cool-p-p | three steps |
    /// | scan, exscan | more | flat:chain | every link carries the vector once |
    ///
    /// With one leader per rack, `(k - 1) + (r - 1)` vectors come in through the link of the root's leader,
    /// of r racks of k nodes; with sharded leaders, one. They are not the default yet: many multicasts of one call,
    /// each from another node, can wait for each other when agents have no room for copies.
    ///
    /// An allgather's limit is the total over a host's link; in cool-p-p a rack leader sends its rack's
    /// parts and then the total over that link, and multicast first brings the total to one host.
    pub fn default_for(call: &Call, layout: &Layout) -> Plan {
        Plan::default_at(call, layout, Rates::default())
    }

    /// As [`Plan::default_for`], on a network with such links. Where uplinks are faster than hosts' links by as
    /// much as a rack has hosts, racks do not matter, and large gathers and scatters go straight.
    pub fn default_at(call: &Call, layout: &Layout, rates: Rates) -> Plan {
        let name = name(call, layout, rates);
        name.parse().expect("the rule names plans, as its test shows")
    }
}

fn name(call: &Call, layout: &Layout, rates: Rates) -> &'static str {
    let nodes = layout.nodes();
    let size = layout.size();
    let largest_rack = (0..layout.racks()).map(|rack| layout.nodes_of_rack(rack).len()).max().unwrap_or(1);
    let oversubscribed = rates.uplink < rates.host * largest_rack as f64;
    // What one rank has to move or combine, on average.
    let vector = call.input_bytes(Rank(0), size).max(call.output_bytes(Rank(0), size));
    let worthy = vector / nodes as u64 >= WORTHY_SHARE;
    match call.operation {
        _ if nodes == 1 => "cool-p-p",
        Operation::Bcast | Operation::Barrier => "multicast",
        Operation::Reduce | Operation::ReduceScatter => "cool-p-p",
        Operation::Gather | Operation::Scatter if worthy && !oversubscribed => "flat:linear",
        Operation::Gather | Operation::Scatter => "cool-p-p",
        Operation::Allreduce if call.bytes < LARGE_ALLREDUCE => "cool-p-p",
        Operation::Allreduce => "multicast",
        Operation::Allgather if nodes <= MANY_NODES => "multicast-each",
        Operation::Allgather => "multicast",
        Operation::Alltoall if vector / size as u64 >= WORTHY_SHARE => "flat:linear",
        Operation::Alltoall => "cool-p-p",
        Operation::Scan | Operation::Exscan if call.bytes / nodes as u64 >= WORTHY_SHARE => "flat:chain",
        Operation::Scan | Operation::Exscan => "cool-p-p",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    #[test]
    fn the_default_plan_is_one_and_fits_its_call() {
        let places: Vec<Place> = (0..6).map(|i| Place { rack: i / 3, node: i }).collect();
        let layout = Layout::new(&places).unwrap();
        for operation in Operation::ALL {
            for bytes in [0, 8, 4096, 1 << 30] {
                let call = Call::new(operation, Rank(0), bytes, 1);
                for uplink in [1.0, 10.0] {
                    let rates = Rates { host: 1.0, uplink };
                    assert!(name(&call, &layout, rates).parse::<Plan>().is_ok());
                    assert!(Plan::default_at(&call, &layout, rates).fits(operation), "{operation} {bytes}");
                }
            }
        }
    }
}
