//! The communicator: a rank's place in its group, the options of its calls, and their cost.
//!
//! The operations are in [`start`] and [`blocking`]; [`crate::call`] checks their arguments before
//! anything is sent.

mod alloc;
mod blocking;
mod call_options;
mod groups;
mod message;
mod own_counts;
mod pending;
mod point_to_point;
mod recover;
mod start;
mod started_fold;
mod user_reduction;

pub use message::{Message, Probed, Received};
pub use own_counts::OwnCounts;
pub use pending::{Pending, wait_all};
pub use recover::Agreement;
pub use start::Start;
pub use user_reduction::Combine;

use crate::Operation;
use crate::call::{CallBlocking, CallingRank, CheckedCollective, Collective};
use crate::environment::{Environment, ForcedPlans, JoinMode, RankAgent};
use crate::error::Error;
use crate::session::{RankSession, StartedCall};
use cool_proto::local;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time without progress after which a call fails, unless [`Comm::set_timeout`] sets another one.
///
/// The default is generous because ranks may compute for long before they call. The death of a rank
/// is detected at once, independently of this timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum length of a key for joining a group, in bytes. Agents prefix keys with further text.
const KEY_MAX: usize = 200;

/// A rank's place in its group and its connection to the other ranks.
///
/// The methods of `Comm` wait for their results; those of [`Comm::start`] do not. Calls are matched
/// between ranks in the order in which they are started. Several threads may share a `Comm`, but
/// then the order of their calls is undefined, so only one thread of a rank should make calls.
///
/// When the last handle is dropped, the agent is notified that the rank has finished. Pending calls
/// are still executed.
#[derive(Debug)]
pub struct Comm {
    inner: Arc<SharedComm>,
    /// Timeout of calls through this handle. If it is `None`, the group's timeout applies.
    timeout: Option<Duration>,
    /// Whether the caller promised not to access the arrays of started calls until they are
    /// complete.
    lends: bool,
}

/// State that a communicator shares with its pending calls.
#[derive(Debug)]
pub(crate) struct SharedComm {
    rank: usize,
    places: Vec<Place>,
    /// Lost ranks of the group from which this one was shrunk.
    lost: Vec<usize>,
    session: Arc<RankSession>,
    state: Mutex<CommState>,
}

#[derive(Debug)]
struct CommState {
    timeout: Duration,
    /// Forced plans, by operation.
    plans: BTreeMap<Operation, String>,
    /// Plan of the last completed call.
    plan: String,
    stats: Stats,
    /// Number of groups that were created from this one. It makes their keys unique.
    splits: u64,
}

/// Location of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the node within the group. Nodes are numbered rack by rack.
    pub node: usize,
    /// Number of the rack.
    pub rack: usize,
    /// Name of the node.
    pub name: String,
}

/// Cost of the calls so far for this rank's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of successful calls, including messages.
    pub calls: u64,
    /// Total duration of the calls. The duration of a call is measured from its acceptance by the
    /// agent to its end. If the ranks execute the call themselves, it is measured from the
    /// beginning of the call at this rank.
    pub time: Duration,
    /// Payload bytes sent by multicast.
    pub multicast_bytes: u64,
    /// Payload bytes sent by unicast, without retransmissions.
    pub unicast_bytes: u64,
    /// Chunks that this node was missing and received as repair.
    pub chunks_repaired: u64,
    /// Chunks that this node sent as repair.
    pub chunks_resent: u64,
}

impl Comm {
    /// Returns the communicator of all ranks of the program.
    ///
    /// The program must have been started by `cool run` or another launcher: Slurm's `srun`, the
    /// `mpirun` of Open MPI or MPICH, `torchrun`, or any program that sets `COOL_JOB`, `COOL_RANK`
    /// and `COOL_SIZE`. Returns when all ranks have joined.
    ///
    /// On machines without agents, ranks start a controller and agents of their own if
    /// `COOL_MASTER` or `MASTER_ADDR` names a machine of the job (docs/guide/guide.md).
    ///
    /// # Errors
    /// If no launcher started the process, its agent does not reply or start, not all ranks join
    /// within 5 minutes, or `COOL_PLAN` is invalid (see [`Comm::set_plan`]).
    pub fn world() -> Result<Comm, Error> {
        let plans = ForcedPlans::from_environment()?;
        Comm::from_environment(&Environment::from_process()?.ok_or(Error::NotLaunched)?, &plans)
    }

