//! Jobs that run this program, `cool`, as their ranks, one on each node: how they are submitted,
//! and JSON documents of their results.

use crate::error::Error;
use crate::followed_job;
use crate::terminal_text::printable_json;
use cool_proto::control::JobSpec;
use serde::Serialize;
use std::io;

/// Returns a job on these nodes that continues if nodes are lost. `command` must be one of
/// [`crate::ranks`], which every rank runs with the task as JSON.
pub(crate) fn spec(
    command: &str,
    task: &impl Serialize,
    hosts: Vec<String>,
    user: Option<String>,
) -> Result<JobSpec, Error> {
    Ok(JobSpec {
        program: followed_job::this_program()?,
        args: vec![command.to_owned(), serde_json::json!(task).to_string()],
        ranks_per_node: 1,
        hosts,
        user: user.unwrap_or_else(followed_job::user),
        survive: true,
        ..JobSpec::default()
    })
}

/// Returns a JSON document on one line.
pub(crate) fn document(content: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(content).map_err(io::Error::from)? + "\n";
    Ok(printable_json(&text).into_owned())
}
