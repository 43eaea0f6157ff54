//! The registration of a node by its agent.

use crate::costs::AgentSpeed;
use cool_fabric::LldpNeighbor;
use cool_proto::control::{self, Register};
use cool_proto::{VersionError, check_version, features};
use cool_topology::{Key, MacAddr};
use cool_types::{NODE_NAME_MAX, NODE_NAME_RULE, check_node_name};
use std::net::IpAddr;

/// Minimum MTU, which every IPv4 network supports (RFC 791).
const MIN_MTU: u32 = 576;

/// A node as registered by its agent. All values have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredAgent {
    /// The node's name.
    pub name: String,
    /// Distinguishes successive agents of a node. A later agent has a larger number.
    pub incarnation: u64,
    /// Address on the data network.
    pub ip: IpAddr,
    /// MAC address of the data interface.
    pub mac: MacAddr,
    /// MTU of the data interface, in bytes.
    pub mtu: u32,
    /// UDP port for multicast and repair.
    pub udp_port: u16,
    /// TCP port for unicast messages.
    pub tcp_port: u16,
    /// Maximum number of ranks at a time.
    pub slots: u32,
    /// TCP port on which the agent responds to probes.
    pub probe_port: u16,
    /// Version of the protocol that the agent speaks.
    pub version: u32,
    /// Optional features that the agent supports: bits of [`features`].
    pub features: u64,
    /// Key of the agent, shared with the agents of its groups.
    pub key: Option<Key>,
    /// Name of the node's rack, if the operator has given one.
    pub rack: Option<String>,
    /// The switch port to which the node is connected, if its switch announces that.
    pub neighbor: Option<LldpNeighbor>,
    /// The costs of the agent's work, if the agent has measured them.
    pub speed: Option<AgentSpeed>,
}

impl RegisteredAgent {
    /// Returns whether the agent supports all of these features.
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Returns whether `other` is a later registration of the same run of this agent. Its neighbor
    /// may have changed, because the agent receives LLDP only some time after it has started.
    pub fn is_same_run(&self, other: &RegisteredAgent) -> bool {
        *self == RegisteredAgent { neighbor: self.neighbor.clone(), ..other.clone() }
    }
}

/// Why an agent is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The agent speaks an unsupported version.
    #[error("agent {name:?} {why}")]
    Version {
        /// The node's name.
        name: String,
        /// The difference.
        why: VersionError,
    },
    /// A value of the registration is invalid.
    #[error("agent {name:?} registers {field} {value:?}: {requirement}")]
    Invalid {
        /// The node's name.
        name: String,
        /// The name of the value.
        field: &'static str,
        /// The value.
        value: String,
        /// The requirement that it does not meet.
        requirement: &'static str,
    },
    /// Another agent is connected under this name.
    #[error(
        "an agent named {name:?} is already connected; give each node its own --name, or stop the other agent"
    )]
    Taken {
        /// The name.
        name: String,
    },
    /// The controller is shutting down.
    #[error("the controller is shutting down")]
    Closed,
}

impl TryFrom<Register> for RegisteredAgent {
    type Error = AdmitError;

    fn try_from(register: Register) -> Result<RegisteredAgent, AdmitError> {
        let name = register.name;
        if let Err(why) = check_version(register.version) {
            return Err(AdmitError::Version { name, why });
        }
        let invalid = |field, value: &dyn ToString, requirement| AdmitError::Invalid {
            name: name.chars().take(NODE_NAME_MAX).collect(),
            field,
            value: value.to_string().chars().take(NODE_NAME_MAX).collect(),
            requirement,
        };
        check_node_name(&name).map_err(|_| invalid("name", &name, NODE_NAME_RULE))?;
        let ip = register
            .ip
            .parse()
            .map_err(|_| invalid("IP address", &register.ip, "it must be an IPv4 or IPv6 address"))?;
        let mac = register
            .mac
            .parse()
            .map_err(|_| invalid("MAC address", &register.mac, "write it as 02:00:00:00:00:01"))?;
        if register.mtu < MIN_MTU {
            return Err(invalid("MTU", &register.mtu, "it must be at least 576 bytes"));
        }
        if register.slots == 0 {
            return Err(invalid("slots", &0, "a node must take at least one rank"));
        }
        let port = |field, value: u32| match u16::try_from(value) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(invalid(field, &value, "a port must be 1 to 65535")),
        };
        let udp_port = port("UDP port", register.udp_port)?;
        let tcp_port = port("TCP port", register.tcp_port)?;
        let probe_port = port("probe port", register.probe_port)?;
        let key = register.key.map(|secret| <[u8; 32]>::try_from(secret.value).map(Key::from)).transpose();
        let key = key.map_err(|bytes| invalid("key length", &bytes.len(), "it must have 32 bytes"))?;
        if register.features & features::TAGS != 0 && key.is_none() {
            return Err(invalid("features", &register.features, "tags require a key"));
        }
        let rack = Some(register.rack).filter(|rack| !rack.is_empty());
        if let Some(rack) = rack.as_ref().filter(|rack| check_node_name(rack).is_err()) {
            return Err(invalid("rack", rack, NODE_NAME_RULE));
        }
        let neighbor = parse_neighbor(register.neighbor);
        let neighbor = neighbor.map_err(|why| invalid("neighbor", &"by LLDP", why))?;
        let speed = register.cpu.map(AgentSpeed::try_from).transpose();
        let speed = speed.map_err(|why| invalid("costs", &"of its CPU", why))?;
        let Register { version, incarnation, mtu, slots, features, .. } = register;
        Ok(RegisteredAgent {
            name,
            incarnation,
            ip,
            mac,
            mtu,
            udp_port,
            tcp_port,
            slots,
            probe_port,
            version,
            features,
            key,
            rack,
            neighbor,
            speed,
        })
    }
}

