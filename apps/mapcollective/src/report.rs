//! Report of an iteration: rows, bytes and seconds of each of its stages, for users and programs.

use crate::cost::LinkBytes;
use std::fmt;

/// A stage of an iteration, named as in the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// One rank's value was sent to all ranks.
    Broadcast,
    /// Partitions were mapped.
    Map,
    /// The ranks of a node merged their tables.
    MergeOnNode,
    /// The ranks of a rack merged their tables, each the keys of some owners.
    MergeInRack,
    /// Existing values were sent to the owners of their keys.
    RegroupSparse,
    /// Values of all keys, including zeros, were summed on the way to the owners.
    RegroupDense,
    /// The owners' values were sent to one rank or to all.
    Combine,
}

impl StageKind {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            StageKind::Broadcast => "broadcast",
            StageKind::Map => "map",
            StageKind::MergeOnNode => "merge on node",
            StageKind::MergeInRack => "merge in rack",
            StageKind::RegroupSparse => "regroup (sparse)",
            StageKind::RegroupDense => "regroup (dense)",
            StageKind::Combine => "combine",
        }
    }
}

/// Report of a stage at one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Kind of the stage.
    pub kind: StageKind,
    /// Number of keys with values at this rank, at the end of the stage.
    pub rows: u64,
    /// Bytes that this rank sent.
    pub bytes: u64,
    /// Payload bytes on all links, without headers.
    pub links: LinkBytes,
    /// Seconds of this rank, including waiting for slower ranks.
    pub seconds: f64,
}

/// Report of an iteration at one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of the iteration, from 1.
    pub iteration: usize,
    /// Its stages, in order.
    pub stages: Vec<Stage>,
    /// Seconds from its start to its end.
    pub seconds: f64,
}

impl Report {
    /// Returns the payload bytes on the busiest link of a node or rack in one direction.
    pub fn busiest_link_bytes(&self) -> u64 {
        LinkBytes::sum(self.stages.iter().map(|stage| &stage.links)).busiest()
    }
}

/// In one line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iteration {:3}: {:.3} s", self.iteration, self.seconds)?;
        for stage in &self.stages {
            write!(f, "; {} {} rows", stage.kind.name(), stage.rows)?;
            if stage.kind != StageKind::Map {
                write!(f, ", {:.1} KB", stage.bytes as f64 / 1e3)?;
            }
            write!(f, ", {:.3} s", stage.seconds)?;
        }
        Ok(())
    }
}

/// Events of a job that are reported while it runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum MapEvent<'a> {
    /// An iteration is complete. Only rank 0 reports this.
    Iteration(&'a Report),
    /// Ranks were lost. Only rank 0 of the survivors reports this.
    Lost {
        /// The error that revealed the loss.
        error: &'a cool::Error,
        /// Number of survivors.
        left: usize,
    },
}

/// In one line.
impl fmt::Display for MapEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapEvent::Iteration(report) => report.fmt(f),
            MapEvent::Lost { error, left } => write!(f, "{error}; {left} ranks continue"),
        }
    }
}
