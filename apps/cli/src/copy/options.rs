//! Options that all copying commands share: to which nodes, how, and how many of them must succeed.

use crate::error::Error;
use crate::size;
use cool_copy::CopyVia;
use cool_proto::control::Node;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

/// Minimum limit in bytes per second, at which sending a block takes no longer than other nodes
/// wait for it.
const LIMIT_MIN: u64 = 64 << 10;

/// Remedy in the error of a command that does not run on a node.
pub(crate) const NAME_SOURCE: &str = "the node that has SOURCE with --from";

/// Some of the cluster's nodes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct NodeChoice {
    /// Only these nodes, such as h1,h7
    #[arg(
        long,
        aliases = ["hosts", "host"],
        value_name = "NAME,..",
        value_delimiter = ',',
        conflicts_with_all = ["racks", "all"]
    )]
    pub(crate) nodes: Vec<String>,

    /// Only nodes of these racks, by the numbers of `cool topology`
    #[arg(long, value_name = "RACK,..", value_delimiter = ',', conflicts_with = "all")]
    pub(crate) racks: Vec<u32>,

    /// All nodes
    #[arg(long)]
    pub(crate) all: bool,
}

/// A chosen node; if it is not ready, with the reason.
pub(crate) type ChosenNode = (String, Option<&'static str>);

impl NodeChoice {
    /// Returns whether the user chose nothing.
    pub(crate) fn is_open(&self) -> bool {
        !self.all && self.nodes.is_empty() && self.racks.is_empty()
    }

    /// Returns the chosen nodes.
    ///
    /// # Errors
    /// If a node or rack does not exist, or there are no nodes.
    pub(crate) fn choose(&self, nodes: &[Node]) -> Result<Vec<ChosenNode>, Error> {
        self.nodes.iter().try_for_each(|name| check_known(nodes, name))?;
        let has = |rack: &u32| nodes.iter().any(|node| node.located && node.rack == *rack);
        if let Some(unknown) = self.racks.iter().find(|rack| !has(rack)) {
            return Err(Error::NoRack(*unknown));
        }
        let is_chosen = |node: &&Node| {
            (self.nodes.is_empty() || self.nodes.contains(&node.name))
                && (self.racks.is_empty() || (node.located && self.racks.contains(&node.rack)))
        };
        let absent = |node: &Node| match node {
            Node { away_ms: Some(_), .. } => Some("its agent is away"),
            Node { located: false, .. } => Some("the controller has not located it"),
            _ => None,
        };
        let chosen: Vec<ChosenNode> =
            nodes.iter().filter(is_chosen).map(|node| (node.name.clone(), absent(node))).collect();
        if chosen.is_empty() { Err(Error::NoNodes) } else { Ok(chosen) }
    }
}

fn check_known(nodes: &[Node], name: &str) -> Result<(), Error> {
    let found = nodes.iter().any(|node| node.name == name);
    if found { Ok(()) } else { Err(Error::NoNode(name.to_owned())) }
}

/// Returns the node of this name; without a name, the node with an address of this machine.
/// `remedy` completes the error if there is none.
pub(crate) fn node_named(nodes: &[Node], name: Option<&str>, remedy: &'static str) -> Result<String, Error> {
    if let Some(name) = name {
        return check_known(nodes, name).map(|()| name.to_owned());
    }
    let is_here = |node: &&Node| node.ip.parse().is_ok_and(is_own_address);
    nodes.iter().find(is_here).map(|node| node.name.clone()).ok_or(Error::NotHere { remedy })
}

/// Returns whether an address is one of this machine, because packets to it would have it as their
/// source, too. Binding a socket to it would also succeed for addresses of other machines if the
/// system permits that (net.ipv4.ip_nonlocal_bind).
fn is_own_address(ip: IpAddr) -> bool {
    let unspecified: IpAddr =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Sends no packet: the system only looks up the route.
    let route = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    route.is_ok_and(|source| source.ip() == ip)
}

/// How the data gets to the nodes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TransferOptions {
    /// How to distribute the data
    #[arg(long, value_enum, value_name = "WAY", default_value = "auto")]
    pub(super) via: CopyVia,

    /// Limit of the source in bytes per second, such as 200M, as a mean over some seconds; by
    /// swarm, of every node. It must be at least 64K
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    pub(super) limit: Option<u64>,

    /// Yield to all other traffic: broadcasts over trees use the bandwidth that is left. The way
    /// must not be a chain or a swarm
    #[arg(long)]
    pub(super) background: bool,

    /// Compress broadcasts where that makes them smaller; a swarm does not compress
    #[arg(long)]
    pub(super) compress: bool,

    /// Read every copy back from the disk before it is renamed into place
    #[arg(long)]
    pub(super) verify: bool,

    /// Write the copies as this user (name or number); for operators only, because their
    /// certificates name no user [default: you]
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
}

/// What is printed about a copy, and when it counts as successful.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReportOptions {
    /// Number or share of nodes that must have a copy, such as 12 or 95% [default: 100%]
    #[arg(long, value_name = "P", default_value = "100%", hide_default_value = true)]
    pub(super) quorum: Quorum,

    /// Print one JSON document at the end instead of the table, including the progress of every
    /// node
    #[arg(long)]
    pub(super) json: bool,
}

impl TransferOptions {
    pub(crate) fn is_by_swarm(&self) -> bool {
        self.via == CopyVia::Swarm
    }

    /// Returns the options for a copy from several nodes to one: by swarm from all of them, unless
    /// an option was given that a swarm does not have.
    pub(crate) fn for_several_sources(&self) -> TransferOptions {
        let by_swarm = self.via == CopyVia::Auto && !self.background && !self.compress;
        TransferOptions { via: if by_swarm { CopyVia::Swarm } else { self.via }, ..self.clone() }
    }

    /// Checks that the options fit each other.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.via {
            CopyVia::Chain | CopyVia::Swarm if self.background => Err(Error::NoBackground),
            _ => Ok(()),
        }
    }
}

fn limit(text: &str) -> Result<u64, String> {
    let limit = size::parse(text)?;
    if limit >= LIMIT_MIN {
        Ok(limit)
    } else {
        Err(format!("with less than {}, other nodes would time out", size::named(LIMIT_MIN)))
    }
}

/// The number or share of nodes that must have a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quorum {
    Nodes(usize),
    Percent(f64),
}

impl Quorum {
    /// Returns the number of nodes, out of all that were to get a copy.
    pub(super) fn of(self, nodes: usize) -> usize {
        match self {
            Quorum::Nodes(count) => count,
            // The result is at most the number of nodes.
            Quorum::Percent(percent) => (percent / 100.0 * nodes as f64).ceil() as usize,
        }
    }
}

impl FromStr for Quorum {
    type Err = String;

    fn from_str(text: &str) -> Result<Quorum, String> {
        let wrong = || format!("{text:?} is neither a number of nodes nor a percentage from 0% to 100%");
        match text.strip_suffix('%') {
            None => text.parse().map(Quorum::Nodes).map_err(|_| wrong()),
            Some(percent) => match percent.parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Quorum::Percent(percent)),
                _ => Err(wrong()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_its_own() {
        assert!(is_own_address([127, 0, 0, 1].into()));
        // A documentation address (RFC 5737).
        assert!(!is_own_address([203, 0, 113, 7].into()));
    }
}
