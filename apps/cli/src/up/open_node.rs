//! The node of this machine, and its programs.

use super::options::{LifetimeOptions, NodeOptions, UpOptions};
use crate::error::Error;
use crate::ranks::JOIN_SERVER;
use cool_deploy::account::is_root;
use cool_deploy::deployment_dir::node_name;
use cool_deploy::process::{self, ProcessRecord, ProgramLaunch};
use cool_deploy::unit_file::{AGENT, CONTROLLER, JOINS};
use cool_deploy::{
    DeployError, DeploymentAccount, DeploymentDir, JoinServerTask, NodeSettings, NodeUnits, invitation,
};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The notification with which an agent reports that the controller has accepted it.
const JOINED: &str = "STATUS=joined the controller";
const READY: &str = "READY=1";

/// The node of this machine. Its programs run in the background, or as units of systemd.
pub(super) struct OpenNode {
    /// The directory of its deployment.
    pub(super) directory: DeploymentDir,
    /// Its units, if it has some or `--systemd` was given.
    pub(super) units: Option<NodeUnits>,
    /// The account of a deployment of root.
    account: Option<DeploymentAccount>,
}

impl OpenNode {
    /// Opens the node to start its programs as `lifetime` requests, or without it to end them.
    pub(super) fn open(
        options: &NodeOptions,
        lifetime: Option<&LifetimeOptions>,
    ) -> Result<OpenNode, DeployError> {
        let name = node_name(options.name.as_deref())?;
        let is_requested = lifetime.is_some_and(|lifetime| lifetime.systemd);
        let units = match NodeUnits::of(&name) {
            Err(error) if is_requested => return Err(error),
            // Without a home directory, there are no units.
            units => units.ok().filter(|units| is_requested || !units.installed().is_empty()),
        };
        let account = lifetime.and_then(|lifetime| lifetime.account.as_deref());
        if account.is_some() && !is_root() {
            return Err(DeployError::AccountNeedsRoot);
        }
        let may_create = units.is_some() && lifetime.is_some();
        let assumed = match is_root() {
            true => DeploymentAccount::assume(options.state.as_deref(), &name, account, may_create)?,
            false => None,
        };
        let (account, state) = assumed.map_or((None, None), |(account, state)| (Some(account), Some(state)));
        if let (Some(account), None, Some(_)) = (&account, &units, lifetime) {
            return Err(DeployError::NeedsUnits { node: name, account: account.name().to_owned() });
        }
        let directory = DeploymentDir::open(state.as_deref().or(options.state.as_deref()), Some(&name))?;
        Ok(OpenNode { directory, units, account })
    }

    /// Executes a task with the node's units, if it has some: as root, if they are the system's.
    fn with_units<T>(
        &self,
        task: impl FnOnce(&NodeUnits) -> Result<T, DeployError>,
    ) -> Result<Option<T>, DeployError> {
        let Some(units) = &self.units else { return Ok(None) };
        match &self.account {
            None => task(units),
            Some(account) => account.as_root(|| task(units)),
        }
        .map(Some)
    }

    /// Returns the programs that run.
    pub(super) fn running(&self) -> Result<Vec<String>, DeployError> {
        let mut running: Vec<_> =
            self.running_processes()?.into_iter().map(|process| process.program).collect();
        let active = self.with_units(NodeUnits::active)?.unwrap_or_default();
        running.extend(active.into_iter().map(str::to_owned));
        Ok(running)
    }

    fn running_processes(&self) -> Result<Vec<ProcessRecord>, DeployError> {
        Ok(self.directory.processes()?.into_iter().filter(ProcessRecord::runs).collect())
    }

    /// Returns the socket of the node's agent.
    pub(super) fn agent_socket(&self) -> Result<PathBuf, DeployError> {
        self.units.as_ref().map_or_else(|| self.directory.agent_socket(), |units| Ok(units.agent_socket()))
    }

