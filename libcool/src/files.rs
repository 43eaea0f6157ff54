//! Files and folders to many nodes, and contents that stay there, for programs: what `cool copy`, `put`, `get`, `ls`, `rm` and `verify` do
//! (docs/guide/copy.md, docs/guide/store.md), by the installed program `cool`. No rank is needed: any process may, that may run `cool`.
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

/// Names the program where it is not `cool` in the PATH.
const PROGRAM: &str = "COOL_PROGRAM";

/// Why files are not where they should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// The program does not start.
    #[error("cannot start {program}: {source}; install cool-tools, or name the program by COOL_PROGRAM")]
    Start {
        /// What was tried.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// It did not do all that was asked.
    #[error("{verb}: {message}")]
    Failed {
        /// `copy`, `put` and so on.
        verb: String,
        /// What it says, a line for each node that is concerned.
        message: String,
        /// What it has done all the same, as JSON; empty if nothing.
        json: String,
    },
    /// It says what this library does not understand: the two are of different releases.
    #[error(
        "{verb}: an answer that is not understood: {reason}; install cool-tools and libcool of one release"
    )]
    Answer {
        /// `copy`, `put` and so on.
        verb: String,
        /// Where it stops to make sense.
        reason: String,
    },
}

/// What became of a copy.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CopiedFiles {
    /// Of the whole command.
    pub seconds: f64,
    /// Of all data in the source.
    pub bytes: u64,
    /// That were broadcast, or that the source's node sent by swarm.
    pub sent: u64,
    /// The plan of the broadcasts, or `swarm`.
    pub via: String,
    /// All nodes that were to have it.
    pub nodes: Vec<CopiedNode>,
    /// Nodes that sent wrong bytes by swarm, of which nothing more was taken then.
    #[serde(default)]
    pub expelled: Vec<ExpelledNode>,
}

/// A node that sent wrong bytes of what it had said to have checked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExpelledNode {
    /// Its name.
    pub node: String,
    /// The nodes that say so, each by its own comparison.
    pub by: Vec<String>,
}

/// A node's copy.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CopiedNode {
    /// Its name.
    pub node: String,
    /// From the start of its rank to the copy in its place.
    pub seconds: Option<f64>,
    /// Why it has none, if so.
    pub error: Option<String>,
}

