//! Options of a program from its command line, the environment and a file, checked as a whole before anything starts, and read
//! again while it runs.
//!
//! The file is TOML: a table for each program, in it the long flags by name. A flag on the command line counts more
//! than the environment, that more than the file. Everything wrong is told at once, each with file and line.

use clap::builder::Resettable;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, Parser, value_parser};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The tables that a file may have: one for each program.
const SECTIONS: [&str; 2] = ["controller", "agent"];
/// Flags that only make sense on a command line.
const CONFIG: &str = "config";
const CHECK: &str = "check-config";

/// Why a program does not start, or go on, with its options.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no such file.
    #[error("{path}: {source}; name another file with --config")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It says what cannot be.
    #[error("{0}")]
    Wrong(Complaints),
    /// As clap says it.
    #[error(transparent)]
    Usage(#[from] clap::Error),
}

/// What is wrong in a file.
#[derive(Debug)]
pub struct Complaints {
    path: PathBuf,
    /// Line and what is wrong there.
    lines: Vec<(usize, String)>,
}

impl fmt::Display for Complaints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (line, what)) in self.lines.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{}:{line}: {what}", self.path.display())?;
        }
        Ok(())
    }
}

/// Where the options of this process are from, and what they are.
#[derive(Clone, Debug)]
pub struct Config {
    section: &'static str,
    arguments: Vec<OsString>,
    /// By long flag, as they are written.
    values: BTreeMap<String, Vec<OsString>>,
}

/// The options of this program, whose table in the file is called `section`. Ends the process if there is no more to
/// do: help was asked for, or something is wrong.
pub fn parse<T: Parser>(section: &'static str) -> (T, Config) {
    let mut config = Config { section, arguments: std::env::args_os().collect(), values: BTreeMap::new() };
    let matches = match read::<T>(section, config.arguments.clone()) {
        Ok(matches) => matches,
        Err(ConfigError::Usage(error)) => error.exit(),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    let options = T::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if matches.get_flag(CHECK) {
        println!("the options are right");
        std::process::exit(0);
    }
    config.values = values(&T::command(), &matches);
    (options, config)
}

impl Config {
    /// The options as they are now, and the flags whose values have changed since they were read last.
    ///
    /// # Errors
    /// If they cannot be read; then all is as before.
    pub fn read_again<T: Parser>(&mut self) -> Result<(T, Vec<String>), ConfigError> {
        let matches = read::<T>(self.section, self.arguments.clone())?;
        let options = T::from_arg_matches(&matches)?;
        let values = values(&T::command(), &matches);
        let changed = values.iter().filter(|(flag, value)| self.values.get(*flag) != Some(value));
        let gone = self.values.keys().filter(|flag| !values.contains_key(*flag));
        let changed = changed.map(|(flag, _)| flag).chain(gone).cloned().collect();
        self.values = values;
        Ok((options, changed))
    }
}

/// What is said of each flag.
fn values(command: &Command, matches: &ArgMatches) -> BTreeMap<String, Vec<OsString>> {
    let value = |arg: &Arg| {
        let values = matches.get_raw(arg.get_id().as_str())?;
        Some((arg.get_long()?.to_owned(), values.map(OsString::from).collect()))
    };
    command.get_arguments().filter_map(value).collect()
}

/// The command line of a program, with the flags that name and check the file.
#[must_use]
pub fn command<T: CommandFactory>() -> Command {
    T::command().arg(config_flag()).arg(check_flag())
}

fn read<T: CommandFactory>(section: &str, arguments: Vec<OsString>) -> Result<ArgMatches, ConfigError> {
    let command = command::<T>();
    // Only to find the file: what is wrong beside is told later.
    let lenient = command.clone().ignore_errors(true).mut_args(|arg| arg.required(false));
    let path = lenient.try_get_matches_from(&arguments)?.get_one::<PathBuf>(CONFIG).cloned();
    let command = match path {
        Some(path) => {
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            with_defaults(command, section, &path, &text)?
        }
        None => command,
    };
    Ok(command.try_get_matches_from(&arguments)?)
}

fn config_flag() -> Arg {
    Arg::new(CONFIG)
        .long(CONFIG)
        .env("COOL_CONFIG")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("A TOML file of options: flags by name in a table [controller] or [agent]; flags given here count more")
}

fn check_flag() -> Arg {
    Arg::new(CHECK).long(CHECK).action(ArgAction::SetTrue).help("Check all options, and end")
}

/// What the file says becomes what counts if nothing else is said.
fn with_defaults(
    mut command: Command,
    section: &str,
    path: &Path,
    text: &str,
) -> Result<Command, ConfigError> {
    let line = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let wrong = |lines| ConfigError::Wrong(Complaints { path: path.to_owned(), lines });
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(1, |span| line(span.start));
        wrong(vec![(at, error.message().to_owned())])
    })?;
    let mut complaints: Vec<(usize, String)> = Vec::new();
    for (name, value) in document.get_ref() {
        let at = line(name.span().start);
        let name: &str = name.get_ref();
        match value.get_ref() {
            DeValue::Table(_) if name != section && SECTIONS.contains(&name) => {}
            DeValue::Table(flags) if name == section => {
                for (flag, value) in flags {
                    match default(&command, flag.get_ref(), value) {
                        Ok((id, value)) => {
                            command = command.mut_arg(id, |arg| arg.required(false).default_value(value));
                        }
                        Err(what) => complaints.push((line(flag.span().start), what)),
                    }
                }
            }
            _ => complaints
                .push((at, format!("there is no table [{name}]; there are [controller] and [agent]"))),
        }
    }
    complaints.sort();
    if complaints.is_empty() { Ok(command) } else { Err(wrong(complaints)) }
}

