//! What commands that copy have in common: to which nodes, how, and how many of them have to have it.

use super::said::CopyVia;
use crate::error::Error;
use crate::size;
use cool_proto::control::Node;
use std::net::{IpAddr, UdpSocket};
use std::str::FromStr;

/// The slowest source: a block does not take longer than others wait for it.
const LIMIT_MIN: u64 = 64 << 10;

/// What to name where a command is on no node.
pub(crate) const NAME_SOURCE: &str = "the node that has SOURCE with --from";

/// Some of the cluster's nodes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct NodeChoice {
    /// Only these nodes, as h1,h7
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with_all = ["racks", "all"])]
    pub(crate) nodes: Vec<String>,

    /// Only nodes of these racks, by the numbers of `cool topology`
    #[arg(long, value_name = "RACK,..", value_delimiter = ',', conflicts_with = "all")]
    pub(crate) racks: Vec<u32>,

    /// All nodes
    #[arg(long)]
    pub(crate) all: bool,
}

/// A node that was chosen, and why nothing can be done there, if so.
pub(crate) type Chosen = (String, Option<&'static str>);

impl NodeChoice {
    /// Whether nothing was said.
    pub(crate) fn is_open(&self) -> bool {
        !self.all && self.nodes.is_empty() && self.racks.is_empty()
    }

    /// The nodes that were chosen.
    pub(crate) fn of(&self, nodes: &[Node]) -> Result<Vec<Chosen>, Error> {
        self.nodes.iter().try_for_each(|name| known(nodes, name))?;
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
            Node { located: false, .. } => Some("the controller does not know where it is"),
            _ => None,
        };
        let chosen: Vec<Chosen> =
            nodes.iter().filter(is_chosen).map(|node| (node.name.clone(), absent(node))).collect();
        if chosen.is_empty() { Err(Error::NoNodes) } else { Ok(chosen) }
    }
}

/// That there is such a node.
fn known(nodes: &[Node], name: &str) -> Result<(), Error> {
    let found = nodes.iter().any(|node| node.name == name);
    if found { Ok(()) } else { Err(Error::NoNode(name.to_owned())) }
}

/// The node that was named, or else this machine's, the one whose address is here; if there is none, `remedy` is what to name.
pub(crate) fn node_named(nodes: &[Node], named: Option<&str>, remedy: &'static str) -> Result<String, Error> {
    if let Some(name) = named {
        return known(nodes, name).map(|()| name.to_owned());
    }
    let is_here = |node: &&Node| node.ip.parse::<IpAddr>().is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_ok());
    nodes.iter().find(is_here).map(|node| node.name.clone()).ok_or(Error::NotHere { remedy })
}

/// How bytes go to the nodes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CopyWay {
    /// How it goes
    #[arg(long, value_enum, value_name = "WAY", default_value = "auto")]
    pub(super) via: CopyVia,

    /// Bytes in a second that the source sends at most, over some seconds, as in 200M; by swarm, that each node sends
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    pub(super) limit: Option<u64>,

    /// Give way to whatever else uses the network: broadcasts over trees take what others leave. Neither by chain nor by swarm
    #[arg(long)]
    pub(super) background: bool,

    /// Compress what is broadcast, where that makes it smaller; a swarm sends it as it is
    #[arg(long)]
    pub(super) compress: bool,

    /// Read every copy again from the disk before it takes its place
    #[arg(long)]
    pub(super) verify: bool,

    /// Write the copies as this user, by name or number: for operators, whose certificates name no user [default: you]
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
}

/// What is told of a copy, and when it is one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CopyReport {
    /// Succeed if as many nodes as this have a copy: a number, or as in 95% [default: 100%]
    #[arg(long, value_name = "P", default_value = "100%", hide_default_value = true)]
    pub(super) quorum: Quorum,

    /// Print one JSON document at the end, in place of the table: with what each node lacked at which time, too
    #[arg(long)]
    pub(super) json: bool,
}

impl CopyWay {
    pub(crate) fn is_by_swarm(&self) -> bool {
        self.via == CopyVia::Swarm
    }

    /// Where several nodes have it and one gets it: from all of them together, unless something was said that a swarm does not do.
    pub(crate) fn gathering(&self) -> CopyWay {
        let by_swarm = self.via == CopyVia::Auto && !self.background && !self.compress;
        CopyWay { via: if by_swarm { CopyVia::Swarm } else { self.via }, ..self.clone() }
    }

    /// That it can go so.
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
        Err(format!("less than {} makes others wait too long", size::named(LIMIT_MIN)))
    }
}

/// How many nodes are to have a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quorum {
    Nodes(usize),
    Percent(f64),
}

impl Quorum {
    /// Of some nodes.
    pub(super) fn of(self, nodes: usize) -> usize {
        match self {
            Quorum::Nodes(count) => count,
            // No more than there are.
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
