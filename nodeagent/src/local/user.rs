//! The user of the process at the other end of a socket. Users share an agent, but no groups.
//!
//! A process may be a rank of a group only if the group belongs to its user, that is, to the user
//! of the group's job, or of the processes that requested it together. No user has special rights,
//! not even root or the agent's own account. Processes of one user find each other on all nodes,
//! because every agent gets the user's number from the system.

use super::subordinate_users::SubordinateUsers;
use crate::agent::{Agent, Attachment};
use crate::engine::CommandPermit;
use crate::resource_pool::{ResourcePool, ResourceShare};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
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

/// Descriptors of this process for each connection: the socket, the process at its other end, and
/// one for the group.
const DESCRIPTORS_PER_CONNECTION: u64 = 3;

/// Address space for the regions of ranks in bytes: half of what a process has on x86-64.
const REGION_BYTES_MAX: u64 = 1 << 46;

/// Mappings that a large region may need, because it is aligned within a larger range of addresses.
const MAPPINGS_PER_REGION: u64 = 3;

/// The default of vm.max_map_count, which is assumed if it cannot be read.
const DEFAULT_MAPPINGS_MAX: u64 = 65_530;

/// The users of this node, and what they have taken of the agent's resources.
#[derive(Clone, Debug)]
pub(super) struct UserTable(Arc<UserResources>);

#[derive(Debug)]
struct UserResources {
    connections: ResourcePool,
    mappings: ResourcePool,
    region_bytes: ResourcePool,
    /// The permits of each connected user's commands.
    commands: Mutex<BTreeMap<u32, Weak<Semaphore>>>,
    subordinate: SubordinateUsers,
    limits: UserLimits,
}

/// Permits one connection of a user, and counts it until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    users: UserTable,
    /// The number under which the user counts in limits.
    account: u32,
    /// Permits of the user's commands, which all its connections share.
    commands: Arc<Semaphore>,
    _share: ResourceShare,
}

/// Permits one region of a user's rank, and counts it until it is dropped.
#[derive(Debug)]
pub(crate) struct RegionPermit {
    _shares: [ResourceShare; 2],
}

impl UserTable {
    /// Returns the users of a node without connections. The totals of all users depend on the
    /// limits of this process.
    pub(super) fn new(limits: UserLimits) -> UserTable {
        if limits == UserLimits::NONE {
            return UserTable::with_totals(limits, u64::MAX, u64::MAX);
        }
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        let mappings = mappings.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_MAPPINGS_MAX);
        // A quarter of the mappings is reserved for the agent itself.
        let connections = descriptors.map_or(u64::MAX, |most| most / DESCRIPTORS_PER_CONNECTION);
        UserTable::with_totals(limits, connections, mappings / 4 * 3)
    }

    fn with_totals(limits: UserLimits, connections: u64, mappings: u64) -> UserTable {
        UserTable(Arc::new(UserResources {
            connections: ResourcePool::new(connections, limits.connections as u64),
            mappings: ResourcePool::new(mappings, u64::MAX),
            region_bytes: ResourcePool::new(REGION_BYTES_MAX, u64::MAX),
            commands: Mutex::default(),
            subordinate: SubordinateUsers::default(),
            limits,
        }))
    }

    /// Returns the maximum number of connections of all users together.
    pub(super) fn connections_max(&self) -> u64 {
        self.0.connections.total()
    }

    /// Counts a connection of a user. Returns the reason if the user has the maximum already.
    pub(super) fn permit(&self, user: User) -> Result<ConnectionPermit, String> {
        let account = self.0.subordinate.current().account(user.number);
        let share = self.0.connections.take(account, 1).map_err(|most| {
            let limit = match most < self.0.limits.connections as u64 {
                true => "half of what its limit of open files leaves",
                false => "the maximum (--connections-per-user)",
            };
            format!("user {} has {most} connections to this agent, {limit}; free some groups", user.number)
        })?;
        let commands = self.commands(account);
        Ok(ConnectionPermit { users: self.clone(), account, commands, _share: share })
    }

    /// Returns the permits of a user's commands, which are the same for all its connections.
    fn commands(&self, account: u32) -> Arc<Semaphore> {
        // Every change to the table is complete before the lock is released.
        let mut commands = self.0.commands.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = commands.get(&account).and_then(Weak::upgrade) {
            return shared;
        }
        commands.retain(|_, shared| shared.strong_count() > 0);
        let shared = Arc::new(Semaphore::new(COMMANDS_PER_USER_MAX));
        commands.insert(account, Arc::downgrade(&shared));
        shared
    }
}

