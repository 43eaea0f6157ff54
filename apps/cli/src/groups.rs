//! `cool groups`: shows the groups in use and their trees, as text or as JSON.

use crate::error::Error;
use crate::terminal_text::{self, printable_lines};
use crate::{cluster, units};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Group, Groups, GroupsRequest, Tree, tree::Scope};
use cool_proto::job_ids;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use tonic::transport::Channel;

/// Show the groups in use, the nodes of their ranks, and the multicast trees installed for them
#[derive(Debug, clap::Args)]
pub(crate) struct GroupsOptions {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Requests the groups, and prints them.
pub(crate) async fn show(
    mut client: ControllerClient<Channel>,
    options: &GroupsOptions,
) -> Result<(), Error> {
    let Groups { groups, outsiders } = client.list_groups(GroupsRequest {}).await?.into_inner();
    let text = if options.json {
        let groups: Vec<Value> = groups.iter().map(document).collect();
        let outsiders: Vec<Value> =
            outsiders.iter().map(|o| json!({ "switch": o.name, "packets": o.packets })).collect();
        terminal_text::json(&json!({ "groups": groups, "outsiders": outsiders }))
    } else {
        let mut text = match groups.is_empty() {
            true => "no groups\n".to_owned(),
            false => groups.iter().map(describe).collect::<Vec<_>>().join("\n"),
        };
        for o in &outsiders {
            text += &format!(
                "{} dropped {} for groups, from hosts that are not members\n",
                o.name,
                units::count(usize::try_from(o.packets).unwrap_or(usize::MAX), "packet")
            );
        }
        printable_lines(&text).into_owned()
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn document(group: &Group) -> Value {
    let known = |rate: u64| (rate > 0).then_some(rate);
    let member = |m: &cool_proto::control::Member| json!({ "rank": m.rank, "node": m.node, "rack": m.rack, "ip": m.ip });
    let tree = |t: &Tree| {
        json!({
            "scope": scope(t),
            "address": t.address,
            "port": t.port,
            "bytes_per_second": known(t.bytes_per_second),
            "links": t.links,
        })
    };
    json!({
        "id": group.id,
        "job": group.job,
        "epoch": group.epoch,
        "chunk_bytes": group.chunk_bytes,
        "host_bytes_per_second": known(group.host_bytes_per_second),
        "uplink_bytes_per_second": known(group.uplink_bytes_per_second),
        "cost_model": serde_json::from_str::<Value>(&group.cost_model).unwrap_or(Value::Null),
        "members": group.members.iter().map(member).collect::<Vec<_>>(),
        "trees": group.trees.iter().map(tree).collect::<Vec<_>>(),
    })
}

fn describe(group: &Group) -> String {
    let mut racks: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for m in &group.members {
        racks.entry(m.rack).or_default().push(format!("{} {}", m.rank, m.node));
    }
    let nodes: BTreeSet<&str> = group.members.iter().map(|m| m.node.as_str()).collect();
    let mut text = format!(
        "group {} of job {}, epoch {}: {} on {} in {}\n",
        job_ids::short(group.id),
        job_ids::short(group.job),
        group.epoch,
        units::count(group.members.len(), "rank"),
        units::count(nodes.len(), "node"),
        units::count(racks.len(), "rack"),
    );
    for (rack, members) in racks {
        text += &format!("  rack {rack}: {}\n", members.join(", "));
    }
    for t in &group.trees {
        let rate = units::rate(t.bytes_per_second).unwrap_or_else(|| "rate unknown".to_owned());
        text += &format!("  tree {}: {}, {rate}: {}\n", scope(t), t.address, t.links.join(" "));
    }
    if group.trees.is_empty() && nodes.len() > 1 {
        text.push_str("  no trees: data is sent along chains\n");
    }
    if let Ok(model) = cluster::cost_model(&group.cost_model) {
        text += &format!("  costs: {}\n", cluster::describe(&model));
    }
    text
}

/// Returns a description of the nodes that a tree connects.
fn scope(tree: &Tree) -> String {
    match tree.scope() {
        Scope::All => "all".to_owned(),
        Scope::Leaders => "leaders".to_owned(),
        Scope::Rack => format!("rack {}", tree.rack),
        Scope::Unspecified => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Member;

    fn group() -> Group {
        let member = |rank, node: &str, rack| Member { rank, node: node.into(), rack, ..Member::default() };
        let tree = Tree {
            scope: Scope::All.into(),
            address: "239.192.0.1".into(),
            port: 7420,
            bytes_per_second: 2_500_000,
            links: vec!["s1:1-s2:3".into(), "s2:1-h1".into()],
            ..Tree::default()
        };
        let members = vec![member(0, "h1", 0), member(1, "h2", 1), member(2, "h1", 0)];
        Group { id: 4, job: 3, epoch: 1, members, trees: vec![tree], ..Group::default() }
    }

    #[test]
    fn a_group_is_shown_by_racks_and_trees() {
        let expected = "\
group 4 of job 3, epoch 1: 3 ranks on 2 nodes in 2 racks
  rack 0: 0 h1, 2 h1
  rack 1: 1 h2
  tree all: 239.192.0.1, 20 Mbit/s: s1:1-s2:3 s2:1-h1
";
        assert_eq!(describe(&group()), expected);
        assert!(
            describe(&Group { trees: Vec::new(), ..group() })
                .ends_with("no trees: data is sent along chains\n")
        );
    }

    #[test]
    fn an_unknown_rate_is_null_in_json() {
        let document = document(&group());
        assert_eq!(document["host_bytes_per_second"], Value::Null);
        assert_eq!(document["trees"][0]["bytes_per_second"], 2_500_000);
        assert_eq!(document["members"][1]["node"], "h2");
    }
}
