//! The help of `cool`: its commands in groups, examples, and the usage of each command.

use clap::Command;

/// The heading of the options that all commands have.
pub(crate) const CONNECTION: &str = "Connection to the controller";

/// The commands by purpose, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Start a cluster without root", &["up", "join", "down"]),
    ("See the cluster", &["topology", "groups", "jobs", "trace", "doctor"]),
    ("Run programs", &["run", "mpirun", "bench", "cancel"]),
    ("Copy and store files", &["copy", "put", "get", "ls", "stat", "rm", "verify"]),
    ("Operate", &["drain", "certs"]),
    ("Plan", &["plan", "simulate"]),
];

/// The commands that need no controller.
const OFFLINE: [&str; 6] = ["certs", "simulate", "mpirun", "up", "join", "down"];

const EXAMPLES: &str = "\
Examples:
  cool up                                      start a cluster; prints a token for `cool join`
  cool topology                                the network, as the controller has found it
  cool doctor                                  problems, and what to do about them
  cool run -n 4 ./program --its-option         4 ranks of a program, which is on all nodes
  cool run --stage ./model -- python3 train.py copy a file to the nodes first
  cool copy ./image /srv/image                 copy a file to all nodes
  cool bench --ops allreduce --bytes 1M        measure a collective

Configuration: `controller`, `certs` and `insecure-plaintext` may be set in the table [tool] of
~/.config/cool/cool.toml and /etc/cool/cool.toml. A flag takes precedence over its environment variable,
that over the user's file, that over the cluster of `cool up` on this machine, and that over the system's
file. Certificates are in ~/.config/cool/certs if that exists, otherwise in /etc/cool/certs.

Documents: docs/guide/ in the sources, /usr/share/doc/cool-common/ of the packages. `cool help COMMAND` explains a command.";

/// Completes the command line that clap derives.
pub(crate) fn complete(mut command: Command) -> Command {
    let connection: Vec<_> = command
        .get_arguments()
        .filter(|arg| arg.get_help_heading() == Some(CONNECTION))
        .map(|arg| arg.clone().hide(true))
        .collect();
    let template = template(&command);
    for subcommand in command.get_subcommands_mut() {
        let name = subcommand.get_name().to_owned();
        let mut completed = subcommand.clone().bin_name(format!("cool {name}"));
        let usage = completed.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim().to_owned();
        // With a fixed usage, an error does not show the options that are set by the environment.
        let mut completed = subcommand.clone().override_usage(usage);
        if OFFLINE.contains(&name.as_str()) {
            completed = completed.args(&connection);
        }
        *subcommand = completed;
    }
    command.help_template(template).after_help(EXAMPLES)
}

/// Returns the template of the main help, with the commands in groups.
fn template(command: &Command) -> String {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        text += &format!("\n{heading}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            text += &format!("  {name:<10} {}\n", about.map(ToString::to_string).unwrap_or_default());
        }
    }
    text + "\nOptions:\n{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use crate::command;

    fn help(words: &[&str]) -> String {
        command().try_get_matches_from(words).unwrap_err().to_string()
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<&str> = super::GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        grouped.sort_unstable();
        let command = command();
        let mut all: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn the_help_has_groups_examples_and_the_configuration() {
        let text = help(&["cool", "--help"]);
        for part in ["See the cluster:\n  topology", "Examples:\n", "[tool]", "--controller <URL,...>"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn commands_without_a_controller_do_not_list_its_connection() {
        for name in super::OFFLINE {
            assert!(!help(&["cool", name, "--help"]).contains("Connection to the controller"), "{name}");
        }
        assert!(help(&["cool", "jobs", "--help"]).contains("Connection to the controller"));
    }

    #[test]
    fn suggestions_do_not_name_commands_of_ranks() {
        for word in ["copy-rnk", "cpy", "stor-rank", "bench-rank"] {
            let text = help(&["cool", word]);
            let names_one = |line: &str| line.contains("tip:") && line.contains("-rank'");
            assert!(!text.lines().any(names_one), "{text}");
        }
    }

    #[test]
    fn usual_names_of_commands_are_aliases() {
        let command = command();
        for (alias, name) in
            [("cp", "copy"), ("ps", "jobs"), ("kill", "cancel"), ("nodes", "topology"), ("status", "doctor")]
        {
            assert_eq!(command.find_subcommand(alias).map(clap::Command::get_name), Some(name));
        }
    }

    #[test]
    fn an_error_shows_a_usage_without_connection_options() {
        let text = help(&["cool", "--controller", "a:1", "run"]);
        assert!(text.contains("Usage: cool run [OPTIONS] <PROGRAM>..."), "{text}");
        let text = help(&["cool", "--controller", "a:1", "certs"]);
        assert!(text.contains("Usage: cool certs [OPTIONS] <DIR>"), "{text}");
    }
}
