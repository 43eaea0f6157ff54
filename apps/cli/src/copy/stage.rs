//! Staging: copies the files that a job needs to its nodes before it starts.

use super::options::{NodeChoice, TransferOptions, node_named};
use super::request::{CopyPaths, CopyRequest, copy, report_failed};
use crate::error::Error;
use crate::followed_job::{self, JobUpdate};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, TopologyRequest};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use tonic::transport::Channel;

/// Remedy in the error of a command that does not run on a node.
const NAME_SOURCE: &str = "the node that has SOURCE with --stage-from";

/// The files to stage.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StageOptions {
    /// Copy a file or directory to the job's nodes before it starts, as `cool copy` does; may be
    /// repeated
    ///
    /// DEST is the path of the copies [default: that of SOURCE], in which {node} stands for the
    /// name of the node; if it ends with /, it is the directory of the copies. The nodes are those
    /// that the controller would assign to the job now. If one of them cannot have a copy, it is
    /// listed and the job is not started. Blocks that a node has already are not sent.
    #[arg(long, value_name = "SOURCE[:DEST]")]
    stage: Vec<StagedPath>,

    /// Node that has the staged files [default: this machine's]
    #[arg(long, value_name = "NODE", requires = "stage")]
    stage_from: Option<String>,
}

/// A file or directory to stage.
#[derive(Clone, Debug, PartialEq)]
struct StagedPath {
    source: PathBuf,
    dest: Option<PathBuf>,
}

impl FromStr for StagedPath {
    type Err = String;

    fn from_str(text: &str) -> Result<StagedPath, String> {
        let (source, dest) = match text.split_once(':') {
            Some((source, dest)) => (source, Some(dest)),
            None => (text, None),
        };
        if source.is_empty() || dest.is_some_and(str::is_empty) {
            return Err("SOURCE and DEST must not be empty".to_owned());
        }
        Ok(StagedPath { source: source.into(), dest: dest.map(PathBuf::from) })
    }
}

/// Copies the files to the nodes of a job, and returns the job restricted to these nodes.
pub(crate) async fn stage(
    mut client: ControllerClient<Channel>,
    spec: JobSpec,
    options: &StageOptions,
) -> Result<JobSpec, Error> {
    if options.stage.is_empty() {
        return Ok(spec);
    }
    let all_paths: Vec<CopyPaths> = options
        .stage
        .iter()
        .map(|staged| CopyPaths::new(&staged.source, staged.dest.as_deref()))
        .collect::<Result<_, _>>()?;
    let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    let from = node_named(&nodes, options.stage_from.as_deref(), NAME_SOURCE)?;
    let hosts = assigned_nodes(client.clone(), &spec).await?;
    let choice = NodeChoice { nodes: hosts.clone(), ..NodeChoice::default() };
    let transfer = TransferOptions { user: Some(spec.user.clone()), ..TransferOptions::default() };
    for paths in all_paths {
        let source_path = paths.source.clone();
        let to = choice.clone();
        let request =
            CopyRequest { from: from.clone(), to, paths, store: None, delete: false, transfer: &transfer };
        let outcome = copy(client.clone(), &nodes, request).await?;
        let (copies, requested) = (report_failed(&outcome), outcome.requested());
        if copies < requested {
            return Err(Error::Staged { copies, requested, source_path });
        }
    }
    Ok(JobSpec { hosts, ..spec })
}

/// Returns the nodes that the controller assigns to a job. To determine them, runs a job that does
/// nothing, which frees its slots when it ends.
async fn assigned_nodes(client: ControllerClient<Channel>, job: &JobSpec) -> Result<Vec<String>, Error> {
    let spec = JobSpec {
        program: followed_job::this_program()?,
        args: vec!["--version".to_owned()],
        ranks: job.ranks,
        ranks_per_node: job.ranks_per_node,
        placement: job.placement,
        hosts: job.hosts.clone(),
        racks: job.racks.clone(),
        user: job.user.clone(),
        ..JobSpec::default()
    };
    let mut hosts = BTreeSet::new();
    followed_job::run(client, spec, |update| {
        if let JobUpdate::Started(group) = update {
            hosts.extend(group.members.into_iter().map(|member| member.node));
        }
        Ok(())
    })
    .await?;
    Ok(hosts.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_follows_the_first_colon() {
        let staged = |source: &str, dest: Option<&str>| StagedPath {
            source: source.into(),
            dest: dest.map(PathBuf::from),
        };
        assert_eq!("a/b".parse(), Ok(staged("a/b", None)));
        assert_eq!("a:/x/{node}/".parse(), Ok(staged("a", Some("/x/{node}/"))));
        assert_eq!("a:b:c".parse(), Ok(staged("a", Some("b:c"))));
        for wrong in ["", ":", ":b", "a:"] {
            assert!(wrong.parse::<StagedPath>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_default_destination_is_the_absolute_path_of_the_source() {
        let here = std::env::current_dir().unwrap();
        let paths = |text: &str| {
            let StagedPath { source, dest } = text.parse().unwrap();
            let CopyPaths { source, dest } = CopyPaths::new(&source, dest.as_deref()).unwrap();
            (source, dest)
        };
        let model = here.join("model").display().to_string();
        assert_eq!(paths("model"), (model.clone(), model.clone()));
        assert_eq!(paths("model/:/tmp/{node}/"), (format!("{model}/"), "/tmp/{node}/model".to_owned()));
    }
}
