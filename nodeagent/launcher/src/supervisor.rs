//! The processes of one job on this node, from the first to the last: they are started as the job's
//! user, signaled, and terminated together with everything that they have started, even if the
//! agent has ended.
//!
//! The supervisor keeps a rank that has ended as a zombie until the remaining processes of its
//! process group have been terminated too. So the rank's number, which is also that of the group,
//! is not reused meanwhile.

use crate::account::Account;
use crate::cgroup::Cgroup;
use crate::isolation::{give_pipe, is_spared, join_session_keyring};
use crate::job_limits::JobLimits;
use crate::policy::Policy;
use crate::spawn::{SpawnConditions, StartFailure, StartingProcess, child_ends, spawn};
use crate::start_failure::{exit_status, explain};
use crate::{LAUNCHER_VERSION, descendants};
use cool_proto::launcher::reply::Body as Answer;
use cool_proto::launcher::request::Body;
use cool_proto::launcher::{
    Begin, Begun, Ended, Exited, NotStarted, Refused, Reply, Request, Start, Started,
};
use cool_proto::seqpacket::{self, SeqPacket};
use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitStatus, kill_process_group, setsid, waitid};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use tracing::{info, warn};

/// Maximum number of ranks that one job may start on this node.
const RANKS_MAX: usize = 1 << 16;

/// The reasons why a supervisor ends early.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The agent violated the protocol.
    #[error("the agent violates the protocol: {0}")]
    Broken(String),
}

impl From<Errno> for SuperviseError {
    fn from(e: Errno) -> SuperviseError {
        SuperviseError::System(e.into())
    }
}

impl From<prost::DecodeError> for SuperviseError {
    fn from(e: prost::DecodeError) -> SuperviseError {
        SuperviseError::Broken(e.to_string())
    }
}

/// The process of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankProcess {
    /// It has not executed the rank's program yet.
    Starting(Pid),
    /// It is running.
    Running(Pid),
    /// It has ended, or has been killed because it could not execute the program, and is still a
    /// zombie.
    Ended(Pid),
    /// It has been waited for, and the remaining processes of its process group have been killed.
    Swept,
}

/// The start of a rank whose process has not executed the rank's program yet.
#[derive(Debug)]
struct PendingStart {
    start: Start,
    process: StartingProcess,
    /// The signals that the process must receive once it executes the program.
    signals: Vec<Signal>,
}

/// The processes of one job on this node.
struct SupervisedJob {
    number: u64,
    account: Account,
    /// Whether ranks must change to `account`, because this process runs as root.
    other: bool,
    /// Whether the kernel spares this process when memory is exhausted.
    spared: bool,
    /// The cgroup of the processes. Without one, this process becomes the parent of orphaned
    /// processes.
    cgroup: Option<Cgroup>,
    ranks: BTreeMap<u32, RankProcess>,
    /// The starts of the ranks that are [`RankProcess::Starting`].
    starting: BTreeMap<u32, PendingStart>,
    agent: OwnedFd,
}

/// Serves the agent at the other end of a socket for one job with these limits, until the agent
/// disconnects. Afterwards no process of the job is left.
///
/// # Errors
/// Returns an error if the agent violates the protocol or if a system call fails. In this case too,
/// the job's processes are terminated as far as possible.
pub fn supervise(agent: OwnedFd, policy: Policy, limits: JobLimits) -> Result<(), SuperviseError> {
    // The job needs a session of its own, in which each rank is a process group. Linux divides the
    // CPUs among sessions first (autogroups, see sched(7)), so each job gets its share, and a rank
    // that yields the CPU yields it to other ranks of its job.
    setsid()?;
    match (join_session_keyring(), policy) {
        // Jobs of the same account may share a keyring.
        (Ok(()), _) | (Err(_), Policy::Own) => {}
        // The system has no keyrings, or does not permit them to any process here.
        (Err(e), _) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {}
        (Err(e), _) => return Err(e.into()),
    }
    let ends = child_ends()?;
    let Some(mut job) = begin(agent, policy, &limits)? else { return Ok(()) };
    let served = job.serve(&ends);
    let ended = job.end(&ends);
    if let Ok(true) = served {
        job.reply(Answer::Ended(Ended {}))?;
    }
    info!(job = job.number, "its processes have ended");
    ended?;
    served.map(drop)
}

