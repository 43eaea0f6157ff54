//! Prints a stream of raw OpenFlow 1.3 messages from standard input as text, one message per line.
//! With `--reencode`, writes the messages back to standard output byte for byte. Stops with an
//! error at the first message that it cannot read.

use std::error::Error;
use std::io::{Read, Write};
use std::process::ExitCode;

use rs_openflow::Framer;

/// Error in the middle of a stream.
#[derive(Debug, thiserror::Error)]
enum DumpError {
    #[error("message {number} at byte {offset} cannot be read: {source}")]
    Message { number: usize, offset: usize, source: rs_openflow::Error },
    #[error("message {number} at byte {offset} is cut short: the stream ends after {left} bytes of it")]
    Truncated { number: usize, offset: usize, left: usize },
}

/// Prints the messages of `input`, or writes them back, to `output`.
///
/// # Errors
///
/// Returns the first error of reading or writing.
pub fn dump(mut input: impl Read, mut output: impl Write, reencode: bool) -> Result<(), Box<dyn Error>> {
    let mut framer = Framer::default();
    let mut piece = vec![0; 1 << 16];
    let (mut number, mut received) = (1, 0);
    loop {
        let count = input.read(&mut piece)?;
        received += count;
        framer.push(&piece[..count]);
        loop {
            // A message begins where the one before ends.
            let offset = received - framer.pending();
            let Some(message) = framer.next() else { break };
            let message = message.map_err(|source| DumpError::Message { number, offset, source })?;
            if reencode {
                output.write_all(&message.encode()?)?;
            } else {
                writeln!(output, "{message}")?;
            }
            number += 1;
        }
        if count == 0 {
            break;
        }
    }
    output.flush()?;
    match framer.pending() {
        0 => Ok(()),
        left => Err(DumpError::Truncated { number, offset: received - left, left }.into()),
    }
}

fn main() -> ExitCode {
    let reencode = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [option] if option == "--reencode" => true,
        _ => {
            eprintln!("usage: ofp_dump [--reencode] < STREAM");
            return ExitCode::from(2);
        }
    };
    match dump(std::io::stdin().lock(), std::io::stdout().lock(), reencode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ofp_dump: {error}");
            ExitCode::FAILURE
        }
    }
}
