//! The user of the process at the other end of a socket. Users share an agent, but no groups.
//!
//! A process may be a rank of a group only if the group belongs to its user, that is, to the user
//! of the group's job, or of the processes that requested it together. No user has special rights,
//! not even root or the agent's own account. Processes of one user find each other on all nodes,
//! because every agent gets the user's number from the system.

use crate::agent::{Agent, Attachment};
use crate::engine::CommandPermit;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// The maximum resources that one user may have at an agent, so that no user can exhaust them for
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Number of connections.
    pub connections: usize,
    /// Number of groups that the user's processes have requested.
    pub groups: usize,
}

impl UserLimits {
    /// No limits, for an agent with only one user.
    pub const NONE: UserLimits = UserLimits { connections: usize::MAX, groups: usize::MAX };
}

/// Maximum number of commands of one user's ranks that may wait for the engine. A rank with further
/// ones is not read until the engine has taken earlier ones, so that the commands of other users
/// wait behind a bounded number.
pub(super) const COMMANDS_PER_USER_MAX: usize = 256;

/// The users of this node that have connections.
#[derive(Clone, Debug)]
pub(super) struct UserTable {
    connected: Arc<Mutex<BTreeMap<u32, ConnectedUser>>>,
    limits: UserLimits,
}

/// A user that has connections.
#[derive(Debug)]
struct ConnectedUser {
    connections: usize,
    /// Permits of commands that wait for the engine.
    commands: Arc<Semaphore>,
}

/// Permits one connection of a user, and counts it until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    users: UserTable,
    user: u32,
    /// Permits of the user's commands, which all its connections share.
    commands: Arc<Semaphore>,
}

impl UserTable {
    pub(super) fn new(limits: UserLimits) -> UserTable {
        UserTable { connected: Arc::default(), limits }
    }

    /// Counts a connection of a user, or returns `None` if the user has the maximum already.
    pub(super) fn permit(&self, user: User) -> Option<ConnectionPermit> {
        let mut connected = self.lock();
        let of_user = connected.entry(user.number).or_default();
        let permitted = of_user.connections < self.limits.connections;
        permitted.then(|| {
            of_user.connections += 1;
            let commands = Arc::clone(&of_user.commands);
            ConnectionPermit { users: self.clone(), user: user.number, commands }
        })
    }

    // Every change to the table is complete before the lock is released.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, ConnectedUser>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ConnectedUser {
    fn default() -> ConnectedUser {
        ConnectedUser { connections: 0, commands: Arc::new(Semaphore::new(COMMANDS_PER_USER_MAX)) }
    }
}

impl ConnectionPermit {
    /// Waits until another command of the user may wait for the engine, and returns its permit.
    pub(super) async fn command(&self) -> CommandPermit {
        let permit = Arc::clone(&self.commands).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut connected = self.users.lock();
        match connected.get_mut(&self.user) {
            Some(of_user) if of_user.connections > 1 => of_user.connections -= 1,
            _ => drop(connected.remove(&self.user)),
        }
    }
}

/// The user of a connected process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    number: u32,
    /// Whether this is the agent's account, which may have another number on each node.
    own: bool,
}

impl User {
    /// Returns the user of the process at the other end of a socket.
    pub(super) fn from_peer(stream: &UnixStream) -> io::Result<User> {
        let number = rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw();
        Ok(User::new(number, rustix::process::geteuid().as_raw()))
    }

    fn new(number: u32, own: u32) -> User {
        User { number, own: number == own }
    }

    /// Returns the user's number in the system.
    pub(super) fn number(self) -> u32 {
        self.number
    }

    /// Returns the name under which the user's processes find each other. Processes of other users
    /// cannot have the same name. The agent's account keeps its names unchanged, and no other
    /// user's names can be equal to them.
    pub(super) fn key(self, key: String) -> String {
        if self.own && !is_of_user(&key) { key } else { format!("{key}{OF_USER}{}", self.number) }
    }

    /// Sets the owner of a group that was made for the user's processes.
    pub(super) fn owns(self, agent: &Agent, group: u64) {
        agent.set_owner(group, self.number);
    }

    /// Attaches one of the user's processes to a group, which must be one of the user.
    pub(super) fn attach(self, agent: &Agent, group: u64, rank: u32) -> Result<Attachment, String> {
        agent.attach_as(self.number, group, rank).map_err(|e| e.to_string())
    }

