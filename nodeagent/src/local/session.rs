//! The session of one connection, from its first frame to its end. The process attaches as a rank,
//! requests a group together with other processes, or waits for the survivors of its group; then
//! the agent receives its frames and answers its calls. [`super::rank`] handles the calls, and
//! [`super::rank_connection`] the frames.

use super::peer_process;
use super::rank::AttachedRank;
use super::rank_connection::{FRAME_TIMEOUT, RankConnection};
use super::session_end::SessionEnd;
use super::user::{ConnectionPermit, GroupPermit, User};
use crate::agent::{Abilities, Agent, Attachment, RecoveryResult};
use crate::async_socket::AsyncSocket;
use crate::engine::wrong_plan;
use crate::shared_segment::SharedSegment;
use cool_proto::control;
use cool_proto::local::{
    Attach, Attached, CheckPlan, Enlist, PlanChecked, Quick, Recover, Recovered, Running, frame::Body,
};
use cool_proto::{RUNNING_INTERVAL, VERSION, check_version};
use cool_shm::segment::Segment;
use cool_types::limits::WAITING_CALLS;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

/// Serves one connection from its first to its last frame. Refuses it if the user may not have
/// another connection; `permit` is the reason then.
pub(super) async fn serve(
    stream: UnixStream,
    user: User,
    permit: Result<ConnectionPermit, String>,
    agent: Agent,
) {
    let stream = match AsyncSocket::new(stream) {
        Ok(stream) => Arc::new(stream),
        Err(e) => return warn!("cannot serve a rank's connection: {e}"),
    };
    let _watch = peer_process::watch(&stream);
    let mut wire = RankConnection::new(&stream);
    let permit = match permit {
        Ok(permit) => permit,
        Err(reason) => return wire.hang_up(&SessionEnd::Refused(reason)).await,
    };
    let first = match timeout(FRAME_TIMEOUT, wire.receive()).await {
        Ok(first) => first,
        Err(_) => Err(SessionEnd::Refused(format!("no Attach within {} s", FRAME_TIMEOUT.as_secs()))),
    };
    let abilities = first.as_ref().map(abilities).unwrap_or_default();
    let attached = match first {
        Ok(body) => attach(body, user, &permit, &agent, &mut wire).await,
        Err(end) => Err(end),
    };
    // The group counts until its last process here has left.
    let (mut attachment, _group_permit) = match attached {
        Ok(Some(attached)) => attached,
        // The process requested only an agreement, and has received the result.
        Ok(None) => return,
        Err(end) => {
            debug!("a process did not attach: {end}");
            return wire.hang_up(&end).await;
        }
    };
    let (group, rank) = (attachment.group(), attachment.rank());
    let quick = attachment.share(abilities);
    info!(group, rank, "rank attached");
    let end = serve_rank(&mut wire, &attachment, quick, &permit).await;
    info!(group, rank, "rank left: {end}");
    attachment.leave(end.to_string()).await;
    wire.hang_up(&end).await;
}

/// Returns the abilities of a process that sends this first frame.
fn abilities(first: &Body) -> Abilities {
    match first {
        Body::Attach(Attach { segment, quick, long_quick, .. })
        | Body::Enlist(Enlist { segment, quick, long_quick, .. })
        | Body::Recover(Recover { segment, quick, long_quick, .. }) => {
            Abilities { segment: *segment, quick: *quick, long_quick: *long_quick }
        }
        _ => Abilities::default(),
    }
}

/// Handles the first frame, and waits for other processes if the frame requests that. Returns the
/// attachment of the rank, with the permit of the group if its processes requested it, or `None` if
/// the process requested only an agreement.
async fn attach(
    body: Body,
    user: User,
    permit: &ConnectionPermit,
    agent: &Agent,
    wire: &mut RankConnection,
) -> Result<Option<(Attachment, Option<GroupPermit>)>, SessionEnd> {
    let check = |version| check_version(version).map_err(|why| SessionEnd::Refused(format!("libcool {why}")));
    match body {
        Body::Attach(attach) => {
            check(attach.version)?;
            let attachment = user.attach(agent, attach.group, attach.rank).map_err(SessionEnd::Refused)?;
            Ok(Some((attachment, None)))
        }
        Body::Enlist(Enlist { version, key, rank, size, timeout_ms, .. }) => {
            check(version)?;
            let key = user.key(key);
            let group = permit.group(&key).map_err(SessionEnd::Refused)?;
            let enlist = control::Enlist { key, rank, size, timeout_ms, ticket: 0 };
            let attachment = rendezvous(enlist, agent, wire).await?;
            group.group_made();
            user.owns(agent, attachment.group());
            Ok(Some((attachment, Some(group))))
        }
        Body::Recover(Recover { version, group, rank, timeout_ms, agree, .. }) => {
            check(version)?;
            user.check_group(agent, group).map_err(SessionEnd::Refused)?;
            // An agreement of the survivors makes no group.
            let another = agree.is_none().then(|| permit.group(&format!("survivors of {group}"))).transpose();
            let another = another.map_err(SessionEnd::Refused)?;
            let request = control::Recover { group, rank, timeout_ms, agree, ..control::Recover::default() };
            let recovered = recover(request, agent, wire).await?;
            another.iter().for_each(GroupPermit::group_made);
            Ok(recovered.map(|attachment| {
                user.owns(agent, attachment.group());
                (attachment, another)
            }))
        }
        _ => Err(SessionEnd::Refused("the first frame must be Attach, Enlist or Recover".into())),
    }
}

