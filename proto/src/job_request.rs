//! Limits on the size of tools' requests.
//!
//! The controller forwards the command of a job to the agents of its nodes, which start it by one
//! message to a supervisor ([`crate::seqpacket`]). It must refuse a command that does not fit,
//! because no node can start it.

use crate::control::JobSpec;
use crate::seqpacket::PACKET_BYTES_MAX;

/// Maximum size of the command of a job, in bytes. The rest of the message to a supervisor is for
/// the variables that the agent adds.
pub const COMMAND_BYTES_MAX: usize = PACKET_BYTES_MAX - (4 << 10);

/// Maximum size of a request of a tool, in bytes: a command, and the names of 10,000 nodes.
pub const TOOL_REQUEST_BYTES_MAX: usize = 1 << 20;

/// Upper bound of the bytes that the encoding adds to a string or a variable.
const STRING_OVERHEAD_BYTES: usize = 6;
const VARIABLE_OVERHEAD_BYTES: usize = 3 * STRING_OVERHEAD_BYTES;

/// The error that no node can start a command of this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the program, its arguments, environment and working directory take {0} bytes; at most {COMMAND_BYTES_MAX} are possible: \
     pass longer data in a file"
)]
pub struct CommandLengthError(pub usize);

impl JobSpec {
    /// Checks that nodes can start the command of this job.
    ///
    /// # Errors
    /// Returns an error if it is too long.
    pub fn check_command(&self) -> Result<(), CommandLengthError> {
        let string = |text: &String| text.len() + STRING_OVERHEAD_BYTES;
        let variable = |(name, value): (&String, &String)| name.len() + value.len() + VARIABLE_OVERHEAD_BYTES;
        let strings: usize = [&self.program, &self.workdir].into_iter().chain(&self.args).map(string).sum();
        let bytes = strings + self.env.iter().map(variable).sum::<usize>();
        if bytes <= COMMAND_BYTES_MAX { Ok(()) } else { Err(CommandLengthError(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::{Request, Start, request};
    use prost::Message as _;

    #[test]
    fn a_command_that_passes_fits_a_message_to_a_supervisor() {
        let long = |bytes: usize| "x".repeat(bytes);
        let commands = [
            JobSpec { args: vec![String::new(); 27_000], ..JobSpec::default() },
            JobSpec { args: vec![long(COMMAND_BYTES_MAX)], ..JobSpec::default() },
            JobSpec { args: vec![long(COMMAND_BYTES_MAX - 100)], ..JobSpec::default() },
            JobSpec { program: long(COMMAND_BYTES_MAX - 12), ..JobSpec::default() },
            JobSpec { workdir: long(COMMAND_BYTES_MAX - 11), ..JobSpec::default() },
            JobSpec {
                env: (0..7000).map(|i| (i.to_string(), String::new())).collect(),
                ..JobSpec::default()
            },
        ];
        let passes = commands.map(|spec| {
            let passes = spec.check_command().is_ok();
            let JobSpec { program, args, env, workdir, .. } = spec;
            let start = Start { rank: u32::MAX, program, args, env, workdir };
            let length = Request { body: Some(request::Body::Start(start)) }.encoded_len();
            assert!(!passes || length <= PACKET_BYTES_MAX - (3 << 10), "{length}");
            passes
        });
        assert_eq!(passes, [false, false, true, true, false, true]);
        let refused = JobSpec { program: long(1 << 20), ..JobSpec::default() }.check_command().unwrap_err();
        assert!(refused.to_string().contains("1048588 bytes; at most 159744"), "{refused}");
    }
}
