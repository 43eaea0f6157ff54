//! The part of a job's request that tools list.

use crate::abbreviation::abbreviate;
use cool_proto::control::JobSpec;
use std::collections::HashMap;

/// Size of a command beyond which tools list only its beginning, in bytes.
const LISTED_COMMAND_BYTES: usize = 4 << 10;
/// Size of each further argument, and maximum number of arguments.
const LISTED_BYTES_MIN: usize = 16;
const LISTED_ARGS_MAX: usize = 256;

/// Returns the part of a request that tools list: no environment variables, because they may
/// contain secrets, no names of permitted nodes, and only [`LISTED_COMMAND_BYTES`] of a long
/// command, so that the list of all jobs fits into one message.
pub(super) fn summary(spec: &JobSpec) -> JobSpec {
    let mut left = LISTED_COMMAND_BYTES;
    let mut listed = |text: &str| {
        let text = abbreviate(text, left.max(LISTED_BYTES_MIN)).into_owned();
        left = left.saturating_sub(text.len());
        text
    };
    let (program, workdir) = (listed(&spec.program), listed(&spec.workdir));
    let mut args: Vec<String> = spec.args.iter().take(LISTED_ARGS_MAX).map(|arg| listed(arg)).collect();
    if args.len() < spec.args.len() {
        args.push("...".to_owned());
    }
    let (env, hosts, racks) = (HashMap::new(), Vec::new(), Vec::new());
    // Clones only the listed part.
    JobSpec {
        program,
        args,
        env,
        workdir,
        hosts,
        racks,
        user: spec.user.clone(),
        ranks: spec.ranks,
        ranks_per_node: spec.ranks_per_node,
        placement: spec.placement,
        time_limit_ms: spec.time_limit_ms,
        survive: spec.survive,
        partial_lines: spec.partial_lines,
    }
}
