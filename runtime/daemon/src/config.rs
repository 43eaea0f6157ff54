//! Options of a program from its command line, the environment and a file. All options are checked
//! before anything starts, and the file can be reloaded.
//!
//! The file is in TOML. It has a table for each program, with the long flags as keys. The command
//! line overrides the environment, which overrides the file. All errors are reported at once, each
//! with file and line.

use clap::builder::Resettable;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, Parser, value_parser};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Tables that a file may have, one for each program.
const TABLES: [&str; 3] = ["controller", "agent", "tool"];
/// Flags that can be used on the command line only.
const CONFIG_FLAG: &str = "config";
const CHECK_FLAG: &str = "check-config";

/// The reasons why the options of a program cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}; name another file with --config")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file contains errors.
    #[error("{0}")]
    Invalid(FileErrors),
    /// The command line contains an error, reported by clap.
    #[error(transparent)]
    Usage(#[from] clap::Error),
}

/// The errors in a file.
#[derive(Debug)]
pub struct FileErrors {
    path: PathBuf,
    /// The number of each wrong line, and the error in it.
    lines: Vec<(usize, String)>,
}

impl fmt::Display for FileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (line, problem)) in self.lines.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{}:{line}: {problem}", self.path.display())?;
        }
        Ok(())
    }
}

/// The sources of the options of this process, and their current values.
#[derive(Clone, Debug)]
pub struct Config {
    section: &'static str,
    arguments: Vec<OsString>,
    /// The values of each flag before they are parsed, by the long name of the flag.
    values: BTreeMap<String, Vec<OsString>>,
}

/// Parses the options of this program. `section` is its table in the file. Exits the process if it
/// only prints help or version, if it only checks the options, or if there is an error.
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
    if matches.get_flag(CHECK_FLAG) {
        println!("configuration OK");
        std::process::exit(0);
    }
    config.values = values(&T::command(), &matches);
    (options, config)
}

impl Config {
    /// Reloads the options. Returns them with the flags that have changed since they were last
    /// loaded.
    ///
    /// # Errors
    /// Returns an error if the options cannot be loaded. The previous options then stay in effect.
    pub fn reload<T: Parser>(&mut self) -> Result<(T, Vec<String>), ConfigError> {
        let matches = read::<T>(self.section, self.arguments.clone())?;
        let options = T::from_arg_matches(&matches)?;
        let values = values(&T::command(), &matches);
        let changed = values.iter().filter(|(flag, value)| self.values.get(*flag) != Some(value));
        let removed = self.values.keys().filter(|flag| !values.contains_key(*flag));
        let changed = changed.map(|(flag, _)| flag).chain(removed).cloned().collect();
        self.values = values;
        Ok((options, changed))
    }
}

/// Returns the values of each flag before they are parsed, by the long name of the flag.
fn values(command: &Command, matches: &ArgMatches) -> BTreeMap<String, Vec<OsString>> {
    let value = |arg: &Arg| {
        let values = matches.get_raw(arg.get_id().as_str())?;
        Some((arg.get_long()?.to_owned(), values.map(OsString::from).collect()))
    };
    command.get_arguments().filter_map(value).collect()
}

/// Returns the command-line definition of a program, including the flags for its file.
#[must_use]
pub fn command<T: CommandFactory>() -> Command {
    T::command().arg(config_flag()).arg(check_flag())
}

fn read<T: CommandFactory>(section: &str, arguments: Vec<OsString>) -> Result<ArgMatches, ConfigError> {
    let command = command::<T>();
    // The file must be found first, because its values are defaults for the parser. Errors on the
    // command line are ignored here and reported below.
    let lenient = command.clone().ignore_errors(true).mut_args(|arg| arg.required(false));
    let path = lenient.try_get_matches_from(&arguments)?.get_one::<PathBuf>(CONFIG_FLAG).cloned();
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
    Arg::new(CONFIG_FLAG)
        .long(CONFIG_FLAG)
        .env("COOL_CONFIG")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("TOML file with options, by flag name, in a table [controller] or [agent]; command-line flags override it")
}

fn check_flag() -> Arg {
    Arg::new(CHECK_FLAG).long(CHECK_FLAG).action(ArgAction::SetTrue).help("Check all options and exit")
}

/// Uses the values in the file as defaults of the flags.
fn with_defaults(
    mut command: Command,
    section: &str,
    path: &Path,
    text: &str,
) -> Result<Command, ConfigError> {
    let line = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let wrong = |lines| ConfigError::Invalid(FileErrors { path: path.to_owned(), lines });
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(1, |span| line(span.start));
        wrong(vec![(at, error.message().to_owned())])
    })?;
    let mut errors: Vec<(usize, String)> = Vec::new();
    for (name, value) in document.get_ref() {
        let at = line(name.span().start);
        let name: &str = name.get_ref();
        match value.get_ref() {
            DeValue::Table(_) if name != section && TABLES.contains(&name) => {}
            DeValue::Table(flags) if name == section => {
                for (flag, value) in flags {
                    match default(&command, flag.get_ref(), value) {
                        Ok((id, value)) => {
                            command = command.mut_arg(id, |arg| arg.required(false).default_value(value));
                        }
                        Err(problem) => errors.push((line(flag.span().start), problem)),
                    }
                }
            }
            _ => {
                let known = "the tables are [controller], [agent] and [tool]";
                errors.push((at, format!("unknown table [{name}]; {known}")))
            }
        }
    }
    errors.sort();
    if errors.is_empty() { Ok(command) } else { Err(wrong(errors)) }
}

