//! The user of the process at the other end of a socket. Users share an agent, but no groups.
//!
//! A process may be a rank of a group only if the group belongs to its user, that is, to the user
//! of the group's job, or of the processes that requested it together. No user has special rights,
//! not even root or the agent's own account. Processes of one user find each other on all nodes,
//! because every agent gets the user's number from the system.

use super::rank::COUNT_BYTES;
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

/// Descriptors of this process for a group: sockets of trees (at most one for the leaders, one for
/// the node's rack, and eight stripes for all nodes), and two for quick calls.
const DESCRIPTORS_PER_GROUP: u64 = 12;

/// Address space for the regions of ranks in bytes: half of what a process has on x86-64.
const REGION_BYTES_MAX: u64 = 1 << 46;

/// Memory of this process for an open call, in bytes, without the counts of its parts.
const CALL_BYTES: u64 = 2048;

/// Memory that open calls of all users may take, as a part of the memory of the machine.
const CALL_MEMORY_PART: u64 = 8;

/// The memory of a machine whose size cannot be determined, in bytes.
const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;

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
    groups: ResourcePool,
    /// The groups that processes wait for, by account and key, so that each is counted once.
    requested_groups: Mutex<BTreeMap<(u32, String), Weak<ResourceShare>>>,
    mappings: ResourcePool,
    region_bytes: ResourcePool,
    call_bytes: ResourcePool,
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

/// Permits one group that processes of a user have requested together, and counts it until all of
/// them have dropped it.
#[derive(Debug)]
pub(super) struct GroupPermit {
    users: UserTable,
    /// The account and the key under which the processes wait.
    request: (u32, String),
    share: Arc<ResourceShare>,
}

