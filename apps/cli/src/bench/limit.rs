//! The physical limit of a collective: no pattern is faster than its busiest link allows.

use super::plan::Op;
use cool::Operation;

/// A cluster by what bounds it. Ranks are taken to be spread evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cluster {
    /// Nodes that take part.
    pub(crate) nodes: usize,
    /// Racks that they are in.
    pub(crate) racks: usize,
    /// Of a node's link, bytes per second; 0: unknown.
    pub(crate) host: u64,
    /// Of a rack to the others, bytes per second; 0: unknown.
    pub(crate) uplink: u64,
}

/// The least time for `bytes` (as [`super::plan::Case::moved`]) in seconds; `None` if there is no formula for
/// the operation, if it depends on a rate that is not known, or if no bytes need cross a link.
pub(crate) fn limit(op: Op, bytes: u64, cluster: &Cluster) -> Option<f64> {
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

/// The share of the bytes that crosses the busiest link, one way, between `parts` nodes or racks.
fn crossing(op: Op, parts: usize) -> Option<f64> {
    let elsewhere = parts.saturating_sub(1) as f64 / parts.max(1) as f64;
    match op.operation {
        // The formulas are for parts of equal lengths.
        _ if op.unequal => None,
        // Once in to each part, or once out of each.
        Operation::Bcast | Operation::Reduce => Some(if parts > 1 { 1.0 } else { 0.0 }),
        // To or from one part all that begins or ends elsewhere.
        Operation::Gather | Operation::Scatter => Some(elsewhere),
        // Into each part all that begins elsewhere.
        Operation::Allgather => Some(elsewhere),
        // A reduction of shares, then an allgather of them.
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

    fn limit(op: &str, bytes: u64, cluster: &Cluster) -> Option<f64> {
        super::limit(op.parse().unwrap(), bytes, cluster)
    }

    const TREE: Cluster = Cluster { nodes: 16, racks: 4, host: 100, uplink: 50 };

    #[test]
    fn limits_are_those_of_the_design() {
        // With W = U the design's formulas: n/W, (N-1)/N n/W, 2 (N-1)/N n/W.
        let even = Cluster { uplink: 100, ..TREE };
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
        // A slow uplink: (r-1)/r n/U and 2 (r-1)/r n/U are larger.
        assert_eq!(limit("allgather", 1000, &TREE), Some(15.0));
        assert_eq!(limit("allreduce", 1000, &TREE), Some(30.0));
    }

    #[test]
    fn an_unknown_rate_gives_no_limit_where_it_matters() {
        let hosts = Cluster { uplink: 0, ..TREE };
        assert_eq!(limit("bcast", 1000, &hosts), None);
        assert_eq!(limit("bcast", 1000, &Cluster { racks: 1, ..hosts }), Some(10.0));
        assert_eq!(limit("bcast", 1000, &Cluster { host: 0, ..TREE }), None);
    }

    #[test]
    fn what_crosses_no_link_has_no_limit() {
        assert_eq!(limit("allreduce", 1000, &Cluster { nodes: 1, racks: 1, ..TREE }), None);
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