/// Returns the argument for a key of the file, and its value. Returns a message if either is
/// invalid.
fn default(command: &Command, key: &str, value: &Spanned<DeValue<'_>>) -> Result<(String, String), String> {
    let flags = || {
        command
            .get_arguments()
            .filter(|arg| !["help", "version", CONFIG_FLAG, CHECK_FLAG].contains(&arg.get_id().as_str()))
    };
    let Some(arg) = flags().find(|arg| arg.get_long() == Some(key)) else {
        let mut known: Vec<&str> = flags().filter_map(Arg::get_long).collect();
        known.sort_unstable();
        return Err(format!("unknown option {key}; the options are {}", known.join(", ")));
    };
    let is_boolean = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse);
    let text = match value.get_ref() {
        DeValue::Boolean(on) if is_boolean => return Ok((arg.get_id().to_string(), on.to_string())),
        _ if is_boolean => return Err(format!("{key} must be true or false")),
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        _ => return Err(format!("{key} must be a string or a number")),
    };
    let alone = arg.clone().required(false).env(Resettable::Reset);
    let parsed = Command::new("").arg(alone).try_get_matches_from(["", &format!("--{key}={text}")]);
    match parsed {
        Ok(_) => Ok((arg.get_id().to_string(), text)),
        Err(error) => {
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cool.toml");
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
    fn a_flag_overrides_the_file() {
        let read = options(Some(FILE), &[]).unwrap();
        assert_eq!((read.name.as_str(), read.port, read.plain, read.rate), ("h1", 9, true, Some(2.5)));
        let read = options(Some(FILE), &["--name", "h2", "--port", "10"]).unwrap();
        assert_eq!((read.name.as_str(), read.port, read.plain), ("h2", 10, true));
    }

    #[test]
    fn without_a_file_all_options_are_those_of_the_flags() {
        assert_eq!(options(None, &["--name", "h2"]).unwrap().port, 7);
        assert!(options(None, &[]).unwrap_err().contains("--name"));
        assert!(options(Some("[agent]\n"), &[]).unwrap_err().contains("--name"));
    }

    #[test]
    fn a_reload_returns_the_changed_flags_or_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cool.toml");
        let write = |text: &str| std::fs::write(&path, format!("[agent]\n{text}")).unwrap();
        let arguments = ["program", "--name", "h1", "--config", path.to_str().unwrap()];
        let arguments = arguments.map(OsString::from).to_vec();
        let mut config = Config { section: "agent", arguments, values: BTreeMap::new() };
        write("rate = 1\nname = \"h0\"\n");
        config.reload::<Options>().unwrap();
        write("port = 9\nname = \"h2\"\nplain = true\n");
        let (options, changed) = config.reload::<Options>().unwrap();
        assert_eq!((options.port, options.rate, options.name.as_str()), (9, None, "h1"));
        assert_eq!(changed, ["plain", "port", "rate"]);
        write("port = many\n");
        assert!(config.reload::<Options>().unwrap_err().to_string().contains("cool.toml:2"));
        write("port = 9\nplain = true\n");
        assert!(config.reload::<Options>().unwrap().1.is_empty());
    }

    #[test]
    fn every_error_in_a_file_is_reported_with_its_line() {
        let file =
            "[agent]\nname = [1]\n\nport = 70000\nplain = \"yes\"\nspeed = 1\nconfig = \"x\"\n[agents]\n";
        let message = options(Some(file), &[]).unwrap_err();
        let expected = [
            "cool.toml:2: name must be a string or a number",
            "cool.toml:4: invalid value '70000' for '--port <PORT>': 70000 is not in 0..=65535",
            "cool.toml:5: plain must be true or false",
            "cool.toml:6: unknown option speed; the options are name, plain, port, rate",
            "cool.toml:7: unknown option config; the options are name, plain, port, rate",
            "cool.toml:8: unknown table [agents]; the tables are [controller], [agent] and [tool]",
        ];
        assert_eq!(message.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_line() {
        let message = options(Some("[agent]\nname = \"h1\"\nname = \"h2\"\n"), &[]).unwrap_err();
        assert!(message.starts_with("cool.toml:3: ") && message.contains("duplicate"), "{message}");
        let message = options(Some("[agent\n"), &[]).unwrap_err();
        assert!(message.starts_with("cool.toml:1: "), "{message}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let message = options(None, &["--config", "/nonexistent/cool.toml"]).unwrap_err();
        assert!(message.contains("/nonexistent/cool.toml") && message.contains("--config"), "{message}");
    }
}
