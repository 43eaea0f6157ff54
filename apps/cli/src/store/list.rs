//! `cool ls` and `cool stat`: what is in the stores of nodes, by contents, and of one name by nodes.

use super::ask::Answers;
use super::said::{StoreAnswer, StoreDeed, StoredContent};
use super::{StoresAsked, milliseconds, name};
use crate::error::Error;
use crate::own_ranks;
use crate::units;
use cool_content::Digest;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tonic::transport::Channel;

/// Digits of an identity that tell it from others of a store.
const ID_SHOWN: usize = 12;

/// Show what is in the stores of nodes
///
/// Of all nodes unless some are named. A name may stand for an older content where a node was away when it was put anew.
#[derive(Debug, clap::Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    stores: StoresAsked,

    /// Print one JSON document in place of the table
    #[arg(long)]
    json: bool,

    /// Only what this name stands for
    #[arg(value_parser = name)]
    name: Option<StoreName>,
}

/// Show what a name stands for on each node
///
/// On all nodes unless some are named: its identity, when it was put there and used last, and where it is.
#[derive(Debug, clap::Args)]
pub(crate) struct StatOptions {
    #[command(flatten)]
    stores: StoresAsked,

    /// Print one JSON document in place of the table
    #[arg(long)]
    json: bool,

    /// What it is called by
    #[arg(value_parser = name)]
    name: StoreName,
}

/// A content, and who has it.
#[derive(Debug, PartialEq, Serialize)]
struct Listed<'a> {
    name: &'a StoreName,
    id: String,
    bytes: u64,
    items: usize,
    put_ms: u64,
    /// Nothing was put by this name later.
    newest: bool,
    nodes: Vec<&'a str>,
}

/// A store in numbers.
#[derive(Debug, Serialize)]
struct StoreListed<'a> {
    node: &'a str,
    folder: &'a Path,
    bytes: u64,
    quota: Option<u64>,
}

/// A node that has a content.
#[derive(Debug, Serialize)]
struct Holder<'a> {
    node: &'a str,
    id: String,
    bytes: u64,
    items: usize,
    put_ms: u64,
    used_ms: u64,
    path: &'a Path,
}

/// A node of which something is wrong.
#[derive(Debug, Serialize)]
struct Failing<'a> {
    node: &'a str,
    error: String,
}

#[derive(Debug, Serialize)]
struct ListDocument<'a> {
    contents: &'a [Listed<'a>],
    stores: Vec<StoreListed<'a>>,
    failed: Vec<Failing<'a>>,
}

#[derive(Debug, Serialize)]
struct StatDocument<'a> {
    name: &'a StoreName,
    nodes: &'a [Holder<'a>],
    failed: Vec<Failing<'a>>,
}

/// Shows all contents.
pub(crate) async fn list(client: ControllerClient<Channel>, options: &ListOptions) -> Result<(), Error> {
    let answers = options.stores.ask(client, options.name.as_ref(), StoreDeed::List).await?;
    let contents = listed(&answers);
    let text = if options.json {
        let document =
            ListDocument { contents: &contents, stores: stores(&answers), failed: failing(&answers) };
        own_ranks::document(&document)?
    } else {
        table(&contents, milliseconds(SystemTime::now()))
    };
    std::io::stdout().write_all(text.as_bytes())?;
    answers.check()
}

/// Shows one, node by node.
pub(crate) async fn stat(client: ControllerClient<Channel>, options: &StatOptions) -> Result<(), Error> {
    let answers = options.stores.ask(client, Some(&options.name), StoreDeed::List).await?;
    let mut holders: Vec<Holder> = answers.contents().map(holder).collect();
    holders.sort_by_key(|holder| holder.node);
    if options.json {
        let document = StatDocument { name: &options.name, nodes: &holders, failed: failing(&answers) };
        std::io::stdout().write_all(own_ranks::document(&document)?.as_bytes())?;
    } else if !holders.is_empty() {
        let head = ["NODE", "BYTES", "ITEMS", "PUT", "USED", "ID", "PATH"].map(str::to_owned);
        let now = milliseconds(SystemTime::now());
        let row = |holder: &Holder| {
            [
                holder.node.to_owned(),
                units::bytes(holder.bytes),
                holder.items.to_string(),
                ago(now, holder.put_ms),
                ago(now, holder.used_ms),
                holder.id[..ID_SHOWN].to_owned(),
                holder.path.display().to_string(),
            ]
        };
        let rows: Vec<_> = std::iter::once(head).chain(holders.iter().map(row)).collect();
        std::io::stdout().write_all(units::columns(&rows).as_bytes())?;
    }
    answers.check()?;
    if holders.is_empty() { Err(Error::NotStored(options.name.to_string())) } else { Ok(()) }
}

