//! The agent's side of a job's supervisor: how it is found or started, and messages to and from it.

use crate::readable::Readable;
use cool_proto::launcher::request::Body;
use cool_proto::launcher::{Reply, Request, reply};
use cool_proto::seqpacket;
use prost::Message as _;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// Who supervises the processes of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Supervisors {
    /// This program, run as the agent's own account: `PROGRAM supervise` with the agent at standard input.
    Own(PathBuf),
    /// cool-launcher, which listens there and has the right to start processes as other users.
    Launcher(PathBuf),
}

/// A job's supervisor; whatever it has started ends when this is dropped.
#[derive(Debug)]
pub(super) struct Supervisor {
    socket: Readable,
    /// If it is a process of the agent's.
    child: Option<Child>,
}

impl Supervisor {
    pub(super) async fn open(supervisors: &Supervisors) -> io::Result<Supervisor> {
        let (socket, child) = match supervisors {
            Supervisors::Own(program) => {
                let (here, there) = seqpacket::pair()?;
                let mut command = Command::new(program);
                // It makes a session of its own, so that what ends the agent lets it end its job.
                let child = command.arg("supervise").stdin(Stdio::from(there)).spawn()?;
                (here, Some(child))
            }
            Supervisors::Launcher(path) => {
                let at = path.clone();
                // It waits while others are being taken.
                let connected = tokio::task::spawn_blocking(move || seqpacket::connect(&at)).await;
                let named = |e: io::Error| {
                    let text = format!("cool-launcher at {}: {e}; is it running?", path.display());
                    io::Error::new(e.kind(), text)
                };
                (connected.map_err(io::Error::other)?.map_err(named)?, None)
            }
        };
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Supervisor { socket: Readable::new(socket)?, child })
    }

    /// Tells it something, with descriptors.
    pub(super) async fn send(&self, body: Body, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = Request { body: Some(body) }.encode_to_vec();
        self.socket.write(|socket| seqpacket::send(socket, &bytes, descriptors)).await
    }

    /// What it says next; `None` if it has ended. May be dropped and called again.
    pub(super) async fn receive(&self) -> io::Result<Option<reply::Body>> {
        let Some(packet) = self.socket.read(|socket| seqpacket::receive(socket)).await? else {
            return Ok(None);
        };
        let reply = Reply::decode(&*packet.bytes).map_err(io::Error::other)?;
        reply.body.map(Some).ok_or_else(|| io::Error::other("a message of no known kind from the supervisor"))
    }

    /// Takes note of its end, once it has said that nothing is left.
    pub(super) async fn close(self) -> io::Result<()> {
        drop(self.socket);
        match self.child {
            Some(mut child) => child.wait().await.map(drop),
            None => Ok(()),
        }
    }
}
