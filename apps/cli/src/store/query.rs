//! Sends requests to the stores of nodes, and collects the replies.

use crate::cool_rank_job;
use crate::copy::options::ChosenNode;
use crate::error::Error;
use crate::followed_job::{self, JobUpdate};
use crate::node_names::failure_lines;
use crate::ranks::STORE_RANK;
use crate::terminal_text::printable;
use cool_copy::{ObjectInfo, StoreReply, StoreRequest, parse_event, without_os_code};
use cool_proto::control::controller_client::ControllerClient;
use std::collections::BTreeMap;
use tonic::transport::Channel;

/// The replies of nodes.
#[derive(Debug, Default)]
pub(super) struct StoreReplies {
    /// All replies with their nodes, except the last reply (`Ended`) of each node.
    pub(super) replies: Vec<(String, StoreReply)>,
    /// Nodes without a complete reply, or with an error in their last reply. Each has the reason.
    pub(super) failed: BTreeMap<String, String>,
    /// Number of nodes to which the request was sent.
    pub(super) requested: usize,
}

impl StoreReplies {
    /// Returns the objects on the nodes.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&str, &ObjectInfo)> {
        self.replies.iter().filter_map(|(node, reply)| match reply {
            StoreReply::Object(object) => Some((node.as_str(), object)),
            _ => None,
        })
    }

    /// Returns the damage on the nodes.
    pub(super) fn damages(&self) -> impl Iterator<Item = (&str, String)> {
        self.replies.iter().filter_map(|(node, reply)| match reply {
            StoreReply::Damaged { name, damage } => Some((node.as_str(), format!("{name}: {damage}"))),
            _ => None,
        })
    }

    /// Prints the damage, and the nodes that did not reply or replied with an error, on standard
    /// error.
    ///
    /// # Errors
    /// If there is any of them.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut damaged = 0;
        for (node, damage) in self.damages() {
            eprintln!("cool: {node}: {}", printable(&without_os_code(&damage)));
            damaged += 1;
        }
        for line in failure_lines(self.failed.iter().map(|(node, reason)| (&**node, &**reason))) {
            eprintln!("cool: {}", printable(&without_os_code(&line)));
        }
        match (self.failed.len(), damaged) {
            (0, 0) => Ok(()),
            (0, damaged) => Err(Error::DamagedContents(damaged)),
            (failed, _) => {
                Err(Error::FailedNodes { replies: self.requested - failed, requested: self.requested })
            }
        }
    }
}

/// Sends a request to nodes as a user, by a job with a rank on each.
pub(super) async fn query(
    client: ControllerClient<Channel>,
    chosen: Vec<ChosenNode>,
    user: Option<String>,
    request: &StoreRequest,
) -> Result<StoreReplies, Error> {
    let mut result = StoreReplies { requested: chosen.len(), ..StoreReplies::default() };
    let mut hosts = Vec::new();
    for (node, absent) in chosen {
        match absent {
            None => hosts.push(node),
            Some(why) => drop(result.failed.insert(node, why.to_owned())),
        }
    }
    // A job without named nodes would run on all of them.
    if hosts.is_empty() {
        return Ok(result);
    }
    let mut collector = ReplyCollector::default();
    let ended = followed_job::run(client, cool_rank_job::spec(STORE_RANK, request, hosts, user)?, |update| {
        collector.on_update(update);
        Ok(())
    })
    .await;
    match ended {
        Ok(()) | Err(Error::Failed { .. }) => {}
        Err(other) => return Err(other),
    }
    result.failed.extend(collector.incomplete(ended.as_ref().err()));
    result.replies = collector.replies;
    Ok(result)
}

/// Collects the replies of a job's ranks.
#[derive(Default)]
struct ReplyCollector {
    /// The node of each rank.
    names: Vec<String>,
    replies: Vec<(String, StoreReply)>,
    /// The nodes that have ended, with their errors.
    ended: BTreeMap<String, Option<String>>,
}

impl ReplyCollector {
    fn on_update(&mut self, update: JobUpdate) {
        let output = match update {
            JobUpdate::Started(group) => {
                self.names = group.members.into_iter().map(|member| member.node).collect();
                return;
            }
            JobUpdate::Line(output) => output,
        };
        let node = self.names.get(output.rank as usize).cloned().unwrap_or_default();
        match parse_event(&output) {
            Some(StoreReply::Ended { error }) => drop(self.ended.insert(node, error)),
            Some(reply) => self.replies.push((node, reply)),
            None => eprintln!("{node}: {}", printable(&String::from_utf8_lossy(&output.line))),
        }
    }

    /// Returns the nodes that sent no last reply (`Ended`), or one with an error, each with the
    /// reason. `job` is the error with which the job ended, if any.
    fn incomplete(&self, job: Option<&Error>) -> Vec<(String, String)> {
        let reason = |node: &String| match self.ended.get(node) {
            Some(error) => error.clone(),
            None => {
                let job = job.map_or_else(String::new, |job| format!(": {job}"));
                Some(format!("it did not answer{job}"))
            }
        };
        self.names.iter().filter_map(|node| Some((node.clone(), reason(node)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::{Group, Member, Output};

    #[test]
    fn nodes_that_do_not_reply_to_the_end_are_named() {
        let mut collector = ReplyCollector::default();
        let member = |node: &str| Member { node: node.to_owned(), ..Member::default() };
        let members = vec![member("h1"), member("h2"), member("h3")];
        collector.on_update(JobUpdate::Started(Group { members, ..Group::default() }));
        let mut send = |rank, reply: &StoreReply| {
            let line = serde_json::to_vec(reply).unwrap();
            collector.on_update(JobUpdate::Line(Output { rank, line, ..Output::default() }));
        };
        send(1, &StoreReply::Removed);
        send(1, &StoreReply::Ended { error: None });
        send(2, &StoreReply::Ended { error: Some("full".to_owned()) });
        assert_eq!(collector.replies, [("h2".to_owned(), StoreReply::Removed)]);
        let failed = collector.incomplete(None);
        assert_eq!(failed, [("h1".into(), "it did not answer".into()), ("h3".into(), "full".into())]);
        let replies =
            StoreReplies { failed: failed.into_iter().collect(), requested: 3, ..StoreReplies::default() };
        assert_eq!(replies.check().unwrap_err().to_string(), "1 of 3 nodes have executed the request");
    }
}
