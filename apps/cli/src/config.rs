//! The configuration files of `cool`: the table [tool] in /etc/cool/cool.toml, in the file of
//! `cool up`, and in ~/.config/cool/cool.toml.
//!
//! Its keys must be flags that all commands have. The order of precedence is: flags on the command
//! line, the environment, the user's file, that of `cool up`, the system's file.

use crate::error::Error;
use clap::{ArgAction, Command};
use cool_deploy::{DeploymentDir, xdg_directory};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The table of `cool`. The other tables are those of the daemons.
const TABLE: &str = "tool";
/// The keys, which are flags by their long names.
const KEYS: [&str; 3] = ["controller", "certs", "insecure-plaintext"];
const SYSTEM_FILE: &str = "/etc/cool/cool.toml";

/// The values of the files, by key.
type Values = BTreeMap<&'static str, String>;

/// Makes the values of the files the defaults of a command line. If no file names the certificates,
/// their default directory is ~/.config/cool/certs if that exists.
///
/// # Errors
/// If a file cannot be read, or its table is wrong: the error names file and line.
pub(crate) fn with_defaults(command: Command) -> Result<Command, Error> {
    let user = user_directory(&|name| std::env::var_os(name));
    let system = Some(PathBuf::from(SYSTEM_FILE));
    let own = user.as_ref().map(|directory| directory.join("cool.toml"));
    let files: Vec<PathBuf> =
        [system, DeploymentDir::default_tool_file(), own].into_iter().flatten().collect();
    let mut values = read(&files)?;
    if let Some(certs) = user.map(|directory| directory.join("certs")).filter(|certs| certs.is_dir()) {
        values.entry("certs").or_insert_with(|| certs.display().to_string());
    }
    Ok(apply(command, &values))
}

/// Returns the directory of the user's configuration of `cool`.
fn user_directory(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    xdg_directory(variable, ("XDG_CONFIG_HOME", ".config"))
}

/// Reads files, where the later ones take precedence. Files that do not exist, or that only the
/// daemons may read, are skipped.
fn read(files: &[PathBuf]) -> Result<Values, Error> {
    let mut values = Values::new();
    for path in files {
        match std::fs::read_to_string(path) {
            Ok(text) => values.extend(parse(path, &text)?),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {}
            Err(e) => return Err(Error::Config(format!("{}: {e}", path.display()))),
        }
    }
    Ok(values)
}

/// Parses the table of `cool` in a file.
fn parse(path: &Path, text: &str) -> Result<Values, Error> {
    let line = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let wrong = |at: usize, what: String| Error::Config(format!("{}:{}: {what}", path.display(), line(at)));
    let document = DeTable::parse(text)
        .map_err(|e| wrong(e.span().map_or(0, |span| span.start), e.message().to_owned()))?;
    let Some(table) = document.get_ref().get(TABLE) else { return Ok(Values::new()) };
    let DeValue::Table(keys) = table.get_ref() else {
        return Err(wrong(table.span().start, format!("{TABLE} must be a table: write [{TABLE}]")));
    };
    let mut values = Values::new();
    for (key, value) in keys {
        let at = key.span().start;
        let name: &str = key.get_ref();
        let Some(known) = KEYS.into_iter().find(|known| *known == name) else {
            return Err(wrong(at, format!("unknown option {name}; [{TABLE}] may have {}", KEYS.join(", "))));
        };
        let text = match (value.get_ref(), known) {
            (DeValue::Boolean(on), "insecure-plaintext") => on.to_string(),
            (_, "insecure-plaintext") => return Err(wrong(at, format!("{name} must be true or false"))),
            (DeValue::String(text), _) => text.to_string(),
            _ => return Err(wrong(at, format!("{name} must be a string"))),
        };
        values.insert(known, text);
    }
    Ok(values)
}

fn apply(mut command: Command, values: &Values) -> Command {
    for (key, value) in values {
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(key));
        let Some((id, action)) = arg.map(|arg| (arg.get_id().clone(), arg.get_action().clone())) else {
            continue;
        };
        // A flag that is false in the file needs no default, because flags are off by default.
        if !(matches!(action, ArgAction::SetTrue) && value == "false") {
            command = command.mut_arg(id, |arg| arg.default_value(value.clone()));
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Values, String> {
        parse(Path::new("cool.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn the_table_tool_has_the_flags_of_all_commands() {
        let text = "[agent]\nname = 1\n[tool]\ncontroller = \"https://c:7400\"\ninsecure-plaintext = false\n";
        let values = parsed(text).unwrap();
        assert_eq!(
            (values["controller"].as_str(), values["insecure-plaintext"].as_str()),
            ("https://c:7400", "false")
        );
        assert_eq!(parsed("[controller]\ncerts = \"/x\"\n"), Ok(Values::new()));
    }

    #[test]
    fn an_error_names_file_and_line() {
        for (text, expected) in [
            ("[tool\n", "cool.toml:1: "),
            ("\n[tool]\nspeed = 1\n", "cool.toml:3: unknown option speed; [tool] may have controller, certs"),
            ("[tool]\ncerts = 1\n", "cool.toml:2: certs must be a string"),
            (
                "[tool]\ninsecure-plaintext = \"yes\"\n",
                "cool.toml:2: insecure-plaintext must be true or false",
            ),
            ("tool = 1\n", "cool.toml:1: tool must be a table"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn the_users_file_takes_precedence_over_the_systems() {
        let directory = tempfile::tempdir().unwrap();
        let [system, user, missing] = ["system", "user", "missing"].map(|name| directory.path().join(name));
        std::fs::write(&system, "[tool]\ncontroller = \"a\"\ncerts = \"/system\"\n").unwrap();
        std::fs::write(&user, "[tool]\ncontroller = \"b\"\n").unwrap();
        let values = read(&[system, user, missing]).unwrap();
        assert_eq!((values["controller"].as_str(), values["certs"].as_str()), ("b", "/system"));
    }

    #[test]
    fn a_flag_takes_precedence_over_a_file() {
        let values = parsed("[tool]\ncontroller = \"file:1\"\ninsecure-plaintext = true\n").unwrap();
        let command = apply(crate::command(), &values);
        let matches = |line: &[&str]| command.clone().try_get_matches_from(line).unwrap();
        let none = matches(&["cool", "jobs"]);
        assert!(none.get_flag("insecure_plaintext"));
        let flag = matches(&["cool", "--controller", "flag:1", "jobs"]);
        assert_eq!(flag.get_one::<String>("controller").map(String::as_str), Some("flag:1"));
    }

    #[test]
    fn the_users_directory_follows_the_xdg_variables() {
        let directory = |set: &[(&str, &str)]| {
            user_directory(&|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        assert_eq!(directory(&[("HOME", "/home/ann")]), Some("/home/ann/.config/cool".into()));
        let both = [("HOME", "/home/ann"), ("XDG_CONFIG_HOME", "/c")];
        assert_eq!(directory(&both), Some("/c/cool".into()));
        assert_eq!(directory(&[("HOME", "")]), None);
    }
}
