//! The directory in which a deployment keeps its state on one machine.

use crate::account::is_root;
use crate::error::DeployError;
use crate::process::ProcessRecord;
use cool_types::check_node_name;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The programs that run, by the name of their log.
const PROCESSES_FILE: &str = "processes.json";
/// The settings of the node's agent.
const NODE_FILE: &str = "node.json";
/// The options of `cool` for this deployment.
const TOOL_FILE: &str = "cool.toml";

/// Directory for the state of deployments that root has started as units of systemd.
pub const SYSTEM_STATE: &str = "/var/lib/cool";

/// Permissions of directories that only this user may enter.
const PRIVATE: u32 = 0o700;

/// A directory with the certificates, logs, processes and settings of one node's deployment.
/// Several nodes may have the same home directory, so each has a directory of its own.
#[derive(Clone, Debug)]
pub struct DeploymentDir {
    path: PathBuf,
    node: String,
}

/// How this node's agent is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// The controller.
    pub controller: SocketAddr,
    /// The data interface.
    pub interface: String,
    /// The join server, if this node has started the cluster.
    #[serde(default)]
    pub joins: Option<SocketAddr>,
    /// The directory of the node's certificate.
    pub certs: PathBuf,
    /// Further options of `cool-nodeagent`.
    pub agent_options: Vec<String>,
}

/// A lock that is released when it is dropped.
#[must_use]
#[derive(Debug)]
pub struct DirLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl DeploymentDir {
    /// Opens the directory of a node below `state`, or below the default directory, and creates it
    /// if necessary. Without a name, the node has that of the machine.
    ///
    /// # Errors
    /// If the name is invalid or the directory cannot be created.
    pub fn open(state: Option<&Path>, node: Option<&str>) -> Result<DeploymentDir, DeployError> {
        let directory = DeploymentDir::find(state, node)?;
        create_private(&directory.path)?;
        Ok(directory)
    }

    fn find(state: Option<&Path>, node: Option<&str>) -> Result<DeploymentDir, DeployError> {
        let node = node_name(node)?;
        let state = match state {
            Some(state) => std::path::absolute(state).map_err(DeployError::file(state))?,
            None if is_root() && Path::new(SYSTEM_STATE).join(&node).exists() => SYSTEM_STATE.into(),
            None => default_state(&|name| std::env::var_os(name)).ok_or(DeployError::NoHome)?,
        };
        Ok(DeploymentDir { path: state.join(&node), node })
    }

    /// Returns the file with the options of `cool` for the deployment that `cool up` has started on
    /// this machine with the default options. It need not exist.
    #[must_use]
    pub fn default_tool_file() -> Option<PathBuf> {
        DeploymentDir::find(None, None).ok().map(|directory| directory.path.join(TOOL_FILE))
    }

    /// Returns the node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of the deployment's certificates.
    #[must_use]
    pub fn certs(&self) -> PathBuf {
        self.path.join("certs")
    }

    /// Checks that `cool up` may make certificates in this directory.
    ///
    /// # Errors
    /// If the node has joined a cluster of another machine.
    pub fn check_own_cluster(&self) -> Result<(), DeployError> {
        match self.has("ca.pem") && !self.has("ca.key") {
            true => Err(DeployError::OtherCluster(self.node.clone())),
            false => Ok(()),
        }
    }

    /// Checks that the node may join a cluster of another machine. The certificates of that cluster
    /// replace those in this directory.
    ///
    /// # Errors
    /// If the node has started a cluster itself, which would be lost.
    pub fn check_other_cluster(&self) -> Result<(), DeployError> {
        if self.has("ca.key") { Err(DeployError::OwnCluster(self.node.clone())) } else { Ok(()) }
    }

    fn has(&self, certificate: &str) -> bool {
        self.certs().join(certificate).exists()
    }

