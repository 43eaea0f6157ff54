//! `cool copy --stream`: what comes by standard input goes to all nodes while it comes, in order, and is kept nowhere on its way.
//!
//! The command hands it, frame by frame, to the rank on this machine, over a socket that only its user can reach. Only a last, empty frame
//! says that this was all: if the command ends before, there is no copy.

mod feed;
mod rank;
mod sink;

pub(crate) use rank::{StreamRankOptions, rank};

use super::outcome::Outcome;
use super::said::CopyVia;
use super::spool::SpoolError;
use super::{CopyPaths, Hosts, NAME_SOURCE, Options, late, node_named};
use crate::error::Error;
use crate::job::{self, Heard};
use crate::own_ranks;
use cool_proto::control::Node;
use cool_proto::control::controller_client::ControllerClient;
use feed::Feed;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tonic::transport::Channel;

/// What the ranks are told: the same for all.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StreamTask {
    /// The node where the command runs.
    from: String,
    /// Where the command gives what comes.
    socket: PathBuf,
    /// Absolute, with {node} for the node's name.
    dest: String,
    /// Whether the source's node is to have it, too.
    own: bool,
    via: CopyVia,
    background: bool,
}

/// Copies standard input while it comes; what came of it.
pub(super) async fn stream(
    client: ControllerClient<Channel>,
    nodes: &[Node],
    options: &Options,
) -> Result<Outcome, Error> {
    options.way.check()?;
    if !options.is_of_input() {
        return Err(SpoolError::Stream(options.source.clone()).into());
    }
    if options.way.via == CopyVia::Swarm {
        return Err(SpoolError::StreamBySwarm.into());
    }
    let from = node_named(nodes, None, NAME_SOURCE)?;
    let hosts = Hosts::of(options.nodes.of(nodes)?, &from, &[]);
    let mut feed = Feed::of_input()?;
    let task = StreamTask {
        from: from.clone(),
        socket: feed.path(),
        dest: CopyPaths::new(&options.source, Some(&options.dest))?.dest,
        own: !hosts.serving.contains(&from),
        via: options.way.via,
        background: options.way.background,
    };
    let spec = own_ranks::spec("copy-stream-rank", &task, hosts.all, None)?;
    let mut outcome = Outcome::new(from, hosts.serving, hosts.absent);
    let ended = job::run(client, spec, |heard| {
        match heard {
            Heard::Started(group) => outcome.started(&group),
            Heard::Line(output) => outcome.hear(late::FIRST, &output),
        }
        Ok(())
    })
    .await;
    let outcome = super::concluded(outcome, ended);
    // Why the input ended says more than that it did.
    feed.failed().map_or(outcome, |error| Err(error.into()))
}
