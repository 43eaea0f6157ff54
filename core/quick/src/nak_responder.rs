//! Answers NAKs for the messages of a leader, from its retransmission buffer.

use crate::call_key::CallKey;
use crate::datagram::{Datagram, DatagramHeader, DatagramKind};
use crate::message_parts::{ArrivedParts, missing_parts};
use cool_collective::Rank;
use std::borrow::Cow;

/// Reported as the leader's call if its description is no longer in the buffer.
const UNKNOWN_CALL: &str = "something else";

/// The latest messages and calls of a leader, from which its agent answers NAKs.
pub trait RetransmitBuffer {
    /// Returns the datagram of a message, by its call number and transfer, or `None` if it is not
    /// in the buffer.
    fn message(&self, name: (u64, u32)) -> Option<Vec<u8>>;

    /// Returns the digest of a call, or `None` if the call is not in the buffer.
    fn digest(&self, call: u64) -> Option<u64>;

    /// Returns the description of a call that [`RetransmitBuffer::digest`] knows.
    fn text(&self, call: u64) -> Option<String>;
}

/// Answers NAKs on behalf of one leader.
#[derive(Clone, Debug)]
pub struct NakResponder {
    /// The key under which datagrams are tagged.
    pub key: CallKey,
    /// The group, with the epoch of its membership.
    pub group: (u64, u32),
    /// The leader.
    pub leader: Rank,
}

/// The answer to a NAK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NakAnswer {
    /// The rank that sent the NAK.
    pub requester: Rank,
    /// The message, or a mismatch if that rank made another call.
    message: Vec<u8>,
    arrived: ArrivedParts,
}

impl NakAnswer {
    /// Returns the datagrams to send, one right after the other, as [`in_parts`](crate::in_parts)
    /// does, without the parts that the requester has.
    pub fn datagrams(&self, datagram_bytes: usize) -> Cow<'_, [u8]> {
        missing_parts(&self.message, datagram_bytes, self.arrived)
    }
}

impl NakResponder {
    /// Returns the answer to the NAK in `bytes`. Returns `None` if the datagram is not a NAK for
    /// this leader, or the message is not in the buffer, because it was not sent yet or all
    /// receivers have it.
    pub fn respond(&self, buffer: &impl RetransmitBuffer, bytes: &[u8]) -> Option<NakAnswer> {
        let Datagram { header: nak, payload } = Datagram::verify(&self.key, self.group, bytes).ok()?;
        if nak.kind != DatagramKind::Nak || nak.requested != self.leader.0 {
            return None;
        }
        let (requester, arrived) = (Rank(nak.from), ArrivedParts::from_payload(payload));
        if let Some(called) = buffer.digest(nak.call).filter(|called| *called != nak.digest) {
            let message = self.mismatch(nak, called, &buffer.text(nak.call)?);
            return Some(NakAnswer { requester, message, arrived: ArrivedParts::default() });
        }
        let message = buffer.message((nak.call, nak.transfer))?;
        // The buffer keeps messages longer than calls, so the digest must be compared again.
        // Otherwise the requester would receive a message of another call and send another NAK.
        let called = Datagram::verify(&self.key, self.group, &message).ok()?.header.digest;
        if called == nak.digest {
            return Some(NakAnswer { requester, message, arrived });
        }
        let message = self.mismatch(nak, called, UNKNOWN_CALL);
        Some(NakAnswer { requester, message, arrived: ArrivedParts::default() })
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
    use crate::call_key::tests::call_key;

    /// A leader that made one call and sent one message. Its record of the call may have expired.
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
        let (key, group) = (call_key(1), (9, 2));
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
            let answer = responder.respond(&leader, &nak).unwrap();
            let Datagram { header, payload } = Datagram::verify(&key, group, &answer.message).unwrap();
            assert_eq!((answer.requester, header.from, header.digest), (Rank(4), 3, 70));
            (header.kind, String::from_utf8(payload.to_vec()).unwrap())
        };
        assert_eq!(answer(true, 70), (DatagramKind::Message, "data".to_owned()));
        assert_eq!(answer(false, 70), (DatagramKind::Message, "data".to_owned()));
        assert_eq!(answer(true, 71), (DatagramKind::Mismatch, "bcast of 1 f32".to_owned()));
        assert_eq!(answer(false, 71), (DatagramKind::Mismatch, UNKNOWN_CALL.to_owned()));
    }
}
