//! Events of a rank on its standard output: one line of JSON each.

use cool_proto::control::Output;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Write};

/// Sends an event to the command, from a rank.
pub(crate) fn send_event(event: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    io::stdout().write_all(&line)
}

/// Returns the event in a line of a rank's output, or `None` if the line is something else.
#[must_use]
pub fn parse_event<T: DeserializeOwned>(line: &Output) -> Option<T> {
    if line.stderr { None } else { serde_json::from_slice(&line.line).ok() }
}