    /// Starts those programs that do not run. If one fails, those that were started are ended.
    pub(super) async fn start_missing(&self, launches: &[ProgramLaunch]) -> Result<(), DeployError> {
        let before = self.running_processes()?;
        if self.units.is_some() {
            if !before.is_empty() {
                return Err(DeployError::RunsWithoutUnits(self.directory.node().to_owned()));
            }
            return self.start_missing_units(launches);
        }
        let is_missing =
            |launch: &&ProgramLaunch| !before.iter().any(|process| process.program == launch.name);
        for launch in launches.iter().filter(is_missing) {
            if let Err(error) = process::start(&self.directory, launch).await {
                let started =
                    self.running_processes()?.into_iter().filter(|process| !before.contains(process));
                for process in started.collect::<Vec<_>>().iter().rev() {
                    process.end()?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn start_missing_units(&self, launches: &[ProgramLaunch]) -> Result<(), DeployError> {
        let account = self.account.as_ref().map_or("", DeploymentAccount::name);
        let mut launches = launches.to_vec();
        for launch in &mut launches {
            launch.path = process::executable(&launch.path, account)?;
        }
        self.with_units(|units| units.start_missing(&launches, (account, self.directory.path())))?;
        Ok(())
    }

    /// Ends the programs, and removes their units. The caller must hold the lock of the directory.
    /// Returns the programs that were running.
    pub(super) fn end_programs(&self) -> Result<Vec<String>, Error> {
        let directory = &self.directory;
        invitation::revoke_all(directory)?;
        directory.remove_tool_options()?;
        // The agent leaves in order while the controller still runs.
        let of_units = self.with_units(NodeUnits::remove)?.unwrap_or_default();
        let mut ended: Vec<_> = of_units.into_iter().map(str::to_owned).collect();
        for process in directory.processes()?.iter().rev() {
            if process.end()? {
                ended.push(process.program.clone());
            }
        }
        directory.keep_processes(&[])?;
        directory.remove_socket_dir()?;
        Ok(ended)
    }

    /// Removes the node's directory with everything in it.
    pub(super) fn remove(self) -> Result<(), DeployError> {
        // The directory above may belong to root.
        drop(self.account);
        self.directory.remove()
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

pub(super) fn controller_launch(
    directory: &DeploymentDir,
    options: &UpOptions,
    listen: SocketAddr,
) -> ProgramLaunch {
    let mut arguments = words(["--grpc", &listen.to_string(), "--network", &options.network, "--certs"]);
    arguments.push(directory.certs().into());
    arguments.extend([OsString::from("--state"), directory.path().join(CONTROLLER).into()]);
    if matches!(options.network.as_str(), "snooping" | "plain") {
        // No switch connects.
        arguments.extend(words(["--openflow", "127.0.0.1:0"]));
    }
    ProgramLaunch { name: CONTROLLER, path: process::program("cool-controller"), arguments, ready: READY }
}

pub(super) fn join_launch(
    directory: &DeploymentDir,
    listen: SocketAddr,
    controller: SocketAddr,
) -> Result<ProgramLaunch, Error> {
    let task = JoinServerTask {
        state: directory.path().parent().unwrap_or(directory.path()).to_owned(),
        node: directory.node().to_owned(),
        listen,
        controller_port: controller.port(),
    };
    let path = std::env::current_exe().map_err(|e| Error::Executable(e.to_string()))?;
    let arguments = words([JOIN_SERVER, &serde_json::json!(task).to_string()]);
    Ok(ProgramLaunch { name: JOINS, path, arguments, ready: READY })
}

pub(super) fn agent_launch(node: &OpenNode, settings: &NodeSettings) -> Result<ProgramLaunch, DeployError> {
    let mut arguments = words(["--name", node.directory.node(), "--interface", &settings.interface]);
    arguments.extend(words(["--controller", &format!("https://{}", settings.controller), "--certs"]));
    arguments.push(settings.certs.clone().into());
    arguments.extend([OsString::from("--socket"), node.agent_socket()?.into()]);
    arguments.extend(settings.agent_options.iter().map(OsString::from));
    Ok(ProgramLaunch { name: AGENT, path: process::program("cool-nodeagent"), arguments, ready: JOINED })
}