/// Waits until all processes of the requested group have arrived. Returns the attachment of this
/// one.
async fn rendezvous(
    enlist: control::Enlist,
    agent: &Agent,
    wire: &mut RankConnection,
) -> Result<Attachment, SessionEnd> {
    let (key, rank) = (enlist.key.clone(), enlist.rank);
    let mut group = pin!(agent.enlist(enlist));
    match wire.meanwhile(&mut group).await {
        Ok(made) => made.map_err(SessionEnd::Refused),
        Err(end) => {
            agent.withdraw(key, rank).await;
            // The group may have been made before the request was withdrawn.
            if let Ok(attachment) = group.await {
                attachment.leave(end.to_string()).await;
            }
            Err(end)
        }
    }
}

/// Waits for the decision on the survivors of a rank's group, and attaches the rank to the new
/// group if it requested one.
async fn recover(
    recover: control::Recover,
    agent: &Agent,
    wire: &mut RankConnection,
) -> Result<Option<Attachment>, SessionEnd> {
    // If the process ends, its attachment to the old group ends too, so there is nothing to
    // withdraw.
    let RecoveryResult { gone, flags, attachment } =
        wire.meanwhile(&mut pin!(agent.recover(recover))).await?.map_err(SessionEnd::Refused)?;
    match (wire.send(Body::Recovered(Recovered { gone, flags })).await, attachment) {
        (Ok(()), attachment) => Ok(attachment),
        (Err(end), Some(attachment)) => {
            attachment.leave(end.to_string()).await;
            Err(end)
        }
        (Err(end), None) => Err(end),
    }
}

/// Number of frames that a session handles before other sessions and the engine continue, which run
/// on the same thread.
const FRAMES_PER_TURN_MAX: u32 = 64;

/// The frames that a session has handled since it last let other tasks of the thread continue.
#[derive(Debug, Default)]
struct FrameTurn {
    frames: u32,
}

impl FrameTurn {
    /// Counts a frame. A frame that maps or unmaps memory ends the turn, because it takes longer
    /// than all others.
    fn count(&mut self, body: &Body) {
        match body {
            Body::Map(_) | Body::Unmap(_) => self.end(),
            _ => self.frames += 1,
        }
    }

    fn end(&mut self) {
        self.frames = FRAMES_PER_TURN_MAX;
    }

