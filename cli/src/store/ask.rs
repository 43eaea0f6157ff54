//! Asks the stores of nodes, and hears what they say.

use super::said::{StoreAnswer, StoreQuestion, StoredContent};
use crate::copy::Chosen;
use crate::error::Error;
use crate::job::{self, Heard};
use cool_proto::control::JobSpec;
use cool_proto::control::controller_client::ControllerClient;
use std::collections::BTreeMap;
use tonic::transport::Channel;

/// What nodes have answered.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Each with its node, but the last lines.
    pub(super) said: Vec<(String, StoreAnswer)>,
    /// Nodes that have not answered, or not to the end, each with the reason.
    pub(super) failed: BTreeMap<String, String>,
    /// How many were asked.
    pub(super) asked: usize,
}

impl Answers {
    /// What nodes have.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&str, &StoredContent)> {
        self.said.iter().filter_map(|(node, answer)| match answer {
            StoreAnswer::Content(content) => Some((node.as_str(), content)),
            _ => None,
        })
    }

    /// What is damaged.
    pub(super) fn damages(&self) -> impl Iterator<Item = (&str, String)> {
        self.said.iter().filter_map(|(node, answer)| match answer {
            StoreAnswer::Damaged { name, what } => Some((node.as_str(), format!("{name}: {what}"))),
            _ => None,
        })
    }

    /// Names nodes that have not answered, and what is damaged; an error if there is anything.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut damaged = 0;
        for (node, what) in self.damages() {
            eprintln!("cool: {node}: {what}");
            damaged += 1;
        }
        for (node, why) in &self.failed {
            eprintln!("cool: {node}: {why}");
        }
        match (self.failed.len(), damaged) {
            (0, 0) => Ok(()),
            (0, damaged) => Err(Error::DamagedContents(damaged)),
            (silent, _) => Err(Error::Unanswered { answers: self.asked - silent, asked: self.asked }),
        }
    }
}

/// Asks nodes as a user, by a job that has a rank on each.
pub(super) async fn ask(
    client: ControllerClient<Channel>,
    chosen: Vec<Chosen>,
    user: Option<String>,
    question: &StoreQuestion,
) -> Result<Answers, Error> {
    let mut answers = Answers { asked: chosen.len(), ..Answers::default() };
    let mut hosts = Vec::new();
    for (node, absent) in chosen {
        match absent {
            None => hosts.push(node),
            Some(why) => drop(answers.failed.insert(node, why.to_owned())),
        }
    }
    // Nobody named would mean all.
    if hosts.is_empty() {
        return Ok(answers);
    }
    let spec = JobSpec {
        program: job::this_program()?,
        args: vec!["store-rank".to_owned(), serde_json::json!(question).to_string()],
        ranks_per_node: 1,
        hosts,
        user: user.unwrap_or_else(job::user),
        survive: true,
        ..JobSpec::default()
    };
    let mut ended: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut names: Vec<String> = Vec::new();
    let outcome = job::run(client, spec, |heard| {
        match heard {
            Heard::Started(group) => {
                names = group.members.into_iter().map(|member| member.node).collect();
            }
            Heard::Line(output) => {
                let node = names.get(output.rank as usize).cloned().unwrap_or_default();
                let answer = if output.stderr { None } else { serde_json::from_slice(&output.line).ok() };
                match answer {
                    Some(StoreAnswer::Ended { error }) => drop(ended.insert(node, error)),
                    Some(answer) => answers.said.push((node, answer)),
                    None => eprintln!("{node}: {}", String::from_utf8_lossy(&output.line)),
                }
            }
        }
        Ok(())
    })
    .await;
    match outcome {
        Ok(()) | Err(Error::Failed { .. }) => {}
        Err(other) => return Err(other),
    }
    for node in names {
        let why = match ended.remove(&node) {
            Some(None) => continue,
            Some(Some(error)) => error,
            None => {
                let why = outcome.as_ref().err().map_or_else(String::new, |job| format!(": {job}"));
                format!("it did not answer{why}")
            }
        };
        answers.failed.insert(node, why);
    }
    Ok(answers)
}