/// A command on files, with its options. Paths are taken from this process' working directory.
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

    /// A file or folder to a path on many nodes; in `dest`, `{node}` stands for the node's name, and `/` at the end says that it is the folder.
    pub fn copy(source: impl AsRef<Path>, dest: impl AsRef<Path>) -> FileCommand {
        FileCommand::new("copy", &[source.as_ref().as_os_str(), dest.as_ref().as_os_str()])
    }

    /// A file or folder into the nodes' stores, by a name; without a source, what one of them has by that name.
    pub fn put(name: &str, source: Option<&Path>) -> FileCommand {
        let operands: Vec<&OsStr> =
            [OsStr::new(name)].into_iter().chain(source.map(Path::as_os_str)).collect();
        FileCommand::new("put", &operands)
    }

    /// What stores have by a name, to a path on nodes.
    pub fn get(name: &str, dest: impl AsRef<Path>) -> FileCommand {
        FileCommand::new("get", &[OsStr::new(name), dest.as_ref().as_os_str()])
    }

    /// What is in the nodes' stores, or what a name stands for there.
    pub fn list(name: Option<&str>) -> FileCommand {
        FileCommand::new("ls", &name.map(OsStr::new).into_iter().collect::<Vec<_>>())
    }

    /// Takes a name away from the nodes' stores.
    pub fn remove(name: &str) -> FileCommand {
        FileCommand::new("rm", &[OsStr::new(name)])
    }

    /// Reads what stores have again, all or by a name, and names what is damaged.
    pub fn verify(name: Option<&str>) -> FileCommand {
        FileCommand::new("verify", &name.map(OsStr::new).into_iter().collect::<Vec<_>>())
    }

    /// Only these nodes.
    #[must_use]
    pub fn nodes(self, names: &[&str]) -> FileCommand {
        self.option("--nodes", names.join(","))
    }

    /// Only nodes of these racks.
    #[must_use]
    pub fn racks(self, racks: &[u32]) -> FileCommand {
        self.option("--racks", racks.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
    }

    /// The node that has the source, where that is not this machine's.
    #[must_use]
    pub fn from(self, node: &str) -> FileCommand {
        self.option("--from", node)
    }

    /// How it goes: `auto`, `tree`, `chain` or `swarm`.
    #[must_use]
    pub fn via(self, way: &str) -> FileCommand {
        self.option("--via", way)
    }

    /// Bytes in a second that the source sends at most.
    #[must_use]
    pub fn limit(self, bytes_per_second: u64) -> FileCommand {
        self.option("--limit", bytes_per_second.to_string())
    }

    /// How many nodes must have it: a number, or as in `95%`.
    #[must_use]
    pub fn quorum(self, quorum: &str) -> FileCommand {
        self.option("--quorum", quorum)
    }

    /// An option without a value that the command has: `--background`, `--compress`, `--verify`, `--delete`, `--drop`.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> FileCommand {
        self.options.push(flag.into());
        self
    }

    /// Any other option that the command has, with its value.
    #[must_use]
    pub fn option(mut self, option: &str, value: impl AsRef<OsStr>) -> FileCommand {
        self.options.extend([option.into(), value.as_ref().to_owned()]);
        self
    }

    /// Runs the command and waits for its end: what it has done, as the JSON document that it prints with `--json`.
    ///
    /// # Errors
    /// If it does not start or did not do all that was asked.
    pub fn run(&self) -> Result<String, FilesError> {
        let options = self.options.iter().map(OsString::as_os_str);
        let operands = self.operands.iter().map(OsString::as_os_str);
        run([OsStr::new(self.verb), OsStr::new("--json")]
            .into_iter()
            .chain(options)
            .chain([OsStr::new("--")])
            .chain(operands))
    }

    /// Runs a copy, a put or a get: what became of it, node by node.
    ///
    /// # Errors
    /// As [`FileCommand::run`]; and if it is another command.
    pub fn copied(&self) -> Result<CopiedFiles, FilesError> {
        let json = self.run()?;
        let answer =
            |e: serde_json::Error| FilesError::Answer { verb: self.verb.into(), reason: e.to_string() };
        serde_json::from_str(&json).map_err(answer)
    }
}

/// Runs `cool` with arguments as of its command line, for bindings to other languages; what it prints.
///
/// # Errors
/// If it does not start or did not do all that was asked.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<String, FilesError> {
    let arguments: Vec<OsString> = arguments.into_iter().map(|a| a.as_ref().to_owned()).collect();
    let program = std::env::var_os(PROGRAM).filter(|p| !p.is_empty());
    run_program(program.as_deref().unwrap_or(OsStr::new("cool")), &arguments)
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
    fn a_command_is_what_one_would_type() {
        let copy = FileCommand::copy("a b", "/x/{node}/").nodes(&["h1", "h2"]).limit(7).flag("--compress");
        assert_eq!(copy.options, ["--nodes", "h1,h2", "--limit", "7", "--compress"]);
        assert_eq!((copy.verb, copy.operands), ("copy", vec!["a b".into(), "/x/{node}/".into()]));
        assert_eq!(FileCommand::put("m", None).operands, ["m"]);
        assert_eq!(FileCommand::put("m", Some(Path::new("f"))).operands, ["m", "f"]);
        assert_eq!(FileCommand::list(None).operands.len(), 0);
    }

    #[test]
    fn what_a_program_says_of_its_failure_is_in_the_error() {
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
    fn a_document_tells_of_each_node() {
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
