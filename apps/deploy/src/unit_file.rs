//! Units of systemd for the programs of a deployment. Their restrictions are those of the packages'
//! units.

use crate::error::DeployError;
use crate::process::ProgramLaunch;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

const CONTROLLER_UNIT: &str = include_str!("../../../deploy/cool-controller.service");
const AGENT_UNIT: &str = include_str!("../../../deploy/cool-nodeagent.service");

/// Settings of the packages' units that these units replace, or that only suit the packages.
const REPLACED: [&str; 9] = [
    "User",
    "ExecStartPre",
    "ExecStart",
    "LogsDirectory",
    "StateDirectory",
    "RuntimeDirectory",
    "AmbientCapabilities",
    "CapabilityBoundingSet",
    // The state of the deployment may be in a home directory.
    "ProtectHome",
];
/// Settings that a join server cannot have: it reads no configuration again, and does not notify a
/// watchdog.
const NOT_FOR_JOINS: [&str; 3] = ["WatchdogSec", "ExecReload", "OOMScoreAdjust"];
/// Settings that systemd can apply without privileges.
const UNPRIVILEGED: [&str; 21] = [
    "Type",
    "WatchdogSec",
    "ExecReload",
    "Restart",
    "RestartSec",
    "LimitNOFILE",
    "LimitMEMLOCK",
    "NoNewPrivileges",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "SystemCallArchitectures",
    "SystemCallFilter",
    "SystemCallErrorNumber",
    "UMask",
    "RuntimeDirectoryPreserve",
    "Delegate",
    "KillMode",
];

/// The name of the agent within a deployment.
pub const AGENT: &str = "agent";
/// The name of the controller within a deployment.
pub const CONTROLLER: &str = "controller";
/// The name of the join server within a deployment.
pub const JOINS: &str = "joins";
/// The programs of a deployment, in the order in which they start.
pub const PROGRAMS: [&str; 3] = [CONTROLLER, JOINS, AGENT];

/// For which instance of systemd a unit is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitScope<'a> {
    /// That of the user who runs the deployment.
    User {
        /// The only machine on which the unit starts, because others may have the same home
        /// directory.
        host: &'a str,
    },
    /// That of the system.
    System {
        /// The account as which the program runs.
        account: &'a str,
        /// The directory of the node's deployment.
        state: &'a Path,
    },
}

/// Returns the name of the unit of a node's program.
#[must_use]
pub fn unit_name(node: &str, program: &str) -> String {
    format!("cool-{node}-{program}.service")
}

/// Returns the name of the directory with the agent's socket, below that for files of running
/// programs (`XDG_RUNTIME_DIR`, `/run`).
#[must_use]
pub fn runtime_directory(node: &str) -> String {
    format!("cool-{node}")
}

/// Returns the text of the unit that runs a program of a node's deployment.
///
/// # Errors
/// If the program is not UTF-8 or contains control characters, which units cannot contain.
pub fn unit_text(node: &str, launch: &ProgramLaunch, scope: UnitScope<'_>) -> Result<String, DeployError> {
    let is_agent = launch.name == AGENT;
    let mut command = quoted(launch.path.as_os_str(), false)?;
    for argument in &launch.arguments {
        command.push(' ');
        command.push_str(&quoted(argument, true)?);
    }
    let mut text = format!(
        "# Written by `cool up --systemd` or `cool join --systemd`; `cool down` removes it.\n\
         [Unit]\nDescription=COOL: {} of node {node}\n",
        launch.name
    );
    text += match scope {
        UnitScope::User { host } => format!("ConditionHost={}\n", escaped(host)),
        UnitScope::System { .. } => "Wants=network-online.target\nAfter=network-online.target\n".to_owned(),
    }
    .as_str();
    text += "# There is no limit on the number of restarts.\nStartLimitIntervalSec=0\n\n[Service]\n";
    // Writing to a text cannot fail.
    let _ = writeln!(text, "ExecStart={command}\nWorkingDirectory=/");
    if let UnitScope::System { account, state } = scope {
        let _ = writeln!(text, "User={account}\nCapabilityBoundingSet=");
        if !is_agent {
            let _ =
                writeln!(text, "ProtectHome=read-only\nReadWritePaths={}", quoted(state.as_os_str(), false)?);
        }
    }
    if is_agent {
        let _ = writeln!(text, "RuntimeDirectory={}\nRuntimeDirectoryMode=0700", runtime_directory(node));
    }
    for line in service_lines(if is_agent { AGENT_UNIT } else { CONTROLLER_UNIT }) {
        let key = line.split('=').next().unwrap_or_default();
        let suits_joins = launch.name != JOINS || !NOT_FOR_JOINS.contains(&key);
        let suits_scope = matches!(scope, UnitScope::System { .. }) || UNPRIVILEGED.contains(&key);
        if !REPLACED.contains(&key) && suits_joins && suits_scope {
            let _ = writeln!(text, "{line}");
        }
    }
    let target = if matches!(scope, UnitScope::System { .. }) { "multi-user" } else { "default" };
    let _ = write!(text, "\n[Install]\nWantedBy={target}.target\n");
    Ok(text)
}

