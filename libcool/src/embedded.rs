//! Ranks as threads of this process, with agents on loopback: no root, no switches, no daemons.
//!
//! Meant for trying a program and for tests. The ranks talk to their agents, and the agents to each
//! other, as on a cluster, except that without switches there is no multicast.

use crate::environment::Plans;
use crate::session::Way;
use crate::{Comm, Error};
use cool_nodeagent::embedded::Cluster;
use std::panic::resume_unwind;

/// An embedded run: how many ranks, and how they are spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks on one node; nodes are filled one after the other.
    pub ranks_per_node: usize,
    /// Number of racks; nodes are spread evenly over them, as far as they go.
    pub racks: usize,
}

impl Default for Embedded {
    /// 4 ranks, each on a node of its own, in 2 racks.
    fn default() -> Embedded {
        Embedded { ranks: 4, ranks_per_node: 1, racks: 2 }
    }
}

impl Embedded {
    /// The default with as many ranks as `COOL_EMBEDDED` says, if it is set.
    ///
    /// # Errors
    /// If it is set to something else than a number from 1.
    pub fn from_environment() -> Result<Embedded, Error> {
        let default = Embedded::default();
        let Some(value) = std::env::var_os("COOL_EMBEDDED") else { return Ok(default) };
        match value.to_str().and_then(|v| v.parse().ok()) {
            Some(ranks) if ranks > 0 => Ok(Embedded { ranks, ..default }),
            _ => Err(Error::Environment {
                variable: "COOL_EMBEDDED",
                value: value.to_string_lossy().into_owned(),
                expected: "a number of ranks, from 1".into(),
            }),
        }
    }

    /// The node of each rank, and the rack of each node.
    fn places(&self) -> Result<(Vec<usize>, Vec<u32>), Error> {
        if self.ranks == 0 || self.ranks_per_node == 0 || self.racks == 0 {
            let message =
                format!("{self:?}: there must be at least one rank, one rank per node and one rack");
            return Err(Error::Embedded(message));
        }
        let nodes = self.ranks.div_ceil(self.ranks_per_node);
        let racks = self.racks.min(nodes);
        let node_of_rank = (0..self.ranks).map(|rank| rank / self.ranks_per_node).collect();
        // Rack numbers of a run on one machine fit easily.
        let rack_of_node = (0..nodes).map(|node| (node * racks / nodes) as u32).collect();
        Ok((node_of_rank, rack_of_node))
    }
}

/// Runs `program` once for each rank, each in a thread of its own, and gives the results in rank order.
///
/// A rank's panic makes the others' calls fail and goes on here when all have ended.
///
/// # Errors
/// If the agents do not start, or `COOL_PLAN` forces what cannot be.
pub fn run<R, F>(how: Embedded, program: F) -> Result<Vec<R>, Error>
where
    F: Fn(Comm) -> R + Sync,
    R: Send,
{
    let (nodes, racks) = how.places()?;
    let plans = Plans::from_environment()?;
    let cluster = Cluster::start(&nodes, &racks).map_err(|e| Error::Embedded(e.to_string()))?;
    std::thread::scope(|scope| {
        let start = |(rank, socket)| {
            let (program, plans) = (&program, &plans);
            let rank_main = move || {
                let way = Way::Member { group: Cluster::GROUP };
                Comm::attach(socket, rank, &way, plans).map(program)
            };
            std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn_scoped(scope, rank_main)
                .map_err(|e| Error::Embedded(format!("no thread for rank {rank}: {e}")))
        };
        let ranks: Vec<_> = (0u32..).zip(cluster.sockets()).map(start).collect();
        // All are joined before the first panic or error is passed on.
        let results: Vec<_> = ranks.into_iter().map(|rank| rank.map(|thread| thread.join())).collect();
        results.into_iter().map(|result| result?.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
