//! The units with which systemd runs the programs of a node's deployment.

use crate::account::is_root;
use crate::deployment_dir::xdg_parent;
use crate::error::DeployError;
use crate::process::{ProgramLaunch, READY_TIMEOUT};
use crate::unit_file::{PROGRAMS, UnitScope, runtime_directory, unit_name, unit_text};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval at which the state of a program is requested from systemd.
const STATE_INTERVAL: Duration = Duration::from_millis(250);

/// The units of a node: those of the system if this process runs as root, otherwise those of the
/// user.
#[derive(Clone, Debug)]
pub struct NodeUnits {
    node: String,
    /// The directory of units.
    directory: PathBuf,
    /// The directory for files of running programs.
    runtime: PathBuf,
    of_system: bool,
}

impl NodeUnits {
    /// Returns the units of a node, whether or not they exist.
    ///
    /// # Errors
    /// If the user has no home directory.
    pub fn of(node: &str) -> Result<NodeUnits, DeployError> {
        let node = node.to_owned();
        if is_root() {
            let (directory, runtime) = ("/etc/systemd/system".into(), "/run".into());
            return Ok(NodeUnits { node, directory, runtime, of_system: true });
        }
        let variable = |name: &str| std::env::var_os(name);
        let configuration =
            xdg_parent(&variable, ("XDG_CONFIG_HOME", ".config")).ok_or(DeployError::NoHome)?;
        let uid = rustix::process::getuid().as_raw();
        let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let runtime = runtime.unwrap_or_else(|| format!("/run/user/{uid}").into());
        Ok(NodeUnits { node, directory: configuration.join("systemd/user"), runtime, of_system: false })
    }

    /// Returns whether these are units of the system.
    #[must_use]
    pub fn of_system(&self) -> bool {
        self.of_system
    }

    /// Returns the socket of the node's agent.
    #[must_use]
    pub fn agent_socket(&self) -> PathBuf {
        self.runtime.join(runtime_directory(&self.node)).join("agent.sock")
    }

    fn path(&self, program: &str) -> PathBuf {
        self.directory.join(unit_name(&self.node, program))
    }

