//! What a certificate says of its holder, by names in its subjectAltName (RFC 5280, 4.2.1.6): a role, for an agent perhaps the one
//! node that it may speak for and that node's addresses, for a tool the user in whose name alone it asks, for a switch perhaps its
//! datapath ids.

use cool_types::{check_node_name, check_user_name};
use core::fmt;
use core::net::IpAddr;
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The domain of all names in our certificates. `.internal` belongs to nobody's public DNS.
const DOMAIN: &str = "cool.internal";

/// What a program or device is in a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The controller, for switches, agents and tools alike.
    Controller,
    /// A node's agent.
    Agent,
    /// `cool`, in the hands of an operator or user.
    Tool,
    /// An OpenFlow switch.
    Switch,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Controller, Role::Agent, Role::Tool, Role::Switch];

    /// Its name, which is also the name of its files.
    pub fn name(self) -> &'static str {
        match self {
            Role::Controller => "controller",
            Role::Agent => "agent",
            Role::Tool => "tool",
            Role::Switch => "switch",
        }
    }

    /// The DNS name by which its certificates say so.
    pub fn dns_name(self) -> String {
        format!("{}.{DOMAIN}", self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who holds a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// What it is.
    pub role: Role,
    /// For an agent, the only node that it may register as; for a tool, the only user in whose name it asks. `None`: any.
    pub name: Option<String>,
    /// For an agent, the only addresses that it may register. Empty: any.
    pub addresses: Vec<IpAddr>,
    /// For a switch, the only datapath ids that it may have: several if one program is several switches. Empty: any.
    pub datapaths: Vec<u64>,
}

/// What a name in a certificate says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Name(String),
    Datapath(u64),
}

impl Identity {
    /// Any holder of a role.
    pub fn of(role: Role) -> Identity {
        Identity { role, name: None, addresses: Vec::new(), datapaths: Vec::new() }
    }

    /// The agent of one node, with one of these addresses if there are any.
    pub fn node(name: &str, addresses: Vec<IpAddr>) -> Identity {
        Identity { name: Some(name.to_owned()), addresses, ..Identity::of(Role::Agent) }
    }

    /// The tool of one user.
    pub fn user(name: &str) -> Identity {
        Identity { name: Some(name.to_owned()), ..Identity::of(Role::Tool) }
    }

    /// A switch with one of these datapath ids.
    pub fn switch(datapaths: Vec<u64>) -> Identity {
        Identity { datapaths, ..Identity::of(Role::Switch) }
    }

    /// The DNS names by which its certificate says so.
    pub fn dns_names(&self) -> Vec<String> {
        let role = self.role.dns_name();
        match &self.name {
            Some(name) => vec![format!("{name}.{role}")],
            None if self.datapaths.is_empty() => vec![role],
            None => self.datapaths.iter().map(|datapath| format!("{datapath:016x}.{role}")).collect(),
        }
    }

    fn parse(dns_name: &str) -> Option<(Role, Said)> {
        Role::ALL.into_iter().find_map(|role| {
            let rest = dns_name.strip_suffix(&role.dns_name())?;
            let said = match (rest.strip_suffix('.'), role) {
                (None, _) => rest.is_empty().then_some(Said::Nothing),
                (Some(name), Role::Agent) => {
                    check_node_name(name).is_ok().then(|| Said::Name(name.to_owned()))
                }
                (Some(name), Role::Tool) => {
                    check_user_name(name).is_ok().then(|| Said::Name(name.to_owned()))
                }
                (Some(digits), Role::Switch) => datapath(digits).map(Said::Datapath),
                (Some(_), Role::Controller) => None,
            };
            Some((role, said?))
        })
    }

    /// Whose certificate this is; `None` if it says none of ours, or several. Whether it is genuine is TLS's matter.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Identity> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()??;
        let names = &names.value.general_names;
        let mut said = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Identity::parse(name),
            _ => None,
        });
        let addresses = names.iter().filter_map(|name| match name {
            GeneralName::IPAddress(bytes) => address(bytes),
            _ => None,
        });
        let (role, first) = said.next()?;
        let mut identity = Identity { addresses: addresses.collect(), ..Identity::of(role) };
        match first {
            Said::Nothing => {}
            Said::Name(name) => identity.name = Some(name),
            Said::Datapath(datapath) => identity.datapaths.push(datapath),
        }
        for more in said {
            match more {
                (Role::Switch, Said::Datapath(datapath)) if !identity.datapaths.is_empty() => {
                    identity.datapaths.push(datapath);
                }
                _ => return None,
            }
        }
        Some(identity)
    }
}

/// 16 hexadecimal digits.
fn datapath(digits: &str) -> Option<u64> {
    let whole = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    whole.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// An address as certificates have it: 4 or 16 bytes.
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
    fn a_name_says_a_role_and_perhaps_a_node_user_or_switch_and_others_say_nothing() {
        let parse = |identity: &Identity| Identity::parse(&identity.dns_names()[0]).unwrap();
        for role in Role::ALL {
            assert_eq!(parse(&Identity::of(role)), (role, Said::Nothing));
        }
        let node = Identity::node("r1.h-7_x", Vec::new());
        assert_eq!(parse(&node), (Role::Agent, Said::Name("r1.h-7_x".to_owned())));
        assert_eq!(parse(&Identity::user("ann.b")), (Role::Tool, Said::Name("ann.b".to_owned())));
        assert_eq!(parse(&Identity::switch(vec![0x2a])), (Role::Switch, Said::Datapath(0x2a)));
        for other in ["", "agent", "cool.internal", ".agent.cool.internal", "xagent.cool.internal"] {
            assert_eq!(Identity::parse(other), None, "{other}");
        }
        let nobody = ["h1.controller", "s1.switch", "2a.switch", "0.tool", ".tool", "a b.tool", "..agent"];
        for nobody in nobody {
            assert_eq!(Identity::parse(&format!("{nobody}.cool.internal")), None, "{nobody}");
        }
    }
}
