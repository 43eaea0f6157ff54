//! The segment in which ranks of this node execute calls themselves, together with the means to
//! wake a rank that waits for datagrams of quick calls instead.

use crate::leader_probe::LeaderProbe;
use cool_shm::region::RegionError;
use cool_shm::segment::{RankPart, Segment};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::UdpSocket;

/// The segment of ranks of this node.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    segment: Segment,
    /// The ranks in ascending order. Each has a part of the segment.
    ranks: Vec<u32>,
    /// For a group with quick calls: the socket and the address by which the leader of the ranks is
    /// woken.
    wake: Option<(Arc<UdpSocket>, SocketAddr)>,
    /// The test of datagrams before the first quick call, until it begins.
    probe: Mutex<Option<LeaderProbe>>,
}

impl SharedSegment {
    /// Returns the segment of a group with `size` ranks, all of which are on this node.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub(crate) fn for_group(size: usize) -> Result<SharedSegment, RegionError> {
        let (segment, ranks) = (Segment::create(size)?, (0..size as u32).collect());
        Ok(SharedSegment { segment, ranks, wake: None, probe: Mutex::default() })
    }

    /// Returns the segment of ranks of this node, the first of which receives datagrams at the
    /// address `leader`. The datagrams must be tested by `probe`, if there is one.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub(crate) fn for_node(
        ranks: &[u32],
        socket: Arc<UdpSocket>,
        leader: SocketAddr,
        probe: Option<LeaderProbe>,
    ) -> Result<SharedSegment, RegionError> {
        let segment = Segment::create_for_node(ranks.len())?;
        let (wake, probe) = (Some((socket, leader)), Mutex::new(probe));
        Ok(SharedSegment { segment, ranks: ranks.to_vec(), wake, probe })
    }

    /// Returns the segment.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the part of a rank of this node.
    pub(crate) fn part(&self, rank: u32) -> RankPart<'_> {
        self.segment.rank(self.index(rank))
    }

    /// Returns the ranks with their parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, RankPart<'_>)> {
        self.ranks.iter().zip(self.segment.ranks()).map(|(rank, part)| (*rank, part))
    }

    /// Returns the part with the leader's retransmission buffer.
    pub(crate) fn leader_part(&self) -> RankPart<'_> {
        self.segment.leader_part(self.ranks.len())
    }

    /// Returns the index of a rank's part. The rank must be one of this node.
    fn index(&self, rank: u32) -> usize {
        self.ranks.binary_search(&rank).unwrap_or_default()
    }

    /// Marks the group as failed and wakes all waiting ranks, which then ask the agent for the
    /// reason.
    pub(crate) fn fail(&self) {
        self.segment.fail();
        self.wake();
    }

    /// Wakes a rank whose watched call has a reply; see [`Segment::notify_reply`].
    pub(crate) fn notify_reply(&self, rank: u32, reply: u64) {
        self.segment.notify_reply(self.index(rank), reply);
        self.wake();
    }

    /// Records whether all ranks of the group can execute quick calls.
    pub(crate) fn quick(&self, all: bool) {
        if all { self.segment.set_ready() } else { self.segment.decline() }
    }

    /// Returns the test of datagrams, once.
    pub(crate) fn take_probe(&self) -> Option<LeaderProbe> {
        self.probe.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns whether it is known if all ranks of the group can execute quick calls, or the group
    /// has failed.
    pub(crate) fn is_decided(&self) -> bool {
        self.segment.is_ready() || self.segment.is_declined() || self.segment.has_failed()
    }

    /// Wakes a leader that waits for datagrams by sending it an empty one. If this datagram is
    /// lost, the leader wakes later, because it also checks the segment regularly.
    fn wake(&self) {
        if let Some((socket, leader)) = &self.wake
            && let Err(error) = socket.try_send_to(&[], *leader)
        {
            tracing::debug!(%leader, %error, "could not wake a rank");
        }
    }
}
