//! `cool ls` lists the objects in the stores of nodes; `cool stat` shows the object of one name on
//! each node.

use super::options::{StoreSelection, name};
use super::query::StoreReplies;
use crate::cool_rank_job;
use crate::error::Error;
use crate::units;
use cool_content::Digest;
use cool_copy::{ObjectInfo, StoreOperation, StoreReply, unix_ms};
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tonic::transport::Channel;

/// Digits of an identity in tables, which distinguish the objects of a store.
const ID_DIGITS: usize = 12;

/// List the objects in the stores of nodes
///
/// On all nodes unless some are named. A node that was away when a name was put again has an older
/// object of this name.
#[derive(Debug, clap::Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    stores: StoreSelection,

    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,

    /// Only objects of this name
    #[arg(value_parser = name)]
    name: Option<StoreName>,
}

/// Show the object of a name on each node
///
/// On all nodes unless some are named: its identity, when it was put and last used, and its path.
#[derive(Debug, clap::Args)]
pub(crate) struct StatOptions {
    #[command(flatten)]
    stores: StoreSelection,

    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,

    /// Name of the object
    #[arg(value_parser = name)]
    name: StoreName,
}

/// An object, and the nodes that have it.
#[derive(Debug, PartialEq, Serialize)]
struct ListedObject<'a> {
    name: &'a StoreName,
    id: String,
    bytes: u64,
    items: usize,
    put_ms: u64,
    /// Whether no other object was put under this name later.
    newest: bool,
    nodes: Vec<&'a str>,
}

/// The store of a node.
#[derive(Debug, Serialize)]
struct ListedStore<'a> {
    node: &'a str,
    folder: &'a Path,
    bytes: u64,
    quota: Option<u64>,
}

/// The object of a name on a node.
#[derive(Debug, Serialize)]
struct ObjectOnNode<'a> {
    node: &'a str,
    id: String,
    bytes: u64,
    items: usize,
    put_ms: u64,
    used_ms: u64,
    path: &'a Path,
}

/// A node that did not reply, or has damaged objects.
#[derive(Debug, Serialize)]
struct FailedNode<'a> {
    node: &'a str,
    error: String,
}

#[derive(Debug, Serialize)]
struct ListDocument<'a> {
    contents: &'a [ListedObject<'a>],
    stores: Vec<ListedStore<'a>>,
    failed: Vec<FailedNode<'a>>,
}

#[derive(Debug, Serialize)]
struct StatDocument<'a> {
    name: &'a StoreName,
    nodes: &'a [ObjectOnNode<'a>],
    failed: Vec<FailedNode<'a>>,
}

/// Prints all objects.
pub(crate) async fn list(client: ControllerClient<Channel>, options: &ListOptions) -> Result<(), Error> {
    let result = options.stores.query(client, options.name.as_ref(), StoreOperation::List).await?;
    let objects = listed_objects(&result);
    let text = if options.json {
        let document =
            ListDocument { contents: &objects, stores: listed_stores(&result), failed: failed(&result) };
        cool_rank_job::document(&document)?
    } else {
        table(&objects, unix_ms(SystemTime::now()))
    };
    std::io::stdout().write_all(text.as_bytes())?;
    result.check()
}

/// Prints the object of a name, node by node.
pub(crate) async fn stat(client: ControllerClient<Channel>, options: &StatOptions) -> Result<(), Error> {
    let result = options.stores.query(client, Some(&options.name), StoreOperation::List).await?;
    let mut objects: Vec<ObjectOnNode> = result.objects().map(object_on_node).collect();
    objects.sort_by_key(|object| object.node);
    if options.json {
        let document = StatDocument { name: &options.name, nodes: &objects, failed: failed(&result) };
        std::io::stdout().write_all(cool_rank_job::document(&document)?.as_bytes())?;
    } else if !objects.is_empty() {
        let head = ["NODE", "BYTES", "ITEMS", "PUT", "USED", "ID", "PATH"].map(str::to_owned);
        let now = unix_ms(SystemTime::now());
        let row = |object: &ObjectOnNode| {
            [
                object.node.to_owned(),
                units::bytes(object.bytes),
                object.items.to_string(),
                ago(now, object.put_ms),
                ago(now, object.used_ms),
                object.id[..ID_DIGITS].to_owned(),
                object.path.display().to_string(),
            ]
        };
        let rows: Vec<_> = std::iter::once(head).chain(objects.iter().map(row)).collect();
        std::io::stdout().write_all(units::columns(&rows).as_bytes())?;
    }
    result.check()?;
    if objects.is_empty() { Err(Error::NotStored(options.name.to_string())) } else { Ok(()) }
}

