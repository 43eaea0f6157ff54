//! Staging: what a job needs is on its nodes before it starts.

use super::options::{CopyWay, NodeChoice, node_named};
use super::{CopyOrder, CopyPaths, carry_out, say_failed};
use crate::error::Error;
use crate::job::{self, Heard};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, TopologyRequest};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use tonic::transport::Channel;

/// What to name where a command is on no node.
const NAME_SOURCE: &str = "the node that has SOURCE with --stage-from";

/// What is brought to a job's nodes before it starts.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StageOptions {
    /// Copy a file or folder to the job's nodes before it starts, as `cool copy` does; may be repeated
    ///
    /// DEST is its path there [default: that of SOURCE], in which {node} stands for the node's name; with / at its end, the folder that
    /// it is in. The nodes are those that the controller gives such a job now. If one of them cannot have it, it is named, and
    /// the job is not started. What is there already is not sent.
    #[arg(long, value_name = "SOURCE[:DEST]")]
    stage: Vec<Staged>,

    /// The node that has what is staged [default: this machine's]
    #[arg(long, value_name = "NODE", requires = "stage")]
    stage_from: Option<String>,
}

/// What is staged, and where it is to be.
#[derive(Clone, Debug, PartialEq)]
struct Staged {
    source: PathBuf,
    dest: Option<PathBuf>,
}

impl FromStr for Staged {
    type Err = String;

    fn from_str(text: &str) -> Result<Staged, String> {
        let (source, dest) = match text.split_once(':') {
            Some((source, dest)) => (source, Some(dest)),
            None => (text, None),
        };
        if source.is_empty() || dest.is_some_and(str::is_empty) {
            return Err("neither SOURCE nor DEST is empty".to_owned());
        }
        Ok(Staged { source: source.into(), dest: dest.map(PathBuf::from) })
    }
}

/// Brings what is asked for to the nodes of a job; the job that then runs on these nodes only.
pub(crate) async fn stage(
    mut client: ControllerClient<Channel>,
    spec: JobSpec,
    options: &StageOptions,
) -> Result<JobSpec, Error> {
    if options.stage.is_empty() {
        return Ok(spec);
    }
    let what: Vec<CopyPaths> = options
        .stage
        .iter()
        .map(|staged| CopyPaths::new(&staged.source, staged.dest.as_deref()))
        .collect::<Result<_, _>>()?;
    let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    let from = node_named(&nodes, options.stage_from.as_deref(), NAME_SOURCE)?;
    let hosts = hosts(client.clone(), &spec).await?;
    let choice = NodeChoice { nodes: hosts.clone(), ..NodeChoice::default() };
    let way = CopyWay { user: Some(spec.user.clone()), ..CopyWay::default() };
    for what in what {
        let source = what.source.clone();
        let to = choice.clone();
        let order = CopyOrder { from: from.clone(), to, what, store: None, delete: false, way: &way };
        let outcome = carry_out(client.clone(), &nodes, order).await?;
        let (copies, asked) = (say_failed(&outcome), outcome.asked());
        if copies < asked {
            return Err(Error::Staged { copies, asked, what: source });
        }
    }
    Ok(JobSpec { hosts, ..spec })
}

/// The nodes that the controller gives a job: those of one that does nothing, whose place is free again when it has ended.
async fn hosts(client: ControllerClient<Channel>, job: &JobSpec) -> Result<Vec<String>, Error> {
    let spec = JobSpec {
        program: job::this_program()?,
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
    job::run(client, spec, |heard| {
        if let Heard::Started(group) = heard {
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
        let staged = |source: &str, dest: Option<&str>| Staged {
            source: source.into(),
            dest: dest.map(PathBuf::from),
        };
        assert_eq!("a/b".parse(), Ok(staged("a/b", None)));
        assert_eq!("a:/x/{node}/".parse(), Ok(staged("a", Some("/x/{node}/"))));
        assert_eq!("a:b:c".parse(), Ok(staged("a", Some("b:c"))));
        for wrong in ["", ":", ":b", "a:"] {
            assert!(wrong.parse::<Staged>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn without_a_destination_it_is_the_sources_absolute_path() {
        let here = std::env::current_dir().unwrap();
        let paths = |text: &str| {
            let Staged { source, dest } = text.parse().unwrap();
            let CopyPaths { source, dest } = CopyPaths::new(&source, dest.as_deref()).unwrap();
            (source, dest)
        };
        let model = here.join("model").display().to_string();
        assert_eq!(paths("model"), (model.clone(), model.clone()));
        assert_eq!(paths("model/:/tmp/{node}/"), (format!("{model}/"), "/tmp/{node}/model".to_owned()));
    }
}