/// Handles the first request. Returns `None` if no job begins, because the agent has disconnected
/// or the policy refuses the job.
fn begin(
    agent: OwnedFd,
    policy: Policy,
    limits: &JobLimits,
) -> Result<Option<SupervisedJob>, SuperviseError> {
    let Some(packet) = seqpacket::receive(&agent)? else { return Ok(None) };
    let Request { body: Some(Body::Begin(Begin { version, job, user })) } = Request::decode(&*packet.bytes)?
    else {
        return Err(SuperviseError::Broken("its first message is not Begin".to_owned()));
    };
    let account = match version {
        LAUNCHER_VERSION => policy.account(&user).map_err(|why| why.to_string()),
        _ => Err(format!(
            "the agent uses version {version} of the protocol, cool-launcher {LAUNCHER_VERSION}; install the same release of both"
        )),
    };
    let account = match account {
        Ok(account) => account,
        Err(message) => {
            warn!(job, user, why = message, "refused");
            send(&agent, Answer::Refused(Refused { message }))?;
            return Ok(None);
        }
    };
    let made = Cgroup::make(job, limits);
    if made.is_err() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    let (cgroup, why) =
        made.map_or_else(|why| (None, why.to_string()), |cgroup| (Some(cgroup), String::new()));
    let path = cgroup.as_ref().map(|cgroup| cgroup.path().display().to_string()).unwrap_or_default();
    let begun = Begun { uid: account.uid, cgroup: path, why_no_cgroup: why };
    let other = matches!(policy, Policy::Privileged { .. });
    let (ranks, starting) = (BTreeMap::new(), BTreeMap::new());
    let job =
        SupervisedJob { number: job, account, other, spared: is_spared(), cgroup, ranks, starting, agent };
    job.reply(Answer::Begun(begun))?;
    Ok(Some(job))
}

fn send(agent: impl AsFd, body: Answer) -> io::Result<()> {
    match seqpacket::send(agent, &Reply { body: Some(body) }.encode_to_vec(), &[]) {
        // An agent that has disconnected needs no reply. The next read notices it.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent,
    }
}

impl SupervisedJob {
    fn reply(&self, body: Answer) -> io::Result<()> {
        send(&self.agent, body)
    }

    /// Serves the agent's requests. Returns whether the agent waits for the end of the job.
    ///
    /// It waits only for events, never for one process, because the job must end on request even if
    /// a rank's process waits for the files of its user.
    fn serve(&mut self, ends: &OwnedFd) -> Result<bool, SuperviseError> {
        loop {
            let mut ready = vec![PollFd::new(&self.agent, PollFlags::IN), PollFd::new(ends, PollFlags::IN)];
            let outcomes = self.starting.values().map(|pending| pending.process.outcome());
            ready.extend(outcomes.map(|outcome| PollFd::from_borrowed_fd(outcome, PollFlags::IN)));
            rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
            let (has_request, has_ended) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
            drop(ready);
            if has_ended {
                // The content is not used, because `report_exits` checks every running rank.
                rustix::io::read(ends, &mut [0; 512])?;
            }
            // A process may have ended while its start was pending.
            if self.finish_starts()? || has_ended {
                self.report_exits()?;
            }
            if has_request {
                let Some(packet) = seqpacket::receive(&self.agent)? else { return Ok(false) };
                let body = Request::decode(&*packet.bytes)?.body;
                match body {
                    Some(Body::Start(start)) => self.start(start, packet)?,
                    Some(Body::Signal(signal)) => self.signal(signal.signal)?,
                    Some(Body::Sweep(sweep)) => self.sweep(sweep.rank)?,
                    Some(Body::End(_)) => return Ok(true),
                    Some(Body::Begin(_)) => {
                        return Err(SuperviseError::Broken("a second Begin".to_owned()));
                    }
                    None => return Err(SuperviseError::Broken("a message of no known kind".to_owned())),
                }
            }
        }
    }

    /// Starts the process of a rank. The outcome is reported later; see
    /// [`SupervisedJob::finish_starts`].
    fn start(&mut self, start: Start, packet: SeqPacket) -> Result<(), SuperviseError> {
        let rank = start.rank;
        if self.ranks.contains_key(&rank) || self.ranks.len() >= RANKS_MAX {
            return Err(SuperviseError::Broken(format!("rank {rank} was started twice, or is one too many")));
        }
        let Ok([out, err]) = <[OwnedFd; 2]>::try_from(packet.descriptors) else {
            return Err(SuperviseError::Broken("a rank without its output".to_owned()));
        };
        if self.other {
            for output in [&out, &err] {
                give_pipe(output, &self.account)?;
            }
        }
        let started = self.command(&start, out, err).and_then(|command| {
            let conditions = SpawnConditions {
                account: self.other.then_some(&self.account),
                procs: self.cgroup.as_ref().map(Cgroup::procs),
                workdir: &start.workdir,
                ends_sparing: self.spared,
            };
            let explain =
                |e: &io::Error| StartFailure { code: exit_status(&start, e), reason: explain(&start, e) };
            spawn(command, &conditions, explain)
        });
        match started {
            Ok(process) => {
                self.ranks.insert(rank, RankProcess::Starting(process.pid));
                self.starting.insert(rank, PendingStart { start, process, signals: Vec::new() });
                Ok(())
            }
            Err(e) => self.report_not_started(&start, StartFailure { code: -1, reason: e.to_string() }),
        }
    }

