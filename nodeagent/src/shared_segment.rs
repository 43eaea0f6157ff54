//! The segment in which ranks of this node carry out calls themselves, and how one of them is woken that waits elsewhere: for datagrams of
//! quick calls.

use cool_shm::region::RegionError;
use cool_shm::segment::{RankPart, Segment};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::UdpSocket;

/// A segment of ranks of this node.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    segment: Segment,
    /// The ranks, ascending: each has a part.
    ranks: Vec<u32>,
    /// Of a group with quick calls: by which socket, and where, the leader of the ranks is woken.
    wake: Option<(Arc<UdpSocket>, SocketAddr)>,
}

impl SharedSegment {
    /// The segment of a group whose ranks, as many, are all here.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn for_group(size: usize) -> Result<SharedSegment, RegionError> {
        Ok(SharedSegment { segment: Segment::create(size)?, ranks: (0..size as u32).collect(), wake: None })
    }

    /// That of ranks of which the first takes datagrams at an address.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn for_node(
        ranks: &[u32],
        socket: Arc<UdpSocket>,
        leader: SocketAddr,
    ) -> Result<SharedSegment, RegionError> {
        let segment = Segment::create_for_node(ranks.len())?;
        Ok(SharedSegment { segment, ranks: ranks.to_vec(), wake: Some((socket, leader)) })
    }

    /// The segment.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// A rank's part.
    pub(crate) fn part(&self, rank: u32) -> RankPart<'_> {
        self.segment.rank(self.index(rank))
    }

    /// The ranks and their parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, RankPart<'_>)> {
        self.ranks.iter().zip(self.segment.ranks()).map(|(rank, part)| (*rank, part))
    }

    /// The part in which the leader of the ranks keeps what it has sent.
    pub(crate) fn leader_part(&self) -> RankPart<'_> {
        self.segment.leader_part(self.ranks.len())
    }

    /// Only ranks of this node have anything to do with its segment.
    fn index(&self, rank: u32) -> usize {
        self.ranks.binary_search(&rank).unwrap_or_default()
    }

    /// The group has failed: whoever waits wakes, and asks why.
    pub(crate) fn fail(&self) {
        self.segment.fail();
        self.wake();
    }

    /// A watched call of a rank is answered; see [`Segment::notify_reply`].
    pub(crate) fn notify_reply(&self, rank: u32, reply: u64) {
        self.segment.notify_reply(self.index(rank), reply);
        self.wake();
    }

    /// It is known whether all ranks of the group can carry out quick calls.
    pub(crate) fn quick(&self, all: bool) {
        if all { self.segment.set_ready() } else { self.segment.decline() }
    }

    /// A leader that waits for datagrams gets one, of no bytes. One that is lost it does without: it looks by itself now and then.
    fn wake(&self) {
        if let Some((socket, leader)) = &self.wake
            && let Err(error) = socket.try_send_to(&[], *leader)
        {
            tracing::debug!(%leader, %error, "could not wake a rank");
        }
    }
}
