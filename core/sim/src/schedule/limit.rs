//! The physical limit of a collective: the bytes that must cross the link of a host or the links of
//! a rack, divided by their rate. No plan is faster.

use super::fabric::FabricModel;
use cool_collective::{Call, Layout, Operation, Rank};
use cool_machine::Duration;

/// Returns the limit of a call on a network, or none if no byte must cross a link or if the network
/// is too small for the group.
///
/// For reductions in which all ranks get a share, the limit counts the part that begins elsewhere
/// twice, as described in `docs/design/architecture.md`.
pub fn limit(call: &Call, layout: &Layout, fabric: &FabricModel) -> Option<Duration> {
    let (bytes, hosts) = (CallBytes::new(call, layout), fabric.hosts_of(layout).ok()?);
    let racks = (0..layout.racks()).map(|rack| {
        let nodes = layout.nodes_of_rack(rack);
        let ranks = nodes.flat_map(|node| layout.ranks_of_node(node).iter().copied());
        bytes.across(ranks, layout.racks()) / fabric.rack_rate(rack) as f64
    });
    let nodes = (0..layout.nodes()).map(|node| {
        let ranks = layout.ranks_of_node(node).iter().copied();
        bytes.across(ranks, layout.nodes()) / fabric.host_rate(hosts[node]) as f64
    });
    let seconds = racks.chain(nodes).fold(0.0, f64::max);
    (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
}

struct CallBytes<'a> {
    call: &'a Call,
    /// Number of ranks, and the total bytes of their inputs and outputs.
    size: usize,
    inputs: u64,
    outputs: u64,
}

impl<'a> CallBytes<'a> {
    fn new(call: &'a Call, layout: &Layout) -> CallBytes<'a> {
        let size = layout.size();
        let sum = |of: fn(&Call, Rank, usize) -> u64| {
            layout.ranks().fold(0, |sum: u64, rank| sum.saturating_add(of(call, rank, size)))
        };
        CallBytes { call, size, inputs: sum(Call::input_bytes), outputs: sum(Call::output_bytes) }
    }

    /// Returns the bytes that must enter or leave the part of the network with these ranks, in the
    /// direction with more. The network has `parts` such parts.
    fn across(&self, ranks: impl Iterator<Item = Rank>, parts: usize) -> f64 {
        let call = self.call;
        let (mut size, mut input, mut output, mut root) = (0, 0u64, 0u64, false);
        for rank in ranks {
            size += 1;
            input = input.saturating_add(call.input_bytes(rank, self.size));
            output = output.saturating_add(call.output_bytes(rank, self.size));
            root |= rank == call.root;
        }
        if parts < 2 {
            return 0.0;
        }
        let elsewhere = 1.0 - 1.0 / parts as f64;
        match call.operation {
            Operation::Bcast | Operation::Reduce | Operation::Scan | Operation::Exscan => call.bytes as f64,
            Operation::Allreduce => 2.0 * elsewhere * call.bytes as f64,
            Operation::ReduceScatter => elsewhere * self.outputs as f64,
            Operation::Gather if root => (self.inputs - input) as f64,
            Operation::Gather => input as f64,
            Operation::Scatter if root => (self.outputs - output) as f64,
            Operation::Scatter => output as f64,
            Operation::Allgather => (self.inputs - input).max(input) as f64,
            // Excludes data that stays among the part's own ranks, assuming blocks of equal size.
            Operation::Alltoall => input.max(output) as f64 * (1.0 - f64::from(size) / self.size as f64),
            Operation::Barrier => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Placement;

    #[test]
    fn limits_are_those_of_the_design() {
        let fabric: FabricModel = "tree:4x4".parse().unwrap();
        let even = fabric.with_rates(100, 100).unwrap();
        let layout = Layout::new(&even.places(Placement::Packed)).unwrap();
        let seconds = |operation, bytes, fabric: &FabricModel| {
            let call = Call::new(operation, Rank(0), bytes, 1);
            limit(&call, &layout, fabric).map(|time| time.as_secs_f64())
        };
        for (operation, bytes, expected) in [
            (Operation::Bcast, 1000, 10.0),
            (Operation::Reduce, 1000, 10.0),
            (Operation::Gather, 100, 15.0),
            (Operation::Scatter, 100, 15.0),
            (Operation::Allgather, 100, 15.0),
            (Operation::Allreduce, 1600, 30.0),
            (Operation::ReduceScatter, 100, 15.0),
            (Operation::Alltoall, 10, 4.8),
        ] {
            assert_eq!(seconds(operation, bytes, &even), Some(expected), "{operation}");
        }
        assert_eq!(seconds(Operation::Barrier, 0, &even), None);
        let slow = even.with_rates(100, 50).unwrap();
        assert_eq!(seconds(Operation::Allreduce, 1600, &slow), Some(48.0));
        assert_eq!(seconds(Operation::Allgather, 100, &slow), Some(24.0));
    }
}