    /// Reports the outcome of all starts for which it is known. Returns whether there were any.
    fn finish_starts(&mut self) -> Result<bool, SuperviseError> {
        let mut known = Vec::new();
        for (rank, pending) in &self.starting {
            let mut ready = [PollFd::from_borrowed_fd(pending.process.outcome(), PollFlags::IN)];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::io::retry_on_intr(|| poll(&mut ready, Some(&at_once)))? > 0 {
                known.push(*rank);
            }
        }
        for rank in &known {
            if let Some(pending) = self.starting.remove(rank) {
                self.finish_start(pending)?;
            }
        }
        Ok(!known.is_empty())
    }

    fn finish_start(
        &mut self,
        PendingStart { start, process, signals }: PendingStart,
    ) -> Result<(), SuperviseError> {
        let (rank, pid) = (start.rank, process.pid);
        if let Some(failure) = process.finish()? {
            // Its user may have stopped the process before it could end.
            kill_group(pid, Signal::KILL)?;
            self.ranks.insert(rank, RankProcess::Ended(pid));
            return self.report_not_started(&start, failure);
        }
        let number = pid.as_raw_nonzero().get();
        info!(
            job = self.number,
            rank,
            user = self.account.name,
            uid = self.account.uid,
            gid = self.account.gid,
            pid = number,
            program = start.program,
            workdir = start.workdir,
            "started"
        );
        self.ranks.insert(rank, RankProcess::Running(pid));
        self.reply(Answer::Started(Started { rank, pid: number.unsigned_abs() }))?;
        signals.into_iter().try_for_each(|signal| kill_group(pid, signal))
    }

    fn report_not_started(&self, start: &Start, failure: StartFailure) -> Result<(), SuperviseError> {
        let (rank, StartFailure { code, reason: error }) = (start.rank, failure);
        warn!(
            job = self.number,
            rank,
            user = self.account.name,
            uid = self.account.uid,
            gid = self.account.gid,
            program = start.program,
            why = error,
            "not started"
        );
        Ok(self.reply(Answer::NotStarted(NotStarted { rank, error, code }))?)
    }