    /// Lets other tasks of the thread continue if the turn has been long.
    async fn end_if_long(&mut self) {
        if self.frames >= FRAMES_PER_TURN_MAX {
            self.frames = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Receives an attached rank's frames and answers its calls, until it leaves.
async fn serve_rank(
    wire: &mut RankConnection,
    attachment: &Attachment,
    quick: Option<(Quick, Option<OwnedFd>)>,
    permit: &ConnectionPermit,
) -> SessionEnd {
    let places = attachment.places();
    let (size, group) = (places.len() as u32, attachment.group());
    let shared = attachment.segment().map(SharedSegment::segment);
    let segment = shared.map_or(0, Segment::len);
    let (quick, socket) = quick.unzip();
    let socket = socket.flatten();
    let places = places.to_vec();
    let attached = Attached {
        version: VERSION,
        size,
        places,
        group,
        segment,
        quick,
        can_probe: true,
        waiting_calls: WAITING_CALLS as u32,
    };
    let descriptors = shared.map(Segment::descriptor).into_iter().chain(socket.as_ref().map(OwnedFd::as_fd));
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.collect();
    if let Err(end) = wire.send_with(Body::Attached(attached), &descriptors).await {
        return end;
    }
    // The rank has received its own copy of the descriptor.
    drop(socket);
    let mut rank = AttachedRank::new(attachment, permit);
    let mut alive = interval(RUNNING_INTERVAL);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = FrameTurn::default();
    loop {
        turn.end_if_long().await;
        let step = tokio::select! {
            received = wire.receive() => match received {
                Ok(Body::CheckPlan(check)) => {
                    turn.end();
                    wire.send(Body::PlanChecked(PlanChecked { wrong: wrong(&check) })).await
                }
                Ok(Body::Leave(_)) => {
                    rank.leave_watched_calls().await;
                    // The calls must run to their end, because other ranks need them. Their results
                    // are not needed.
                    while rank.calls.join_next().await.is_some() {}
                    Err(SessionEnd::Left)
                }
                Ok(body) => {
                    turn.count(&body);
                    // The first interval begins with the first call. Later frames must not restart
                    // it, because a rank in a watched call sends reports more often than that.
                    if rank.calls.is_empty() {
                        alive.reset();
                    }
                    // Without a bound on the commands that wait for the engine, frames that arrive
                    // faster than the engine handles them would use up the agent's memory.
                    let command = permit.command().await;
                    rank.handle(body, command, &mut wire.descriptors)
                }
                Err(end) => Err(end),
            },
            Some(done) = rank.calls.join_next() => match done {
                Ok((done, _memory)) => {
                    let id = done.id;
                    let sent = wire.send(Body::Done(done)).await;
                    rank.on_answered(id);
                    sent
                }
                Err(e) => Err(SessionEnd::Broken(io::Error::other(e))),
            }.or_else(ignore_closed),
            _ = alive.tick(), if !rank.calls.is_empty() => wire.send(Body::Running(Running {})).await.or_else(ignore_closed),
        };
        if let Err(end) = step {
            return end;
        }
    }
}

/// Ignores that a process has stopped reading, because it may have sent a Leave frame before. All
/// frames that it sent must be read.
fn ignore_closed(end: SessionEnd) -> Result<(), SessionEnd> {
    if matches!(end, SessionEnd::Closed) { Ok(()) } else { Err(end) }
}

/// Returns the reason why a plan cannot execute an operation, or an empty string if it can.
fn wrong(check: &CheckPlan) -> String {
    match check.operation().known() {
        Some(operation) => wrong_plan(operation, &check.plan).unwrap_or_default(),
        None => "no operation is named".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::user::{COMMANDS_PER_USER_MAX, UserLimits, UserTable};
    use super::*;
    use crate::engine::{EngineCommand, GroupSpec, MemberSpec, QueuedCommand, stuck_engine};
    use cool_proto::frame::{MAX_TO_AGENT, encode};
    use cool_proto::local::Cancel;
    use std::io::{ErrorKind, Write};
    use std::net::Ipv4Addr;
    use tokio::sync::mpsc;

    /// Number of turns of the session without progress after which it has stopped reading.
    const TURNS_WITHOUT_PROGRESS: u32 = 100;

    #[tokio::test]
    async fn a_rank_is_not_read_while_the_engine_takes_nothing() {
        let (engine, mut queue) = stuck_engine();
        let agent = Agent::new("h1", engine, mpsc::channel(1).0);
        let member = MemberSpec {
            rank: 0,
            node: "h1".into(),
            incarnation: agent.incarnation(),
            rack: 0,
            ip: Ipv4Addr::LOCALHOST.into(),
            udp_port: 1,
            tcp_port: 1,
            key: None,
        };
        let spec =
            GroupSpec { id: 1, epoch: 1, members: vec![member], chunk_bytes: 1400, ..GroupSpec::default() };
        let engine_makes_group = async {
            let command = queue.recv().await.map(|queued| queued.command);
            let Some(EngineCommand::MakeGroup(_, reply)) = command else { panic!("no group") };
            reply.send(Ok(())).unwrap();
        };
        let (made, ()) = tokio::join!(agent.make_group(spec), engine_makes_group);
        made.unwrap();
        let (ours, mut rank) = UnixStream::pair().unwrap();
        let user = User::from_peer(&ours).unwrap();
        user.owns(&agent, 1);
        ours.set_nonblocking(true).unwrap();
        rank.set_nonblocking(true).unwrap();
        let permit = UserTable::new(UserLimits::NONE).permit(user);
        tokio::spawn(serve(ours, user, permit, agent));
        let attach = Body::Attach(Attach { version: VERSION, group: 1, ..Attach::default() });
        rank.write_all(&encode(attach, MAX_TO_AGENT).unwrap()).unwrap();

        let cancels = encode(Body::Cancel(Cancel { id: 1 }), MAX_TO_AGENT).unwrap().repeat(512);
        let (mut written, mut unread) = (0, 0);
        while written < 1 << 20 && unread < TURNS_WITHOUT_PROGRESS {
            match rank.write(&cancels[written % cancels.len()..]) {
                Ok(bytes) => (written, unread) = (written + bytes, 0),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    unread += 1;
                }
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.len(), COMMANDS_PER_USER_MAX);
        // The session continues when the engine does.
        for _ in 0..2 * COMMANDS_PER_USER_MAX {
            let QueuedCommand { command, permit } = queue.recv().await.unwrap();
            assert!(matches!(command, EngineCommand::Input(_)) && permit.is_some());
        }
    }
}