/// Contents by name, of one name the newest first.
fn listed(answers: &Answers) -> Vec<Listed<'_>> {
    let mut last: BTreeMap<&StoreName, &StoredContent> = BTreeMap::new();
    for (_, content) in answers.contents() {
        let known = last.entry(&content.name).or_insert(content);
        if known.put_ms <= content.put_ms {
            *known = content;
        }
    }
    let mut found: BTreeMap<(&StoreName, Reverse<u64>, Digest), Listed> = BTreeMap::new();
    for (node, content) in answers.contents() {
        let StoredContent { name, id, put_ms, bytes, items, .. } = content;
        let listed = found.entry((name, Reverse(*put_ms), *id)).or_insert_with(|| Listed {
            name,
            id: id.to_string(),
            bytes: *bytes,
            items: *items,
            put_ms: *put_ms,
            newest: last.get(name).is_some_and(|last| last.id == *id),
            nodes: Vec::new(),
        });
        listed.nodes.push(node);
    }
    for listed in found.values_mut() {
        listed.nodes.sort_unstable();
    }
    found.into_values().collect()
}

fn stores(answers: &Answers) -> Vec<StoreListed<'_>> {
    answers
        .said
        .iter()
        .filter_map(|(node, answer)| match answer {
            StoreAnswer::Store { folder, bytes, quota } => {
                Some(StoreListed { node, folder, bytes: *bytes, quota: *quota })
            }
            _ => None,
        })
        .collect()
}

fn failing(answers: &Answers) -> Vec<Failing<'_>> {
    let silent = answers.failed.iter().map(|(node, why)| Failing { node, error: why.clone() });
    answers.damages().map(|(node, error)| Failing { node, error }).chain(silent).collect()
}

fn holder<'a>((node, content): (&'a str, &'a StoredContent)) -> Holder<'a> {
    let StoredContent { id, bytes, items, put_ms, used_ms, tree, .. } = content;
    Holder {
        node,
        id: id.to_string(),
        bytes: *bytes,
        items: *items,
        put_ms: *put_ms,
        used_ms: *used_ms,
        path: tree,
    }
}

fn table(contents: &[Listed], now_ms: u64) -> String {
    let head = ["NAME", "BYTES", "ITEMS", "NODES", "PUT", "ID", ""].map(str::to_owned);
    let row = |listed: &Listed| {
        [
            listed.name.to_string(),
            units::bytes(listed.bytes),
            listed.items.to_string(),
            listed.nodes.len().to_string(),
            ago(now_ms, listed.put_ms),
            listed.id[..ID_SHOWN].to_owned(),
            if listed.newest { String::new() } else { format!("older, on {}", listed.nodes.join(",")) },
        ]
    };
    if contents.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = std::iter::once(head).chain(contents.iter().map(row)).collect();
    units::columns(&rows)
}

fn ago(now_ms: u64, then_ms: u64) -> String {
    format!("{} ago", units::clock(Duration::from_millis(now_ms.saturating_sub(then_ms))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(node: &str, name: &str, bytes: &[u8], put_ms: u64) -> (String, StoreAnswer) {
        let content = StoredContent {
            name: name.parse().unwrap(),
            id: Digest::of(bytes),
            put_ms,
            used_ms: put_ms,
            bytes: 64 << 20,
            items: 3,
            tree: "/tree".into(),
        };
        (node.to_owned(), StoreAnswer::Content(content))
    }

    #[test]
    fn what_nodes_have_is_listed_by_contents_and_what_is_older_says_where() {
        let said = vec![
            content("h2", "model", b"new", 5_000),
            content("h1", "model", b"new", 5_000),
            content("h3", "model", b"old", 1_000),
            content("h1", "data", b"new", 2_000),
        ];
        let answers = Answers { said, asked: 3, ..Answers::default() };
        let listed = listed(&answers);
        let short: Vec<_> = listed.iter().map(|l| (l.name.as_str(), l.newest, l.nodes.clone())).collect();
        assert_eq!(
            short,
            [("data", true, vec!["h1"]), ("model", true, vec!["h1", "h2"]), ("model", false, vec!["h3"])]
        );
        let text = table(&listed, 66_000);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("NAME   BYTES"), "{text}");
        assert!(lines[2].starts_with("model  64.0 MiB  3      2      1:01 ago  "), "{text}");
        assert!(lines[3].ends_with("older, on h3"), "{text}");
        assert_eq!(table(&[], 0), "");
    }
}