    /// Joins a group of processes that agreed on a key, as rank `rank` of `size`.
    ///
    /// The group consists of all processes of the same user that pass the same `key` (1 to 200
    /// bytes). Returns when all `size` ranks have joined. No launcher is needed. The process uses
    /// the agent at the socket `COOL_SOCKET` or, if that is not set, at the only one in /run/cool.
    /// A key can be used again after its group was created, but keys should be random, because a
    /// leftover process of an earlier run may otherwise join.
    ///
    /// # Errors
    /// If the agent does not reply, two processes join as the same rank, the processes pass
    /// different sizes, not all ranks join within `timeout`, or `COOL_PLAN` is invalid (see
    /// [`Comm::set_plan`]).
    pub fn join(key: &str, rank: usize, size: usize, timeout: Duration) -> Result<Comm, Error> {
        Comm::join_at(&Environment::socket()?, key, rank, size, timeout)
    }

    /// Joins a group as [`Comm::join`] does, through the agent at `socket`.
    ///
    /// # Errors
    /// As [`Comm::join`].
    pub fn join_at(
        socket: &Path,
        key: &str,
        rank: usize,
        size: usize,
        timeout: Duration,
    ) -> Result<Comm, Error> {
        let plans = ForcedPlans::from_environment()?;
        let name = "join";
        let wrong = |reason: String| Error::Argument { rank, operation: name, reason };
        if rank >= size {
            return Err(wrong(format!("there is no rank {rank} in a group of {size}")));
        }
        if !(1..=KEY_MAX).contains(&key.len()) {
            return Err(wrong(format!("a key of {} bytes; keys must have 1 to {KEY_MAX} bytes", key.len())));
        }
        let Ok(count) = u32::try_from(size) else {
            return Err(wrong(format!("a group cannot have {size} ranks")));
        };
        let mode = JoinMode::Enlist { key: format!("key {key}"), size: count, timeout };
        // The rank is less than the size, which fits.
        Comm::attach(socket, rank as u32, &mode, &plans, name)
    }

    pub(crate) fn from_environment(environment: &Environment, plans: &ForcedPlans) -> Result<Comm, Error> {
        let Environment { agent, rank, size, mode } = environment;
        let socket = match agent {
            RankAgent::Socket(socket) => socket.clone(),
            RankAgent::Job(cluster) => cluster.socket(*rank)?,
        };
        let comm = Comm::attach(&socket, *rank, mode, plans, "attach")?;
        if comm.size() != *size as usize {
            return Err(Error::Environment {
                variable: "COOL_SIZE",
                value: size.to_string(),
                expected: format!("{}, the size of group {}", comm.size(), comm.group()),
            });
        }
        Ok(comm)
    }

    /// Attaches as a rank of a group to the agent at `socket`, with plans that the user forces.
    pub(crate) fn attach(
        socket: &Path,
        rank: u32,
        mode: &JoinMode,
        plans: &ForcedPlans,
        doing: &'static str,
    ) -> Result<Comm, Error> {
        let (session, attached) = RankSession::open(socket, rank, mode, doing)?;
        let comm = Comm::new(session, attached, DEFAULT_TIMEOUT, BTreeMap::new(), Vec::new());
        for (operation, plan) in plans.iter() {
            comm.set_plan(*operation, plan).map_err(|e| match e {
                Error::Argument { reason, .. } => plans.error(reason),
                e => e,
            })?;
        }
        Ok(comm)
    }

    /// Returns the communicator of an attached rank.
    fn new(
        session: RankSession,
        attached: local::Attached,
        timeout: Duration,
        plans: BTreeMap<Operation, String>,
        lost: Vec<usize>,
    ) -> Comm {
        let places = attached.places.into_iter().map(|p| Place {
            node: p.node as usize,
            rack: p.rack as usize,
            name: p.name,
        });
        let state = CommState { timeout, plans, plan: String::new(), stats: Stats::default(), splits: 0 };
        let inner = SharedComm {
            rank: session.rank(),
            places: places.collect(),
            lost,
            session: Arc::new(session),
            state: Mutex::new(state),
        };
        Comm { inner: Arc::new(inner), timeout: None, lends: false }
    }

