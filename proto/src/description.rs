//! Compact encoding of a group for its agents.
//!
//! Nodes with names and addresses that count up, and ranks that are placed evenly, need no more
//! bytes than a single node or rank. Only the incarnation and the key of its agent are stored for
//! each node.

use crate::control::{Description, Group, Held, Member, NodeRun, RankRun, Secret, Tree};
use prost::Message;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of ranks of a group, because ranks are numbered with 16 bits.
const RANKS_MAX: usize = u16::MAX as usize;

/// Length of a key, in bytes.
const KEY_BYTES: usize = 32;

/// Maximum number of digits of a number in a name; longer ones do not fit 64 bits.
const DIGITS_MAX: usize = 19;

/// The reasons why a description cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// The bytes are not a description.
    #[error(
        "the controller's description of a group cannot be read: {0}; install the same release everywhere"
    )]
    Unreadable(#[from] prost::DecodeError),
    /// Parts of the description contradict each other.
    #[error("the controller's description of group {group} contradicts itself: {what}")]
    Contradiction {
        /// Number of the group.
        group: u64,
        /// Description of the contradiction.
        what: &'static str,
    },
}

/// A node as encoded in a description.
#[derive(Clone, Debug, PartialEq)]
struct DescribedNode {
    name: String,
    ip: IpAddr,
    rack: u32,
    ports: (u32, u32),
    incarnation: u64,
    key: Option<Secret>,
}

impl Description {
    /// Returns the description of a group, or `None` if the group cannot be described, for example
    /// because its members contradict each other.
    pub fn from_group(group: &Group) -> Option<Description> {
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        let (mut nodes, mut ranks): (Vec<DescribedNode>, Vec<RankRun>) = Default::default();
        for (rank, member) in (0u32..).zip(&group.members) {
            let node = node_of(member)?;
            let number = *numbers.entry(&member.node).or_insert(nodes.len() as u32);
            match nodes.get(number as usize) {
                // The key of a node is in the entry of the node's first rank only.
                Some(known)
                    if *known == (DescribedNode { key: known.key.clone(), ..node.clone() })
                        && node.key.is_none() => {}
                Some(_) => return None,
                None => nodes.push(node),
            }
            if member.rank != rank {
                return None;
            }
            add_rank(&mut ranks, number);
        }
        let keys: Vec<&Secret> = nodes.iter().filter_map(|node| node.key.as_ref()).collect();
        let all_or_none = keys.is_empty() || keys.len() == nodes.len();
        if !all_or_none || keys.iter().any(|key| key.value.len() != KEY_BYTES) {
            return None;
        }
        let first_incarnation = nodes.iter().map(|node| node.incarnation).min()?;
        Some(Description {
            group: Some(without_members(group)),
            ranks: joined(ranks),
            first_incarnation,
            later_incarnations: nodes.iter().map(|node| node.incarnation - first_incarnation).collect(),
            keys: keys.iter().flat_map(|key| key.value.iter().copied()).collect(),
            nodes: runs(&nodes),
        })
    }

    /// Returns the group with its members.
    ///
    /// # Errors
    /// Returns an error if parts of the description contradict each other.
    pub fn group(self) -> Result<Group, DescriptionError> {
        let group = self.group.clone().unwrap_or_default();
        let id = group.id;
        let contradiction = |what| DescriptionError::Contradiction { group: id, what };
        let nodes = self.nodes().map_err(contradiction)?;
        let mut members: Vec<Member> = Vec::new();
        let mut has_key_been_sent = vec![false; nodes.len()];
        for RankRun { node, nodes: count, each } in self.ranks {
            let whole = (node as usize).checked_add(count as usize).filter(|end| *end <= nodes.len());
            whole.ok_or_else(|| contradiction("a rank is on no node of it"))?;
            let more = u64::from(count) * u64::from(each);
            if members.len() as u64 + more > RANKS_MAX as u64 {
                return Err(contradiction("it has too many ranks"));
            }
            for number in (node as usize..).take(count as usize) {
                for _ in 0..each {
                    let is_first = !std::mem::replace(&mut has_key_been_sent[number], true);
                    members.push(member(members.len() as u32, &nodes[number], is_first));
                }
            }
        }
        Ok(Group { members, ..group })
    }