    /// Returns the programs that have units, in the order in which they start.
    #[must_use]
    pub fn installed(&self) -> Vec<&'static str> {
        PROGRAMS.into_iter().filter(|program| self.path(program).exists()).collect()
    }

    /// Returns the names of the units that exist.
    #[must_use]
    pub fn installed_units(&self) -> Vec<String> {
        self.installed().into_iter().map(|program| unit_name(&self.node, program)).collect()
    }

    /// Returns the programs that systemd runs.
    ///
    /// # Errors
    /// If `systemctl` cannot be executed.
    pub fn active(&self) -> Result<Vec<&'static str>, DeployError> {
        let installed = self.installed();
        if installed.is_empty() || !self.systemd_runs() {
            return Ok(Vec::new());
        }
        let mut active = Vec::new();
        for program in installed {
            let unit = unit_name(&self.node, program);
            if self.systemctl(&["is-active", "--quiet", &unit])?.status.success() {
                active.push(program);
            }
        }
        Ok(active)
    }

    /// Returns whether this system, or this user, has a running systemd.
    fn systemd_runs(&self) -> bool {
        match self.of_system {
            // sd_booted(3)
            true => Path::new("/run/systemd/system").is_dir(),
            false => UnixStream::connect(self.runtime.join("systemd/private")).is_ok(),
        }
    }

    /// Writes the units of those programs that do not run. If systemd runs, enables and starts
    /// them, and waits until they are ready. If one fails, these units are removed.
    ///
    /// `account` and `state` are those of [`UnitScope::System`].
    ///
    /// # Errors
    /// If a unit cannot be written, or its program is not ready in time.
    pub fn start_missing(
        &self,
        launches: &[ProgramLaunch],
        (account, state): (&str, &Path),
    ) -> Result<(), DeployError> {
        let active = self.active()?;
        let missing: Vec<_> = launches.iter().filter(|launch| !active.contains(&launch.name)).collect();
        let names: Vec<_> = missing.iter().map(|launch| launch.name).collect();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let scope = match self.of_system {
            true => UnitScope::System { account, state },
            false => UnitScope::User { host: &host },
        };
        let started = missing.iter().try_for_each(|launch| {
            let (path, text) = (self.path(launch.name), unit_text(&self.node, launch, scope)?);
            fs::create_dir_all(&self.directory).map_err(DeployError::file(&self.directory))?;
            fs::write(&path, text).map_err(DeployError::file(&path))
        });
        let started = started.and_then(|()| match self.systemd_runs() && !missing.is_empty() {
            true => self.enable_and_start(&missing),
            false => Ok(()),
        });
        match started {
            Ok(()) => Ok(()),
            Err(error) => {
                self.remove_programs(&names)?;
                Err(error)
            }
        }
    }

    fn enable_and_start(&self, launches: &[&ProgramLaunch]) -> Result<(), DeployError> {
        self.succeed(&["daemon-reload"])?;
        for launch in launches {
            let unit = unit_name(&self.node, launch.name);
            self.succeed(&["enable", "--quiet", &unit])?;
            // A unit that is not active may wait for its next attempt, with an earlier text.
            self.succeed(&["restart", &unit])?;
            if let Some(status) = launch.ready.strip_prefix("STATUS=") {
                self.await_status(&unit, status)?;
            }
        }
        Ok(())
    }

    /// Waits until the program of a unit has reported a state.
    fn await_status(&self, unit: &str, status: &str) -> Result<(), DeployError> {
        let begun = Instant::now();
        loop {
            let shown = self.succeed(&["show", "--property=StatusText", "--value", unit])?;
            let shown = shown.trim();
            if shown.starts_with(status) {
                return Ok(());
            }
            if begun.elapsed() > READY_TIMEOUT {
                let reason = format!("it was not ready within {READY_TIMEOUT:?} ({shown})");
                return Err(self.failed(&["start", unit], reason));
            }
            sleep(STATE_INTERVAL);
        }
    }

    /// Stops and disables all units of the node, and removes them. Returns the programs that were
    /// running, in the order in which they were stopped: the agent leaves in order while the
    /// controller still runs.
    ///
    /// # Errors
    /// If a unit cannot be stopped or removed.
    pub fn remove(&self) -> Result<Vec<&'static str>, DeployError> {
        let active = self.active()?;
        self.remove_programs(&self.installed())?;
        Ok(active.into_iter().rev().collect())
    }

    fn remove_programs(&self, programs: &[&str]) -> Result<(), DeployError> {
        let (systemd_runs, mut is_changed) = (self.systemd_runs(), false);
        for program in programs.iter().rev() {
            let (unit, path) = (unit_name(&self.node, program), self.path(program));
            if !path.exists() {
                continue;
            }
            if systemd_runs {
                self.succeed(&["disable", "--quiet", "--now", &unit])?;
            }
            let target = if self.of_system { "multi-user" } else { "default" };
            let link = self.directory.join(format!("{target}.target.wants")).join(&unit);
            for file in [link, path] {
                match fs::remove_file(&file) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(DeployError::file(&file)(e)),
                    _ => is_changed = true,
                }
            }
        }
        if systemd_runs && is_changed {
            self.succeed(&["daemon-reload"])?;
        }
        Ok(())
    }

    /// Returns the commands that remain for the user, so that the units start with the machine.
    #[must_use]
    pub fn remaining_commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        if !self.systemd_runs() {
            commands.push(self.command(&["daemon-reload"]));
            commands.push(format!(
                "{} {}",
                self.command(&["enable", "--now"]),
                self.installed_units().join(" ")
            ));
        }
        let lingers = || {
            let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
            user.is_some_and(|user| Path::new("/var/lib/systemd/linger").join(user.name).exists())
        };
        if !self.of_system && !lingers() {
            commands.push("loginctl enable-linger".to_owned());
        }
        commands
    }

    /// Returns the command that shows the logs of the node's programs.
    #[must_use]
    pub fn log_command(&self) -> String {
        let scope = if self.of_system { "" } else { "--user " };
        format!("journalctl {scope}--unit '{}'", unit_name(&self.node, "*"))
    }

    fn command(&self, arguments: &[&str]) -> String {
        let scope = if self.of_system { "" } else { " --user" };
        format!("systemctl{scope} {}", arguments.join(" "))
    }

    /// Executes `systemctl`, which must succeed. Returns its output.
    fn succeed(&self, arguments: &[&str]) -> Result<String, DeployError> {
        let output = self.systemctl(arguments)?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let errors = String::from_utf8_lossy(&output.stderr);
                Err(self.failed(arguments, errors.lines().next().unwrap_or_default().to_owned()))
            }
        }
    }

    fn systemctl(&self, arguments: &[&str]) -> Result<Output, DeployError> {
        let mut command = Command::new("systemctl");
        if !self.of_system {
            command.arg("--user").env("XDG_RUNTIME_DIR", &self.runtime);
        }
        command.args(arguments).output().map_err(|e| self.failed(arguments, e.to_string()))
    }

    fn failed(&self, arguments: &[&str], reason: String) -> DeployError {
        DeployError::Systemctl { command: self.command(arguments), reason, logs: self.log_command() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit_file::{AGENT, CONTROLLER};

    #[test]
    fn units_exist_from_the_start_until_they_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("systemd/user");
        // No systemd runs that has this directory.
        let runtime = home.path().join("run");
        let units =
            NodeUnits { node: "h1".to_owned(), directory, runtime: runtime.clone(), of_system: false };
        let launch =
            |name| ProgramLaunch { name, path: "/bin/true".into(), arguments: Vec::new(), ready: "READY=1" };
        assert!(units.installed().is_empty());
        units.start_missing(&[launch(AGENT), launch(CONTROLLER)], ("", home.path())).unwrap();
        assert_eq!(units.installed(), [CONTROLLER, AGENT]);
        let other = NodeUnits { node: "h2".to_owned(), ..units.clone() };
        assert!(other.installed().is_empty(), "they belong to one node");
        let text = fs::read_to_string(units.path(AGENT)).unwrap();
        assert!(text.contains("ExecStart=\"/bin/true\"\n"), "{text}");
        let commands = units.remaining_commands();
        let enable = "systemctl --user enable --now cool-h1-controller.service cool-h1-agent.service";
        assert_eq!(commands[..2], ["systemctl --user daemon-reload", enable]);
        assert_eq!(units.agent_socket(), runtime.join("cool-h1/agent.sock"));
        assert!(units.active().unwrap().is_empty() && units.remove().unwrap().is_empty());
        assert!(units.installed().is_empty());
    }

    #[test]
    fn a_unit_that_cannot_be_written_leaves_none() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().to_owned();
        let runtime = home.path().join("run");
        let units = NodeUnits { node: "h1".to_owned(), directory, runtime, of_system: false };
        let launch = |name, word: &str| ProgramLaunch {
            name,
            path: "/bin/true".into(),
            arguments: vec![word.into()],
            ready: "READY=1",
        };
        let launches = [launch(CONTROLLER, "good"), launch(AGENT, "two\nlines")];
        let error = units.start_missing(&launches, ("", home.path())).unwrap_err();
        assert!(matches!(error, DeployError::UnitWord(_)), "{error}");
        assert!(units.installed().is_empty());
    }
}