/// Permits one open call of a user's rank, and counts its memory until it is dropped.
#[derive(Debug)]
pub(super) struct CallPermit {
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
            return UserTable::with_totals(limits, ResourceTotals::UNLIMITED);
        }
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        let mappings = mappings.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_MAPPINGS_MAX);
        let descriptors = descriptors.unwrap_or(u64::MAX);
        UserTable::with_totals(limits, ResourceTotals::of_process(descriptors, mappings, machine_memory()))
    }

    fn with_totals(limits: UserLimits, totals: ResourceTotals) -> UserTable {
        UserTable(Arc::new(UserResources {
            connections: ResourcePool::new(totals.connections, limits.connections as u64),
            groups: ResourcePool::new(totals.groups, limits.groups as u64),
            requested_groups: Mutex::default(),
            mappings: ResourcePool::new(totals.mappings, u64::MAX),
            region_bytes: ResourcePool::new(REGION_BYTES_MAX, u64::MAX),
            call_bytes: ResourcePool::new(totals.call_bytes, u64::MAX),
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

    /// Counts a call with this many counts of parts, until the result is dropped. Returns the
    /// reason if the user's open calls take too much memory.
    pub(super) fn call(&self, counts: u64) -> Result<CallPermit, String> {
        let bytes = CALL_BYTES.saturating_add(counts.saturating_mul(COUNT_BYTES));
        let share = self.users.0.call_bytes.take(self.account, bytes).map_err(|most| {
            format!(
                "the open calls of its user take more than {most} bytes of memory of this agent; complete calls before \
                 further ones start"
            )
        })?;
        Ok(CallPermit { _share: share })
    }

    /// Counts a group that the user's processes request together under this key. All processes
    /// that wait under a key at the same time share one permit. Returns the reason if the user has
    /// the maximum already.
    pub(super) fn group(&self, key: &str) -> Result<GroupPermit, String> {
        let UserResources { groups, requested_groups, limits, .. } = &*self.users.0;
        let (users, request) = (self.users.clone(), (self.account, key.to_owned()));
        // Every change to the table is complete before the lock is released.
        let mut requested = requested_groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = requested.get(&request).and_then(Weak::upgrade) {
            return Ok(GroupPermit { users, request, share });
        }
        let share = groups.take(self.account, 1).map_err(|most| {
            let limit = match most < limits.groups as u64 {
                true => "half of what the agent's limit of open files leaves",
                false => "the maximum (--groups-per-user)",
            };
            format!("user {} has {most} groups on this node, {limit}; free some", self.account)
        })?;
        let share = Arc::new(share);
        requested.retain(|_, share| share.strong_count() > 0);
        requested.insert(request.clone(), Arc::downgrade(&share));
        Ok(GroupPermit { users, request, share })
    }
}

impl GroupPermit {
    /// Records that the group exists. Processes that use the same key later request another group.
    pub(super) fn group_made(&self) {
        let requested = &self.users.0.requested_groups;
        let mut requested = requested.lock().unwrap_or_else(PoisonError::into_inner);
        if requested.get(&self.request).is_some_and(|share| share.as_ptr() == Arc::as_ptr(&self.share)) {
            requested.remove(&self.request);
        }
    }
}

/// Returns the memory of this machine in bytes.
fn machine_memory() -> u64 {
    let system = rustix::system::sysinfo();
    let bytes = system.totalram.saturating_mul(system.mem_unit.into());
    if bytes == 0 { DEFAULT_MEMORY_BYTES } else { bytes }
}

/// The amounts of resources that all users share.
#[derive(Clone, Copy, Debug)]
struct ResourceTotals {
    connections: u64,
    groups: u64,
    mappings: u64,
    call_bytes: u64,
}

impl ResourceTotals {
    const UNLIMITED: ResourceTotals =
        ResourceTotals { connections: u64::MAX, groups: u64::MAX, mappings: u64::MAX, call_bytes: u64::MAX };

    /// Returns the amounts for a process that may have this many descriptors and mappings, on a
    /// machine with this much memory. A quarter of descriptors and mappings is reserved for the
    /// agent itself: connections to other agents and the controller, groups and output of jobs,
    /// pages and logs.
    fn of_process(descriptors: u64, mappings: u64, memory: u64) -> ResourceTotals {
        ResourceTotals {
            connections: descriptors / 2 / DESCRIPTORS_PER_CONNECTION,
            groups: descriptors / 4 / DESCRIPTORS_PER_GROUP,
            mappings: mappings / 4 * 3,
            call_bytes: memory / CALL_MEMORY_PART,
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
    }

    #[test]
    fn a_group_counts_once_while_processes_wait_for_it_or_use_it() {
        let limits = UserLimits { groups: 2, ..UserLimits::NONE };
        let users = UserTable::with_totals(limits, ResourceTotals::UNLIMITED);
        let [ann, bob] = [1000, 1001].map(|number| users.permit(User::new(number, 99)).unwrap());
        let [first, second] = [ann.group("a").unwrap(), ann.group("a").unwrap()];
        first.group_made();
        // The same key requests another group now.
        let other = ann.group("a").unwrap();
        second.group_made();
        assert!(ann.group("b").unwrap_err().contains("--groups-per-user"));
        assert!(ann.group("a").is_ok(), "it waits for the second group");
        assert!(bob.group("a").is_ok());
        drop(first);
        assert!(ann.group("b").is_err(), "one process still uses the first group");
        drop(second);
        assert!(ann.group("b").is_ok());
        drop(other);
    }

    #[test]
    fn a_user_with_many_groups_leaves_descriptors_to_others() {
        let totals = ResourceTotals::of_process(4 * 8 * DESCRIPTORS_PER_GROUP, 0, 0);
        let users = UserTable::with_totals(UserLimits { groups: 512, ..UserLimits::NONE }, totals);
        let [ann, bob] = [1000, 1001].map(|number| users.permit(User::new(number, 99)).unwrap());
        let all = |user: &ConnectionPermit| -> Vec<GroupPermit> {
            (0..).map_while(|key: u32| user.group(&key.to_string()).ok()).collect()
        };
        let taken = [all(&ann), all(&bob)];
        assert_eq!(taken.each_ref().map(Vec::len), [4, 2]);
        assert!(ann.group("more").unwrap_err().contains("limit of open files"));
        // Connections and groups together leave a quarter of all descriptors to the agent.
        let descriptors =
            totals.connections * DESCRIPTORS_PER_CONNECTION + totals.groups * DESCRIPTORS_PER_GROUP;
        assert!(descriptors <= 3 * 8 * DESCRIPTORS_PER_GROUP);
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
        let users = UserTable::with_totals(
            UserLimits { connections: 8, ..UserLimits::NONE },
            ResourceTotals { connections: 12, ..ResourceTotals::UNLIMITED },
        );
        let all =
            |user: u32| std::iter::from_fn(|| users.permit(User::new(user, 99)).ok()).collect::<Vec<_>>();
        let taken = [1000, 1001].map(all);
        assert_eq!(taken.each_ref().map(Vec::len), [6, 3]);
        assert!(users.permit(User::new(1000, 99)).unwrap_err().contains("limit of open files"));
        assert!(users.permit(User::new(1002, 99)).is_ok());
    }

    #[test]
    fn a_user_with_many_open_calls_leaves_memory_to_others() {
        let totals = ResourceTotals { call_bytes: 16 * CALL_BYTES, ..ResourceTotals::UNLIMITED };
        let users = UserTable::with_totals(UserLimits::NONE, totals);
        let [ann, bob] = [1000, 1001].map(|number| users.permit(User::new(number, 99)).unwrap());
        let mut calls: Vec<CallPermit> = std::iter::from_fn(|| ann.call(0).ok()).collect();
        assert_eq!(calls.len(), 8);
        assert!(ann.call(0).unwrap_err().contains("memory of this agent"));
        assert!(bob.call(CALL_BYTES / COUNT_BYTES).is_ok());
        assert!(bob.call(4 * CALL_BYTES / COUNT_BYTES).is_err() && bob.call(u64::MAX).is_err());
        calls.pop();
        assert!(ann.call(0).is_ok());
    }

    #[test]
    fn a_user_with_all_its_regions_leaves_some_to_others() {
        let users = UserTable::with_totals(
            UserLimits::NONE,
            ResourceTotals { mappings: 8 * MAPPINGS_PER_REGION, ..ResourceTotals::UNLIMITED },
        );
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
