//! The test of a group's datagrams before its first quick call. Firewalls, or interfaces and switch
//! ports with a smaller MTU, may drop all of them or only the long ones. Quick calls would then
//! never complete, because retransmissions are dropped too.
//!
//! Each leader sends a datagram of the maximum length to the next leader, and the first one sends
//! another over the tree. So a leader receives at most two, however many there are, and each link
//! carries datagrams of full length in both directions.

use crate::call_key::CallKey;
use crate::calls::SendTo;
use crate::datagram::{DATAGRAM_BYTES_MAX, Datagram, DatagramHeader, DatagramKind, OVERHEAD_BYTES};
use crate::message_parts::{ArrivedDatagram, CompleteMessage, Reassembly, arrived_datagrams, in_parts};
use cool_collective::Rank;
use std::collections::BTreeSet;

/// The path by which a probe is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbePath {
    /// From the previous leader to this one.
    Unicast,
    /// From the first leader, over the tree.
    Multicast,
}

/// The test by one leader.
#[derive(Clone, Debug)]
pub struct DatagramProbe {
    key: CallKey,
    group: (u64, u32),
    leader: u32,
    /// Number of leaders.
    leaders: u32,
    missing: BTreeSet<ProbePath>,
    /// Length of the datagrams into which messages are divided; 0 if they are not.
    datagram_bytes: usize,
    reassembly: Reassembly,
}

impl DatagramProbe {
    /// Returns the test by leader `leader` of `leaders`, before any datagram has arrived. Messages
    /// are divided into datagrams of `datagram_bytes`; see [`in_parts`].
    pub fn new(
        key: CallKey,
        group: (u64, u32),
        leader: Rank,
        leaders: usize,
        datagram_bytes: usize,
    ) -> DatagramProbe {
        let (leader, leaders) = (leader.0, leaders as u32);
        let paths = [ProbePath::Unicast, ProbePath::Multicast];
        let missing = paths.into_iter().filter(|path| *path == ProbePath::Unicast || leader > 0).collect();
        DatagramProbe {
            key,
            group,
            leader,
            leaders,
            missing,
            datagram_bytes,
            reassembly: Reassembly::default(),
        }
    }

    /// Returns the datagrams that the leader must send, and repeat because they may be lost.
    pub fn datagrams(&self) -> Vec<(SendTo, Vec<u8>)> {
        let next = SendTo::Rank(Rank((self.leader + 1) % self.leaders.max(1)));
        let unicast = (next, self.datagram(ProbePath::Unicast));
        let multicast = (self.leader == 0).then(|| (SendTo::All, self.datagram(ProbePath::Multicast)));
        std::iter::once(unicast).chain(multicast).collect()
    }

    fn datagram(&self, path: ProbePath) -> Vec<u8> {
        let (group, epoch) = self.group;
        let header = DatagramHeader {
            kind: DatagramKind::Probe,
            group,
            epoch,
            call: 0,
            transfer: path as u32,
            from: self.leader,
            requested: 0,
            digest: 0,
        };
        let message =
            Datagram { header, payload: &[0; DATAGRAM_BYTES_MAX - OVERHEAD_BYTES] }.encode(&self.key);
        in_parts(&message, self.datagram_bytes).into_owned()
    }

    /// Handles one or several datagrams, one right after the other. Returns the first path that is
    /// now known to work, if a probe is complete.
    pub fn receive(&mut self, bytes: &[u8]) -> Option<ProbePath> {
        let mut path = None;
        for datagram in arrived_datagrams(bytes) {
            let found = match datagram {
                ArrivedDatagram::Part(part) if part.group() != self.group => None,
                ArrivedDatagram::Part(part) => match self.reassembly.add(&part, None) {
                    Some(CompleteMessage::Whole(message)) => self.probe(&message),
                    Some(CompleteMessage::InPlace(..)) | None => None,
                },
                ArrivedDatagram::Other(message) => self.probe(message),
            };
            path = path.or(found);
        }
        path
    }