/// Returns the neighbor that an agent reports.
///
/// # Errors
/// Returns the violated rule if a text is invalid.
pub(crate) fn parse_neighbor(
    reported: Option<control::LldpNeighbor>,
) -> Result<Option<LldpNeighbor>, &'static str> {
    let neighbor = reported.map(|control::LldpNeighbor { chassis, port, system_name }| {
        let system_name = Some(system_name).filter(|name| !name.is_empty());
        LldpNeighbor { chassis, port, system_name }
    });
    match neighbor {
        Some(neighbor) if !neighbor.is_valid() => Err("its texts must be short printable ASCII"),
        neighbor => Ok(neighbor),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn register(name: &str) -> Register {
        Register {
            version: cool_proto::VERSION,
            name: name.into(),
            ip: "10.0.0.1".into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: 1500,
            udp_port: 7420,
            tcp_port: 7420,
            slots: 2,
            held: Vec::new(),
            probe_port: 7421,
            incarnation: 1,
            ..Register::default()
        }
    }

    fn refusal(register: Register) -> String {
        RegisteredAgent::try_from(register).unwrap_err().to_string()
    }

    #[test]
    fn an_invalid_registration_is_refused_with_a_reason() {
        assert!(RegisteredAgent::try_from(register("h1")).is_ok());
        let r = refusal(Register { version: 99, ..register("h1") });
        assert!(r.contains("\"h1\"") && r.contains("version 99"), "{r}");
        assert!(refusal(register("h 1")).contains("registers name"));
        assert!(refusal(register("")).contains("registers name"));
        assert!(refusal(Register { ip: "10.0.0".into(), ..register("h1") }).contains("\"10.0.0\""));
        assert!(RegisteredAgent::try_from(Register { ip: "fd00::1".into(), ..register("h1") }).is_ok());
        assert!(refusal(Register { mac: "x".into(), ..register("h1") }).contains("MAC"));
        assert!(refusal(Register { mtu: 68, ..register("h1") }).contains("576"));
        assert!(refusal(Register { udp_port: 0, ..register("h1") }).contains("UDP port"));
        assert!(refusal(Register { tcp_port: 65536, ..register("h1") }).contains("TCP port"));
        assert!(refusal(Register { features: features::TAGS, ..register("h1") }).contains("a key"));
        assert!(refusal(Register { probe_port: 0, ..register("h1") }).contains("probe port"));
        let neighbor = |chassis: &str| {
            let (chassis, port) = (chassis.to_owned(), "Ethernet1".to_owned());
            Some(control::LldpNeighbor { chassis, port, system_name: String::new() })
        };
        let valid = Register { neighbor: neighbor("02:00:00:00:00:01"), ..register("h1") };
        assert_eq!(RegisteredAgent::try_from(valid).unwrap().neighbor.unwrap().system_name, None);
        let invalid = Register { neighbor: neighbor("\x1b[2J"), ..register("h1") };
        assert!(refusal(invalid).contains("printable ASCII"));
        let cpu = Some(control::CpuCosts::default());
        assert!(refusal(Register { cpu, ..register("h1") }).contains("at least one CPU"));
    }
}