    fn nodes(&self) -> Result<Vec<DescribedNode>, &'static str> {
        let count: u64 = self.nodes.iter().map(|run| u64::from(run.count)).sum();
        if count > RANKS_MAX as u64 {
            return Err("it has too many nodes");
        }
        let count = count as usize;
        if self.later_incarnations.len() != count {
            return Err("not every node has an incarnation");
        }
        if !self.keys.is_empty() && self.keys.len() != count * KEY_BYTES {
            return Err("not every node has a key");
        }
        let mut keys = self.keys.chunks_exact(KEY_BYTES);
        let mut later = self.later_incarnations.iter();
        let mut nodes = Vec::with_capacity(count);
        for run in &self.nodes {
            let first = first_ip(run).ok_or("an address has not 16 bytes")?;
            for at in 0..run.count {
                let ip = counted_up(first, at).ok_or("an address is too large")?;
                let incarnation = later.next().and_then(|later| self.first_incarnation.checked_add(*later));
                nodes.push(DescribedNode {
                    name: name(run, at).ok_or("a number in a name is too large")?,
                    ip,
                    rack: run.rack,
                    ports: (run.udp_port, run.tcp_port),
                    incarnation: incarnation.ok_or("an incarnation is too large")?,
                    key: keys.next().map(|key| Secret { value: key.to_vec() }),
                });
            }
        }
        Ok(nodes)
    }
}

/// A group in the form in which the controller sends it to a node, and the node reports it.
#[derive(Clone, Debug, PartialEq)]
pub enum WireGroup {
    /// All fields of the group.
    Whole(Group),
    /// The compact description of the group.
    Described(Description),
}

impl WireGroup {
    /// Removes the group from a node's report, and returns it. Returns `None` if the report
    /// contains no group.
    ///
    /// # Errors
    /// Returns an error if the description cannot be decoded.
    pub fn from_held(held: &mut Held) -> Result<Option<WireGroup>, DescriptionError> {
        if let Some(group) = held.group.take() {
            return Ok(Some(WireGroup::Whole(group)));
        }
        let described = !held.description.is_empty();
        Ok(described
            .then(|| Description::decode(held.description.clone()))
            .transpose()?
            .map(WireGroup::Described))
    }

    /// Returns the numbers of the group and of its job.
    pub fn numbers(&self) -> (u64, u64) {
        let group = match self {
            WireGroup::Whole(group) => Some(group),
            WireGroup::Described(description) => description.group.as_ref(),
        };
        group.map_or((0, 0), |group| (group.id, group.job))
    }

    /// Returns the group.
    ///
    /// # Errors
    /// Returns an error if its description contradicts itself.
    pub fn group(self) -> Result<Group, DescriptionError> {
        match self {
            WireGroup::Whole(group) => Ok(group),
            WireGroup::Described(description) => description.group(),
        }
    }
}

/// Returns the group without its members, which are encoded separately.
fn without_members(group: &Group) -> Group {
    let Group {
        id,
        epoch,
        chunk_bytes,
        host_bytes_per_second,
        uplink_bytes_per_second,
        job,
        encrypted,
        on_demand,
        quick,
        probe_quick,
        connections_per_hop,
        quick_datagram_bytes,
        ..
    } = *group;
    Group {
        id,
        epoch,
        members: Vec::new(),
        trees: trees(group),
        chunk_bytes,
        host_bytes_per_second,
        uplink_bytes_per_second,
        job,
        cost_model: group.cost_model.clone(),
        key: group.key.clone(),
        encrypted,
        on_demand,
        quick,
        probe_quick,
        connections_per_hop,
        quick_datagram_bytes,
    }
}

