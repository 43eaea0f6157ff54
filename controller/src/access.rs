//! Authorization of calls: operators may do everything; users run jobs as themselves, and see and
//! end only their own.
//!
//! A caller's identity is taken from its certificate. Without TLS there is no identity: every
//! caller counts as an operator, and the user names in requests are trusted.

use cool_daemon::listen::Client;
use cool_tls::{Identity, Role};
use cool_types::check_user_name;
use std::fmt;
use std::net::IpAddr;
use tonic::{Request, Status};
use tracing::{info, warn};

/// The authenticated caller of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerIdentity {
    /// Address and identity of the client. `None` if the call did not arrive over a connection of
    /// the controller's server.
    client: Option<Client>,
}

impl CallerIdentity {
    /// Returns the caller of a request, which must have the given role.
    ///
    /// # Errors
    /// Returns an error if its certificate is for another role.
    pub fn from_request<T>(request: &Request<T>, role: Role) -> Result<CallerIdentity, Status> {
        let caller = CallerIdentity { client: request.extensions().get::<Client>().cloned() };
        match caller.identity() {
            Some(identity) if identity.role != role => {
                let why = format!("this call requires a certificate for {role}, not for {}", identity.role);
                warn!(why, "call refused");
                Err(Status::permission_denied(why))
            }
            _ => Ok(caller),
        }
    }

    fn identity(&self) -> Option<&Identity> {
        self.client.as_ref()?.identity.as_ref()
    }

    /// Returns the only node that this agent may register, or the only user for which this tool may
    /// act. `None` permits any.
    pub fn name(&self) -> Option<&str> {
        self.identity()?.name.as_deref()
    }

    /// Checks whether an agent may register a node with this name and address. If `bound`, its
    /// certificate must name the node.
    ///
    /// # Errors
    /// Returns an error that states the mismatch.
    pub fn check_node(&self, name: &str, address: IpAddr, bound: bool) -> Result<(), Status> {
        let Some(identity) = self.identity() else { return Ok(()) };
        let why = match &identity.name {
            Some(node) if node != name => {
                format!("the certificate is for node {node}, but the agent registers {name}")
            }
            None if bound => format!(
                "the certificate names no node, which --only-bound-certificates requires; give {name} one made by `cool certs \
                 --node {name}`"
            ),
            _ if !identity.addresses.is_empty() && !identity.addresses.contains(&address) => {
                let addresses: Vec<String> = identity.addresses.iter().map(IpAddr::to_string).collect();
                let addresses = addresses.join(", ");
                format!(
                    "the certificate of node {name} is for address {addresses}, but the agent registers {address}"
                )
            }
            _ => return Ok(()),
        };
        Err(Status::permission_denied(why))
    }

    /// Returns the user for which the caller acts. A user's certificate determines it; for an
    /// operator it is `claimed`.
    ///
    /// # Errors
    /// Returns an error if the name is invalid.
    pub fn acting_user(&self, claimed: &str) -> Result<String, Status> {
        let name = self.name().unwrap_or(claimed);
        // Accounts without a name are given by number. Certificates never contain one.
        let number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        match check_user_name(name) {
            Err(why) if !number && !name.is_empty() => Err(Status::invalid_argument(why.to_string())),
            _ => Ok(name.to_owned()),
        }
    }

    /// Returns whether the caller may see and end jobs of `user`.
    pub fn may_access(&self, user: &str) -> bool {
        self.name().is_none_or(|own| own == user)
    }

    /// Checks whether the caller may control a job of `user`.
    ///
    /// # Errors
    /// Returns an error if it may not.
    pub fn check_job(&self, job: u64, user: &str) -> Result<(), Status> {
        match self.name() {
            Some(own) if own != user => {
                Err(Status::permission_denied(format!("job {job} does not belong to user {own}")))
            }
            _ => Ok(()),
        }
    }

    /// Checks whether the caller is an operator, as required for `operation`.
    ///
    /// # Errors
    /// Returns an error if it is a user.
    pub fn check_operator(&self, operation: &str) -> Result<(), Status> {
        match self.name() {
            Some(user) => {
                let why = format!("{operation} requires an operator; this is the certificate of user {user}");
                Err(Status::permission_denied(why))
            }
            None => Ok(()),
        }
    }

    /// Logs a call that changes something: the caller, its address, the call and its result.
    pub fn audit<T>(&self, call: &str, about: &str, result: &Result<T, Status>) {
        let from = self.client.as_ref().map(|client| client.address.to_string());
        let result = result.as_ref().map_or_else(Status::message, |_| "done");
        info!(who = %self, call, about, from, result, "audit");
    }
}

impl fmt::Display for CallerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.identity() {
            Some(identity) => identity.fmt(f),
            None => f.write_str("unauthenticated client"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(identity: Option<Identity>) -> CallerIdentity {
        let address = "10.0.0.1:9".parse().unwrap();
        CallerIdentity { client: Some(Client { address, identity }) }
    }

    #[test]
    fn an_agent_registers_only_the_node_of_its_certificate() {
        let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let refusal = |caller: &CallerIdentity, name, address, bound| {
            caller.check_node(name, address, bound).unwrap_err().message().to_owned()
        };
        let h1 = caller(Some(Identity::node("h1", vec![one])));
        assert!(h1.check_node("h1", one, true).is_ok());
        assert!(refusal(&h1, "h2", one, false).contains("for node h1, but the agent registers h2"));
        assert!(
            refusal(&h1, "h1", two, false).contains("for address 10.0.0.1, but the agent registers 10.0.0.2")
        );
        let anywhere = caller(Some(Identity::node("h1", Vec::new())));
        assert!(anywhere.check_node("h1", two, true).is_ok());
        let any = caller(Some(Identity::for_role(Role::Agent)));
        assert!(any.check_node("h1", one, false).is_ok());
        assert!(refusal(&any, "h1", one, true).contains("cool certs --node h1"));
        assert!(caller(None).check_node("h1", one, true).is_ok());
    }

    #[test]
    fn a_user_acts_only_as_itself_and_an_operator_as_anyone() {
        let ann = caller(Some(Identity::user("ann")));
        assert_eq!(ann.acting_user("bob").unwrap(), "ann");
        assert!(ann.may_access("ann") && !ann.may_access("bob") && !ann.may_access(""));
        assert!(ann.check_job(7, "ann").is_ok());
        assert!(ann.check_job(7, "bob").unwrap_err().message().contains("job 7 does not belong to user ann"));
        assert!(ann.check_operator("cool drain").unwrap_err().message().contains("user ann"));
        for operator in
            [caller(Some(Identity::for_role(Role::Tool))), caller(None), CallerIdentity::default()]
        {
            assert_eq!(operator.acting_user("bob").unwrap(), "bob");
            assert_eq!(operator.acting_user("1000").unwrap(), "1000");
            assert!(operator.acting_user("bob; rm").is_err());
            assert!(operator.may_access("bob") && operator.check_job(7, "bob").is_ok());
            assert!(operator.check_operator("cool drain").is_ok());
        }
    }
}
