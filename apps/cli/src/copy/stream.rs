//! `cool copy --stream`: standard input is sent to all nodes while it is being read.

use super::input_feed::InputFeed;
use super::late;
use super::options::{NAME_SOURCE, NodeChoice, TransferOptions, node_named};
use super::outcome::CopyOutcome;
use super::request::{CopyPaths, JobNodes, conclude};
use crate::cool_rank_job;
use crate::error::{Error, SpoolError};
use crate::followed_job::{self, JobUpdate};
use crate::ranks::STREAM_RANK;
use cool_copy::{CopyVia, StreamTask};
use cool_proto::control::Node;
use cool_proto::control::controller_client::ControllerClient;
use std::path::Path;
use tonic::transport::Channel;

/// Where standard input is sent, and how.
pub(super) struct InputStream<'a> {
    pub(super) to: &'a NodeChoice,
    pub(super) transfer: &'a TransferOptions,
    pub(super) dest: &'a Path,
}

/// Copies standard input while it is being read, and returns the outcome.
pub(super) async fn stream(
    client: ControllerClient<Channel>,
    nodes: &[Node],
    InputStream { to, transfer, dest }: InputStream<'_>,
) -> Result<CopyOutcome, Error> {
    transfer.check()?;
    if transfer.via == CopyVia::Swarm {
        return Err(SpoolError::StreamBySwarm.into());
    }
    let from = node_named(nodes, None, NAME_SOURCE)?;
    let hosts = JobNodes::new(to.choose(nodes)?, &from, &[]);
    let mut feed = InputFeed::from_stdin()?;
    let task = StreamTask {
        from: from.clone(),
        socket: feed.path(),
        dest: CopyPaths::new(Path::new("-"), Some(dest))?.dest,
        copy_on_source: !hosts.serving.contains(&from),
        via: transfer.via,
        background: transfer.background,
        mode: Some(feed.mode()?),
    };
    let spec = cool_rank_job::spec(STREAM_RANK, &task, hosts.all, None)?;
    let mut outcome = CopyOutcome::new(from, hosts.serving, hosts.absent);
    let ended = followed_job::run(client, spec, |update| {
        match update {
            JobUpdate::Started(group) => outcome.on_started(&group),
            JobUpdate::Line(output) => outcome.on_line(late::FIRST_JOB, &output),
        }
        Ok(())
    })
    .await;
    let outcome = conclude(outcome, ended);
    // An error of the input explains more than the error of the rank that missed its end.
    feed.error().map_or(outcome, |error| Err(error.into()))
}