    /// Checks that a group is one of the user, and returns the reason if not.
    pub(super) fn check_group(self, agent: &Agent, group: u64) -> Result<(), String> {
        agent.check_user(group, self.number).map_err(|e| e.to_string())
    }

    /// Checks that the user's processes may request another group, and returns the reason if not.
    pub(super) fn check_groups(self, agent: &Agent, limits: UserLimits) -> Result<(), String> {
        if agent.enlisted_of(self.number) < limits.groups {
            return Ok(());
        }
        let (number, max) = (self.number, limits.groups);
        Err(format!(
            "user {number} has {max} groups on this node, the maximum (--groups-per-user); free some"
        ))
    }
}

/// Separates the key of a process from the number of its user.
const OF_USER: &str = " of user ";

/// Returns whether a key ends like that of some user's processes.
fn is_of_user(key: &str) -> bool {
    let number = key.rsplit_once(OF_USER).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineConfig, EngineHandle, GroupSpec, MemberSpec};
    use std::net::Ipv4Addr;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn all_users_may_use_only_their_own_groups() {
        let config = EngineConfig::on_loopback("h1");
        let agent = Agent::new("h1", EngineHandle::start(config).unwrap(), mpsc::channel(1).0);
        let (udp_port, tcp_port) = agent.ports();
        let ip = Ipv4Addr::LOCALHOST.into();
        let (node, incarnation) = ("h1".into(), agent.incarnation());
        let member = MemberSpec { rank: 0, node, incarnation, rack: 0, ip, udp_port, tcp_port, key: None };
        let spec =
            GroupSpec { id: 7, epoch: 1, members: vec![member], chunk_bytes: 1400, ..GroupSpec::default() };
        agent.make_group(spec).await.unwrap();
        let (ann, bob) = (User::new(1000, 99), User::new(1001, 99));
        let others = [bob, User::new(0, 99), User::new(99, 99)];
        // The group belongs to no user yet.
        assert!(ann.attach(&agent, 7, 0).unwrap_err().contains("not one of user 1000"));
        ann.owns(&agent, 7);
        for other in others {
            assert!(other.check_group(&agent, 7).unwrap_err().contains("not one of user"));
            assert!(other.attach(&agent, 7, 0).unwrap_err().contains("not one of user"));
        }
        assert!(ann.check_group(&agent, 7).is_ok() && ann.attach(&agent, 7, 0).is_ok());
        // A group that does not exist could be added before its use.
        assert!(bob.check_group(&agent, 8).unwrap_err().contains("knows no group 8"));
        // A group of a job does not count as requested by the user.
        let one = UserLimits { groups: 1, ..UserLimits::NONE };
        assert!(ann.check_groups(&agent, one).is_ok());
        agent.release_when_unused(7);
        assert!(ann.check_groups(&agent, one).unwrap_err().contains("--groups-per-user"));
        assert!(bob.check_groups(&agent, one).is_ok());
    }

    #[test]
    fn a_user_that_takes_all_its_connections_takes_none_of_another() {
        let limits = UserLimits { connections: 3, ..UserLimits::NONE };
        let (users, ann, bob) = (UserTable::new(limits), User::new(1000, 99), User::new(1001, 99));
        for taker in [ann, User::new(0, 99), User::new(99, 99)] {
            let mut permits: Vec<ConnectionPermit> = std::iter::from_fn(|| users.permit(taker)).collect();
            assert_eq!(permits.len(), 3);
            assert!(users.permit(bob).is_some());
            permits.pop();
            assert!(users.permit(taker).is_some());
        }
        assert!(users.lock().is_empty());
    }

    #[test]
    fn no_user_can_use_the_key_of_another() {
        let requested =
            ["job a", "job a of user 0", "job a of user 1001", "job a of user 99", "job a of user "];
        let keys = |user: u32| requested.map(|key| User::new(user, 99).key(key.to_owned()));
        assert_eq!(keys(99)[0], "job a", "the account of agents has one name on all nodes");
        let users = [0, 99, 1000, 1001].map(keys);
        for (at, of_one) in users.iter().enumerate() {
            let others = users.iter().enumerate().filter(|(other, _)| *other != at);
            let others: Vec<&String> = others.flat_map(|(_, keys)| keys).collect();
            assert!(of_one.iter().all(|key| !others.contains(&key)));
        }
    }
}
