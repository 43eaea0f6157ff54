//! Distribution of files and directories to many nodes, and the nodes' stores.
//!
//! A [`FileCommand`] corresponds to `cool copy`, `put`, `get`, `ls`, `rm` or `verify`
//! (docs/guide/copy.md, docs/guide/store.md) and is executed by the installed program `cool`. The
//! process need not be a rank; it only needs permission to run `cool`.
//!
//! ```no_run
//! use cool::files::FileCommand;
//! # fn main() -> Result<(), cool::files::FilesError> {
//! let copied = FileCommand::copy("/data/model.bin", "/scratch/").racks(&[0, 2]).quorum("95%").copied()?;
//! let failed = copied.nodes.iter().filter(|node| node.error.is_some());
//! println!("{:.1} s by {}, {} nodes have none", copied.seconds, copied.via, failed.count());
//! # Ok(())
//! # }
//! ```

use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Environment variable that names the program, if it is not `cool` in the PATH.
const PROGRAM: &str = "COOL_PROGRAM";

/// An error of a file command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// The program cannot be started.
    #[error("cannot start {program}: {source}; install cool-tools, or name the program by COOL_PROGRAM")]
    Start {
        /// The program.
        program: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The command did not complete everything that was requested.
    #[error("{verb}: {message}")]
    Failed {
        /// Name of the command, for example `copy`.
        verb: String,
        /// Message of the program, one line for each node concerned.
        message: String,
        /// Results of the command as JSON, or an empty string.
        json: String,
    },
    /// The output of the program cannot be parsed, because program and library are of different
    /// releases.
    #[error(
        "{verb}: cannot parse the output of the program: {reason}; install the same release of cool-tools and libcool"
    )]
    Answer {
        /// Name of the command, for example `copy`.
        verb: String,
        /// Error of the parser.
        reason: String,
    },
}

/// Result of a copy.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CopiedFiles {
    /// Duration of the command, in seconds.
    pub seconds: f64,
    /// Size of the source, in bytes.
    pub bytes: u64,
    /// Bytes that the source node sent. If several stores send an object by swarm, this is their
    /// sum.
    pub sent: u64,
    /// Plan of the broadcasts, or `swarm`.
    pub via: String,
    /// All target nodes.
    pub nodes: Vec<CopiedNode>,
    /// Nodes that sent wrong bytes by swarm, and were excluded after that.
    #[serde(default)]
    pub expelled: Vec<ExpelledNode>,
}

/// A node that sent wrong bytes of data that it had reported as verified.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExpelledNode {
    /// Name of the node.
    pub node: String,
    /// Nodes that reported it.
    pub by: Vec<String>,
}

/// Result of a copy on one node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CopiedNode {
    /// Name of the node.
    pub node: String,
    /// Seconds from the start of the node's rank until its copy was in place, or had failed. `None`
    /// if the rank did not report its end.
    pub seconds: Option<f64>,
    /// Error, if the node has no copy.
    pub error: Option<String>,
}

/// A file command with its options. Relative paths refer to this process's working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCommand {
    verb: &'static str,
    options: Vec<OsString>,
    operands: Vec<OsString>,
}

impl FileCommand {
    fn new(verb: &'static str, operands: &[&OsStr]) -> FileCommand {
        FileCommand { verb, options: Vec::new(), operands: operands.iter().map(OsString::from).collect() }
    }

    /// Copies a file or directory to a path on many nodes. In `dest`, `{node}` stands for the
    /// node's name. If `dest` ends with `/`, it is the directory to copy into.
    pub fn copy(source: impl AsRef<Path>, dest: impl AsRef<Path>) -> FileCommand {
        FileCommand::new("copy", &[source.as_ref().as_os_str(), dest.as_ref().as_os_str()])
    }

    /// Copies a file or directory into the nodes' stores, under a name. Without a source, uses the
    /// object that one of the stores has under that name.
    pub fn put(name: &str, source: Option<&Path>) -> FileCommand {
        let operands: Vec<&OsStr> =
            [OsStr::new(name)].into_iter().chain(source.map(Path::as_os_str)).collect();
        FileCommand::new("put", &operands)
    }

    /// Copies the object with this name from the stores to a path on the nodes.
    pub fn get(name: &str, dest: impl AsRef<Path>) -> FileCommand {
        FileCommand::new("get", &[OsStr::new(name), dest.as_ref().as_os_str()])
    }

    /// Lists the objects in the nodes' stores, or the objects with one name.
    pub fn list(name: Option<&str>) -> FileCommand {
        FileCommand::new("ls", &name.map(OsStr::new).into_iter().collect::<Vec<_>>())
    }

    /// Removes a name from the nodes' stores.
    pub fn remove(name: &str) -> FileCommand {
        FileCommand::new("rm", &[OsStr::new(name)])
    }

    /// Verifies the objects in the nodes' stores, or those with one name, and reports damage.
    pub fn verify(name: Option<&str>) -> FileCommand {
        FileCommand::new("verify", &name.map(OsStr::new).into_iter().collect::<Vec<_>>())
    }

    /// Restricts the command to these nodes.
    #[must_use]
    pub fn nodes(self, names: &[&str]) -> FileCommand {
        self.option("--nodes", names.join(","))
    }