/// Returns the trees without the names of their links, because agents do not use them.
fn trees(group: &Group) -> Vec<Tree> {
    group
        .trees
        .iter()
        .map(|tree| Tree { links: Vec::new(), address: tree.address.clone(), ..*tree })
        .collect()
}

fn node_of(member: &Member) -> Option<DescribedNode> {
    Some(DescribedNode {
        name: member.node.clone(),
        ip: member.ip.parse().ok()?,
        rack: member.rack,
        ports: (member.udp_port, member.tcp_port),
        incarnation: member.incarnation,
        key: member.key.clone(),
    })
}

fn member(rank: u32, node: &DescribedNode, is_first: bool) -> Member {
    Member {
        rank,
        node: node.name.clone(),
        rack: node.rack,
        ip: node.ip.to_string(),
        udp_port: node.ports.0,
        tcp_port: node.ports.1,
        incarnation: node.incarnation,
        key: node.key.clone().filter(|_| is_first),
    }
}

/// Adds the next rank, which is on `node`.
fn add_rank(runs: &mut Vec<RankRun>, node: u32) {
    match runs.last_mut() {
        Some(last) if last.node == node => last.each += 1,
        _ => runs.push(RankRun { node, nodes: 1, each: 1 }),
    }
}

/// Merges runs of consecutive nodes with the same number of ranks.
fn joined(runs: Vec<RankRun>) -> Vec<RankRun> {
    let mut joined: Vec<RankRun> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.each == run.each && last.node + last.nodes == run.node => last.nodes += 1,
            _ => joined.push(run),
        }
    }
    joined
}

/// Groups consecutive nodes into runs.
fn runs(nodes: &[DescribedNode]) -> Vec<NodeRun> {
    let mut runs: Vec<NodeRun> = Vec::new();
    for node in nodes {
        let one = run_of_one(node);
        match runs.last_mut() {
            Some(last) if follows(last, node, &one) => last.count += 1,
            _ => runs.push(one),
        }
    }
    runs
}

/// Returns a run that consists of one node.
fn run_of_one(node: &DescribedNode) -> NodeRun {
    let (before, number, digits, after) = split_name(&node.name);
    let (ip, ipv6) = match node.ip {
        IpAddr::V4(ip) => (ip.to_bits(), Vec::new()),
        IpAddr::V6(ip) => (0, ip.octets().to_vec()),
    };
    NodeRun {
        count: 1,
        before: before.to_owned(),
        number,
        digits,
        after: after.to_owned(),
        ip,
        rack: node.rack,
        udp_port: node.ports.0,
        tcp_port: node.ports.1,
        ipv6,
    }
}

/// Returns the address of the first node of a run.
fn first_ip(run: &NodeRun) -> Option<IpAddr> {
    match run.ipv6.as_slice() {
        [] => Some(Ipv4Addr::from_bits(run.ip).into()),
        octets => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
    }
}

/// Returns the address that is `by` addresses after `ip`, or `None` if there is none.
fn counted_up(ip: IpAddr, by: u32) -> Option<IpAddr> {
    Some(match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().checked_add(by)?).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().checked_add(by.into())?).into(),
    })
}

/// Returns whether a node continues a run; `one` is the run of the node alone.
fn follows(run: &NodeRun, node: &DescribedNode, one: &NodeRun) -> bool {
    let alike = |run: &NodeRun| (run.rack, run.udp_port, run.tcp_port);
    alike(run) == alike(one)
        && first_ip(run).and_then(|first| counted_up(first, run.count)) == Some(node.ip)
        && name(run, run.count).is_some_and(|name| name == node.name)
}

