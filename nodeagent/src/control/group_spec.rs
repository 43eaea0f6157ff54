//! Converts the controller's description of a group for the engine.

use crate::engine::{GroupKey, GroupSpec, MemberSpec, TreeScope, TreeSpec};
use cool_collective::CostModel;
use cool_proto::control::{Group, Member, Secret, Tree, tree::Scope};
use cool_quick::PART_DATAGRAM_BYTES_MIN;
use cool_transport::tagged::Protection;
use cool_transport::unicast::handshake::STREAMS_MAX;
use cool_types::Key;
use std::net::IpAddr;

/// Maximum number of uplinks of a rack. A switch has no more ports.
const ECMP_PATHS_MAX: u32 = 65_535;

/// Converts a group. An error states which of its fields is invalid.
pub(super) fn convert(group: Group) -> Result<GroupSpec, String> {
    let ip = |text: &str| text.parse::<IpAddr>().map_err(|_| format!("{text:?} is not an IP address"));
    let port = |port: u32| u16::try_from(port).map_err(|_| format!("{port} is not a port"));
    let member = |m: Member| {
        Ok::<_, String>(MemberSpec {
            ip: ip(&m.ip)?,
            udp_port: port(m.udp_port)?,
            tcp_port: port(m.tcp_port)?,
            rank: m.rank,
            node: m.node,
            incarnation: m.incarnation,
            rack: m.rack,
            key: m.key.map(key).transpose()?,
        })
    };
    let tree = |t: Tree| {
        let scope = match t.scope() {
            Scope::All => TreeScope::All,
            Scope::Leaders => TreeScope::Leaders,
            Scope::Rack => TreeScope::Rack(t.rack),
            Scope::Unspecified => return Err(format!("the tree {} has no known scope", t.address)),
        };
        let (address, port) = (ip(&t.address)?, port(t.port)?);
        Ok(TreeSpec { scope, address, port, bytes_per_second: t.bytes_per_second })
    };
    let protection = if group.encrypted { Protection::Encrypted } else { Protection::Tagged };
    Ok(GroupSpec {
        id: group.id,
        epoch: group.epoch,
        members: group.members.into_iter().map(member).collect::<Result<_, _>>()?,
        trees: group.trees.into_iter().map(tree).collect::<Result<_, _>>()?,
        chunk_bytes: group.chunk_bytes,
        host_bytes_per_second: group.host_bytes_per_second,
        cost_model: cost_model(&group.cost_model)?,
        on_demand: group.on_demand,
        quick: group.quick,
        probe_quick: group.probe_quick,
        quick_datagram_bytes: quick_datagram_bytes(group.quick_datagram_bytes)?,
        connections_per_hop: connections_per_hop(group.connections_per_hop)?,
        keyed: group.key.map(key).transpose()?.map(|key| GroupKey { key, protection }),
    })
}

fn quick_datagram_bytes(bytes: u32) -> Result<u16, String> {
    let is_valid = |bytes: &u16| *bytes == 0 || usize::from(*bytes) >= PART_DATAGRAM_BYTES_MIN;
    let bytes = u16::try_from(bytes).ok().filter(is_valid);
    bytes.ok_or_else(|| "the datagrams of its quick calls have an impossible length".to_owned())
}

fn connections_per_hop(count: u32) -> Result<u8, String> {
    let count = u8::try_from(count).ok().filter(|count| *count <= STREAMS_MAX);
    count.ok_or_else(|| format!("it has more than {STREAMS_MAX} connections between two agents"))
}

fn key(secret: Secret) -> Result<Key, String> {
    let bytes: Result<[u8; 32], _> = secret.value.try_into();
    bytes.map(Key::from).map_err(|bytes| format!("a key in it has {} bytes in place of 32", bytes.len()))
}

fn cost_model(text: &str) -> Result<CostModel, String> {
    let model: CostModel = serde_json::from_str(text).map_err(|e| format!("its cost model {text:?}: {e}"))?;
    match model.ecmp_paths {
        0..=ECMP_PATHS_MAX => Ok(model),
        paths => Err(format!(
            "its cost model has {paths} uplinks of a rack; at most {ECMP_PATHS_MAX} are possible"
        )),
    }
}
