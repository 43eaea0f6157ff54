//! The identity in a certificate.
//!
//! It is encoded as names in the subjectAltName extension (RFC 5280, 4.2.1.6). Each certificate
//! names a role. In addition, an agent's certificate may name the one node that it may register and
//! that node's addresses, a tool's certificate the one user for which it acts, and a switch's
//! certificate its datapath ids.

use cool_types::{check_node_name, check_user_name};
use core::fmt;
use core::net::IpAddr;
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Domain of all names in the certificates. `.internal` is reserved for private use, so these names
/// never conflict with public DNS.
const DOMAIN: &str = "cool.internal";

/// The role of a program or device in a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The controller, which serves switches, agents and tools.
    Controller,
    /// The agent of a node.
    Agent,
    /// The program `cool`, run by an operator or a user.
    Tool,
    /// An OpenFlow switch.
    Switch,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Controller, Role::Agent, Role::Tool, Role::Switch];

    /// Returns the role's name, which is also the name of its files.
    pub fn name(self) -> &'static str {
        match self {
            Role::Controller => "controller",
            Role::Agent => "agent",
            Role::Tool => "tool",
            Role::Switch => "switch",
        }
    }

    /// Returns the DNS name that stands for this role in certificates.
    pub fn dns_name(self) -> String {
        format!("{}.{DOMAIN}", self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The holder of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The holder's role.
    pub role: Role,
    /// For an agent, the only node that it may register. For a tool, the only user for which it may
    /// act. `None` permits any.
    pub name: Option<String>,
    /// For an agent, the only addresses that it may register. An empty list permits any.
    pub addresses: Vec<IpAddr>,
    /// For a switch, the only datapath ids that it may have. One program may run several switches.
    /// An empty list permits any.
    pub datapaths: Vec<u64>,
}

/// Information in one DNS name of a certificate.
#[derive(Debug, PartialEq, Eq)]
enum NameClaim {
    RoleOnly,
    Name(String),
    Datapath(u64),
}

impl Identity {
    /// Returns the identity of any holder of a role.
    pub fn for_role(role: Role) -> Identity {
        Identity { role, name: None, addresses: Vec::new(), datapaths: Vec::new() }
    }

    /// Returns the identity of one node's agent. If `addresses` is not empty, the node must
    /// register one of them.
    pub fn node(name: &str, addresses: Vec<IpAddr>) -> Identity {
        Identity { name: Some(name.to_owned()), addresses, ..Identity::for_role(Role::Agent) }
    }

    /// Returns the identity of one user's tools.
    pub fn user(name: &str) -> Identity {
        Identity { name: Some(name.to_owned()), ..Identity::for_role(Role::Tool) }
    }

    /// Returns the identity of a switch with one of these datapath ids.
    pub fn switch(datapaths: Vec<u64>) -> Identity {
        Identity { datapaths, ..Identity::for_role(Role::Switch) }
    }

    /// Returns the DNS names that encode this identity.
    pub fn dns_names(&self) -> Vec<String> {
        let role = self.role.dns_name();
        match &self.name {
            Some(name) => vec![format!("{name}.{role}")],
            None if self.datapaths.is_empty() => vec![role],
            None => self.datapaths.iter().map(|datapath| format!("{datapath:016x}.{role}")).collect(),
        }
    }

    fn parse(dns_name: &str) -> Option<(Role, NameClaim)> {
        Role::ALL.into_iter().find_map(|role| {
            let rest = dns_name.strip_suffix(&role.dns_name())?;
            let claim = match (rest.strip_suffix('.'), role) {
                (None, _) => rest.is_empty().then_some(NameClaim::RoleOnly),
                (Some(name), Role::Agent) => {
                    check_node_name(name).is_ok().then(|| NameClaim::Name(name.to_owned()))
                }
                (Some(name), Role::Tool) => {
                    check_user_name(name).is_ok().then(|| NameClaim::Name(name.to_owned()))
                }
                (Some(digits), Role::Switch) => datapath(digits).map(NameClaim::Datapath),
                (Some(_), Role::Controller) => None,
            };
            Some((role, claim?))
        })
    }

    /// Reads the identity in a certificate. Returns `None` if it names no role of ours, or more
    /// than one. The caller must have verified the certificate by TLS.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Identity> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()??;
        let names = &names.value.general_names;
        let mut claims = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Identity::parse(name),
            _ => None,
        });
        let addresses = names.iter().filter_map(|name| match name {
            GeneralName::IPAddress(bytes) => address(bytes),
            _ => None,
        });
        let (role, first) = claims.next()?;
        let mut identity = Identity { addresses: addresses.collect(), ..Identity::for_role(role) };
        match first {
            NameClaim::RoleOnly => {}
            NameClaim::Name(name) => identity.name = Some(name),
            NameClaim::Datapath(datapath) => identity.datapaths.push(datapath),
        }
        for more in claims {
            match more {
                (Role::Switch, NameClaim::Datapath(datapath)) if !identity.datapaths.is_empty() => {
                    identity.datapaths.push(datapath);
                }
                _ => return None,
            }
        }
        Some(identity)
    }
}

/// Parses a datapath id of 16 hexadecimal digits.
fn datapath(digits: &str) -> Option<u64> {
    let whole = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    whole.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Parses an address as encoded in certificates: 4 or 16 bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(node) if self.role == Role::Agent => write!(f, "{} of node {node}", self.role)?,
            Some(user) => write!(f, "{} of user {user}", self.role)?,
            None => write!(f, "{}", self.role)?,
        }
        for (at, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if at == 0 { " at " } else { ", " })?;
        }
        for (at, datapath) in self.datapaths.iter().enumerate() {
            write!(f, "{}{datapath:016x}", if at == 0 { " " } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_a_role_and_perhaps_a_node_user_or_switch() {
        let parse = |identity: &Identity| Identity::parse(&identity.dns_names()[0]).unwrap();
        for role in Role::ALL {
            assert_eq!(parse(&Identity::for_role(role)), (role, NameClaim::RoleOnly));
        }
        let node = Identity::node("r1.h-7_x", Vec::new());
        assert_eq!(parse(&node), (Role::Agent, NameClaim::Name("r1.h-7_x".to_owned())));
        assert_eq!(parse(&Identity::user("ann.b")), (Role::Tool, NameClaim::Name("ann.b".to_owned())));
        assert_eq!(parse(&Identity::switch(vec![0x2a])), (Role::Switch, NameClaim::Datapath(0x2a)));
        for other in ["", "agent", "cool.internal", ".agent.cool.internal", "xagent.cool.internal"] {
            assert_eq!(Identity::parse(other), None, "{other}");
        }
        let invalid_names =
            ["h1.controller", "s1.switch", "2a.switch", "0.tool", ".tool", "a b.tool", "..agent"];
        for invalid in invalid_names {
            assert_eq!(Identity::parse(&format!("{invalid}.cool.internal")), None, "{invalid}");
        }
    }
}
