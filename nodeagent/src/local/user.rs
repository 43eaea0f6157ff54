//! Whose process is at the other end of a socket, and what follows: users share an agent, but no groups.
//!
//! What this agent starts runs as the agent's own user, so only that user, and root, may be its ranks. Processes of other
//! users become ranks by asking for a group together; a user's own groups are all that it reaches on any node, since
//! every agent has the number of the user from the system.

use crate::agent::Agent;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections that one user may have at once, so that none takes those of the others; the agent's own user and root may
/// have as many as there are. A rank has one for each of its groups.
pub(super) const CONNECTIONS_OF_USER_MAX: usize = 1024;

/// The users of this node, by the connections that they have.
#[derive(Clone, Debug, Default)]
pub(super) struct Users {
    connections: Arc<Mutex<BTreeMap<u32, usize>>>,
}

/// One of a user's connections, until dropped.
#[derive(Debug)]
pub(super) struct Share {
    users: Users,
    user: u32,
}

impl Users {
    /// Counts one more connection of a user; nothing if it has as many as one may.
    pub(super) fn share(&self, user: User) -> Option<Share> {
        let mut connections = self.lock();
        let count = connections.entry(user.number).or_default();
        if *count >= CONNECTIONS_OF_USER_MAX && !user.trusted {
            return None;
        }
        *count += 1;
        Some(Share { users: self.clone(), user: user.number })
    }

    // Every change to the table is whole before the lock is given back.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
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
    /// As the agent itself, or root.
    trusted: bool,
}

impl User {
    /// Whoever connected this.
    pub(super) fn of(stream: &UnixStream) -> io::Result<User> {
        let number = rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw();
        Ok(User::new(number, rustix::process::geteuid().as_raw()))
    }

    fn new(number: u32, own: u32) -> User {
        User { number, trusted: number == own || number == 0 }
    }

    /// Its number in the system.
    pub(super) fn number(self) -> u32 {
        self.number
    }

    /// The name under which its processes find each other: nobody else's processes are among them.
    pub(super) fn key(self, key: String) -> String {
        if self.trusted { key } else { format!("{key} of user {}", self.number) }
    }

    /// A group was made for its processes.
    pub(super) fn owns(self, agent: &Agent, group: u64) {
        if !self.trusted {
            agent.set_owner(group, self.number);
        }
    }

    /// Whether its processes may say that they are ranks of a group; why not.
    pub(super) fn may_use(self, agent: &Agent, group: u64) -> Result<(), String> {
        if self.trusted || agent.owner(group) == Some(self.number) {
            return Ok(());
        }
        Err(format!("group {group} is not one of user {}, as whom this process runs", self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineConfig, EngineHandle, GroupSpec, MemberSpec};
    use cool_collective::CostModel;
    use std::net::Ipv4Addr;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn users_use_their_own_groups_and_the_agents_user_and_root_use_all() {
        let config = EngineConfig::on_loopback("h1");
        let agent = Agent::new("h1", EngineHandle::start(config).unwrap(), mpsc::channel(1).0);
        let (udp_port, tcp_port) = agent.ports();
        let ip = Ipv4Addr::LOCALHOST;
        let (node, incarnation) = ("h1".into(), agent.incarnation());
        let member = MemberSpec { rank: 0, node, incarnation, rack: 0, ip, udp_port, tcp_port };
        let spec = GroupSpec {
            id: 7,
            epoch: 1,
            members: vec![member],
            trees: Vec::new(),
            chunk_bytes: 1400,
            host_bytes_per_second: 0,
            cost_model: CostModel::default(),
        };
        agent.make_group(spec).await.unwrap();
        let (ann, bob) = (User::new(1000, 99), User::new(1001, 99));
        assert!(ann.may_use(&agent, 7).unwrap_err().contains("not one of user 1000"));
        ann.owns(&agent, 7);
        assert!(ann.may_use(&agent, 7).is_ok() && bob.may_use(&agent, 7).is_err());
        for trusted in [User::new(0, 99), User::new(99, 99)] {
            assert!(trusted.may_use(&agent, 7).is_ok());
        }
    }

    #[test]
    fn a_user_that_takes_all_its_connections_takes_none_of_another() {
        let (users, ann, bob) = (Users::default(), User::new(1000, 99), User::new(1001, 99));
        let mut of_ann: Vec<Share> = std::iter::from_fn(|| users.share(ann)).collect();
        assert_eq!(of_ann.len(), CONNECTIONS_OF_USER_MAX);
        assert!(users.share(bob).is_some());
        let of_root: Vec<_> = (0..=CONNECTIONS_OF_USER_MAX).map(|_| users.share(User::new(0, 99))).collect();
        assert!(of_root.iter().all(Option::is_some));
        drop(of_root);
        of_ann.pop();
        assert!(users.share(ann).is_some());
        drop(of_ann);
        assert!(users.lock().is_empty());
    }

    #[test]
    fn no_user_can_come_to_the_key_of_another() {
        let key = |user: u32, key: &str| User::new(user, 0).key(key.to_owned());
        assert_eq!(key(0, "Slurm job 3"), "Slurm job 3");
        let told = ["job a", "job a of user 0", "job a of user 1001"];
        let of_ann: Vec<String> = told.iter().map(|text| key(1000, text)).collect();
        let of_bob: Vec<String> = told.iter().map(|text| key(1001, text)).collect();
        assert!(of_ann.iter().all(|ann| !of_bob.contains(ann)));
    }
}
