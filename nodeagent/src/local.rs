//! The agent's side of `local.proto`: takes local ranks' frames from a unix socket and hands their
//! calls to the engine. Which ranks may come is the [`Agent`]'s to say, what calls mean the engine's.
//!
//! A rank is trusted with its own data and no more: whatever else it sends, it is told why it is
//! refused and hung up on, and the others go on. Users are kept apart by the system's word of who they are.

mod user;
mod wire;

use crate::agent::{Agent, Attachment, Recovery};
use crate::engine::{CallRequest, Memory, SharedSlice, TransferRequest, wrong_plan};
use crate::readable::Readable;
use cool_proto::control;
use cool_proto::frame::FrameError;
use cool_proto::local::{
    Attached, Call, CheckPlan, Done, Dtype, Enlist, Failure, Operation, PlanChecked, Recover, Recovered,
    ReduceOp, Running, Slice, Stats, Transfer, frame::Body,
};
use cool_proto::region::{Region, RegionError};
use cool_proto::{OPEN_CALLS_MAX, RUNNING_INTERVAL, VERSION};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};
use user::User;
use wire::Wire;

/// How long a connected process may take to attach, or to read what it is sent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Regions that a rank may have; libcool uses few, each as large as all before.
const MAX_REGIONS: usize = 64;

/// No message makes no progress for longer than a year.
const LONGEST_MS: u64 = 365 * 24 * 60 * 60 * 1000;

/// Connections at once; more wait in the backlog.
const MAX_CONNECTIONS: usize = 4096;