    fn probe(&mut self, bytes: &[u8]) -> Option<ProbePath> {
        let Datagram { header, payload } = Datagram::verify(&self.key, self.group, bytes).ok()?;
        let path = [ProbePath::Unicast, ProbePath::Multicast]
            .into_iter()
            .find(|path| header.transfer == *path as u32 && header.from == self.sender(*path).0)?;
        let is_probe =
            header.kind == DatagramKind::Probe && payload.len() + OVERHEAD_BYTES == DATAGRAM_BYTES_MAX;
        is_probe.then(|| self.missing.remove(&path))?;
        Some(path)
    }

    /// Returns the leader that sends over a path to this one.
    fn sender(&self, path: ProbePath) -> Rank {
        match path {
            ProbePath::Unicast => Rank((self.leader + self.leaders.max(1) - 1) % self.leaders.max(1)),
            ProbePath::Multicast => Rank(0),
        }
    }

    /// Returns the paths over which nothing has arrived, each with the sending leader.
    pub fn missing(&self) -> impl Iterator<Item = (ProbePath, Rank)> {
        self.missing.iter().map(|path| (*path, self.sender(*path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_key::tests::call_key;

    fn probes(leaders: u32, datagram_bytes: usize) -> Vec<DatagramProbe> {
        let probe =
            |leader| DatagramProbe::new(call_key(7), (9, 2), Rank(leader), leaders as usize, datagram_bytes);
        (0..leaders).map(probe).collect()
    }

    /// Sends the datagrams of all leaders that pass, given sender, receiver and path. Returns the
    /// missing paths of each leader.
    fn exchange(leaders: u32, passes: impl Fn(u32, u32, ProbePath) -> bool) -> Vec<Vec<(ProbePath, Rank)>> {
        let [whole, parts] = [0, 1472].map(|bytes| exchange_by(bytes, leaders, &passes));
        assert_eq!(whole, parts);
        whole
    }

    fn exchange_by(
        datagram_bytes: usize,
        leaders: u32,
        passes: &impl Fn(u32, u32, ProbePath) -> bool,
    ) -> Vec<Vec<(ProbePath, Rank)>> {
        let mut probes = probes(leaders, datagram_bytes);
        for from in 0..leaders {
            for (to, bytes) in probes[from as usize].datagrams() {
                let (to, path) = match to {
                    SendTo::Rank(to) => (vec![to.0], ProbePath::Unicast),
                    _ => ((0..leaders).filter(|to| *to != from).collect(), ProbePath::Multicast),
                };
                for to in to.into_iter().filter(|to| passes(from, *to, path)) {
                    assert_eq!(probes[to as usize].receive(&bytes), Some(path));
                }
            }
        }
        probes.iter().map(|probe| probe.missing().collect()).collect()
    }

    #[test]
    fn leaders_that_all_reach_each_other_miss_nothing() {
        for leaders in [2, 3, 9] {
            assert!(exchange(leaders, |_, _, _| true).iter().all(Vec::is_empty));
        }
    }

    #[test]
    fn a_host_that_drops_datagrams_is_noticed_in_either_direction() {
        let deaf = exchange(4, |_, to, _| to != 2);
        assert_eq!(deaf[2], [(ProbePath::Unicast, Rank(1)), (ProbePath::Multicast, Rank(0))]);
        let mute = exchange(4, |from, _, _| from != 2);
        assert_eq!(mute[3], [(ProbePath::Unicast, Rank(2))]);
        let no_tree = exchange(4, |_, _, path| path == ProbePath::Unicast);
        assert!(no_tree[0].is_empty());
        assert!((1..4).all(|leader| no_tree[leader] == [(ProbePath::Multicast, Rank(0))]));
    }

    #[test]
    fn only_probes_of_the_expected_leaders_count() {
        let mut probes = probes(3, 0);
        let (_, bytes) = probes[0].datagrams().remove(0);
        assert_eq!(bytes.len(), DATAGRAM_BYTES_MAX);
        assert_eq!(probes[2].receive(&bytes), None);
        assert_eq!(probes[1].receive(&bytes[..1400]), None);
        assert_eq!(probes[1].receive(&[]), None);
        let mut other = DatagramProbe::new(call_key(8), (9, 2), Rank(1), 3, 0);
        assert_eq!(other.receive(&bytes), None);
        assert_eq!(probes[1].receive(&bytes), Some(ProbePath::Unicast));
    }
}
