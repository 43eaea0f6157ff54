//! Ranks as threads of this process, with agents on loopback, without root privileges, switches or
//! daemons.
//!
//! This mode is for tests and for trying a program. Ranks and agents communicate as on a cluster,
//! except that without switches there is no multicast. If `COOL_TRACE` names a file, the records
//! that `cool trace --file` prints are written to it when the ranks have ended.

use crate::environment::ForcedPlans;
use crate::environment::JoinMode;
use crate::signal_mask::with_signals_blocked;
use crate::{Comm, Error};
use cool_nodeagent::embedded::EmbeddedCluster;
use cool_proto::trace_file;
use std::fs::File;
use std::io::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number and distribution of the ranks of an embedded run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of ranks on each node. Nodes are filled one after the other.
    pub ranks_per_node: usize,
    /// Number of racks. Nodes are distributed evenly over at most this many racks.
    pub racks: usize,
}

impl Default for Embedded {
    /// Returns 4 ranks, each on its own node, in 2 racks.
    fn default() -> Embedded {
        Embedded { ranks: 4, ranks_per_node: 1, racks: 2 }
    }
}

impl Embedded {
    /// Returns the default, with the number of ranks in `COOL_EMBEDDED` if that is set.
    ///
    /// # Errors
    /// If `COOL_EMBEDDED` is not a number from 1.
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

    /// Returns the node of each rank and the rack of each node.
    fn places(&self) -> Result<(Vec<usize>, Vec<u32>), Error> {
        if self.ranks == 0 || self.ranks_per_node == 0 || self.racks == 0 {
            let message =
                format!("{self:?}: there must be at least one rank, one rank per node and one rack");
            return Err(Error::Embedded(message));
        }
        let nodes = self.ranks.div_ceil(self.ranks_per_node);
        let racks = self.racks.min(nodes);
        let node_of_rank = (0..self.ranks).map(|rank| rank / self.ranks_per_node).collect();
        // Rack numbers on one machine fit easily.
        let rack_of_node = (0..nodes).map(|node| (node * racks / nodes) as u32).collect();
        Ok((node_of_rank, rack_of_node))
    }
}