    /// Returns this rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.inner.places.len()
    }

    /// Returns the group's number in the network, as errors and `cool groups` show it.
    pub fn group(&self) -> u64 {
        self.inner.session.group()
    }

    /// Returns the location of a rank, or `None` if there is no such rank.
    pub fn place(&self, rank: usize) -> Option<&Place> {
        self.inner.places.get(rank)
    }

    /// Sets the time without progress after which later calls fail. The default is 5 minutes, and
    /// the minimum is one millisecond.
    pub fn set_timeout(&self, timeout: Duration) {
        self.inner.state().timeout = timeout;
    }

    /// Sets whether multicasts of this rank's node for later calls of the group yield to other
    /// traffic.
    ///
    /// Background multicasts use only the capacity that other traffic leaves on their path,
    /// including other calls of COOL, so calls may take long. Each rank may choose for itself. The
    /// setting does not affect unicast traffic and short calls.
    pub fn set_background(&self, background: bool) {
        self.inner.session.set_background(background);
    }

    /// Forces the plan of later calls of an operation. An empty string lets the agents choose
    /// again. All ranks must force the same plan.
    ///
    /// A plan is written as `cool plan` prints it: a name (`cool-p-p`), patterns for the levels
    /// (`rack:binomial,center:ring`), or one pattern for all ranks (`flat:ring`). It applies to
    /// parts of unequal lengths too: for example, [`gatherv`](Comm::gatherv) uses the plan of
    /// gather.
    ///
    /// The environment variable `COOL_PLAN` has the same effect without a change of the program,
    /// for example `COOL_PLAN=allreduce=cool-b-r,bcast=flat:binomial`.
    ///
    /// # Errors
    /// If there is no such plan, or it cannot execute the operation; the message lists the plans
    /// that can. The previous plan stays in effect then.
    pub fn set_plan(&self, operation: Operation, plan: &str) -> Result<(), Error> {
        if plan.is_empty() {
            self.inner.state().plans.remove(&operation);
            return Ok(());
        }
        match self.inner.session.check_plan(operation, plan)? {
            None => {
                self.inner.state().plans.insert(operation, plan.to_owned());
                Ok(())
            }
            Some(reason) => Err(self.inner.argument_error("set_plan", reason)),
        }
    }

    /// Returns the plan of the last completed call, or an empty string if there was none.
    pub fn last_plan(&self) -> String {
        self.inner.state().plan.clone()
    }

    /// Returns the total cost of the calls so far.
    pub fn stats(&self) -> Stats {
        self.inner.state().stats
    }

    /// Returns the operations in their non-blocking form: each returns a [`Pending`] at once.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// # use cool::Op;
    /// let (mut sum, mut largest) = ([0], [0]);
    /// let first = comm.start().allreduce(&[comm.rank()  as u64], &mut sum, Op::Sum)?;
    /// let second = comm.start().allreduce(&[comm.rank() as u64], &mut largest, Op::Max)?;
    /// // Work here: the agents move the data meanwhile.
    /// second.wait()?;
    /// first.wait()?;
    /// assert_eq!((sum[0], largest[0]), (6, 3));
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    pub fn start(&self) -> Start<'_> {
        Start::new(self, if self.lends { CallBlocking::Lent } else { CallBlocking::No })
    }

    /// Returns the operations in their blocking form.
    fn waiting(&self) -> Start<'_> {
        Start::new(self, CallBlocking::Yes)
    }
}