/// Returns the objects sorted by name; among objects of the same name, the newest is first.
fn listed_objects(result: &StoreReplies) -> Vec<ListedObject<'_>> {
    let mut last: BTreeMap<&StoreName, &ObjectInfo> = BTreeMap::new();
    for (_, object) in result.objects() {
        let known = last.entry(&object.name).or_insert(object);
        if known.put_ms <= object.put_ms {
            *known = object;
        }
    }
    let mut found: BTreeMap<(&StoreName, Reverse<u64>, Digest), ListedObject> = BTreeMap::new();
    for (node, object) in result.objects() {
        let ObjectInfo { name, id, put_ms, bytes, items, .. } = object;
        let listed = found.entry((name, Reverse(*put_ms), *id)).or_insert_with(|| ListedObject {
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

fn listed_stores(result: &StoreReplies) -> Vec<ListedStore<'_>> {
    result
        .replies
        .iter()
        .filter_map(|(node, reply)| match reply {
            StoreReply::Store { folder, bytes, quota } => {
                Some(ListedStore { node, folder, bytes: *bytes, quota: *quota })
            }
            _ => None,
        })
        .collect()
}

fn failed(result: &StoreReplies) -> Vec<FailedNode<'_>> {
    let silent = result.failed.iter().map(|(node, reason)| FailedNode { node, error: reason.clone() });
    result.damages().map(|(node, error)| FailedNode { node, error }).chain(silent).collect()
}

fn object_on_node<'a>((node, object): (&'a str, &'a ObjectInfo)) -> ObjectOnNode<'a> {
    let ObjectInfo { id, bytes, items, put_ms, used_ms, tree, .. } = object;
    ObjectOnNode {
        node,
        id: id.to_string(),
        bytes: *bytes,
        items: *items,
        put_ms: *put_ms,
        used_ms: *used_ms,
        path: tree,
    }
}

fn table(objects: &[ListedObject], now_ms: u64) -> String {
    let head = ["NAME", "BYTES", "ITEMS", "NODES", "PUT", "ID", ""].map(str::to_owned);
    let row = |listed: &ListedObject| {
        [
            listed.name.to_string(),
            units::bytes(listed.bytes),
            listed.items.to_string(),
            listed.nodes.len().to_string(),
            ago(now_ms, listed.put_ms),
            listed.id[..ID_DIGITS].to_owned(),
            if listed.newest { String::new() } else { format!("older, on {}", listed.nodes.join(",")) },
        ]
    };
    if objects.is_empty() {
        return "nothing in the stores\n".to_owned();
    }
    let rows: Vec<_> = std::iter::once(head).chain(objects.iter().map(row)).collect();
    units::columns(&rows)
}

fn ago(now_ms: u64, then_ms: u64) -> String {
    format!("{} ago", units::clock(Duration::from_millis(now_ms.saturating_sub(then_ms))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(node: &str, name: &str, bytes: &[u8], put_ms: u64) -> (String, StoreReply) {
        let object = ObjectInfo {
            name: name.parse().unwrap(),
            id: Digest::of(bytes),
            put_ms,
            used_ms: put_ms,
            bytes: 64 << 20,
            items: 3,
            tree: "/tree".into(),
        };
        (node.to_owned(), StoreReply::Object(object))
    }

    #[test]
    fn an_older_object_is_listed_with_its_nodes() {
        let replies = vec![
            object("h2", "model", b"new", 5_000),
            object("h1", "model", b"new", 5_000),
            object("h3", "model", b"old", 1_000),
            object("h1", "data", b"new", 2_000),
        ];
        let result = StoreReplies { replies, requested: 3, ..StoreReplies::default() };
        let listed = listed_objects(&result);
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
        assert_eq!(table(&[], 0), "nothing in the stores\n");
    }
}
