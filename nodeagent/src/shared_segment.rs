//! The segment in which ranks of this node carry out calls themselves, and how one of them is woken that waits elsewhere: for datagrams of
//! quick calls.

use cool_proto::segment::{RankPart, Segment};
use std::net::SocketAddrV4;
use std::sync::Arc;
use tokio::net::UdpSocket;

/// A segment of ranks of this node.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    segment: Segment,
    /// Of a group with quick calls, whose segment is for the only rank here: by which socket, and where, that rank is woken.
    wake: Option<(Arc<UdpSocket>, SocketAddrV4)>,
}

impl SharedSegment {
    /// The segment of a group whose ranks are all here.
    pub(crate) fn of_node(segment: Segment) -> SharedSegment {
        SharedSegment { segment, wake: None }
    }

    /// That of the only rank here, which takes datagrams at an address.
    pub(crate) fn of_rank(segment: Segment, socket: Arc<UdpSocket>, rank: SocketAddrV4) -> SharedSegment {
        SharedSegment { segment, wake: Some((socket, rank)) }
    }

    /// The segment.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// A rank's part.
    pub(crate) fn part(&self, rank: u32) -> RankPart<'_> {
        self.segment.rank(self.index(rank))
    }

    fn index(&self, rank: u32) -> usize {
        if self.wake.is_some() { 0 } else { rank as usize }
    }

    /// The group has failed: whoever waits wakes, and asks why.
    pub(crate) fn fail(&self) {
        self.segment.fail();
        self.wake();
    }

    /// A watched call of a rank is answered; see [`Segment::answer`].
    pub(crate) fn answer(&self, rank: u32, answer: u64) {
        self.segment.answer(self.index(rank), answer);
        self.wake();
    }

    /// It is known whether all ranks of the group can carry out quick calls.
    pub(crate) fn quick(&self, all: bool) {
        if all { self.segment.set_ready() } else { self.segment.decline() }
    }

    /// A rank that waits for datagrams gets one, of no bytes. One that is lost it does without: it looks by itself now and then.
    fn wake(&self) {
        if let Some((socket, rank)) = &self.wake
            && let Err(error) = socket.try_send_to(&[], (*rank).into())
        {
            tracing::debug!(%rank, %error, "could not wake a rank");
        }
    }
}
