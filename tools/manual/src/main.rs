//! `cool-manual DIRECTORY`: writes the man pages of all installed programs, and the completion of
//! their command lines in bash, zsh and fish, below a directory that represents /usr/share. They
//! are generated from the command lines themselves, because they must agree with `--help`.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use cool_daemon::config;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Sections of the manual for commands of users and for system services; see man(1).
const USERS: &str = "1";
const SYSTEM: &str = "8";

/// Directories below /usr/share in which Debian's shells look for completions.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/vendor-completions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// Returns the command lines of all installed programs, with their sections.
fn programs() -> [(Command, &'static str); 5] {
    [
        (cool_cli::command(), USERS),
        (cool_kmeans::commands::CommandLine::command(), USERS),
        (config::command::<cool_controller::options::Options>(), SYSTEM),
        (config::command::<cool_nodeagent::options::Options>(), SYSTEM),
        (cool_launcher::options::Options::command(), SYSTEM),
    ]
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(directory), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: cool-manual DIRECTORY");
        return ExitCode::from(2);
    };
    match write(Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool-manual: cannot write below {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path) -> io::Result<()> {
    for (mut command, section) in programs() {
        for (shell, subdirectory) in SHELLS {
            let subdirectory = directory.join(subdirectory);
            std::fs::create_dir_all(&subdirectory)?;
            let name = command.get_name().to_owned();
            clap_complete::generate_to(shell, &mut command, name, subdirectory)?;
        }
        pages(command, section, &directory.join(format!("man/man{section}")))?;
    }
    Ok(())
}

/// Writes the page of a command and those of its subcommands, for example cool(1) and cool-run(1).
fn pages(command: Command, section: &str, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    page(&command, section, directory)
}

fn page(command: &Command, section: &str, directory: &Path) -> io::Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        page(part, section, directory)?;
    }
    Man::new(command.clone()).section(section).generate_to(directory).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;
    use clap_complete::Generator;
    use std::collections::BTreeSet;
    use std::fs;

    /// Returns a command and its subcommands, with the names of their pages.
    fn all(command: &Command, name: &str) -> Vec<(String, Command)> {
        let visible = command.get_subcommands().filter(|part| !part.is_hide_set());
        let parts = visible.flat_map(|part| all(part, &format!("{name}-{}", part.get_name())));
        std::iter::once((name.to_owned(), command.clone())).chain(parts).collect()
    }

    fn flags(command: &Command) -> BTreeSet<String> {
        command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .filter_map(Arg::get_long)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn every_command_has_a_page_that_names_every_option() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        for (command, section) in programs() {
            for (name, command) in all(&command, command.get_name()) {
                let path = directory.path().join(format!("man/man{section}/{name}.{section}"));
                let text =
                    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert!(text.contains(&format!(".TH {name} {section}")), "{name}: {text}");
                for flag in flags(&command) {
                    let written = format!("\\-\\-{}", flag.replace('-', "\\-"));
                    assert!(text.contains(&written), "{name} does not mention --{flag}");
                }
            }
        }
    }

    #[test]
    fn every_shell_completes_every_option() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        for (command, _) in programs() {
            let name = command.get_name();
            for (shell, subdirectory) in SHELLS {
                let path = directory.path().join(subdirectory).join(shell.file_name(name));
                let text =
                    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                for (of, command) in all(&command, name) {
                    for flag in flags(&command) {
                        let written =
                            if shell == Shell::Fish { format!("-l {flag}") } else { format!("--{flag}") };
                        assert!(text.contains(&written), "{shell} does not complete --{flag} of {of}");
                    }
                }
            }
        }
    }
}
