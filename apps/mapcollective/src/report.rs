//! Report of an iteration: rows, bytes and seconds of each of its stages, for users and programs.

use crate::link_load::LinkBytes;
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
    /// The ranks of each rack merged their tables. Each rank merged the keys of some owners.
    MergeInRack,
    /// Each rank sent its keys with values directly to their owners.
    RegroupSparse,
    /// The agents summed the values of all keys, including zeros, on the way to the owners.
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
    /// Number of keys with values at this rank: at the end of the stage or, for
    /// [`Job::combine_in_parts`](crate::Job::combine_in_parts), at its start. For a broadcast it is
    /// 0.
    pub rows: u64,
    /// Bytes that this rank sent.
    pub bytes: u64,
    /// Payload bytes on each link, without headers.
    pub links: LinkBytes,
    /// Duration at this rank in seconds, including the time spent waiting for slower ranks.
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

/// Formats the text in one line.
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

/// Formats the text in one line.
impl fmt::Display for MapEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapEvent::Iteration(report) => report.fmt(f),
            MapEvent::Lost { error, left } => write!(f, "{error}; {left} ranks continue"),
        }
    }
}
