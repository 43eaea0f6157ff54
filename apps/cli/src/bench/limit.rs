//! The physical limit of a collective, which is the time of its busiest link.

use super::plan::BenchOp;
use cool::Operation;

/// The properties of a cluster that limit collectives. Ranks are assumed to be spread evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BenchCluster {
    /// Number of nodes that take part.
    pub(crate) nodes: usize,
    /// Number of their racks.
    pub(crate) racks: usize,
    /// Rate of a node's link in bytes per second; 0 if unknown.
    pub(crate) host: u64,
    /// Rate of a rack's uplink in bytes per second; 0 if unknown.
    pub(crate) uplink: u64,
}

/// Returns the least time for `bytes` (see [`super::plan::BenchCase::moved`]) in seconds. Returns
/// `None` if there is no formula for the operation, a rate is unknown, or no bytes must cross a
/// link.
pub(crate) fn limit(op: BenchOp, bytes: u64, cluster: &BenchCluster) -> Option<f64> {
    let host = crossing(op, cluster.nodes)?;
    let uplink = crossing(op, cluster.racks)?;
    let time = |share: f64, rate: u64| match (share > 0.0, rate) {
        (false, _) => Some(0.0),
        (true, 0) => None,
        (true, rate) => Some(share * bytes as f64 / rate as f64),
    };
    let seconds = time(host, cluster.host)?.max(time(uplink, cluster.uplink)?);
    (seconds > 0.0).then_some(seconds)
}

/// Returns the share of the bytes that must cross the busiest link in one direction, among `parts`
/// nodes or racks.
fn crossing(op: BenchOp, parts: usize) -> Option<f64> {
    let elsewhere = parts.saturating_sub(1) as f64 / parts.max(1) as f64;
    match op.operation {
        // The formulas hold for parts of equal lengths.
        _ if op.unequal => None,
        // Once into each part, or once out of each.
        Operation::Bcast | Operation::Reduce => Some(if parts > 1 { 1.0 } else { 0.0 }),
        // Into or out of one part, everything that belongs elsewhere.
        Operation::Gather | Operation::Scatter => Some(elsewhere),
        // Into each part, everything that starts elsewhere.
        Operation::Allgather => Some(elsewhere),
        // A reduce-scatter, followed by an allgather.
        Operation::Allreduce => Some(2.0 * elsewhere),
        Operation::ReduceScatter
        | Operation::Alltoall
        | Operation::Scan
        | Operation::Exscan
        | Operation::Barrier => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(op: &str, bytes: u64, cluster: &BenchCluster) -> Option<f64> {
        super::limit(op.parse().unwrap(), bytes, cluster)
    }

    const TREE: BenchCluster = BenchCluster { nodes: 16, racks: 4, host: 100, uplink: 50 };

    #[test]
    fn limits_follow_the_formulas() {
        // With W = U the formulas are n/W, (N-1)/N n/W and 2 (N-1)/N n/W.
        let even = BenchCluster { uplink: 100, ..TREE };
        for (op, seconds) in [
            ("bcast", 10.0),
            ("reduce", 10.0),
            ("gather", 9.375),
            ("scatter", 9.375),
            ("allgather", 9.375),
            ("allreduce", 18.75),
        ] {
            assert_eq!(limit(op, 1000, &even), Some(seconds), "{op:?}");
        }
        // With a slow uplink, (r-1)/r n/U and 2 (r-1)/r n/U are larger.
        assert_eq!(limit("allgather", 1000, &TREE), Some(15.0));
        assert_eq!(limit("allreduce", 1000, &TREE), Some(30.0));
    }

    #[test]
    fn an_unknown_rate_gives_no_limit_where_it_matters() {
        let hosts = BenchCluster { uplink: 0, ..TREE };
        assert_eq!(limit("bcast", 1000, &hosts), None);
        assert_eq!(limit("bcast", 1000, &BenchCluster { racks: 1, ..hosts }), Some(10.0));
        assert_eq!(limit("bcast", 1000, &BenchCluster { host: 0, ..TREE }), None);
    }

    #[test]
    fn data_that_crosses_no_link_has_no_limit() {
        assert_eq!(limit("allreduce", 1000, &BenchCluster { nodes: 1, racks: 1, ..TREE }), None);
        assert_eq!(limit("bcast", 0, &TREE), None);
        assert_eq!(limit("barrier", 0, &TREE), None);
    }

    #[test]
    fn an_operation_without_a_formula_has_no_limit() {
        for op in ["scan", "alltoall", "reduce_scatter", "allgatherv"] {
            assert_eq!(limit(op, 1000, &TREE), None);
        }
    }
}
