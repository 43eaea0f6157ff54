//! An agent on loopback, and ranks that send it arbitrary frames.

use cool_nodeagent::embedded::EmbeddedCluster;
use cool_proto::frame::{Decoder, MAX_TO_AGENT, MAX_TO_RANK, encode};
use cool_proto::local::{Call, Dtype, Enlist, Map, Operation, ReduceOp, Slice, frame::Body};
use cool_proto::socket::{self, LocalFrameReceiver, LocalFrameSender};
use cool_shm::region::Region;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// An agent that is silent for this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Size of the memory that hostile ranks share.
pub(crate) const REGION: u64 = 4096;

/// An agent on loopback, with a rank that follows the protocol.
struct LoopbackNode {
    cluster: EmbeddedCluster,
    good: Mutex<WellBehavedRank>,
}

static NODE: LazyLock<LoopbackNode> = LazyLock::new(|| {
    let cluster = EmbeddedCluster::start(&[0], &[0]).expect("an agent");
    let good = Mutex::new(WellBehavedRank::attach(path(&cluster)));
    LoopbackNode { cluster, good }
});

fn path(cluster: &EmbeddedCluster) -> &Path {
    cluster.sockets().next().expect("one rank has an agent")
}

fn enlist(key: &str, rank: u32, size: u32) -> Body {
    let (version, timeout_ms) = (cool_proto::VERSION, PATIENCE.as_millis() as u64);
    Body::Enlist(Enlist {
        version,
        key: key.to_owned(),
        rank,
        size,
        timeout_ms,
        segment: true,
        quick: true,
        long_quick: true,
    })
}

/// A group of one rank.
struct WellBehavedRank {
    sender: LocalFrameSender,
    receiver: LocalFrameReceiver,
    group: u64,
    region: Region,
}

impl WellBehavedRank {
    fn attach(path: &Path) -> WellBehavedRank {
        let (mut sender, mut receiver) = socket::open(path, PATIENCE).expect("an agent that listens");
        sender.send(enlist("good", 0, 1), None).expect("sent");
        let group = loop {
            match receiver.receive(PATIENCE).expect("an answer") {
                Body::Running(_) => {}
                Body::Attached(attached) => break attached.group,
                other => panic!("{other:?} instead of Attached"),
            }
        };
        let region = Region::create(REGION).expect("memory");
        sender.send(Body::Map(Map { region: 0, bytes: REGION }), Some(region.descriptor())).expect("sent");
        WellBehavedRank { sender, receiver, group, region }
    }

    /// Checks that an allreduce of a single rank returns the rank's own data.
    fn check_service(&mut self) {
        self.region.copy_in(0, &77u32.to_ne_bytes()).expect("room");
        self.region.copy_in(64, &[0; 4]).expect("room");
        self.sender.send(Body::Call(allreduce(self.group)), None).expect("sent");
        loop {
            match self.receiver.receive(PATIENCE).expect("an answer") {
                Body::Running(_) => {}
                Body::Done(done) => break assert_eq!(done.failure, None),
                other => panic!("{other:?} instead of Done"),
            }
        }
        let mut sum = [0; 4];
        self.region.copy_out(64, &mut sum).expect("room");
        assert_eq!(u32::from_ne_bytes(sum), 77);
    }
}

/// Returns an allreduce of one number from the start of the rank's region 0 to its 64th byte.
#[must_use]
pub(crate) fn allreduce(group: u64) -> Call {
    Call {
        group,
        operation: Operation::Allreduce.into(),
        dtype: Dtype::U32.into(),
        reduce: ReduceOp::Sum.into(),
        count: 1,
        input: Some(Slice { region: 0, offset: 0, bytes: 4 }),
        output: Some(Slice { region: 0, offset: 64, bytes: 4 }),
        ..Call::default()
    }
}

/// Checks that the agent still serves a rank that follows the protocol.
///
/// # Panics
/// If it does not.
pub(crate) fn check_service_of_others() {
    NODE.good.lock().unwrap_or_else(PoisonError::into_inner).check_service();
}

/// A rank that violates the protocol once it is in its group.
#[derive(Debug)]
pub(crate) struct HostileRank {
    stream: UnixStream,
    decoder: Decoder,
}

impl HostileRank {
    /// Enlists as a rank of a group of two.
    ///
    /// # Panics
    /// If the agent does not listen.
    #[must_use]
    pub(crate) fn enlist(key: &str, rank: u32) -> HostileRank {
        let stream = UnixStream::connect(path(&NODE.cluster)).expect("an agent that listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        let hostile = HostileRank { stream, decoder: Decoder::new(MAX_TO_RANK) };
        hostile.send(&encode(enlist(key, rank, 2), MAX_TO_AGENT).expect("a frame"), None);
        hostile
    }

    /// Returns the next frame, or `None` once the agent has closed the connection.
    ///
    /// # Panics
    /// If the agent sends no valid frame.
    pub(crate) fn receive_frame(&mut self) -> Option<Body> {
        loop {
            if let Some(body) = self.decoder.take().expect("agents send frames") {
                return Some(body);
            }
            let mut buffer = [0; 4096];
            match socket::receive(&self.stream, &mut buffer, &mut VecDeque::new()) {
                Ok(0) => return None,
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("the agent neither answers nor hangs up: {e}"),
            }
        }
    }

    /// Waits for the group, and returns its number.
    ///
    /// # Panics
    /// If the agent does not form the group.
    pub(crate) fn group(&mut self) -> u64 {
        loop {
            match self.receive_frame().expect("an answer") {
                Body::Running(_) => {}
                Body::Attached(attached) => return attached.group,
                other => panic!("{other:?} instead of Attached"),
            }
        }
    }

    /// Sends bytes, the first one with the descriptor of a region if one is given, unless the agent
    /// closes the connection earlier.
    ///
    /// # Panics
    /// If the agent does not read.
    pub(crate) fn send(&self, bytes: &[u8], region: Option<&Region>) {
        let mut sent = 0;
        while sent < bytes.len() {
            let descriptor = region.filter(|_| sent == 0).map(Region::descriptor);
            match socket::send(&self.stream, &bytes[sent..], descriptor.as_slice()) {
                Ok(n) => sent += n,
                Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return,
                Err(e) => panic!("the agent does not read: {e}"),
            }
        }
    }

    /// Ends the sending side of the connection.
    pub(crate) fn end(&self) {
        // An error is ignored, because the agent may have closed the connection.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}