/// The argument that a key of the file is for, and its value; or what is wrong with it.
fn default(command: &Command, key: &str, value: &Spanned<DeValue<'_>>) -> Result<(String, String), String> {
    let flags = || {
        command
            .get_arguments()
            .filter(|arg| !["help", "version", CONFIG, CHECK].contains(&arg.get_id().as_str()))
    };
    let Some(arg) = flags().find(|arg| arg.get_long() == Some(key)) else {
        let mut known: Vec<&str> = flags().filter_map(Arg::get_long).collect();
        known.sort_unstable();
        return Err(format!("there is no option {key}; there are {}", known.join(", ")));
    };
    let switch = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse);
    let text = match value.get_ref() {
        DeValue::Boolean(on) if switch => return Ok((arg.get_id().to_string(), on.to_string())),
        _ if switch => return Err(format!("{key} is true or false")),
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        _ => return Err(format!("{key} is a text or a number")),
    };
    let alone = arg.clone().required(false).env(Resettable::Reset);
    let parsed = Command::new("").arg(alone).try_get_matches_from(["", &format!("--{key}={text}")]);
    match parsed {
        Ok(_) => Ok((arg.get_id().to_string(), text)),
        Err(error) => {
            let what = error.to_string();
            let first = what.lines().next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[derive(Debug, Parser)]
    struct Options {
        #[arg(long, env = "COOL_DAEMON_TEST_NAME")]
        name: String,
        #[arg(long, default_value_t = 7)]
        port: u16,
        #[arg(long)]
        plain: bool,
        #[arg(long)]
        rate: Option<f64>,
    }

    fn options(file: Option<&str>, arguments: &[&str]) -> Result<Options, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cool.toml");
        let mut all: Vec<OsString> = vec!["program".into()];
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
            all.extend(["--config".into(), path.clone().into()]);
        }
        all.extend(arguments.iter().map(OsString::from));
        let matches = read::<Options>("agent", all);
        let matches = matches.map_err(|e| e.to_string().replace(&path.display().to_string(), "cool.toml"))?;
        Ok(Options::from_arg_matches(&matches).unwrap())
    }

    const FILE: &str =
        "[controller]\nanything = 1\n[agent]\nname = \"h1\"\nport = 9\nplain = true\nrate = 2.5\n";

    #[test]
    fn a_file_says_what_no_flag_says() {
        let read = options(Some(FILE), &[]).unwrap();
        assert_eq!((read.name.as_str(), read.port, read.plain, read.rate), ("h1", 9, true, Some(2.5)));
        let read = options(Some(FILE), &["--name", "h2", "--port", "10"]).unwrap();
        assert_eq!((read.name.as_str(), read.port, read.plain), ("h2", 10, true));
    }

    #[test]
    fn without_a_file_flags_count_alone() {
        assert_eq!(options(None, &["--name", "h2"]).unwrap().port, 7);
        assert!(options(None, &[]).unwrap_err().contains("--name"));
        assert!(options(Some("[agent]\n"), &[]).unwrap_err().contains("--name"));
    }

    #[test]
    fn read_again_it_tells_what_has_changed_and_keeps_what_was_if_that_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cool.toml");
        let says = |text: &str| std::fs::write(&path, format!("[agent]\n{text}")).unwrap();
        let arguments = ["program", "--name", "h1", "--config", path.to_str().unwrap()];
        let arguments = arguments.map(OsString::from).to_vec();
        let mut config = Config { section: "agent", arguments, values: BTreeMap::new() };
        says("rate = 1\nname = \"h0\"\n");
        config.read_again::<Options>().unwrap();
        says("port = 9\nname = \"h2\"\nplain = true\n");
        let (options, changed) = config.read_again::<Options>().unwrap();
        assert_eq!((options.port, options.rate, options.name.as_str()), (9, None, "h1"));
        assert_eq!(changed, ["plain", "port", "rate"]);
        says("port = many\n");
        assert!(config.read_again::<Options>().unwrap_err().to_string().contains("cool.toml:2"));
        says("port = 9\nplain = true\n");
        assert!(config.read_again::<Options>().unwrap().1.is_empty());
    }

    #[test]
    fn everything_wrong_is_told_with_its_line() {
        let file =
            "[agent]\nname = [1]\n\nport = 70000\nplain = \"yes\"\nspeed = 1\nconfig = \"x\"\n[agents]\n";
        let says = options(Some(file), &[]).unwrap_err();
        let expected = [
            "cool.toml:2: name is a text or a number",
            "cool.toml:4: invalid value '70000' for '--port <PORT>': 70000 is not in 0..=65535",
            "cool.toml:5: plain is true or false",
            "cool.toml:6: there is no option speed; there are name, plain, port, rate",
            "cool.toml:7: there is no option config; there are name, plain, port, rate",
            "cool.toml:8: there is no table [agents]; there are [controller] and [agent]",
        ];
        assert_eq!(says.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        let says = options(Some("[agent]\nname = \"h1\"\nname = \"h2\"\n"), &[]).unwrap_err();
        assert!(says.starts_with("cool.toml:3: ") && says.contains("duplicate"), "{says}");
        let says = options(Some("[agent\n"), &[]).unwrap_err();
        assert!(says.starts_with("cool.toml:1: "), "{says}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let says = options(None, &["--config", "/nonexistent/cool.toml"]).unwrap_err();
        assert!(says.contains("/nonexistent/cool.toml") && says.contains("--config"), "{says}");
    }
}