/// Why ranks cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody else serves there.
    #[error("{} is another running agent's socket; stop it or choose another --socket", .0.display())]
    InUse(PathBuf),
    /// The socket cannot be made.
    #[error("cannot make the socket {}: {source}; choose another --socket", .path.display())]
    Bind {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// The agent's unix socket. Removed from the file system when dropped.
#[derive(Debug)]
pub struct LocalServer {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalServer {
    /// Makes the socket, and its directory if need be. One that a dead agent left behind is replaced.
    ///
    /// # Errors
    /// If an agent serves there, or the path cannot be used.
    pub fn bind(path: &Path) -> Result<LocalServer, ServeError> {
        let error = |source| ServeError::Bind { path: path.to_path_buf(), source };
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(error)?;
        }
        match UnixStream::connect(path) {
            Ok(_) => return Err(ServeError::InUse(path.to_path_buf())),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(error)?;
            }
            // Nothing there, or something that bind will name.
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(error)?;
        let server = LocalServer { listener, path: path.to_path_buf() };
        // All users: each can be a rank of nobody's jobs but its own.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(error)?;
        Ok(server)
    }

    /// Serves ranks of `agent` until dropped.
    pub async fn serve(self, agent: Agent) {
        let mut sessions = JoinSet::new();
        loop {
            tokio::select! {
                Some(ended) = sessions.join_next() => {
                    if let Err(e) = ended {
                        warn!("a rank's session ended badly: {e}");
                    }
                }
                accepted = self.listener.accept(), if sessions.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => match stream.into_std() {
                        Ok(stream) => {
                            sessions.spawn_on(session(stream, agent.clone()), agent.runtime());
                        }
                        Err(e) => warn!("cannot serve a rank's connection: {e}"),
                    },
                    // Most likely out of descriptors: give those in use time to close.
                    Err(e) => {
                        warn!("cannot accept a rank's connection: {e}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
            }
        }
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.path) {
            warn!("cannot remove the socket {}: {e}", self.path.display());
        }
    }
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("its process has left the group")]
    Left,
    #[error("its process closed the connection")]
    Closed,
    #[error("its process broke the protocol: {0}")]
    Refused(String),
    #[error("its connection broke: {0}")]
    Broken(#[from] io::Error),
}

impl From<FrameError> for End {
    fn from(e: FrameError) -> End {
        End::Refused(e.to_string())
    }
}

/// Serves one connection from its first to its last frame.
async fn session(stream: UnixStream, agent: Agent) {
    let user = match User::of(&stream) {
        Ok(user) => user,
        Err(e) => return warn!("cannot learn whose process connects: {e}"),
    };
    let stream = match Readable::new(stream) {
        Ok(stream) => stream,
        Err(e) => return warn!("cannot serve a rank's connection: {e}"),
    };
    let mut wire = Wire::new(stream);
    let first = match timeout(PATIENCE, wire.receive()).await {
        Ok(first) => first,
        Err(_) => Err(End::Refused(format!("no Attach within {} s", PATIENCE.as_secs()))),
    };
    let attached = match first {
        Ok(body) => attach(body, user, &agent, &mut wire).await,
        Err(end) => Err(end),
    };
    let attachment = match attached {
        Ok(Some(attachment)) => attachment,
        // It wanted no more than an answer.
        Ok(None) => return,
        Err(end) => {
            debug!("a process did not attach: {end}");
            return wire.hang_up(&end).await;
        }
    };
    let (group, rank) = (attachment.group(), attachment.rank());
    info!(group, rank, "rank attached");
    let end = converse(&mut wire, &attachment).await;
    info!(group, rank, "rank left: {end}");
    attachment.leave(end.to_string()).await;
    wire.hang_up(&end).await;
}

/// Checks a first frame, and waits for others if it asks for that. Who only wanted to agree is not attached.
async fn attach(body: Body, user: User, agent: &Agent, wire: &mut Wire) -> Result<Option<Attachment>, End> {
    let same = |version| match version {
        VERSION => Ok(()),
        _ => Err(End::Refused(format!(
            "libcool speaks version {version} of the local protocol, this agent {VERSION}; install the same release of both",
        ))),
    };
    match body {
        Body::Attach(attach) => {
            same(attach.version)?;
            user.may_use(agent, attach.group).map_err(End::Refused)?;
            agent.attach(attach.group, attach.rank).map(Some).map_err(|e| End::Refused(e.to_string()))
        }
        Body::Enlist(Enlist { version, key, rank, size, timeout_ms }) => {
            same(version)?;
            let enlist = control::Enlist { key: user.key(key), rank, size, timeout_ms };
            let attachment = meet(enlist, agent, wire).await?;
            user.owns(agent, attachment.group());
            Ok(Some(attachment))
        }
        Body::Recover(Recover { version, group, rank, timeout_ms, agree }) => {
            same(version)?;
            user.may_use(agent, group).map_err(End::Refused)?;
            let asked = control::Recover { group, rank, timeout_ms, agree, ..control::Recover::default() };
            let recovered = recover(asked, agent, wire).await?;
            if let Some(attachment) = &recovered {
                user.owns(agent, attachment.group());
            }
            Ok(recovered)
        }
        _ => Err(End::Refused("the first frame must be Attach, Enlist or Recover".into())),
    }
}

/// Waits until all have come who are to be in a group with a process.
async fn meet(enlist: control::Enlist, agent: &Agent, wire: &mut Wire) -> Result<Attachment, End> {
    let (key, rank) = (enlist.key.clone(), enlist.rank);
    let mut group = pin!(agent.enlist(enlist));
    match wire.meanwhile(&mut group).await {
        Ok(made) => made.map_err(End::Refused),
        Err(end) => {
            agent.withdraw(key, rank).await;
            // It may have been made just now.
            if let Ok(attachment) = group.await {
                attachment.leave(end.to_string()).await;
            }
            Err(end)
        }
    }
}

/// Waits until it is known who is left of a rank's group, and attaches the rank to the new one if it asked for that.
async fn recover(
    recover: control::Recover,
    agent: &Agent,
    wire: &mut Wire,
) -> Result<Option<Attachment>, End> {
    // If the process is gone, so is its attachment to the group that it recovers, and nobody waits for it.
    let Recovery { gone, flags, attachment } =
        wire.meanwhile(&mut pin!(agent.recover(recover))).await?.map_err(End::Refused)?;
    match (wire.send(Body::Recovered(Recovered { gone, flags })).await, attachment) {
        (Ok(()), attachment) => Ok(attachment),
        (Err(end), Some(attachment)) => {
            attachment.leave(end.to_string()).await;
            Err(end)
        }
        (Err(end), None) => Err(end),
    }
}

/// Takes an attached rank's frames and answers its calls, until it leaves.
async fn converse(wire: &mut Wire, attachment: &Attachment) -> End {
    let places = attachment.places();
    let (size, group) = (places.len() as u32, attachment.group());
    let attached = Attached { version: VERSION, size, places: places.to_vec(), group };
    if let Err(end) = wire.send(Body::Attached(attached)).await {
        return end;
    }
    let mut rank = LocalRank { attachment, regions: BTreeMap::new(), calls: JoinSet::new() };
    let mut alive = interval(RUNNING_INTERVAL);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let step = tokio::select! {
            received = wire.receive() => match received {
                Ok(Body::CheckPlan(check)) => {
                    wire.send(Body::PlanChecked(PlanChecked { wrong: wrong(&check) })).await
                }
                Ok(Body::Leave(_)) => {
                    // The others need what it has called; how it went, nobody asks any more.
                    while rank.calls.join_next().await.is_some() {}
                    Err(End::Left)
                }
                Ok(body) => {
                    // A call's first interval begins with it.
                    alive.reset();
                    rank.handle(body, &mut wire.descriptors)
                }
                Err(end) => Err(end),
            },
            Some(done) = rank.calls.join_next() => match done {
                Ok(done) => wire.send(Body::Done(done)).await,
                Err(e) => Err(End::Broken(io::Error::other(e))),
            }.or_else(unheard),
            _ = alive.tick(), if !rank.calls.is_empty() => wire.send(Body::Running(Running {})).await.or_else(unheard),
        };
        if let Err(end) = step {
            return end;
        }
    }
}

/// A process that hears nothing any more may have said before that it leaves: what it sent is read to the end.
fn unheard(end: End) -> Result<(), End> {
    if matches!(end, End::Closed) { Ok(()) } else { Err(end) }
}

/// An attached rank: its memory and its open calls.
struct LocalRank<'a> {
    attachment: &'a Attachment,
    regions: BTreeMap<u32, Arc<Shared>>,
    calls: JoinSet<Done>,
}

