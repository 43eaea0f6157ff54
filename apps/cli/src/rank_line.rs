//! Lines of a rank's output, printed with the rank in front.

use crate::error::Error;
use cool_proto::control::Output;
use std::io::{Result as IoResult, Write};

/// Prints a line. It must appear on the stream on which the rank printed it, because scripts
/// separate results from messages.
pub(crate) fn print_line(output: &Output) -> Result<(), Error> {
    let line = Output { unterminated: false, ..output.clone() };
    LinePrinter::default().print(&line)
}

/// Prints the lines of all ranks, and pieces of lines, on the streams on which they were printed.
#[derive(Debug, Default)]
pub(crate) struct LinePrinter {
    /// The rank whose unterminated line is the last one on standard output and standard error.
    open: [Option<u32>; 2],
}

impl LinePrinter {
    pub(crate) fn print(&mut self, output: &Output) -> Result<(), Error> {
        let bytes = self.formatted(output);
        Ok(write(output.stderr, &bytes)?)
    }

    /// Terminates the last lines.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        for stderr in [false, true] {
            if self.open[usize::from(stderr)].take().is_some() {
                write(stderr, b"\n")?;
            }
        }
        Ok(())
    }

    /// Returns the bytes to print. A piece that continues the last line of its stream has no rank
    /// in front.
    fn formatted(&mut self, output: &Output) -> Vec<u8> {
        let open = &mut self.open[usize::from(output.stderr)];
        let mut bytes = match *open {
            Some(rank) if rank == output.rank => Vec::new(),
            Some(_) => format!("\n[{}] ", output.rank).into_bytes(),
            None => format!("[{}] ", output.rank).into_bytes(),
        };
        bytes.extend_from_slice(&output.line);
        if !output.unterminated {
            bytes.push(b'\n');
        }
        *open = output.unterminated.then_some(output.rank);
        bytes
    }
}

/// Writes to a standard stream at once, because the bytes may be a prompt.
fn write(stderr: bool, bytes: &[u8]) -> IoResult<()> {
    if stderr {
        return std::io::stderr().write_all(bytes);
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    if bytes.ends_with(b"\n") { Ok(()) } else { stdout.flush() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_line_are_joined_unless_another_rank_prints() {
        let mut printer = LinePrinter::default();
        let mut print = |rank, line: &str, unterminated| {
            let output = Output { rank, line: line.into(), unterminated, ..Output::default() };
            String::from_utf8(printer.formatted(&output)).unwrap()
        };
        assert_eq!(print(0, "Name? ", true), "[0] Name? ");
        assert_eq!(print(0, "Ann", false), "Ann\n");
        assert_eq!(print(0, "Name? ", true), "[0] Name? ");
        assert_eq!(print(1, "line", false), "\n[1] line\n");
        assert_eq!(print(0, "Bob", false), "[0] Bob\n");
    }
}