impl SharedComm {
    /// Starts a collective.
    fn start<'a>(
        self: &Arc<SharedComm>,
        collective: Collective<'_, 'a>,
        timeout: Option<Duration>,
        blocking: CallBlocking,
    ) -> Result<Pending<'a>, Error> {
        let mut checked = self.check(collective)?;
        let (plan, timeout) = self.plan_and_timeout(checked.operation, timeout);
        match self.session.start_collective(&mut checked, &plan, timeout, blocking)? {
            StartedCall::Pending(request) => Ok(Pending::new(Arc::clone(self), request, checked)),
            StartedCall::Done(cost) => {
                let pending = Pending::done(Arc::clone(self), checked);
                self.account(cost);
                Ok(pending)
            }
        }
    }

    /// Starts a collective. The caller passes the memory for the result again when it waits for the
    /// call, if the call is pending.
    fn start_apart(
        self: &Arc<SharedComm>,
        collective: Collective<'_, '_>,
        timeout: Option<Duration>,
    ) -> Result<StartedCall, Error> {
        let mut checked = self.check(collective)?;
        let (plan, timeout) = self.plan_and_timeout(checked.operation, timeout);
        self.session.start_collective(&mut checked, &plan, timeout, CallBlocking::No)
    }

    fn check<'s, 'a>(&self, collective: Collective<'s, 'a>) -> Result<CheckedCollective<'s, 'a>, Error> {
        let name = collective.name();
        let caller = CallingRank { rank: self.rank, size: self.places.len() };
        collective.check(caller).map_err(|reason| self.argument_error(name, reason))
    }

    /// Returns the forced plan of an operation and the timeout of a call.
    fn plan_and_timeout(&self, operation: Operation, timeout: Option<Duration>) -> (String, Duration) {
        let state = self.state();
        let plan = state.plans.get(&operation).cloned().unwrap_or_default();
        (plan, timeout.unwrap_or(state.timeout))
    }

    pub(crate) fn size(&self) -> usize {
        self.places.len()
    }

    /// Adds the cost of a completed call.
    pub(crate) fn account(&self, cost: local::Stats) {
        let mut state = self.state();
        let CommState { plan, stats, .. } = &mut *state;
        // Messages have no plan.
        if !cost.plan.is_empty() {
            *plan = cost.plan;
        }
        stats.calls += 1;
        stats.time += Duration::from_nanos(cost.nanoseconds);
        stats.multicast_bytes += cost.bytes_multicast;
        stats.unicast_bytes += cost.bytes_unicast;
        stats.chunks_repaired += cost.chunks_repaired;
        stats.chunks_resent += cost.chunks_resent;
    }

    pub(crate) fn argument_error(&self, operation: &'static str, reason: String) -> Error {
        Error::Argument { rank: self.rank, operation, reason }
    }

    /// Returns the state, even after a panic, because every change to it is complete when the lock
    /// is released.
    fn state(&self) -> MutexGuard<'_, CommState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::frame::{Decoder, MAX_TO_AGENT, MAX_TO_RANK, encode};
    use cool_proto::local::{self, Attached, frame::Body};
    use std::collections::VecDeque;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// Returns the next frame that a rank sends.
    fn heard(stream: &UnixStream, decoder: &mut Decoder) -> Body {
        heard_with(stream, decoder, &mut VecDeque::new())
    }

    /// As `heard`. Also appends received file descriptors to `descriptors`.
    pub(super) fn heard_with(
        stream: &UnixStream,
        decoder: &mut Decoder,
        descriptors: &mut VecDeque<OwnedFd>,
    ) -> Body {
        loop {
            if let Some(body) = decoder.take().unwrap() {
                return body;
            }
            let mut buffer = [0; 4096];
            let n = cool_proto::socket::receive(stream, &mut buffer, descriptors).unwrap();
            assert_ne!(n, 0, "the rank hung up");
            decoder.push(&buffer[..n]);
        }
    }

    /// Runs a rank with an agent that attaches it and then executes `then`.
    pub(super) fn with_agent<R>(
        then: impl FnOnce(UnixStream, Decoder) + Send,
        rank: impl FnOnce(Comm, &Path) -> R,
    ) -> R {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, mut decoder) = (listener.accept().unwrap().0, Decoder::new(MAX_TO_AGENT));
                heard(&stream, &mut decoder);
                let place = local::Place { node: 0, rack: 0, name: "h1".into() };
                let attached = Attached {
                    version: cool_proto::VERSION,
                    size: 1,
                    places: vec![place],
                    group: 1,
                    segment: 0,
                    quick: None,
                    can_probe: true,
                    waiting_calls: 0,
                };
                stream.write_all(&encode(Body::Attached(attached), MAX_TO_RANK).unwrap()).unwrap();
                then(stream, decoder);
            });
            rank(
                Comm::attach(&path, 0, &JoinMode::Member { group: 1 }, &ForcedPlans::default(), "attach")
                    .unwrap(),
                &path,
            )
        })
    }

    #[test]
    fn an_agent_that_is_not_there_is_named_by_its_socket() {
        let e = Comm::attach(
            Path::new("/no/agent.sock"),
            3,
            &JoinMode::Member { group: 1 },
            &ForcedPlans::default(),
            "attach",
        )
        .unwrap_err()
        .to_string();
        assert!(e.starts_with("rank 3: attach: no agent at /no/agent.sock"), "{e}");
    }

    #[test]
    fn an_agent_that_dies_in_a_call_is_named_by_its_socket() {
        let dies = |stream: UnixStream, mut decoder: Decoder| {
            while !matches!(heard(&stream, &mut decoder), Body::Call(_)) {}
        };
        with_agent(dies, |comm, path| {
            for _ in 0..2 {
                let e = comm.barrier().unwrap_err().to_string();
                assert!(e.starts_with(&format!("rank 0: barrier: no agent at {}", path.display())), "{e}");
            }
        });
    }

    #[test]
    fn a_refusal_is_passed_on_in_the_agents_words() {
        let refuses = |mut stream: UnixStream, mut decoder: Decoder| {
            while !matches!(heard(&stream, &mut decoder), Body::Call(_)) {}
            let refused = Body::Refused(local::Refused { message: "no more calls today".into() });
            stream.write_all(&encode(refused, MAX_TO_RANK).unwrap()).unwrap();
        };
        with_agent(refuses, |comm, _| {
            let e = comm.barrier().unwrap_err();
            assert!(matches!(&e, Error::Refused { message, .. } if message == "no more calls today"), "{e}");
        });
    }

    #[test]
    fn plans_can_be_set_while_another_thread_waits() {
        const PLANS: usize = 200;
        let agent = |mut stream: UnixStream, mut decoder: Decoder| {
            for _ in 0..PLANS {
                while !matches!(heard(&stream, &mut decoder), Body::CheckPlan(_)) {}
                let checked = Body::PlanChecked(local::PlanChecked::default());
                stream.write_all(&encode(checked, MAX_TO_RANK).unwrap()).unwrap();
            }
            let done = Body::Done(local::Done { id: 0, ..local::Done::default() });
            stream.write_all(&encode(done, MAX_TO_RANK).unwrap()).unwrap();
        };
        with_agent(agent, |comm, _| {
            let call = comm.start().barrier().unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| call.wait());
                for _ in 0..PLANS {
                    comm.set_plan(Operation::Bcast, "flat:chain").unwrap();
                }
                waits.join().unwrap().unwrap();
            });
        });
    }

    #[test]
    fn a_failure_names_ranks_and_an_unknown_reply_is_an_error() {
        let answers = |mut stream: UnixStream, mut decoder: Decoder| {
            let mut answer = |body| stream.write_all(&encode(body, MAX_TO_RANK).unwrap()).unwrap();
            let failure = local::Failure {
                kind: local::failure::Kind::Lost.into(),
                message: "rank 5 is lost".into(),
                ranks: vec![5],
            };
            answer(Body::Running(local::Running {}));
            answer(Body::Done(local::Done { id: 0, failure: Some(failure), ..local::Done::default() }));
            answer(Body::Done(local::Done { id: 77, ..local::Done::default() }));
            for _ in 0..3 {
                heard(&stream, &mut decoder);
            }
        };
        with_agent(answers, |comm, _| {
            let e = comm.barrier().unwrap_err();
            assert_eq!(e.to_string(), "rank 0: barrier: rank 5 is lost");
            assert!(
                matches!(e, Error::Collective { failure: crate::FailureKind::Lost, ranks, .. } if ranks == [5])
            );
            assert!(matches!(comm.barrier().unwrap_err(), Error::Agent { .. }));
        });
    }
}
