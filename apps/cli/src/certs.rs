//! `cool certs`: makes and manages the certificates of a deployment.

use crate::error::Error;
use crate::terminal_text;
use cool_tls::make::{self, CertificateEntry, CertificateHolder, CertificateRequest};
use cool_topology::DatapathId;
use cool_topology::ids::NoDatapathId;
use serde_json::json;
use std::io::Write;
use std::net::{AddrParseError, IpAddr};
use std::path::{Path, PathBuf};

/// Make, renew, list and revoke the certificates of controller, agents, tools and switches
///
/// DIR gets ca.pem, and a .pem and a .key for each of controller, agent, tool and switch. Copy
/// ca.pem and the two files of its role to each machine, by default to /etc/cool/certs. Keep ca.key
/// where it is: it is needed only to make more certificates. Existing files are kept, so the
/// command can be repeated to add nodes. Running programs read their files again when they change.
///
/// An agent with agent.pem may register any node. With --node, DIR/NODE gets an agent.pem for this
/// node only, and for these addresses only if there are any. tool.key must stay with operators,
/// because its owner can run jobs as any user, and see and end all jobs. With --user,
/// DIR/users/USER gets ca.pem, tool.pem and tool.key for that user: copy them to the user's
/// ~/.config/cool/certs. The user's jobs run under the user's account, and the user cannot see or
/// end other users' jobs. A switch with switch.pem may have any datapath id; with --switch,
/// DIR/switches/NAME gets a switch.pem for these datapath ids only.
///
/// --revoke writes revoked.pem, the list of revoked certificates. Programs that have this file
/// (most of all the controller) refuse those certificates, and close their connections.
///
/// Replace the CA in four steps: --new-ca; copy ca.pem to all machines; --renew, and copy the
/// certificates;
/// --drop-old-ca, and copy ca.pem again.
///
/// Open vSwitch: ovs-vsctl set-ssl DIR/switch.key DIR/switch.pem DIR/ca.pem
#[derive(Debug, clap::Args)]
pub(crate) struct CertsOptions {
    /// Directory of the certificates; created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Make a certificate for this node, optionally for these addresses only; may be repeated
    #[arg(long = "node", value_name = "NAME[=IP,...]", value_parser = node)]
    nodes: Vec<CertificateHolder>,

    /// Make a certificate for this user, to run jobs; may be repeated
    #[arg(long = "user", value_name = "NAME", value_parser = user)]
    users: Vec<CertificateHolder>,

    /// Make a certificate for this switch, with several datapath ids if one program is several
    /// switches; may be repeated
    #[arg(long = "switch", value_name = "NAME=DPID,...", value_parser = switch)]
    switches: Vec<CertificateHolder>,

    /// Validity of new certificates, in days
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u16).range(1..=36500))]
    days: u16,

    /// Replace all certificates in the directory; the CA stays
    #[arg(long)]
    renew: bool,

    /// List the certificates in the directory
    #[arg(long, conflicts_with_all = ["nodes", "users", "switches", "renew"])]
    list: bool,

    /// With --list: print one JSON document
    #[arg(long, requires = "list")]
    json: bool,

    /// Revoke all certificates that were ever made under this name of --list (agent, NODE,
    /// users/NAME, ...); may be repeated
    #[arg(long, value_name = "NAME", conflicts_with_all = ["nodes", "users", "switches", "renew", "list"])]
    revoke: Vec<String>,

    /// Make a new CA; ca.pem then has the certificates of both
    #[arg(long, conflicts_with_all = ["nodes", "users", "switches", "renew", "list", "revoke"])]
    new_ca: bool,

    /// Remove the old CA's certificate from ca.pem
    #[arg(long, conflicts_with_all = ["nodes", "users", "switches", "renew", "list", "revoke", "new_ca"])]
    drop_old_ca: bool,
}

fn node(text: &str) -> Result<CertificateHolder, AddrParseError> {
    let Some((name, addresses)) = text.split_once('=') else {
        return Ok(CertificateHolder::node(text, Vec::new()));
    };
    let addresses: Result<Vec<IpAddr>, _> = addresses.split(',').map(str::parse).collect();
    Ok(CertificateHolder::node(name, addresses?))
}

fn user(text: &str) -> Result<CertificateHolder, String> {
    Ok(CertificateHolder::user(text))
}

fn switch(text: &str) -> Result<CertificateHolder, String> {
    let (name, ids) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=DPID; for example, s1=1"))?;
    let ids: Result<Vec<DatapathId>, NoDatapathId> = ids.split(',').map(str::parse).collect();
    let ids = ids.map_err(|error| error.to_string())?;
    Ok(CertificateHolder::switch(name, ids.into_iter().map(|id| id.0).collect()))
}

/// Executes the command, and prints the files that were written.
pub(crate) fn run(options: &CertsOptions) -> Result<(), Error> {
    let CertsOptions { directory, days, .. } = options;
    if options.list {
        return list(directory, options.json);
    }
    if !options.revoke.is_empty() {
        let revoked = make::revoke(directory, &options.revoke)?;
        let list = directory.join("revoked.pem");
        writeln!(std::io::stdout(), "{}: certificates revoked now: {revoked}", list.display())?;
        return Ok(());
    }
    let written = if options.new_ca {
        make::new_authority(directory, *days)?
    } else if options.drop_old_ca {
        make::drop_old_authority(directory)?
    } else {
        let holders =
            [&options.nodes, &options.users, &options.switches].into_iter().flatten().cloned().collect();
        make::make(directory, &CertificateRequest { holders, days: *days, renew: options.renew })?
    };
    let mut out = std::io::stdout().lock();
    for file in &written {
        writeln!(out, "{}", file.display())?;
    }
    if written.is_empty() {
        writeln!(out, "all certificates exist in {}; --renew replaces them", directory.display())?;
    }
    Ok(())
}

fn list(directory: &Path, json: bool) -> Result<(), Error> {
    let entries = make::list(directory)?;
    let mut out = std::io::stdout().lock();
    if json {
        let all: Vec<_> = entries.iter().map(document).collect();
        out.write_all(terminal_text::json(&json!({ "certificates": all })).as_bytes())?;
        return Ok(());
    }
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    for entry in &entries {
        let CertificateEntry { name, from, until, .. } = entry;
        let identity = entry.identity.as_ref().map_or_else(|| "CA".to_owned(), ToString::to_string);
        let state = entry.state().map_or_else(String::new, |state| format!(": {state}"));
        writeln!(out, "{name:width$}  {} to {}  {identity}{state}", from.date(), until.date())?;
    }
    Ok(())
}

fn document(entry: &CertificateEntry) -> serde_json::Value {
    let identity = entry.identity.as_ref();
    let datapaths = identity.map(|identity| identity.datapaths.iter().map(|id| DatapathId(*id).to_string()));
    json!({
        "name": entry.name,
        "role": identity.map_or("ca", |identity| identity.role.name()),
        "bound_to": {
            "name": identity.and_then(|identity| identity.name.clone()),
            "addresses": identity.map(|identity| identity.addresses.clone()).unwrap_or_default(),
            "datapath_ids": datapaths.into_iter().flatten().collect::<Vec<String>>(),
        },
        "from": entry.from.unix_timestamp(),
        "until": entry.until.unix_timestamp(),
        "serial": entry.serial_digits(),
        "revoked": entry.revoked,
    })
}