    /// Returns the log of a program.
    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.path.join(format!("{program}.log"))
    }

    /// Waits until no other command changes this deployment.
    ///
    /// # Errors
    /// If the file of the lock cannot be opened or locked.
    pub fn lock(&self) -> Result<DirLock, DeployError> {
        self.lock_file("lock")
    }

    pub(crate) fn lock_file(&self, name: &str) -> Result<DirLock, DeployError> {
        let path = self.path.join(name);
        let file = File::create(&path).map_err(DeployError::file(&path))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|e| DeployError::file(&path)(e.into()))?;
        Ok(DirLock(file))
    }

    /// Returns the programs of this deployment that were started, including those that have ended
    /// since.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn processes(&self) -> Result<Vec<ProcessRecord>, DeployError> {
        Ok(self.read(PROCESSES_FILE)?.unwrap_or_default())
    }

    /// Keeps the list of programs.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_processes(&self, processes: &[ProcessRecord]) -> Result<(), DeployError> {
        self.write(PROCESSES_FILE, &processes)
    }

    /// Returns the settings of this node's agent, or `None` if it has never joined.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn settings(&self) -> Result<Option<NodeSettings>, DeployError> {
        self.read(NODE_FILE)
    }

    /// Keeps the settings of this node's agent.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn keep_settings(&self, settings: &NodeSettings) -> Result<(), DeployError> {
        self.write(NODE_FILE, settings)
    }

    /// Writes the options with which `cool` finds the controller.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn keep_tool_options(&self, controller: SocketAddr) -> Result<(), DeployError> {
        // A string of JSON is one of TOML, too.
        let (controller, certs) = (json!(controller), json!(self.certs()));
        let text = format!("[tool]\ncontroller = {controller}\ncerts = {certs}\n");
        self.replace(Path::new(TOOL_FILE), text.as_bytes())
    }

    /// Removes the options of `cool`, because the controller no longer runs.
    ///
    /// # Errors
    /// If they exist and cannot be removed.
    pub fn remove_tool_options(&self) -> Result<(), DeployError> {
        let path = self.path.join(TOOL_FILE);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(DeployError::file(&path)(e)),
            _ => Ok(()),
        }
    }

    /// Returns the socket of the node's agent. Creates its directory if necessary.
    ///
    /// # Errors
    /// As [`DeploymentDir::socket_dir`].
    pub fn agent_socket(&self) -> Result<PathBuf, DeployError> {
        Ok(self.socket_dir()?.join("agent.sock"))
    }

    /// Removes the directory with everything in it.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(self) -> Result<(), DeployError> {
        fs::remove_dir_all(&self.path).map_err(DeployError::file(&self.path))
    }

    /// Returns a directory for Unix sockets. Its path is short, because that of a socket may be
    /// only about 100 bytes long. Creates it if necessary.
    ///
    /// # Errors
    /// If it cannot be created, or if others may write to it.
    pub fn socket_dir(&self) -> Result<PathBuf, DeployError> {
        let user = geteuid().as_raw();
        let path = std::env::temp_dir().join(format!("cool-{user}-{}", self.node));
        create_private(&path)?;
        let metadata = fs::symlink_metadata(&path).map_err(DeployError::file(&path))?;
        match metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0 {
            true => Ok(path),
            false => Err(DeployError::ForeignDirectory(path)),
        }
    }

    /// Removes the directory for Unix sockets.
    ///
    /// # Errors
    /// If it cannot be removed, or others may write to it.
    pub fn remove_socket_dir(&self) -> Result<(), DeployError> {
        let path = self.socket_dir()?;
        fs::remove_dir_all(&path).map_err(DeployError::file(&path))
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, DeployError> {
        let path = self.path.join(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(DeployError::file(&path)(e)),
        };
        let content = |e: serde_json::Error| DeployError::Content { path, reason: e.to_string() };
        serde_json::from_slice(&text).map(Some).map_err(content)
    }

    pub(crate) fn write(&self, name: &str, content: &impl Serialize) -> Result<(), DeployError> {
        let text = serde_json::to_vec_pretty(content).map_err(|e| DeployError::file(&self.path)(e.into()))?;
        self.replace(Path::new(name), &text)
    }

    /// Replaces a file of the directory, which only this user may then read.
    pub(crate) fn replace(&self, name: &Path, content: &[u8]) -> Result<(), DeployError> {
        let path = self.path.join(name);
        let parent = path.parent().unwrap_or(&self.path);
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(parent)?;
            file.write_all(content)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        create_private(parent)?;
        write().map_err(DeployError::file(&path))
    }
}