/// Runs `program` once for each rank, each in its own thread. Returns the results in rank order.
///
/// If a rank panics, the calls of the other ranks fail, and the panic is resumed here once all
/// ranks have ended.
///
/// # Errors
/// If the agents do not start, `COOL_PLAN` is invalid, or the file in `COOL_TRACE` cannot be
/// written.
pub fn run<R, F>(how: Embedded, program: F) -> Result<Vec<R>, Error>
where
    F: Fn(Comm) -> R + Sync,
    R: Send,
{
    let (nodes, racks) = how.places()?;
    let plans = ForcedPlans::from_environment()?;
    let trace = TraceFile::from_environment()?;
    let cluster = with_signals_blocked(|| EmbeddedCluster::start(&nodes, &racks))
        .map_err(|e| Error::Embedded(e.to_string()))?;
    let results = std::thread::scope(|scope| {
        let start = |(rank, socket)| {
            let (program, plans) = (&program, &plans);
            let rank_main = move || {
                let mode = JoinMode::Member { group: EmbeddedCluster::GROUP };
                Comm::attach(socket, rank, &mode, plans, "attach").map(program)
            };
            std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn_scoped(scope, rank_main)
                .map_err(|e| Error::Embedded(format!("no thread for rank {rank}: {e}")))
        };
        let ranks: Vec<_> = (0u32..).zip(cluster.sockets()).map(start).collect();
        // Join all threads before the first panic or error is passed on.
        let results: Vec<_> = ranks.into_iter().map(|rank| rank.map(|thread| thread.join())).collect();
        results.into_iter().map(|result| result?.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    if let Some(trace) = trace {
        trace.write(&cluster)?;
    }
    results
}

/// Agents of a cluster on loopback in this process, for ranks in any process of this machine.
///
/// Other processes join a group through the agents' sockets ([`Comm::join_at`], or `COOL_SOCKET`).
/// Dropping this value stops the agents.
#[derive(Debug)]
pub struct EmbeddedAgents {
    cluster: EmbeddedCluster,
}

impl EmbeddedAgents {
    /// Starts the agents of `nodes` nodes, distributed evenly over `racks` racks.
    ///
    /// # Errors
    /// If `nodes` or `racks` is 0, or the agents do not start.
    pub fn start(nodes: usize, racks: usize) -> Result<EmbeddedAgents, Error> {
        let (nodes, racks) = Embedded { ranks: nodes, ranks_per_node: 1, racks }.places()?;
        let cluster = with_signals_blocked(|| EmbeddedCluster::start(&nodes, &racks))
            .map_err(|e| Error::Embedded(e.to_string()))?;
        Ok(EmbeddedAgents { cluster })
    }

    /// Waits until the ranks of all groups have left them, but at most for `at_most`. Returns
    /// whether they have. A rank that is killed also leaves its groups.
    pub fn wait_until_unused(&self, at_most: Duration) -> bool {
        self.cluster.wait_until_unused(at_most)
    }

    /// Returns the socket of each node's agent.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.cluster.sockets()
    }
}

/// The file that receives the trace of a run.
struct TraceFile {
    path: PathBuf,
    /// Created before the ranks run, so that an error is reported before any work is done.
    file: File,
}

impl TraceFile {
    fn from_environment() -> Result<Option<TraceFile>, Error> {
        let Some(path) = std::env::var_os("COOL_TRACE").map(PathBuf::from) else { return Ok(None) };
        match File::create(&path) {
            Ok(file) => Ok(Some(TraceFile { path, file })),
            Err(e) => Err(not_written(&path, &e)),
        }
    }

    fn write(mut self, cluster: &EmbeddedCluster) -> Result<(), Error> {
        let bytes = trace_file::encode(&cluster.trace());
        self.file.write_all(&bytes).map_err(|e| not_written(&self.path, &e))
    }
}

fn not_written(path: &Path, e: &std::io::Error) -> Error {
    let value = path.display().to_string();
    Error::Environment {
        variable: "COOL_TRACE",
        value,
        expected: format!("a file that can be written ({e})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_the_calls_of_all_nodes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let trace = TraceFile { path: file.path().to_owned(), file: file.reopen().unwrap() };
        let cluster = EmbeddedCluster::start(&[0, 1], &[0, 0]).unwrap();
        std::thread::scope(|scope| {
            for (rank, socket) in (0u32..).zip(cluster.sockets()) {
                scope.spawn(move || {
                    let mode = JoinMode::Member { group: EmbeddedCluster::GROUP };
                    let comm = Comm::attach(socket, rank, &mode, &ForcedPlans::default(), "attach").unwrap();
                    comm.barrier().unwrap();
                    comm.bcast(&mut [0u8; 3], 1).unwrap();
                });
            }
        });
        trace.write(&cluster).unwrap();
        let events = trace_file::decode(&std::fs::read(file.path()).unwrap()).unwrap();
        let calls = |at: usize| events[at].records.iter().map(|call| call.words.as_str()).collect::<Vec<_>>();
        assert_eq!((events.len(), events[0].node.as_str(), calls(0).len()), (2, "n0", 2));
        assert_eq!(calls(0), calls(1));
        assert!(calls(0)[1].contains("bcast"), "{:?}", calls(0));
    }

    #[test]
    fn traces_and_statistics_include_calls_in_a_segment() {
        let cluster = EmbeddedCluster::start(&[0, 0], &[0]).unwrap();
        let stats: Vec<_> = std::thread::scope(|scope| {
            let start = |(rank, socket)| {
                scope.spawn(move || {
                    let mode = JoinMode::Member { group: EmbeddedCluster::GROUP };
                    let comm = Comm::attach(socket, rank, &mode, &ForcedPlans::default(), "attach").unwrap();
                    comm.bcast(&mut [0u8; 3], 1).unwrap();
                    (comm.last_plan(), comm.stats())
                })
            };
            let ranks: Vec<_> = (0u32..).zip(cluster.sockets()).map(start).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let [event] = <[_; 1]>::try_from(cluster.trace()).unwrap();
        let [call] = &event.records[..] else { panic!("{event:?}") };
        assert_eq!(
            (&*call.words, &*call.plan, call.ranks.len()),
            ("bcast of 3 u8 from rank 1", "segment", 2)
        );
        for (times, (plan, stats)) in call.ranks.iter().zip(stats) {
            assert_eq!((plan, stats.calls), (call.plan.clone(), 1));
            assert_eq!(stats.time.as_nanos(), u128::from(times.ended_ns - times.came_ns));
        }
    }

    #[test]
    fn a_trace_that_cannot_be_written_is_named() {
        let e = not_written(Path::new("/no/file"), &std::io::ErrorKind::NotFound.into()).to_string();
        assert!(e.starts_with("COOL_TRACE is /no/file, but should be a file that can be written"), "{e}");
    }
}
