//! The agent's side of a job's supervisor: how the agent finds or starts it, and the messages
//! between them.

use crate::async_socket::AsyncSocket;
use cool_proto::launcher::request::Body;
use cool_proto::launcher::{Reply, Request, reply};
use cool_proto::seqpacket;
use prost::Message as _;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// How the agent gets the supervisor of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Supervisors {
    /// The agent starts this program as `PROGRAM supervise`, with a socket to the agent at standard
    /// input. It runs as the agent's own account.
    Own(PathBuf),
    /// The agent connects to cool-launcher, which listens at this path and may start processes as
    /// other users.
    Launcher(PathBuf),
}

/// The connection to a job's supervisor. When it is dropped, the supervisor terminates all
/// processes of the job.
#[derive(Debug)]
pub(super) struct Supervisor {
    socket: AsyncSocket,
    /// The process, if the agent started it.
    child: Option<Child>,
}

impl Supervisor {
    pub(super) async fn open(supervisors: &Supervisors) -> io::Result<Supervisor> {
        let (socket, child) = match supervisors {
            Supervisors::Own(program) => {
                let (here, there) = seqpacket::pair()?;
                let mut command = Command::new(program);
                // The supervisor starts a session of its own, so that a signal to the agent's
                // process group does not end it before it has terminated its job.
                let child = command.arg("supervise").stdin(Stdio::from(there)).spawn()?;
                (here, Some(child))
            }
            Supervisors::Launcher(path) => {
                let at = path.clone();
                // The call blocks while the launcher is busy.
                let connected = tokio::task::spawn_blocking(move || seqpacket::connect(&at)).await;
                let named = |e: io::Error| {
                    let text = format!("cool-launcher at {}: {e}; is it running?", path.display());
                    io::Error::new(e.kind(), text)
                };
                (connected.map_err(io::Error::other)?.map_err(named)?, None)
            }
        };
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Supervisor { socket: AsyncSocket::new(socket)?, child })
    }

    /// Sends a request, and file descriptors that accompany it.
    pub(super) async fn send(&self, body: Body, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = Request { body: Some(body) }.encode_to_vec();
        self.socket.write(|socket| seqpacket::send(socket, &bytes, descriptors)).await
    }

    /// Returns the next reply, or `None` if the supervisor has ended. The future may be dropped and
    /// created again.
    pub(super) async fn receive(&self) -> io::Result<Option<reply::Body>> {
        let Some(packet) = self.socket.read(|socket| seqpacket::receive(socket)).await? else {
            return Ok(None);
        };
        let reply = Reply::decode(&*packet.bytes).map_err(io::Error::other)?;
        reply.body.map(Some).ok_or_else(|| io::Error::other("a message of no known kind from the supervisor"))
    }

    /// Closes the connection, and waits for the end of the supervisor's process if the agent
    /// started it.
    pub(super) async fn close(self) -> io::Result<()> {
        drop(self.socket);
        match self.child {
            Some(mut child) => child.wait().await.map(drop),
            None => Ok(()),
        }
    }
}
