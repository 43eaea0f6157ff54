//! What the agent of a leader answers to those that lack one of its messages, from what the leader keeps.

use crate::datagram::{Datagram, DatagramHeader, DatagramKind};
use cool_collective::Rank;
use cool_types::Key;

/// What is said to have been called where the words are not kept any more.
const UNKNOWN_CALL: &str = "something else";

/// What a leader keeps: its latest messages and calls.
pub trait RetransmitBuffer {
    /// The datagram of a message, by its call and transfer.
    fn message(&self, name: (u64, u32)) -> Option<Vec<u8>>;

    /// The digest of a call.
    fn digest(&self, call: u64) -> Option<u64>;

    /// Such a call in words.
    fn text(&self, call: u64) -> Option<String>;
}

/// In whose name an agent answers.
#[derive(Clone, Debug)]
pub struct NakResponder {
    /// Under which datagrams are tagged.
    pub key: Key,
    /// The group, with the version of its membership.
    pub group: (u64, u32),
    /// The leader.
    pub leader: Rank,
}

impl NakResponder {
    /// Who has asked by a datagram, and the answer; none if it is not for this agent, the leader has not sent what is asked for, or nobody
    /// can lack it any more.
    pub fn respond(&self, buffer: &impl RetransmitBuffer, bytes: &[u8]) -> Option<(Rank, Vec<u8>)> {
        let Datagram { header: nak, .. } = Datagram::verify(&self.key, self.group, bytes).ok()?;
        if nak.kind != DatagramKind::Nak || nak.requested != self.leader.0 {
            return None;
        }
        let requester = Rank(nak.from);
        if let Some(called) = buffer.digest(nak.call).filter(|called| *called != nak.digest) {
            return Some((requester, self.mismatch(nak, called, &buffer.text(nak.call)?)));
        }
        let message = buffer.message((nak.call, nak.transfer))?;
        // Messages are kept for longer than calls. One of another call would only be asked about again.
        let called = Datagram::verify(&self.key, self.group, &message).ok()?.header.digest;
        let answer = if called == nak.digest { message } else { self.mismatch(nak, called, UNKNOWN_CALL) };
        Some((requester, answer))
    }

    fn mismatch(&self, nak: DatagramHeader, digest: u64, text: &str) -> Vec<u8> {
        let header =
            DatagramHeader { kind: DatagramKind::Mismatch, from: self.leader.0, requested: 0, digest, ..nak };
        Datagram { header, payload: text.as_bytes() }.encode(&self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader that has called and sent one thing; whose words may be gone.
    struct Leader {
        message: Vec<u8>,
        remembers: bool,
    }

    impl RetransmitBuffer for Leader {
        fn message(&self, name: (u64, u32)) -> Option<Vec<u8>> {
            (name == (7, 1)).then(|| self.message.clone())
        }

        fn digest(&self, call: u64) -> Option<u64> {
            (self.remembers && call == 7).then_some(70)
        }

        fn text(&self, _: u64) -> Option<String> {
            Some("bcast of 1 f32".to_owned())
        }
    }

    #[test]
    fn a_mismatched_nak_is_answered_with_the_call_not_the_message() {
        let (key, group) = (Key::from([1; 32]), (9, 2));
        let header = |kind, from, digest| DatagramHeader {
            kind,
            group: 9,
            epoch: 2,
            call: 7,
            transfer: 1,
            from,
            requested: if kind == DatagramKind::Nak { 3 } else { 0 },
            digest,
        };
        let message =
            Datagram { header: header(DatagramKind::Message, 3, 70), payload: b"data" }.encode(&key);
        let responder = NakResponder { key: key.clone(), group, leader: Rank(3) };
        let answer = |remembers, digest| {
            let nak = Datagram { header: header(DatagramKind::Nak, 4, digest), payload: &[] }.encode(&key);
            let leader = Leader { message: message.clone(), remembers };
            let (requester, bytes) = responder.respond(&leader, &nak).unwrap();
            let Datagram { header, payload } = Datagram::verify(&key, group, &bytes).unwrap();
            assert_eq!((requester, header.from, header.digest), (Rank(4), 3, 70));
            (header.kind, String::from_utf8(payload.to_vec()).unwrap())
        };
        assert_eq!(answer(true, 70), (DatagramKind::Message, "data".to_owned()));
        assert_eq!(answer(false, 70), (DatagramKind::Message, "data".to_owned()));
        assert_eq!(answer(true, 71), (DatagramKind::Mismatch, "bcast of 1 f32".to_owned()));
        assert_eq!(answer(false, 71), (DatagramKind::Mismatch, UNKNOWN_CALL.to_owned()));
    }
}