/// Creates a directory that only this user may enter, unless it exists.
pub(crate) fn create_private(path: &Path) -> Result<(), DeployError> {
    fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(path).map_err(DeployError::file(path))
}

/// Returns the user's directory for `cool` by the XDG Base Directory Specification: below that of
/// the environment variable `name`, or below `default` in the home directory. Returns `None` if
/// neither variable is an absolute path.
pub fn xdg_directory(variable: &dyn Fn(&str) -> Option<OsString>, names: (&str, &str)) -> Option<PathBuf> {
    Some(xdg_parent(variable, names)?.join("cool"))
}

/// Returns the user's directory in which [`xdg_directory`] is that of `cool`.
pub(crate) fn xdg_parent(
    variable: &dyn Fn(&str) -> Option<OsString>,
    (name, default): (&str, &str),
) -> Option<PathBuf> {
    let set = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set(name).or_else(|| Some(set("HOME")?.join(default)))
}

/// Returns the default directory for the state of deployments.
fn default_state(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    xdg_directory(variable, ("XDG_STATE_HOME", ".local/state"))
}

/// Returns the name of a node, by default that of this machine.
///
/// # Errors
/// If the name is invalid.
pub fn node_name(name: Option<&str>) -> Result<String, DeployError> {
    let name = name.map_or_else(host_name, str::to_owned);
    check_node_name(&name)?;
    Ok(name)
}

/// Returns the name of this machine without its domain.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_private() {
        let state = tempfile::tempdir().unwrap();
        let directory = DeploymentDir::open(Some(state.path()), Some("h1")).unwrap();
        assert_eq!((directory.processes().unwrap().len(), directory.settings().unwrap()), (0, None));
        let settings = NodeSettings {
            controller: "10.0.0.1:7400".parse().unwrap(),
            joins: None,
            interface: "eth0".to_owned(),
            certs: directory.certs(),
            agent_options: vec!["--slots".to_owned(), "4".to_owned()],
        };
        directory.keep_settings(&settings).unwrap();
        directory.keep_tool_options(settings.controller).unwrap();
        assert_eq!(directory.settings().unwrap(), Some(settings));
        let modes = [directory.path(), &directory.path().join(NODE_FILE)]
            .map(|path| fs::metadata(path).unwrap().mode() & 0o777);
        assert_eq!(modes, [0o700, 0o600]);
        let text = fs::read_to_string(directory.path().join(TOOL_FILE)).unwrap();
        assert!(text.starts_with("[tool]\ncontroller = \"10.0.0.1:7400\"\ncerts = \"/"), "{text}");
        fs::write(directory.path().join(NODE_FILE), "{").unwrap();
        let error = directory.settings().unwrap_err().to_string();
        assert!(error.contains("node.json") && error.contains("remove the file"), "{error}");
    }

    #[test]
    fn a_node_belongs_to_one_cluster() {
        let state = tempfile::tempdir().unwrap();
        let directory = DeploymentDir::open(Some(state.path()), Some("h1")).unwrap();
        let checks = || (directory.check_own_cluster().is_ok(), directory.check_other_cluster().is_ok());
        assert_eq!(checks(), (true, true));
        directory.replace(Path::new("certs/ca.pem"), b"").unwrap();
        assert_eq!(checks(), (false, true));
        directory.replace(Path::new("certs/ca.key"), b"").unwrap();
        assert_eq!(checks(), (true, false));
    }

    #[test]
    fn a_name_cannot_leave_the_directory() {
        let state = tempfile::tempdir().unwrap();
        for name in ["", "..", "a/b"] {
            assert!(DeploymentDir::open(Some(state.path()), Some(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn the_state_directory_follows_the_xdg_variables() {
        let directory = |set: &[(&str, &str)]| {
            default_state(&|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        assert_eq!(directory(&[("HOME", "/home/ann")]), Some("/home/ann/.local/state/cool".into()));
        assert_eq!(directory(&[("HOME", "/h"), ("XDG_STATE_HOME", "/s")]), Some("/s/cool".into()));
        assert_eq!(directory(&[]), None);
    }
}
