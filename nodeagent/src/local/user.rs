//! Whose process is at the other end of a socket, and what follows: users share an agent, but no groups.
//!
//! A process is a rank of a group only if the group is its user's: that of the job which the group is of, or of the processes
//! that asked for it together. No user is trusted for being who it is, root and the agent's own account included. Processes of
//! one user meet on all nodes, since every agent has the number of the user from the system.

use crate::agent::Agent;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one user may have of an agent at once, so that none takes what the others need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Connections.
    pub connections: usize,
    /// Groups that its processes have asked for.
    pub groups: usize,
}

impl UserLimits {
    /// As much as there is: of an agent that nobody shares.
    pub const NONE: UserLimits = UserLimits { connections: usize::MAX, groups: usize::MAX };
}

/// The users of this node, by the connections that they have.
#[derive(Clone, Debug)]
pub(super) struct UserTable {
    connections: Arc<Mutex<BTreeMap<u32, usize>>>,
    limits: UserLimits,
}

/// One of a user's connections, until dropped.
#[derive(Debug)]
pub(super) struct ConnectionShare {
    users: UserTable,
    user: u32,
}

impl UserTable {
    pub(super) fn new(limits: UserLimits) -> UserTable {
        UserTable { connections: Arc::default(), limits }
    }

    /// Counts one more connection of a user; nothing if it has as many as one may.
    pub(super) fn share(&self, user: User) -> Option<ConnectionShare> {
        let mut connections = self.lock();
        let count = connections.get(&user.number).copied().unwrap_or_default();
        (count < self.limits.connections).then(|| {
            connections.insert(user.number, count + 1);
            ConnectionShare { users: self.clone(), user: user.number }
        })
    }

    // Every change to the table is whole before the lock is given back.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionShare {
    fn drop(&mut self) {
        let mut connections = self.users.lock();
        match connections.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(connections.remove(&self.user)),
        }
    }
}

/// The user of a connected process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    number: u32,
    /// The agent's account, which may have another number on each node.
    own: bool,
}

impl User {
    /// Whoever connected this.
    pub(super) fn from_peer(stream: &UnixStream) -> io::Result<User> {
        let number = rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw();
        Ok(User::new(number, rustix::process::geteuid().as_raw()))
    }

    fn new(number: u32, own: u32) -> User {
        User { number, own: number == own }
    }

    /// Its number in the system.
    pub(super) fn number(self) -> u32 {
        self.number
    }

    /// The name under which its processes find each other: nobody else's processes are among them. Those of the agents' account
    /// are the ones whose names no other user's processes can have.
    pub(super) fn key(self, key: String) -> String {
        if self.own && !is_of_user(&key) { key } else { format!("{key}{OF_USER}{}", self.number) }
    }

    /// A group was made for its processes.
    pub(super) fn owns(self, agent: &Agent, group: u64) {
        agent.set_owner(group, self.number);
    }

    /// Whether its processes may say that they are ranks of a group; why not.
    pub(super) fn may_use(self, agent: &Agent, group: u64) -> Result<(), String> {
        if agent.may_use(group, self.number) {
            return Ok(());
        }
        Err(format!("group {group} is not one of user {}, as whom this process runs", self.number))
    }

    /// Whether its processes may have another group; why not.
    pub(super) fn check_groups(self, agent: &Agent, limits: UserLimits) -> Result<(), String> {
        if agent.enlisted_of(self.number) < limits.groups {
            return Ok(());
        }
        let (number, max) = (self.number, limits.groups);
        Err(format!(
            "user {number} has {max} groups on this node, as many as one may (--groups-per-user); free some"
        ))
    }
}

/// Stands between what a process calls its key and the number of its user.
const OF_USER: &str = " of user ";

/// Whether a key ends as that of a user's processes does.
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
    async fn users_use_their_own_groups_and_so_do_root_and_the_agents_account() {
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
        assert!(ann.may_use(&agent, 7).unwrap_err().contains("not one of user 1000"), "nobody's");
        ann.owns(&agent, 7);
        assert!(ann.may_use(&agent, 7).is_ok());
        assert!(others.iter().all(|other| other.may_use(&agent, 7).is_err()));
        // One of a job is none that its user has asked for.
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
            let mut shares: Vec<ConnectionShare> = std::iter::from_fn(|| users.share(taker)).collect();
            assert_eq!(shares.len(), 3);
            assert!(users.share(bob).is_some());
            shares.pop();
            assert!(users.share(taker).is_some());
        }
        assert!(users.lock().is_empty());
    }

    #[test]
    fn no_user_can_come_to_the_key_of_another() {
        let told = ["job a", "job a of user 0", "job a of user 1001", "job a of user 99", "job a of user "];
        let keys = |user: u32| told.map(|key| User::new(user, 99).key(key.to_owned()));
        assert_eq!(keys(99)[0], "job a", "the account of agents has one name on all nodes");
        let users = [0, 99, 1000, 1001].map(keys);
        for (at, of_one) in users.iter().enumerate() {
            let others = users.iter().enumerate().filter(|(other, _)| *other != at);
            let others: Vec<&String> = others.flat_map(|(_, keys)| keys).collect();
            assert!(of_one.iter().all(|key| !others.contains(&key)));
        }
    }
}
