//! `cool-manual FOLDER`: writes what a system shows of the installed programs, their man pages and the completion of their command
//! lines in bash, zsh and fish, below a folder that stands for /usr/share. Made from the command lines themselves, so that they say
//! what `--help` says.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use cool_daemon::config;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Section of the manual for commands of users, and for what the system runs: man(1).
const USERS: &str = "1";
const SYSTEM: &str = "8";

/// Where Debian's shells look for completion, below /usr/share.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/vendor-completions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// The command lines of the programs that are installed, each with its section.
fn programs() -> [(Command, &'static str); 5] {
    [
        (cool_cli::command(), USERS),
        (cool_kmeans::commands::Program::command(), USERS),
        (config::command::<cool_controller::options::Options>(), SYSTEM),
        (config::command::<cool_nodeagent::options::Options>(), SYSTEM),
        (cool_launcher::options::Options::command(), SYSTEM),
    ]
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: cool-manual FOLDER");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool-manual: cannot write below {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    for (mut command, section) in programs() {
        for (shell, place) in SHELLS {
            let place = folder.join(place);
            std::fs::create_dir_all(&place)?;
            let name = command.get_name().to_owned();
            clap_complete::generate_to(shell, &mut command, name, place)?;
        }
        pages(command, section, &folder.join(format!("man/man{section}")))?;
    }
    Ok(())
}

/// A page of a command, and one of each of its commands: cool(1), cool-run(1).
fn pages(command: Command, section: &str, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    page(&command, section, folder)
}

fn page(command: &Command, section: &str, folder: &Path) -> io::Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        page(part, section, folder)?;
    }
    Man::new(command.clone()).section(section).generate_to(folder).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;
    use clap_complete::Generator;
    use std::collections::BTreeSet;
    use std::fs;

    /// A command and its commands, with the names that their pages have.
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
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for (command, section) in programs() {
            for (name, command) in all(&command, command.get_name()) {
                let path = folder.path().join(format!("man/man{section}/{name}.{section}"));
                let text =
                    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert!(text.contains(&format!(".TH {name} {section}")), "{name}: {text}");
                for flag in flags(&command) {
                    let written = format!("\\-\\-{}", flag.replace('-', "\\-"));
                    assert!(text.contains(&written), "{name} says nothing of --{flag}");
                }
            }
        }
    }

    #[test]
    fn every_shell_completes_every_option() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for (command, _) in programs() {
            let name = command.get_name();
            for (shell, place) in SHELLS {
                let path = folder.path().join(place).join(shell.file_name(name));
                let text =
                    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                for (of, command) in all(&command, name) {
                    for flag in flags(&command) {
                        let written =
                            if shell == Shell::Fish { format!("-l {flag}") } else { format!("--{flag}") };
                        assert!(text.contains(&written), "{shell} does not know --{flag} of {of}");
                    }
                }
            }
        }
    }
}