impl LocalRank<'_> {
    fn handle(&mut self, body: Body, descriptors: &mut VecDeque<OwnedFd>) -> Result<(), End> {
        match body {
            Body::Map(map) => {
                let descriptor = descriptors
                    .pop_front()
                    .ok_or_else(|| End::Refused("Map came without its descriptor".into()))?;
                self.map(map.region, map.bytes, descriptor)
            }
            Body::Unmap(unmap) => match self.regions.remove(&unmap.region) {
                Some(_) => Ok(()),
                None => Err(no_region(unmap.region)),
            },
            Body::Call(call) => self.call(call),
            Body::Transfer(transfer) => self.transfer(&transfer),
            Body::Revoke(_) => {
                self.attachment.revoke();
                Ok(())
            }
            Body::Attach(_) | Body::Enlist(_) | Body::Recover(_) => {
                Err(End::Refused("Attach came twice".into()))
            }
            // Handled before they come here.
            Body::CheckPlan(_) | Body::Leave(_) => Ok(()),
            Body::Attached(_)
            | Body::Done(_)
            | Body::Refused(_)
            | Body::Running(_)
            | Body::Recovered(_)
            | Body::PlanChecked(_) => Err(End::Refused("a frame that only agents send".into())),
        }
    }

    fn map(&mut self, number: u32, bytes: u64, descriptor: OwnedFd) -> Result<(), End> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(End::Refused(format!("more than {MAX_REGIONS} regions")));
        }
        if self.regions.contains_key(&number) {
            return Err(End::Refused(format!("region {number} is mapped already")));
        }
        let region = Region::open(descriptor, bytes).map_err(|e: RegionError| End::Refused(e.to_string()))?;
        self.regions.insert(number, Arc::new(Shared(region)));
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<(), End> {
        self.check_room()?;
        let (id, request) = (call.id, self.request(call)?);
        let result = self.attachment.call(request);
        self.calls.spawn(async move { done(id, result.await) });
        Ok(())
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<(), End> {
        self.check_room()?;
        let (id, request) = (transfer.id, self.transfer_request(transfer)?);
        let result = self.attachment.transfer(request);
        self.calls.spawn(async move { done(id, result.await) });
        Ok(())
    }

    fn check_room(&self) -> Result<(), End> {
        match self.calls.len() {
            OPEN_CALLS_MAX.. => Err(End::Refused(format!("more than {OPEN_CALLS_MAX} calls open"))),
            _ => Ok(()),
        }
    }

    fn check_group(&self, group: u64) -> Result<(), End> {
        let (own, rank) = (self.attachment.group(), self.attachment.rank());
        if group == own {
            return Ok(());
        }
        Err(End::Refused(format!("a call on group {group}, but rank {rank} is of group {own}")))
    }

    /// A message in the engine's terms.
    fn transfer_request(&self, transfer: &Transfer) -> Result<TransferRequest, End> {
        self.check_group(transfer.group)?;
        let (peer, tag) = (transfer.peer, transfer.tag);
        if transfer.send && (peer.is_none() || tag.is_none()) {
            return Err(End::Refused("a message is sent to one rank with one tag".into()));
        }
        let dtype = Dtype::try_from(transfer.dtype).map_err(|e| unknown("element type", e.0))?;
        let data = transfer.data.ok_or_else(|| End::Refused("a message without data".into()))?;
        Ok(TransferRequest {
            group: transfer.group,
            rank: self.attachment.rank(),
            sending: transfer.send,
            peer,
            tag,
            dtype,
            data: self.slice(data)?,
            timeout: Duration::from_millis(transfer.timeout_ms.clamp(1, LONGEST_MS)),
        })
    }

    /// A call in the engine's terms. What the terms mean together is the engine's to check.
    fn request(&self, call: Call) -> Result<CallRequest, End> {
        let (group, rank) = (self.attachment.group(), self.attachment.rank());
        self.check_group(call.group)?;
        Ok(CallRequest {
            group,
            rank,
            operation: Operation::try_from(call.operation).map_err(|e| unknown("operation", e.0))?,
            root: call.root,
            dtype: Dtype::try_from(call.dtype).map_err(|e| unknown("element type", e.0))?,
            reduce: ReduceOp::try_from(call.reduce).map_err(|e| unknown("reduction", e.0))?,
            count: call.count,
            counts: call.counts.map(|s| self.slice(s)).transpose()?,
            plan: call.plan,
            input: call.input.map(|s| self.slice(s)).transpose()?,
            output: call.output.map(|s| self.slice(s)).transpose()?,
            timeout: (call.timeout_ms > 0).then(|| Duration::from_millis(call.timeout_ms)),
        })
    }

    fn slice(&self, slice: Slice) -> Result<SharedSlice, End> {
        let region = self.regions.get(&slice.region).ok_or_else(|| no_region(slice.region))?;
        SharedSlice::new(region.clone(), slice.offset, slice.bytes).map_err(|e| End::Refused(e.to_string()))
    }
}

/// What keeps a plan from carrying out an operation; nothing if it can.
fn wrong(check: &CheckPlan) -> String {
    wrong_plan(check.operation(), &check.plan).unwrap_or_default()
}

fn unknown(what: &str, number: i32) -> End {
    End::Refused(format!("{what} {number} is unknown to this agent"))
}

fn no_region(number: u32) -> End {
    End::Refused(format!("region {number} is not mapped"))
}

fn done(id: u64, result: Result<Stats, Failure>) -> Done {
    match result {
        Ok(stats) => Done { id, failure: None, stats: Some(stats) },
        Err(failure) => Done { id, failure: Some(failure), stats: None },
    }
}

/// A rank's region as the engine sees it.
struct Shared(Region);

impl Memory for Shared {
    fn bytes(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.0.copy_out(offset, into).expect("the engine stays within the slices that were checked");
    }

    fn append(&self, offset: u64, bytes: usize, to: &mut Vec<u8>) {
        self.0.append_to(offset, bytes, to).expect("the engine stays within the slices that were checked");
    }

    fn region(&self) -> Option<&Region> {
        Some(&self.0)
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.0.copy_in(offset, from).expect("the engine stays within the slices that were checked");
    }
}
