//! Asks the stores of nodes, and hears what they say.

use super::said::{StoreAnswer, StoreQuestion, StoredContent};
use crate::copy::Chosen;
use crate::error::Error;
use crate::job::{self, Heard};
use crate::own_ranks;
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
    let mut hearing = Hearing::default();
    let ended = job::run(client, own_ranks::spec("store-rank", question, hosts, user)?, |heard| {
        hearing.hear(heard);
        Ok(())
    })
    .await;
    match ended {
        Ok(()) | Err(Error::Failed { .. }) => {}
        Err(other) => return Err(other),
    }
    answers.failed.extend(hearing.silent(ended.as_ref().err()));
    answers.said = hearing.said;
    Ok(answers)
}

/// What ranks say while they run.
#[derive(Default)]
struct Hearing {
    /// The node of each rank.
    names: Vec<String>,
    said: Vec<(String, StoreAnswer)>,
    /// How those that have ended say they did.
    ended: BTreeMap<String, Option<String>>,
}

impl Hearing {
    fn hear(&mut self, heard: Heard) {
        let output = match heard {
            Heard::Started(group) => {
                self.names = group.members.into_iter().map(|member| member.node).collect();
                return;
            }
            Heard::Line(output) => output,
        };
        let node = self.names.get(output.rank as usize).cloned().unwrap_or_default();
        match own_ranks::answer(&output) {
            Some(StoreAnswer::Ended { error }) => drop(self.ended.insert(node, error)),
            Some(answer) => self.said.push((node, answer)),
            None => eprintln!("{node}: {}", String::from_utf8_lossy(&output.line)),
        }
    }

    /// Nodes that have not answered to the end, each with the reason; the job may have failed.
    fn silent(&self, job: Option<&Error>) -> Vec<(String, String)> {
        let why = |node: &String| match self.ended.get(node) {
            Some(error) => error.clone(),
            None => Some(
                job.map_or_else(|| "it did not answer".to_owned(), |job| format!("it did not answer: {job}")),
            ),
        };
        self.names.iter().filter_map(|node| Some((node.clone(), why(node)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::{Group, Member, Output};

    #[test]
    fn nodes_that_do_not_answer_to_the_end_are_named() {
        let mut hearing = Hearing::default();
        let member = |node: &str| Member { node: node.to_owned(), ..Member::default() };
        let members = vec![member("h1"), member("h2"), member("h3")];
        hearing.hear(Heard::Started(Group { members, ..Group::default() }));
        let mut say = |rank, answer: &StoreAnswer| {
            let line = serde_json::to_vec(answer).unwrap();
            hearing.hear(Heard::Line(Output { rank, line, ..Output::default() }));
        };
        say(1, &StoreAnswer::Removed);
        say(1, &StoreAnswer::Ended { error: None });
        say(2, &StoreAnswer::Ended { error: Some("full".to_owned()) });
        assert_eq!(hearing.said, [("h2".to_owned(), StoreAnswer::Removed)]);
        let silent = hearing.silent(None);
        assert_eq!(silent, [("h1".into(), "it did not answer".into()), ("h3".into(), "full".into())]);
        let answers = Answers { failed: silent.into_iter().collect(), asked: 3, ..Answers::default() };
        assert_eq!(answers.check().unwrap_err().to_string(), "1 of 3 nodes have answered");
    }
}
