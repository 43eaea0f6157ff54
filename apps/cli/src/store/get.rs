//! `cool get`: a content out of stores to a path on nodes; and which nodes' stores have it.

use super::ask::ask;
use super::holders::{Holders, StoreHolder};
use super::said::{StoreDeed, StoreQuestion};
use super::{StoreChoice, StorePlace, name};
use crate::copy::{
    Chosen, CopyOrder, CopyPaths, CopyReport, CopyWay, NodeChoice, StoreTask, names_folder, node_named,
    report,
};
use crate::error::Error;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Node, TopologyRequest};
use cool_store::StoreName;
use std::path::PathBuf;
use tonic::transport::Channel;

/// Copy a content out of the nodes' stores to a path
///
/// To this machine's node, or to the nodes that are named. It comes from the store of a node that gets it, if one has it, else from
/// other nodes', of all that answer from those that have what was put last: to a single node from up to four of them together (by swarm), to several
/// from one, and from the next if that one fails. What a node has of it in its store, or at DEST, is not sent.
/// It is checked and written as by `cool copy`.
#[derive(Debug, clap::Args)]
pub(crate) struct GetOptions {
    #[command(flatten)]
    nodes: NodeChoice,

    /// The node whose store it comes from, and no other [default: any that have it]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    way: CopyWay,

    /// Remove what a folder at DEST has and the content has not; else such a folder is left as it is, and named
    #[arg(long)]
    delete: bool,

    #[command(flatten)]
    report: CopyReport,

    #[command(flatten)]
    store: StoreChoice,

    /// What it is called by
    #[arg(value_parser = name)]
    name: StoreName,

    /// Its path on every node; with / at its end, the folder that it is in, by its name. {node} stands for the node's name
    dest: PathBuf,
}

/// Copies, and tells what came of it.
pub(crate) async fn get(mut client: ControllerClient<Channel>, options: &GetOptions) -> Result<(), Error> {
    let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    let to = if options.nodes.is_open() {
        let here = node_named(&nodes, None, "the nodes that get it with --nodes")?;
        NodeChoice { nodes: vec![here], ..NodeChoice::default() }
    } else {
        options.nodes.clone()
    };
    let chosen = to.of(&nodes)?;
    let store = options.store.place()?;
    let wanted = Wanted { store: &store, name: &options.name, from: options.from.as_deref() };
    let holders = wanted.find(client.clone(), &nodes, &chosen, options.way.user.clone()).await?;
    let dest = std::path::absolute(&options.dest).map_err(Error::Runtime)?;
    let dest = if names_folder(&options.dest) { dest.join(options.name.as_str()) } else { dest };
    let way = holders.way(&options.way);
    let outcome = holders.copy(client, |StoreHolder { node, content }, others| {
        Ok(CopyOrder {
            from: node,
            to: to.clone(),
            what: CopyPaths::new(&content.tree, Some(&dest))?,
            store: Some(StoreTask {
                store: store.clone(),
                name: options.name.clone(),
                object: Some(content.id),
                put: None,
                others,
            }),
            delete: options.delete,
            way: &way,
        })
    });
    report(&outcome.await?, &options.report)
}

/// A content that is looked for.
pub(super) struct Wanted<'a> {
    pub(super) store: &'a StorePlace,
    pub(super) name: &'a StoreName,
    /// Only there.
    pub(super) from: Option<&'a str>,
}

impl Wanted<'_> {
    /// Nodes that have what was put last, if possible of those that are `to` get it.
    pub(super) async fn find(
        &self,
        client: ControllerClient<Channel>,
        nodes: &[Node],
        to: &[Chosen],
        user: Option<String>,
    ) -> Result<Holders, Error> {
        let named = self.from.map(str::to_owned).into_iter().collect();
        let among = NodeChoice { nodes: named, ..NodeChoice::default() }.of(nodes)?;
        let question =
            StoreQuestion { store: self.store.clone(), name: Some(self.name.clone()), deed: StoreDeed::List };
        let answers = ask(client, among, user, &question).await?;
        let Some((_, last)) = answers.contents().max_by_key(|(_, content)| content.put_ms) else {
            answers.check()?;
            return Err(Error::NotStored(self.name.to_string()));
        };
        let (put_ms, id) = (last.put_ms, last.id);
        let holders = answers
            .contents()
            .filter(|(_, content)| (content.put_ms, content.id) == (put_ms, id))
            .map(|(node, content)| StoreHolder { node: node.to_owned(), content: content.clone() });
        Ok(Holders::new(holders.collect(), nodes, to))
    }
}