/// Splits a name around the last number before its domain. Returns the text before it, the number,
/// its number of digits, and the text after it.
fn split_name(name: &str) -> (&str, u64, u32, &str) {
    let host = name.split('.').next().unwrap_or(name);
    let end = host.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
    let from = host[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    match name[from..end].parse() {
        Ok(number) if end - from <= DIGITS_MAX => (&name[..from], number, (end - from) as u32, &name[end..]),
        _ => (name, 0, 0, ""),
    }
}

/// Returns the name of the node with index `at` of a run, or `None` if its number would be too
/// large. A run of names without a number has only one node.
fn name(run: &NodeRun, at: u32) -> Option<String> {
    let NodeRun { before, after, number, digits, .. } = run;
    if *digits == 0 {
        return (at == 0).then(|| before.clone());
    }
    let number = number.checked_add(at.into())?;
    let digits = (*digits as usize).min(DIGITS_MAX);
    Some(format!("{before}{number:0digits$}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tree;
    use proptest::prelude::*;

    fn group(members: Vec<Member>) -> Group {
        let tree = Tree { address: "239.192.0.1".into(), port: 7420, ..Tree::default() };
        Group {
            id: 7,
            epoch: 1,
            members,
            trees: vec![Tree { scope: tree::Scope::Rack.into(), rack: 3, ..tree.clone() }, tree],
            chunk_bytes: 1400,
            host_bytes_per_second: 5,
            uplink_bytes_per_second: 6,
            job: 8,
            cost_model: "{}".into(),
            key: Some(Secret { value: vec![9; KEY_BYTES] }),
            encrypted: true,
            on_demand: true,
            quick: false,
            probe_quick: true,
            quick_datagram_bytes: 1472,
            connections_per_hop: 8,
        }
    }

    /// Returns the members of a group with one rank on each of `nodes`, which are indexes of
    /// `names`.
    fn members(names: &[String], nodes: &[usize], keys: bool) -> Vec<Member> {
        let mut seen = std::collections::BTreeSet::new();
        let mut member = |(rank, node): (u32, usize)| {
            let number = node as u32;
            let name = &names[node];
            Member {
                rank,
                node: name.clone(),
                rack: number / 4,
                ip: Ipv4Addr::from_bits(0x0a00_0001 + number).to_string(),
                udp_port: 7420,
                tcp_port: 7421,
                incarnation: 1_795_000_000_000_000_000 + u64::from(number * 7919 % 64),
                key: (seen.insert(node) && keys).then(|| Secret { value: vec![number as u8; KEY_BYTES] }),
            }
        };
        (0..).zip(nodes.iter().copied()).map(&mut member).collect()
    }

    fn names(count: usize, name: impl Fn(usize) -> String) -> Vec<String> {
        (0..count).map(name).collect()
    }

    fn and_back(group: &Group) -> Group {
        let bytes = Description::from_group(group).unwrap().encode_to_vec();
        Description::decode(bytes.as_slice()).unwrap().group().unwrap()
    }

    #[test]
    fn consecutive_nodes_and_even_ranks_are_encoded_as_runs() {
        let spread: Vec<usize> = (0..2).flat_map(|_| (0..100).flat_map(|node| [node; 3])).collect();
        for name in
            [|n| format!("h{}", n + 1), |n| format!("rack7-node{n:04}.cluster2.example"), |n| format!("{n}")]
        {
            let group = group(members(&names(100, name), &spread, false));
            let description = Description::from_group(&group).unwrap();
            // One run for each rack.
            assert_eq!((description.nodes.len(), description.ranks.len()), (25, 2));
            assert_eq!(and_back(&group), group);
        }
    }

    #[test]
    fn addresses_of_ipv6_count_up_like_those_of_ipv4() {
        let at = |ip: &dyn Fn(u32) -> String| {
            let mut members = members(&names(8, |n| format!("h{n}")), &(0..8).collect::<Vec<_>>(), false);
            (0..).zip(&mut members).for_each(|(number, member)| member.ip = ip(number));
            let group = group(members);
            assert_eq!(and_back(&group), group);
            let description = Description::from_group(&group).unwrap();
            (description.nodes.len(), description)
        };
        let (racks, mut description) =
            at(&|n| Ipv6Addr::from_bits((0xfd00 << 112) + 0xffff_fffe + u128::from(n)).to_string());
        assert_eq!(racks, 2);
        assert_eq!(at(&|n| Ipv6Addr::from_bits((0xfd00 << 112) + u128::from(n * n)).to_string()).0, 7);
        description.nodes[0].ipv6.pop();
        assert!(description.clone().group().unwrap_err().to_string().contains("has not 16 bytes"));
        description.nodes[0].ipv6 = vec![0xff; 16];
        assert!(description.group().unwrap_err().to_string().contains("an address is too large"));
    }

    #[test]
    fn names_whose_numbers_do_not_count_up_stay_as_they_are() {
        for name in
            [|n: usize| "x".repeat(n + 1), |n| format!("a{}", 3 * n), |n| format!("{n}{}", "9".repeat(30))]
        {
            let group = group(members(&names(40, name), &(0..40).collect::<Vec<_>>(), true));
            assert_eq!(and_back(&group), group);
        }
        let odd = ["n099", "n100", "n0101", "n102", "n", "18446744073709551615", "09"].map(str::to_owned);
        let group = group(members(&odd, &[0, 1, 2, 3, 4, 5, 6], false));
        assert_eq!(and_back(&group), group);
    }

    #[test]
    fn a_group_with_contradicting_members_has_no_description() {
        let good = members(&names(3, |n| format!("h{n}")), &[0, 1, 1, 2], true);
        let contradiction = |change: fn(&mut Vec<Member>)| {
            let mut members = good.clone();
            change(&mut members);
            Description::from_group(&group(members)).is_none()
        };
        assert!(!contradiction(|_| ()));
        assert!(contradiction(|members| members[2].rack = 9));
        assert!(contradiction(|members| members[2].rank = 9));
        assert!(contradiction(|members| members[3].key = None));
        assert!(contradiction(|members| members[0].ip = "10.0.0".into()));
        assert!(contradiction(|members| members[1].ip = "fd00::1".into()));
        assert!(contradiction(Vec::clear));
    }

    #[test]
    fn a_description_that_contradicts_itself_is_refused_in_words() {
        let good =
            Description::from_group(&group(members(&names(3, |n| format!("h{n}")), &[0, 1, 1, 2], true)))
                .unwrap();
        let error = |change: fn(&mut Description)| {
            let mut description = good.clone();
            change(&mut description);
            description.group().unwrap_err().to_string()
        };
        assert!(error(|d| d.ranks[0].node = 9).contains("group 7 contradicts itself: a rank is on no node"));
        assert!(error(|d| d.ranks[0].nodes = u32::MAX).contains("a rank is on no node"));
        assert!(error(|d| d.ranks[0].each = u32::MAX).contains("too many ranks"));
        assert!(error(|d| d.nodes[0].count = u32::MAX).contains("too many nodes"));
        assert!(error(|d| d.nodes[0].count += 1).contains("not every node has an incarnation"));
        assert!(error(|d| d.nodes[0].ip = u32::MAX).contains("an address is too large"));
        assert!(error(|d| d.nodes[0].number = u64::MAX).contains("a number in a name is too large"));
        assert!(error(|d| d.first_incarnation = u64::MAX).contains("an incarnation is too large"));
        assert!(error(|d| d.keys.truncate(33)).contains("not every node has a key"));
    }

    proptest! {
        #[test]
        fn any_group_survives_encoding_as_a_description(
            names in prop::collection::btree_set("[a-b]{0,1}[0-1]{0,3}[a.]{0,1}[0-9]{0,1}", 1..20),
            nodes in prop::collection::vec(0usize..20, 1..60),
            keys: bool,
        ) {
            let names: Vec<String> = names.into_iter().collect();
            let nodes: Vec<usize> = nodes.into_iter().map(|node| node % names.len()).collect();
            let group = group(members(&names, &nodes, keys));
            prop_assert_eq!(and_back(&group), group);
        }
    }
}