/// Returns the settings in the section `[Service]` of a unit.
fn service_lines(unit: &str) -> impl Iterator<Item = &str> {
    let section = unit.lines().skip_while(|line| *line != "[Service]").skip(1);
    section
        .take_while(|line| !line.starts_with('['))
        .filter(|line| line.contains('=') && !line.starts_with('#'))
}

/// Returns a word in double quotes, as systemd.syntax(7) and "Command lines" in systemd.service(5)
/// describe. A variable is only replaced in arguments.
fn quoted(word: &OsStr, is_argument: bool) -> Result<String, DeployError> {
    let text = word.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| DeployError::UnitWord(word.display().to_string()))?;
    let text = escaped(text).replace('\\', "\\\\").replace('"', "\\\"");
    Ok(format!("\"{}\"", if is_argument { text.replace('$', "$$") } else { text }))
}

/// Returns a text in which systemd replaces no specifier.
fn escaped(text: &str) -> String {
    text.replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn launch(name: &'static str, arguments: &[&str]) -> ProgramLaunch {
        let arguments = arguments.iter().map(OsString::from).collect();
        ProgramLaunch { name, path: "/opt/cool 1/bin/program".into(), arguments, ready: "READY=1" }
    }

    fn system() -> UnitScope<'static> {
        UnitScope::System { account: "cool", state: Path::new("/var/lib/cool/h1") }
    }

    fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }

    #[test]
    fn words_are_quoted_so_that_systemd_replaces_nothing() {
        let launch = launch(AGENT, &["--rack", "a b\"c\\d%h$HOME"]);
        let text = unit_text("h1", &launch, system()).unwrap();
        let command = r#""/opt/cool 1/bin/program" "--rack" "a b\"c\\d%%h$$HOME""#;
        assert_eq!(value(&text, "ExecStart"), Some(command));
    }

    #[test]
    fn a_word_with_a_line_break_is_refused() {
        let error = unit_text("h1", &launch(AGENT, &["a\nUser=root"]), system()).unwrap_err();
        assert!(matches!(error, DeployError::UnitWord(_)), "{error}");
    }

    #[test]
    fn programs_of_the_system_have_no_capabilities() {
        for program in PROGRAMS {
            let text = unit_text("h1", &launch(program, &[]), system()).unwrap();
            assert_eq!(value(&text, "User"), Some("cool"), "{text}");
            assert_eq!(value(&text, "CapabilityBoundingSet"), Some(""), "{text}");
            assert_eq!(text.matches("CapabilityBoundingSet").count(), 1, "{text}");
            assert!(value(&text, "AmbientCapabilities").is_none(), "{text}");
            assert_eq!(value(&text, "NoNewPrivileges"), Some("yes"), "{text}");
            assert_eq!(value(&text, "WantedBy"), Some("multi-user.target"), "{text}");
            let protected = program != AGENT;
            assert_eq!(value(&text, "ProtectSystem"), protected.then_some("strict"), "{text}");
            assert_eq!(value(&text, "ReadWritePaths"), protected.then_some("\"/var/lib/cool/h1\""), "{text}");
            assert_eq!(value(&text, "WatchdogSec").is_some(), program != JOINS, "{text}");
        }
    }

    #[test]
    fn units_of_users_need_no_privileges_and_one_machine() {
        for program in PROGRAMS {
            let text = unit_text("h1", &launch(program, &[]), UnitScope::User { host: "node1" }).unwrap();
            assert_eq!(value(&text, "ConditionHost"), Some("node1"), "{text}");
            for key in ["User", "CapabilityBoundingSet", "ProtectSystem", "OOMScoreAdjust", "PrivateTmp"] {
                assert!(value(&text, key).is_none(), "{key}: {text}");
            }
            assert_eq!(value(&text, "Type"), Some("notify"), "{text}");
            assert_eq!(value(&text, "Restart"), Some("always"), "{text}");
            assert_eq!(value(&text, "NoNewPrivileges"), Some("yes"), "{text}");
            assert_eq!(value(&text, "WantedBy"), Some("default.target"), "{text}");
        }
    }

    #[test]
    fn every_named_setting_is_one_of_the_packages() {
        let keys: Vec<_> = [CONTROLLER_UNIT, AGENT_UNIT]
            .iter()
            .flat_map(|unit| service_lines(unit))
            .filter_map(|line| line.split('=').next())
            .collect();
        for key in REPLACED.iter().chain(&NOT_FOR_JOINS).chain(&UNPRIVILEGED) {
            assert!(keys.contains(key), "{key}");
        }
    }
}
