//! Who asks, and what is theirs to ask: operators may do everything, users run jobs as themselves, and see and end no other's.
//!
//! Who asks is what the certificate says. Without TLS nobody is known: everybody is an operator, and names are taken as said.

use cool_daemon::listen::Client;
use cool_tls::{Identity, Role};
use cool_types::check_user_name;
use std::fmt;
use std::net::IpAddr;
use tonic::{Request, Status};
use tracing::{info, warn};

/// Who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// From where, and who it proved to be; `None` for a call that came over no connection of ours.
    client: Option<Client>,
}

impl Asker {
    /// Who calls, if it has this role.
    ///
    /// # Errors
    /// If its certificate says another.
    pub fn of<T>(request: &Request<T>, role: Role) -> Result<Asker, Status> {
        let asker = Asker { client: request.extensions().get::<Client>().cloned() };
        match asker.identity() {
            Some(identity) if identity.role != role => {
                let why = format!("this is for certificates of {role}, not of {}", identity.role);
                warn!(why, "call refused");
                Err(Status::permission_denied(why))
            }
            _ => Ok(asker),
        }
    }

    fn identity(&self) -> Option<&Identity> {
        self.client.as_ref()?.identity.as_ref()
    }

    /// The only node for which this agent may speak, or the only user in whose name this tool asks.
    pub fn name(&self) -> Option<&str> {
        self.identity()?.name.as_deref()
    }

    /// Whether an agent may register a node of this name with this address. If `bound`, its certificate must say which node it is.
    ///
    /// # Errors
    /// If not.
    pub fn check_node(&self, name: &str, address: IpAddr, bound: bool) -> Result<(), Status> {
        let Some(identity) = self.identity() else { return Ok(()) };
        let why = match &identity.name {
            Some(node) if node != name => {
                format!("the certificate is for node {node}, the agent registers {name}")
            }
            None if bound => format!(
                "the certificate names no node, which --only-bound-certificates asks for; give {name} one made by `cool certs \
                 --node {name}`"
            ),
            _ if !identity.addresses.is_empty() && !identity.addresses.contains(&address) => {
                let addresses: Vec<String> = identity.addresses.iter().map(IpAddr::to_string).collect();
                let addresses = addresses.join(", ");
                format!(
                    "the certificate of node {name} is for address {addresses}, the agent registers {address}"
                )
            }
            _ => return Ok(()),
        };
        Err(Status::permission_denied(why))
    }

    /// In whose name it asks, where it says that it is `said`: a user's certificate counts, and an operator's word.
    ///
    /// # Errors
    /// If that is no name.
    pub fn in_whose_name(&self, said: &str) -> Result<String, Status> {
        let name = self.name().unwrap_or(said);
        // Accounts without a name have numbers; certificates never say one.
        let number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        match check_user_name(name) {
            Err(why) if !number && !name.is_empty() => Err(Status::invalid_argument(why.to_string())),
            _ => Ok(name.to_owned()),
        }
    }

    /// Whether what is this user's is its to see and to end.
    pub fn may(&self, user: &str) -> bool {
        self.name().is_none_or(|own| own == user)
    }

    /// Whether a job of this user is its to end.
    ///
    /// # Errors
    /// If not.
    pub fn check_job(&self, job: u64, user: &str) -> Result<(), Status> {
        match self.name() {
            Some(own) if own != user => {
                Err(Status::permission_denied(format!("job {job} is not one of user {own}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is an operator, for what concerns everybody.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_operator(&self, what: &str) -> Result<(), Status> {
        match self.name() {
            Some(user) => {
                let why = format!("{what} is for operators; this is the certificate of user {user}");
                Err(Status::permission_denied(why))
            }
            None => Ok(()),
        }
    }

    /// Writes down a call that changes something: who asked for what, from where, and what came of it.
    pub fn audit<T>(&self, call: &str, about: &str, result: &Result<T, Status>) {
        let from = self.client.as_ref().map(|client| client.address.to_string());
        let result = result.as_ref().map_or_else(Status::message, |_| "done");
        info!(who = %self, call, about, from, result, "audit");
    }
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.identity() {
            Some(identity) => identity.fmt(f),
            None => f.write_str("somebody without a certificate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(identity: Option<Identity>) -> Asker {
        let address = "10.0.0.1:9".parse().unwrap();
        Asker { client: Some(Client { address, identity }) }
    }

    #[test]
    fn an_agent_is_the_node_that_its_certificate_names_at_its_addresses() {
        let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let refusal = |asker: &Asker, name, address, bound| {
            asker.check_node(name, address, bound).unwrap_err().message().to_owned()
        };
        let h1 = asker(Some(Identity::node("h1", vec![one])));
        assert!(h1.check_node("h1", one, true).is_ok());
        assert!(refusal(&h1, "h2", one, false).contains("for node h1, the agent registers h2"));
        assert!(
            refusal(&h1, "h1", two, false).contains("for address 10.0.0.1, the agent registers 10.0.0.2")
        );
        let anywhere = asker(Some(Identity::node("h1", Vec::new())));
        assert!(anywhere.check_node("h1", two, true).is_ok());
        let any = asker(Some(Identity::for_role(Role::Agent)));
        assert!(any.check_node("h1", one, false).is_ok());
        assert!(refusal(&any, "h1", one, true).contains("cool certs --node h1"));
        assert!(asker(None).check_node("h1", one, true).is_ok());
    }

    #[test]
    fn a_user_asks_in_no_other_name_and_an_operator_in_any() {
        let ann = asker(Some(Identity::user("ann")));
        assert_eq!(ann.in_whose_name("bob").unwrap(), "ann");
        assert!(ann.may("ann") && !ann.may("bob") && !ann.may(""));
        assert!(ann.check_job(7, "ann").is_ok());
        assert!(ann.check_job(7, "bob").unwrap_err().message().contains("job 7 is not one of user ann"));
        assert!(ann.check_operator("cool drain").unwrap_err().message().contains("user ann"));
        for operator in [asker(Some(Identity::for_role(Role::Tool))), asker(None), Asker::default()] {
            assert_eq!(operator.in_whose_name("bob").unwrap(), "bob");
            assert_eq!(operator.in_whose_name("1000").unwrap(), "1000");
            assert!(operator.in_whose_name("bob; rm").is_err());
            assert!(operator.may("bob") && operator.check_job(7, "bob").is_ok());
            assert!(operator.check_operator("cool drain").is_ok());
        }
    }
}