impl ConnectionPermit {
    /// Waits until another command of the user may wait for the engine, and returns its permit.
    pub(super) async fn command(&self) -> CommandPermit {
        let permit = Arc::clone(&self.commands).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    /// Counts a region of this many bytes. Returns the reason if the user has too many.
    pub(super) fn region(&self, bytes: u64) -> Result<RegionPermit, String> {
        let UserResources { mappings, region_bytes, .. } = &*self.users.0;
        let too_many = |what: &'static str| {
            move |most| {
                format!(
                    "its user shares more than {most} {what} with this agent; share fewer or smaller regions"
                )
            }
        };
        let mapped = mappings.take(self.account, MAPPINGS_PER_REGION).map_err(too_many("memory mappings"))?;
        let bytes = region_bytes.take(self.account, bytes).map_err(too_many("bytes"))?;
        Ok(RegionPermit { _shares: [mapped, bytes] })
    }

    /// Checks that the user's processes may request another group, and returns the reason if not.
    pub(super) fn check_groups(&self, agent: &Agent) -> Result<(), String> {
        let UserResources { subordinate, limits, .. } = &*self.users.0;
        let (max, accounts) = (limits.groups, subordinate.current());
        if agent.enlisted_of(|owner| accounts.account(owner) == self.account) < max {
            return Ok(());
        }
        Err(format!(
            "user {} has {max} groups on this node, the maximum (--groups-per-user); free some",
            self.account
        ))
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
        let number = cool_proto::peer::credentials(stream)?.uid;
        Ok(User::new(number, rustix::process::geteuid().as_raw()))
    }

    fn new(number: u32, own: u32) -> User {
        User { number, own: number == own }
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
        let users = UserTable::new(UserLimits { groups: 1, ..UserLimits::NONE });
        let [of_ann, of_bob] = [ann, bob].map(|user| users.permit(user).unwrap());
        assert!(of_ann.check_groups(&agent).is_ok());
        agent.release_when_unused(7);
        assert!(of_ann.check_groups(&agent).unwrap_err().contains("--groups-per-user"));
        assert!(of_bob.check_groups(&agent).is_ok());
    }

    #[test]
    fn a_user_that_takes_all_its_connections_takes_none_of_another() {
        let limits = UserLimits { connections: 3, ..UserLimits::NONE };
        let (users, ann, bob) = (UserTable::new(limits), User::new(1000, 99), User::new(1001, 99));
        for taker in [ann, User::new(0, 99), User::new(99, 99)] {
            let mut permits: Vec<ConnectionPermit> =
                std::iter::from_fn(|| users.permit(taker).ok()).collect();
            assert_eq!(permits.len(), 3);
            assert!(users.permit(taker).unwrap_err().contains("--connections-per-user"));
            assert!(users.permit(bob).is_ok());
            permits.pop();
            assert!(users.permit(taker).is_ok());
        }
    }

    #[test]
    fn some_connections_are_left_when_two_users_take_all_theirs() {
        let users = UserTable::with_totals(UserLimits { connections: 8, ..UserLimits::NONE }, 12, u64::MAX);
        let all =
            |user: u32| std::iter::from_fn(|| users.permit(User::new(user, 99)).ok()).collect::<Vec<_>>();
        let taken = [1000, 1001].map(all);
        assert_eq!(taken.each_ref().map(Vec::len), [6, 3]);
        assert!(users.permit(User::new(1000, 99)).unwrap_err().contains("limit of open files"));
        assert!(users.permit(User::new(1002, 99)).is_ok());
    }

    #[test]
    fn a_user_with_all_its_regions_leaves_some_to_others() {
        let users = UserTable::with_totals(UserLimits::NONE, u64::MAX, 8 * MAPPINGS_PER_REGION);
        let [ann, bob] = [1000, 1001].map(|number| users.permit(User::new(number, 99)).unwrap());
        let mut regions: Vec<RegionPermit> = std::iter::from_fn(|| ann.region(4096).ok()).collect();
        assert_eq!(regions.len(), 4);
        assert!(ann.region(4096).unwrap_err().contains("memory mappings"));
        assert!(bob.region(4096).is_ok());
        regions.clear();
        assert!(ann.region(REGION_BYTES_MAX).unwrap_err().contains("bytes"));
        assert!(ann.region(4096).is_ok(), "a refused region is not counted");
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
