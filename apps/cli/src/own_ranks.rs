//! Jobs whose ranks are this program, one on each node: what they are told, and the lines of JSON by which they answer.

use crate::error::Error;
use crate::job;
use cool_proto::control::{JobSpec, Output};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Write};

/// A job on these nodes that goes on without those that are lost: each rank runs a hidden subcommand, which is told what to do.
pub(crate) fn spec(
    subcommand: &str,
    told: &impl Serialize,
    hosts: Vec<String>,
    user: Option<String>,
) -> Result<JobSpec, Error> {
    Ok(JobSpec {
        program: job::this_program()?,
        args: vec![subcommand.to_owned(), serde_json::json!(told).to_string()],
        ranks_per_node: 1,
        hosts,
        user: user.unwrap_or_else(job::user),
        survive: true,
        ..JobSpec::default()
    })
}

/// In a rank: says something to whoever runs the command.
pub(crate) fn say(answer: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    io::stdout().write_all(&line)
}

/// What a line of a rank says; nothing if it is something else that the rank has printed.
pub(crate) fn answer<T: DeserializeOwned>(line: &Output) -> Option<T> {
    if line.stderr { None } else { serde_json::from_slice(&line.line).ok() }
}

/// One JSON document for scripts, as a line.
pub(crate) fn document(all: &impl Serialize) -> Result<String, Error> {
    Ok(serde_json::to_string(all).map_err(io::Error::from)? + "\n")
}
