//! What the agent of a leader answers to those that lack one of its messages, from what the leader keeps.

use crate::datagram::{Datagram, DatagramKind, Head};
use cool_collective::Rank;
use cool_types::Key;

/// What is said to have been called where the words are not kept any more.
const FORGOTTEN: &str = "something else";

/// What a leader keeps: its latest messages and calls.
pub trait Kept {
    /// The datagram of a message, by its call and transfer.
    fn message(&self, name: (u64, u32)) -> Option<Vec<u8>>;

    /// The digest of a call.
    fn digest(&self, call: u64) -> Option<u64>;

    /// Such a call in words.
    fn text(&self, call: u64) -> Option<String>;
}

/// In whose name an agent answers.
#[derive(Clone, Debug)]
pub struct Answering {
    /// Under which datagrams are tagged.
    pub key: Key,
    /// The group, with the version of its membership.
    pub group: (u64, u32),
    /// The leader.
    pub leader: Rank,
}

impl Answering {
    /// Who has asked by a datagram, and the answer; none if it is not for this agent, the leader has not sent what is asked for, or nobody
    /// can lack it any more.
    pub fn answer(&self, kept: &impl Kept, bytes: &[u8]) -> Option<(Rank, Vec<u8>)> {
        let Datagram { head: asked, .. } = Datagram::open(&self.key, self.group, bytes).ok()?;
        if asked.kind != DatagramKind::Ask || asked.asked != self.leader.0 {
            return None;
        }
        let asker = Rank(asked.from);
        if let Some(called) = kept.digest(asked.call).filter(|called| *called != asked.digest) {
            return Some((asker, self.differs(asked, called, &kept.text(asked.call)?)));
        }
        let message = kept.message((asked.call, asked.transfer))?;
        // Messages are kept for longer than calls. One of another call would only be asked about again.
        let called = Datagram::open(&self.key, self.group, &message).ok()?.head.digest;
        let answer = if called == asked.digest { message } else { self.differs(asked, called, FORGOTTEN) };
        Some((asker, answer))
    }

    fn differs(&self, asked: Head, digest: u64, text: &str) -> Vec<u8> {
        let head = Head { kind: DatagramKind::Differs, from: self.leader.0, asked: 0, digest, ..asked };
        Datagram { head, payload: text.as_bytes() }.seal(&self.key)
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

    impl Kept for Leader {
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
    fn who_has_called_something_else_gets_no_message_also_when_the_words_are_gone() {
        let (key, group) = (Key::from([1; 32]), (9, 2));
        let head = |kind, from, digest| Head {
            kind,
            group: 9,
            epoch: 2,
            call: 7,
            transfer: 1,
            from,
            asked: if kind == DatagramKind::Ask { 3 } else { 0 },
            digest,
        };
        let message = Datagram { head: head(DatagramKind::Message, 3, 70), payload: b"data" }.seal(&key);
        let answering = Answering { key: key.clone(), group, leader: Rank(3) };
        let answer = |remembers, digest| {
            let asked = Datagram { head: head(DatagramKind::Ask, 4, digest), payload: &[] }.seal(&key);
            let leader = Leader { message: message.clone(), remembers };
            let (asker, bytes) = answering.answer(&leader, &asked).unwrap();
            let Datagram { head, payload } = Datagram::open(&key, group, &bytes).unwrap();
            assert_eq!((asker, head.from, head.digest), (Rank(4), 3, 70));
            (head.kind, String::from_utf8(payload.to_vec()).unwrap())
        };
        assert_eq!(answer(true, 70), (DatagramKind::Message, "data".to_owned()));
        assert_eq!(answer(false, 70), (DatagramKind::Message, "data".to_owned()));
        assert_eq!(answer(true, 71), (DatagramKind::Differs, "bcast of 1 f32".to_owned()));
        assert_eq!(answer(false, 71), (DatagramKind::Differs, FORGOTTEN.to_owned()));
    }
}
