//! What an iteration did: rows, bytes and seconds of each of its stages, for people and programs.

use crate::cost::LinkBytes;
use std::fmt;

/// A stage of an iteration, in the papers' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// One rank's value went to all.
    Broadcast,
    /// Partitions were mapped.
    Map,
    /// Ranks of a node merged their tables.
    MergeOnNode,
    /// Ranks of a rack merged their tables, each the keys of some owners.
    MergeInRack,
    /// Values went to the owners of their keys: only those that are there.
    RegroupSparse,
    /// Values of all keys, zeros too, were added up on their way to the owners.
    RegroupDense,
    /// What the owners had went to one rank or to all.
    Combine,
}

impl StageKind {
    /// As reports have it.
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

/// What a stage did, as one rank saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Which it was.
    pub kind: StageKind,
    /// Keys with values that this rank had at its end.
    pub rows: u64,
    /// Bytes that this rank gave to the network.
    pub bytes: u64,
    /// Bytes that all links must carry: of payload, without headers.
    pub links: LinkBytes,
    /// Time that this rank spent in it, with waiting for slower ranks.
    pub seconds: f64,
}

/// What an iteration did, as one rank saw it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its number, from 1.
    pub iteration: usize,
    /// Its stages, in their order.
    pub stages: Vec<Stage>,
    /// Time from its beginning to its end.
    pub seconds: f64,
}

impl Report {
    /// Bytes of payload that the busiest link of a node or of a rack must carry in one direction.
    pub fn busiest_link_bytes(&self) -> u64 {
        LinkBytes::sum(self.stages.iter().map(|stage| &stage.links)).busiest()
    }
}

/// On one line.
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

/// What a job tells of while it runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum MapEvent<'a> {
    /// An iteration is whole; only rank 0 tells of it.
    Iteration(&'a Report),
    /// Ranks were lost; only rank 0 of those that are left tells of it.
    Lost {
        /// The error by which this was noticed.
        error: &'a cool::Error,
        /// The ranks that go on.
        left: usize,
    },
}

/// On one line.
impl fmt::Display for MapEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapEvent::Iteration(report) => report.fmt(f),
            MapEvent::Lost { error, left } => write!(f, "{error}; {left} ranks go on"),
        }
    }
}