    /// Restricts the command to nodes in these racks.
    #[must_use]
    pub fn racks(self, racks: &[u32]) -> FileCommand {
        self.option("--racks", racks.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
    }

    /// Sets the node that has the source, if it is not this machine's node.
    #[must_use]
    pub fn from(self, node: &str) -> FileCommand {
        self.option("--from", node)
    }

    /// Sets the method of distribution: `auto`, `tree`, `chain` or `swarm`.
    #[must_use]
    pub fn via(self, way: &str) -> FileCommand {
        self.option("--via", way)
    }

    /// Limits the rate of the source, in bytes per second.
    #[must_use]
    pub fn limit(self, bytes_per_second: u64) -> FileCommand {
        self.option("--limit", bytes_per_second.to_string())
    }

    /// Sets how many nodes must succeed: a number, or a percentage such as `95%`.
    #[must_use]
    pub fn quorum(self, quorum: &str) -> FileCommand {
        self.option("--quorum", quorum)
    }

    /// Adds an option without a value, for example `--background`, `--compress`, `--verify`,
    /// `--delete` or `--drop`.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> FileCommand {
        self.options.push(flag.into());
        self
    }

    /// Adds any other option of the command, with its value.
    #[must_use]
    pub fn option(mut self, option: &str, value: impl AsRef<OsStr>) -> FileCommand {
        self.options.extend([option.into(), value.as_ref().to_owned()]);
        self
    }

    /// Runs the command and returns the JSON document that it prints with `--json`.
    ///
    /// # Errors
    /// If the program cannot be started or did not complete everything that was requested.
    pub fn run(&self) -> Result<String, FilesError> {
        let options = self.options.iter().map(OsString::as_os_str);
        let operands = self.operands.iter().map(OsString::as_os_str);
        run([OsStr::new(self.verb), OsStr::new("--json")]
            .into_iter()
            .chain(options)
            .chain([OsStr::new("--")])
            .chain(operands))
    }

    /// Runs a copy, put or get and returns its result for each node.
    ///
    /// # Errors
    /// As [`FileCommand::run`]. Also if the output cannot be parsed, for example because the
    /// command is not a copy, put or get.
    pub fn copied(&self) -> Result<CopiedFiles, FilesError> {
        let json = self.run()?;
        let answer =
            |e: serde_json::Error| FilesError::Answer { verb: self.verb.into(), reason: e.to_string() };
        serde_json::from_str(&json).map_err(answer)
    }
}

/// Runs `cool` with command-line arguments and returns its output, for bindings to other languages.
///
/// # Errors
/// If the program cannot be started or did not complete everything that was requested.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<String, FilesError> {
    let arguments: Vec<OsString> = arguments.into_iter().map(|a| a.as_ref().to_owned()).collect();
    run_program(named_program().as_deref().unwrap_or(OsStr::new("cool")), &arguments)
}

/// Returns the program that the environment names, if any.
pub(crate) fn named_program() -> Option<OsString> {
    std::env::var_os(PROGRAM).filter(|program| !program.is_empty())
}

fn run_program(program: &OsStr, arguments: &[OsString]) -> Result<String, FilesError> {
    let verb = arguments.first().map_or_else(String::new, |verb| verb.to_string_lossy().into_owned());
    let ended = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = ended
        .map_err(|source| FilesError::Start { program: program.to_string_lossy().into_owned(), source })?;
    let json = String::from_utf8_lossy(&stdout).into_owned();
    if status.success() {
        return Ok(json);
    }
    let said = String::from_utf8_lossy(&stderr);
    let lines: Vec<&str> = said.lines().map(|line| line.strip_prefix("cool: ").unwrap_or(line)).collect();
    let message = if lines.is_empty() { status.to_string() } else { lines.join("; ") };
    Err(FilesError::Failed { verb, message, json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_arguments_of_the_command_line() {
        let copy = FileCommand::copy("a b", "/x/{node}/").nodes(&["h1", "h2"]).limit(7).flag("--compress");
        assert_eq!(copy.options, ["--nodes", "h1,h2", "--limit", "7", "--compress"]);
        assert_eq!((copy.verb, copy.operands), ("copy", vec!["a b".into(), "/x/{node}/".into()]));
        assert_eq!(FileCommand::put("m", None).operands, ["m"]);
        assert_eq!(FileCommand::put("m", Some(Path::new("f"))).operands, ["m", "f"]);
        assert_eq!(FileCommand::list(None).operands.len(), 0);
    }

    #[test]
    fn the_error_contains_the_message_of_the_program() {
        let says = |script: &str| run_program(OsStr::new("sh"), &["-c".into(), script.into()]);
        assert_eq!(says("echo '{}'").unwrap(), "{}\n");
        let failed =
            says("echo 'cool: h3: away' >&2; echo 'cool: 1 of 2' >&2; echo '{}'; exit 1").unwrap_err();
        assert_eq!(failed.to_string(), "-c: h3: away; 1 of 2");
        assert!(matches!(failed, FilesError::Failed { json, .. } if json == "{}\n"));
        assert_eq!(says("exit 3").unwrap_err().to_string(), "-c: exit status: 3");
        let error = run_program(OsStr::new("/nowhere/cool"), &[]).unwrap_err().to_string();
        assert!(error.contains("cannot start /nowhere/cool") && error.contains("COOL_PROGRAM"), "{error}");
    }

    #[test]
    fn a_document_contains_every_node() {
        let json = r#"{"seconds":1.5,"bytes":9,"sent":10,"via":"multicast","nodes":[
            {"node":"h2","seconds":1.25,"error":null,"progress":[[0.5,9],[1.5,0]]},
            {"node":"h3","seconds":null,"error":"its agent is away","progress":[]}],
            "expelled":[{"node":"h4","by":["h2"]}]}"#;
        let copied: CopiedFiles = serde_json::from_str(json).unwrap();
        assert_eq!((copied.seconds, copied.sent, copied.via.as_str()), (1.5, 10, "multicast"));
        assert_eq!(copied.nodes[0].error, None);
        assert_eq!(copied.nodes[1].error.as_deref(), Some("its agent is away"));
        assert_eq!(copied.expelled, [ExpelledNode { node: "h4".to_owned(), by: vec!["h2".to_owned()] }]);
    }
}
