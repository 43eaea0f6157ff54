//! What a certificate says of its holder: a role, for an agent perhaps the one node that it may speak for, and for a tool the
//! user in whose name alone it asks.

use cool_types::{check_node_name, check_user_name};
use core::fmt;
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
}

impl Identity {
    /// Any holder of a role.
    pub fn of(role: Role) -> Identity {
        Identity { role, name: None }
    }

    /// The agent of one node.
    pub fn node(name: &str) -> Identity {
        Identity { role: Role::Agent, name: Some(name.to_owned()) }
    }

    /// The tool of one user.
    pub fn user(name: &str) -> Identity {
        Identity { role: Role::Tool, name: Some(name.to_owned()) }
    }

    /// The DNS name by which its certificate says so.
    pub fn dns_name(&self) -> String {
        match &self.name {
            Some(name) => format!("{name}.{}", self.role.dns_name()),
            None => self.role.dns_name(),
        }
    }

    fn parse(dns_name: &str) -> Option<Identity> {
        Role::ALL.into_iter().find_map(|role| {
            let rest = dns_name.strip_suffix(&role.dns_name())?;
            match rest.strip_suffix('.') {
                None => rest.is_empty().then(|| Identity::of(role)),
                Some(name) => {
                    let is_name = match role {
                        Role::Agent => check_node_name(name).is_ok(),
                        Role::Tool => check_user_name(name).is_ok(),
                        Role::Controller | Role::Switch => false,
                    };
                    is_name.then(|| Identity { role, name: Some(name.to_owned()) })
                }
            }
        })
    }

    /// Whose certificate this is; `None` if it says none of ours. Whether it is genuine is TLS's matter.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Identity> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()??;
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::DNSName(name) => Identity::parse(name),
            _ => None,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(node) if self.role == Role::Agent => write!(f, "{} of node {node}", self.role),
            Some(user) => write!(f, "{} of user {user}", self.role),
            None => write!(f, "{}", self.role),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_a_role_and_perhaps_a_node_or_user_and_others_say_nothing() {
        let named = [Identity::node("r1.h-7_x"), Identity::user("ann.b")];
        for identity in [Identity::of(Role::Tool), Identity::of(Role::Agent)].into_iter().chain(named) {
            assert_eq!(Identity::parse(&identity.dns_name()), Some(identity));
        }
        for other in ["", "agent", "cool.internal", ".agent.cool.internal", "xagent.cool.internal"] {
            assert_eq!(Identity::parse(other), None, "{other}");
        }
        for nobody in ["h1.controller", "s1.switch", "0.tool", ".tool", "a b.tool", "..agent"] {
            assert_eq!(Identity::parse(&format!("{nobody}.cool.internal")), None, "{nobody}");
        }
    }
}