    /// Returns the program with its arguments, variables and output. It must not inherit any
    /// variable from this process, which may be root's.
    fn command(&self, start: &Start, out: OwnedFd, err: OwnedFd) -> io::Result<Command> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        if start.program.is_empty() {
            return Err(invalid("no program is named"));
        }
        let mut texts = start.args.iter().chain(start.env.values()).chain([&start.program]);
        if texts.any(|text| text.contains('\0')) {
            return Err(invalid("the program, an argument or a variable contains a NUL character"));
        }
        if let Some(name) = start.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(invalid(&format!("{name:?} is not a variable name")));
        }
        let mut command = Command::new(&start.program);
        command
            .args(&start.args)
            .env_clear()
            .envs(self.account.environment())
            .envs(&start.env)
            .stdin(Stdio::null())
            .stdout(Stdio::from(out))
            .stderr(Stdio::from(err));
        Ok(command)
    }

    /// Sends a signal to the process groups of the running ranks. Ranks that are starting receive
    /// it once they execute their program.
    fn signal(&mut self, number: i32) -> Result<(), SuperviseError> {
        let signal = Signal::from_named_raw(number)
            .ok_or_else(|| SuperviseError::Broken(format!("there is no signal {number}")))?;
        for rank in self.ranks.values() {
            if let RankProcess::Running(pid) = rank {
                kill_group(*pid, signal)?;
            }
        }
        for pending in self.starting.values_mut() {
            if !pending.signals.contains(&signal) {
                pending.signals.push(signal);
            }
        }
        Ok(())
    }

    /// Kills the remaining processes of a rank's process group.
    fn sweep(&mut self, number: u32) -> Result<(), SuperviseError> {
        if let Some(rank) = self.ranks.get_mut(&number)
            && let RankProcess::Ended(pid) = *rank
        {
            kill_group(pid, Signal::KILL)?;
            rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED))?;
            *rank = RankProcess::Swept;
        }
        Ok(())
    }

    /// Reports the ranks that have ended since the last call, and reaps orphaned processes if there
    /// is no cgroup.
    fn report_exits(&mut self) -> Result<(), SuperviseError> {
        let mut exits = Vec::new();
        for (number, rank) in &mut self.ranks {
            let RankProcess::Running(pid) = *rank else { continue };
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if let Some(status) = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), look))? {
                *rank = RankProcess::Ended(pid);
                exits.push(exited(*number, status.exit_status(), status.terminating_signal()));
            }
        }
        for exited in exits {
            self.reply(Answer::Exited(exited))?;
        }
        if self.cgroup.is_none() {
            descendants::reap(&self.pids())?;
        }
        Ok(())
    }

    fn pids(&self) -> BTreeSet<i32> {
        let pid = |rank: &RankProcess| match rank {
            RankProcess::Starting(pid) | RankProcess::Running(pid) | RankProcess::Ended(pid) => {
                Some(pid.as_raw_nonzero().get())
            }
            RankProcess::Swept => None,
        };
        self.ranks.values().filter_map(pid).collect()
    }

    /// Terminates all processes of the job. Reports how running ranks ended, each as soon as it has
    /// ended, because the system may be unable to end another one for a long time.
    fn end(&mut self, ends: &OwnedFd) -> Result<(), SuperviseError> {
        // Processes that have not executed their program yet may not have joined the cgroup, and
        // others may have left it.
        for rank in self.ranks.values() {
            if let RankProcess::Starting(pid) | RankProcess::Running(pid) = rank {
                // An error means that the process has changed its user. The cgroup ends it.
                let _ = kill_group(*pid, Signal::KILL);
            }
        }
        let Some(mut cgroup) = self.cgroup.take() else {
            let mut reported = Ok(());
            descendants::end(|pid, status| {
                if reported.is_ok() {
                    reported = self.report_exit(pid, status);
                }
            })?;
            return Ok(reported?);
        };
        cgroup.kill()?;
        self.follow_end(&mut cgroup, ends)?;
        cgroup.remove()?;
        let ended: Vec<u32> = self.ranks.keys().copied().collect();
        ended.into_iter().try_for_each(|rank| self.sweep(rank))
    }

    /// Waits until the killed processes of the job have ended, and reports the ends of ranks.
    fn follow_end(&mut self, cgroup: &mut Cgroup, ends: &OwnedFd) -> Result<(), SuperviseError> {
        loop {
            self.finish_starts()?;
            self.report_exits()?;
            // A process leaves the cgroup before it can be waited for.
            let is_left =
                |rank: &RankProcess| matches!(rank, RankProcess::Starting(_) | RankProcess::Running(_));
            if !self.ranks.values().any(is_left) && !cgroup.is_populated()? {
                return Ok(());
            }
            let mut ready =
                vec![PollFd::new(ends, PollFlags::IN), PollFd::new(cgroup.events(), PollFlags::PRI)];
            let outcomes = self.starting.values().map(|pending| pending.process.outcome());
            ready.extend(outcomes.map(|outcome| PollFd::from_borrowed_fd(outcome, PollFlags::IN)));
            rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
            let has_ended = !ready[0].revents().is_empty();
            drop(ready);
            if has_ended {
                rustix::io::read(ends, &mut [0; 512])?;
            }
        }
    }

    /// Reports the end of a child if it is the process of a rank whose end has not been reported.
    fn report_exit(&self, pid: i32, status: WaitStatus) -> io::Result<()> {
        let is_rank = |rank: &RankProcess| match rank {
            RankProcess::Starting(rank) | RankProcess::Running(rank) => rank.as_raw_nonzero().get() == pid,
            RankProcess::Ended(_) | RankProcess::Swept => false,
        };
        match self.ranks.iter().find(|(_, process)| is_rank(process)) {
            Some((rank, _)) => {
                self.reply(Answer::Exited(exited(*rank, status.exit_status(), status.terminating_signal())))
            }
            None => Ok(()),
        }
    }
}

fn exited(rank: u32, code: Option<i32>, signal: Option<i32>) -> Exited {
    Exited { rank, code: code.unwrap_or(-1), signal: signal.unwrap_or(0) }
}

/// Signals the process group of a rank. The rank must be running or a zombie, because only then
/// does the number belong to it.
fn kill_group(pid: Pid, signal: Signal) -> Result<(), SuperviseError> {
    match kill_process_group(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
