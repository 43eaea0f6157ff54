//! Lines of a rank's output, printed with the rank in front.

use crate::error::Error;
use cool_proto::control::Output;
use std::io::Write;

/// Prints a line. It must appear on the stream on which the rank printed it, because scripts
/// separate results from messages.
pub(crate) fn print_line(output: &Output) -> Result<(), Error> {
    let mut line = format!("[{}] ", output.rank).into_bytes();
    line.extend_from_slice(&output.line);
    line.push(b'\n');
    if output.stderr {
        std::io::stderr().write_all(&line)?
    } else {
        std::io::stdout().write_all(&line)?
    }
    Ok(())
}
