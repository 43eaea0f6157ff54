//! `cool get`: a content out of stores to a path on nodes; and which node's store it comes from.

use super::ask::ask;
use super::said::{StoreDeed, StoreQuestion, StoredContent};
use super::{StoreChoice, StorePlace, name};
use crate::copy::{
    Chosen, CopyOrder, CopyPaths, CopyReport, CopyWay, NodeChoice, StoreTask, carry_out, names_folder,
    node_named, report,
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
/// another node's, of all that answer from one that has what was put last. What a node has of it in its store, or at DEST, is not sent.
/// It is checked and written as by `cool copy`.
#[derive(Debug, clap::Args)]
pub(crate) struct GetOptions {
    #[command(flatten)]
    nodes: NodeChoice,

    /// The node whose store it comes from [default: one that has it]
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
    let (from, content) = wanted.find(client.clone(), &nodes, &chosen, options.way.user.clone()).await?;
    let dest = std::path::absolute(&options.dest).map_err(Error::Runtime)?;
    let dest = if names_folder(&options.dest) { dest.join(options.name.as_str()) } else { dest };
    let order = CopyOrder {
        from,
        to,
        what: CopyPaths::new(&content.tree, Some(&dest))?,
        store: Some(StoreTask { store, name: options.name.clone(), object: Some(content.id), put: None }),
        delete: options.delete,
        way: &options.way,
    };
    report(&carry_out(client, &nodes, order).await?, &options.report)
}

/// A content that is looked for.
pub(super) struct Wanted<'a> {
    pub(super) store: &'a StorePlace,
    pub(super) name: &'a StoreName,
    /// Only there.
    pub(super) from: Option<&'a str>,
}

impl Wanted<'_> {
    /// A node that has what was put last, if possible one of those that are to get it.
    pub(super) async fn find(
        &self,
        client: ControllerClient<Channel>,
        nodes: &[Node],
        preferred: &[Chosen],
        user: Option<String>,
    ) -> Result<(String, StoredContent), Error> {
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
        let holders: Vec<_> =
            answers.contents().filter(|(_, content)| (content.put_ms, content.id) == (put_ms, id)).collect();
        let is_preferred = |node: &str| preferred.iter().any(|(name, _)| name == node);
        let holder = holders.iter().find(|(node, _)| is_preferred(node)).or(holders.first());
        // There is one, the last that was put.
        let (node, content) = holder.ok_or(Error::NoNodes)?;
        Ok(((*node).to_owned(), (*content).clone()))
    }
}
