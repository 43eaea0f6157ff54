//! `cool certs`: the certificates of a deployment.

use crate::error::Error;
use cool_tls::make::{self, CertificateEntry, CertificateRequest, CertificateHolder};
use cool_topology::DatapathId;
use cool_topology::ids::NoDatapathId;
use serde_json::json;
use std::io::Write;
use std::net::{AddrParseError, IpAddr};
use std::path::{Path, PathBuf};

/// Make, renew, list and revoke the certificates of controller, agents, tools and switches
///
/// In DIR: ca.pem, and for each of controller, agent, tool and switch a .pem and a .key. Copy to each machine what
/// it needs, by default to /etc/cool/certs: ca.pem and the two files of its role. ca.key stays where it is and is
/// needed only to make more. Files that are there are kept, so the command can be repeated to add nodes. Programs
/// read their files again when they change.
///
/// An agent with agent.pem may register any node; with --node, DIR/NODE has an agent.pem that is good for this
/// node only, and with addresses for none but these. Whoever has tool.key is an operator: runs jobs in anybody's name,
/// sees and ends all of them. With --user, DIR/users/USER has a tool.pem for that user, whose jobs run under the user's
/// account, and who sees and ends no other's. A switch with switch.pem may have any datapath id; with --switch,
/// DIR/switches/NAME has a switch.pem that is good for these datapath ids only.
///
/// --revoke writes revoked.pem, the list of what is revoked; whoever gets it (first of all the controller) refuses those
/// certificates, and ends their sessions.
///
/// The CA is replaced in four steps: --new-ca; copy ca.pem to all machines; --renew, and copy the certificates; --drop-old-ca,
/// and copy ca.pem again.
///
/// Open vSwitch: ovs-vsctl set-ssl DIR/switch.key DIR/switch.pem DIR/ca.pem
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder; made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// A node that gets a certificate of its own, perhaps for these addresses only; may be repeated
    #[arg(long = "node", value_name = "NAME[=IP,...]", value_parser = node)]
    nodes: Vec<CertificateHolder>,

    /// A user who gets a certificate for running jobs; may be repeated
    #[arg(long = "user", value_name = "NAME", value_parser = user)]
    users: Vec<CertificateHolder>,

    /// A switch that gets a certificate of its own; several datapath ids if one program is several switches; may be repeated
    #[arg(long = "switch", value_name = "NAME=DPID,...", value_parser = switch)]
    switches: Vec<CertificateHolder>,

    /// How long new certificates are valid
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u16).range(1..=36500))]
    days: u16,

    /// Make all certificates of the folder anew though they are there; the CA stays
    #[arg(long)]
    renew: bool,

    /// Show what the folder holds
    #[arg(long, conflicts_with_all = ["nodes", "users", "switches", "renew"])]
    list: bool,

    /// With --list: print one JSON document
    #[arg(long, requires = "list")]
    json: bool,

    /// Revoke all certificates ever made under this name of --list: agent, NODE, users/NAME, ...; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with_all = ["nodes", "users", "switches", "renew", "list"])]
    revoke: Vec<String>,

    /// Make a new CA; ca.pem has the old one's certificate too
    #[arg(long, conflicts_with_all = ["nodes", "users", "switches", "renew", "list", "revoke"])]
    new_ca: bool,

    /// Take the old CA's certificate out of ca.pem
    #[arg(long, conflicts_with_all = ["nodes", "users", "switches", "renew", "list", "revoke", "new_ca"])]
    drop_old_ca: bool,
}

fn node(text: &str) -> Result<CertificateHolder, AddrParseError> {
    let Some((name, addresses)) = text.split_once('=') else { return Ok(CertificateHolder::node(text, Vec::new())) };
    let addresses: Result<Vec<IpAddr>, _> = addresses.split(',').map(str::parse).collect();
    Ok(CertificateHolder::node(name, addresses?))
}

fn user(text: &str) -> Result<CertificateHolder, String> {
    Ok(CertificateHolder::user(text))
}

fn switch(text: &str) -> Result<CertificateHolder, String> {
    let (name, ids) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=DPID"))?;
    let ids: Result<Vec<DatapathId>, NoDatapathId> = ids.split(',').map(str::parse).collect();
    let ids = ids.map_err(|error| error.to_string())?;
    Ok(CertificateHolder::switch(name, ids.into_iter().map(|id| id.0).collect()))
}

/// Does it, and prints the files written.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let Options { folder, days, .. } = options;
    if options.list {
        return list(folder, options.json);
    }
    if !options.revoke.is_empty() {
        let revoked = make::revoke(folder, &options.revoke)?;
        let list = folder.join("revoked.pem");
        writeln!(std::io::stdout(), "{}: certificates revoked now: {revoked}", list.display())?;
        return Ok(());
    }
    let written = if options.new_ca {
        make::new_authority(folder, *days)?
    } else if options.drop_old_ca {
        make::drop_old_authority(folder)?
    } else {
        let holders =
            [&options.nodes, &options.users, &options.switches].into_iter().flatten().cloned().collect();
        make::make(folder, &CertificateRequest { holders, days: *days, renew: options.renew })?
    };
    let mut out = std::io::stdout().lock();
    for file in &written {
        writeln!(out, "{}", file.display())?;
    }
    if written.is_empty() {
        writeln!(out, "all is there in {}; --renew makes certificates anew", folder.display())?;
    }
    Ok(())
}

fn list(folder: &Path, json: bool) -> Result<(), Error> {
    let entries = make::list(folder)?;
    let mut out = std::io::stdout().lock();
    if json {
        let all: Vec<_> = entries.iter().map(document).collect();
        writeln!(out, "{:#}", json!({ "certificates": all }))?;
        return Ok(());
    }
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    for entry in &entries {
        let CertificateEntry { name, from, until, .. } = entry;
        let says = entry.identity.as_ref().map_or_else(|| "CA".to_owned(), ToString::to_string);
        let state = entry.state().map_or_else(String::new, |state| format!(": {state}"));
        writeln!(out, "{name:width$}  {} to {}  {says}{state}", from.date(), until.date())?;
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
