//! Attacks of a rank on the agent of its node, by frames that libcool would not send.

use clap::{Args, ValueEnum};
use cool_proto::VERSION;
use cool_proto::frame::{MAX_TO_AGENT, encode};
use cool_proto::local::frame::Body;
use cool_proto::local::{Attach, Cancel, CheckPlan, Enlist, Map, Revoke, Watched};
use cool_proto::socket::{LocalFrameReceiver, LocalFrameSender, SocketError, open};
use cool_shm::region::Region;
use serde_json::json;
use std::error::Error;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time for connecting to the agent, and for its reply.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of frames that are written at a time.
const FRAMES_PER_WRITE: usize = 512;
/// Time after which a write that makes no progress is tried again.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);

/// The variables that the launcher sets for each rank.
#[derive(Args)]
struct RankVariables {
    #[arg(long, env = "COOL_SOCKET")]
    socket: PathBuf,
    #[arg(long, env = "COOL_GROUP")]
    group: u64,
    #[arg(long, env = "COOL_RANK")]
    rank: u32,
}

/// The frame that a flood consists of.
#[derive(Clone, Copy, ValueEnum)]
enum FrameKind {
    /// Cancels a transfer that does not exist
    Cancel,
    /// Reports on a call that does not exist
    Watched,
    /// Requests a check of a plan, to which the agent replies; the replies are not read
    CheckPlan,
    /// Revokes the rank's own group
    Revoke,
}

impl FrameKind {
    fn body(self) -> Body {
        match self {
            FrameKind::Cancel => Body::Cancel(Cancel { id: 0 }),
            FrameKind::Watched => Body::Watched(Watched::default()),
            FrameKind::CheckPlan => {
                Body::CheckPlan(CheckPlan { plan: "x".repeat(1000), ..CheckPlan::default() })
            }
            FrameKind::Revoke => Body::Revoke(Revoke::default()),
        }
    }
}

/// A rank that sends frames without waiting for the agent.
#[derive(Args)]
pub(crate) struct FrameFlood {
    #[command(flatten)]
    variables: RankVariables,
    kind: FrameKind,
    #[arg(long, default_value = "1")]
    seconds: u64,
}

impl FrameFlood {
    /// Sends frames until the time is over. Prints the number of bytes that the agent's socket has
    /// accepted.
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let RankVariables { socket, group, rank } = &self.variables;
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let attach = Attach {
            version: VERSION,
            group: *group,
            rank: *rank,
            segment: false,
            quick: false,
            long_quick: false,
        };
        stream.write_all(&encode(Body::Attach(attach), MAX_TO_AGENT)?)?;
        let frames = encode(self.kind.body(), MAX_TO_AGENT)?.repeat(FRAMES_PER_WRITE);
        let end = Instant::now() + Duration::from_secs(self.seconds);
        let mut bytes = 0;
        while Instant::now() < end {
            match stream.write(&frames[bytes % frames.len()..]) {
                Ok(written) => bytes += written,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                // The agent ends the session of a rank that sends invalid frames.
                Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => break,
                Err(e) => return Err(e.into()),
            }
        }
        println!("{}", json!({ "bytes": bytes }));
        Ok(())
    }
}

/// A process that enlists many ranks of one group on its node, each of which shares many regions.
#[derive(Args)]
pub(crate) struct RegionHoarder {
    #[arg(long, env = "COOL_SOCKET")]
    socket: PathBuf,
    /// Ranks to enlist, each by a connection of its own
    #[arg(long, default_value = "64")]
    ranks: u32,
    /// Regions that each rank shares
    #[arg(long, default_value = "64")]
    regions: u32,
    #[arg(long, default_value = "1")]
    seconds: u64,
}

impl RegionHoarder {
    /// Keeps the connections and regions until the time is over. Prints how many of them the agent
    /// has accepted. Reports of the agent that come later are not counted.
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        crate::raise_descriptor_limit()?;
        let key = format!("hoard {}", std::process::id());
        let mut connections: Vec<(LocalFrameSender, LocalFrameReceiver)> = Vec::new();
        for rank in 0..self.ranks {
            let Ok((mut sender, receiver)) = open(&self.socket, AGENT_TIMEOUT) else { break };
            let timeout_ms = AGENT_TIMEOUT.as_millis() as u64;
            let enlist = Enlist {
                version: VERSION,
                key: key.clone(),
                rank,
                size: self.ranks,
                timeout_ms,
                quick: false,
                segment: false,
                long_quick: false,
            };
            if sender.send(Body::Enlist(enlist), None).is_err() {
                break;
            }
            connections.push((sender, receiver));
        }
        let mut regions = 0;
        for (sender, receiver) in &mut connections {
            if await_attached(receiver).is_ok() {
                regions += self.share_regions(sender);
            }
        }
        println!("{}", json!({ "connections": connections.len(), "regions": regions }));
        thread::sleep(Duration::from_secs(self.seconds));
        Ok(())
    }

    /// Shares regions of one byte until the agent closes the connection. Returns how many.
    fn share_regions(&self, sender: &mut LocalFrameSender) -> u32 {
        for region in 0..self.regions {
            let Ok(memory) = Region::create(1) else { return region };
            let map = Body::Map(Map { region, bytes: 1 });
            if sender.send(map, Some(memory.descriptor())).is_err() {
                return region;
            }
        }
        self.regions
    }
}

/// Waits until the agent has attached the rank to its group.
fn await_attached(receiver: &mut LocalFrameReceiver) -> Result<(), SocketError> {
    let end = Instant::now() + 2 * AGENT_TIMEOUT;
    while Instant::now() < end {
        match receiver.receive(AGENT_TIMEOUT)? {
            Body::Attached(_) => return Ok(()),
            Body::Refused(_) => return Err(SocketError::Closed),
            _ => {}
        }
    }
    Err(SocketError::TimedOut(2 * AGENT_TIMEOUT))
}
