//! `cool certs`: the certificates of a deployment.

use crate::error::Error;
use cool_tls::make::{self, CertificateRequest};
use std::io::Write;
use std::path::PathBuf;

/// Make a CA and certificates for controller, agents, tools and switches
///
/// In DIR: ca.pem, and for each of controller, agent, tool and switch a .pem and a .key. Copy to each machine what
/// it needs, by default to /etc/cool/certs: ca.pem and the two files of its role. ca.key stays where it is and is
/// needed only to make more. Files that are there are kept, so the command can be repeated to add nodes.
///
/// An agent with agent.pem may register any node; with --node, DIR/NODE has an agent.pem that is good for this
/// node only. Whoever has tool.key is an operator: runs jobs in anybody's name, sees and ends all of them. With
/// --user, DIR/users/USER has a tool.pem for that user, whose jobs run under the user's account, and who sees and ends no
/// other's.
///
/// Open vSwitch: ovs-vsctl set-ssl DIR/switch.key DIR/switch.pem DIR/ca.pem
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder; made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// A node that gets a certificate of its own; may be repeated
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,

    /// A user who gets a certificate for running jobs; may be repeated
    #[arg(long = "user", value_name = "NAME")]
    users: Vec<String>,

    /// How long new certificates are valid
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u16).range(1..=36500))]
    days: u16,

    /// Make the certificates anew though they are there; the CA stays
    #[arg(long)]
    renew: bool,
}

/// Makes them, and prints the files written.
pub(crate) fn make(options: &Options) -> Result<(), Error> {
    let Options { folder, nodes, users, days, renew } = options;
    let request =
        CertificateRequest { nodes: nodes.clone(), users: users.clone(), days: *days, renew: *renew };
    let written = make::make(folder, &request)?;
    let mut out = std::io::stdout().lock();
    for file in &written {
        writeln!(out, "{}", file.display())?;
    }
    if written.is_empty() {
        writeln!(out, "all is there in {}; --renew makes certificates anew", folder.display())?;
    }
    Ok(())
}
