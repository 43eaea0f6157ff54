//! How two agents that connect prove to each other who they are, before the first frame.
//!
//! Every agent has a key of its own, made when it starts, which the controller hands to the agents that share a group with it.
//! Who connects shows that it knows the key of the agent that it connects to, and that one that it has it, each for a number that
//! the other has just made, so that nothing heard before is of use:
//!
//! ```text
//! initiator -> responder   hello:  magic "COOLKEY1", number (32 bytes), incarnation u64, length of the name u8, name
//! responder -> initiator   reply:  number (32 bytes), HMAC("responder", hello, number)
//! initiator -> responder   proof:  HMAC("initiator", hello, number of the reply)
//! ```
//!
//! An agent that knows nothing of this begins with a frame, whose first byte is zero.

use super::message::AgentId;
use cool_types::{Key, NODE_NAME_MAX, TAG};
use core::ops::RangeInclusive;

const MAGIC: [u8; 8] = *b"COOLKEY1";

/// Bytes of the numbers that are used once.
pub const NONCE: usize = 32;

/// Bytes of a hello before the name, the last of which is the name's length.
pub const HELLO_HEAD: usize = MAGIC.len() + NONCE + 9;

/// Bytes of a reply.
pub const REPLY: usize = NONCE + TAG;

/// Lengths of names.
const NAMES: RangeInclusive<usize> = 1..=NODE_NAME_MAX;

/// Whether a connection begins with a hello, by its first byte.
pub fn begins_with_hello(first: u8) -> bool {
    first == MAGIC[0]
}

/// The side that connects.
#[derive(Debug)]
pub struct Initiator {
    key: Key,
    hello: Vec<u8>,
}

impl Initiator {
    /// The agent `me` connects to the one that has `key`; `nonce` has never been used.
    ///
    /// # Panics
    /// If its name is longer than any may be.
    pub fn new(me: &AgentId, key: Key, nonce: [u8; NONCE]) -> Initiator {
        assert!(NAMES.contains(&me.node.len()), "a node's name has at most {NODE_NAME_MAX} bytes");
        let mut hello = MAGIC.to_vec();
        hello.extend(nonce);
        hello.extend(me.incarnation.to_be_bytes());
        hello.push(me.node.len() as u8);
        hello.extend(me.node.as_bytes());
        Initiator { key, hello }
    }

    /// What to send first.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// What to send for the reply; `None` if that is not of the agent whose key it is.
    pub fn proof(&self, reply: &[u8; REPLY]) -> Option<[u8; TAG]> {
        let (nonce, tag) = reply.split_at(NONCE);
        let tag = tag.try_into().ok()?;
        self.key
            .proves(&said("responder", &self.hello, nonce), tag)
            .then(|| self.key.tag(&said("initiator", &self.hello, nonce)))
    }
}

/// The side that is connected to.
#[derive(Debug)]
pub struct Responder {
    key: Key,
    who: AgentId,
    hello: Vec<u8>,
    nonce: [u8; NONCE],
}

impl Responder {
    /// How many bytes the name in a hello has; `None` if it is no hello.
    pub fn name_len(head: &[u8; HELLO_HEAD]) -> Option<usize> {
        let len = usize::from(head[HELLO_HEAD - 1]);
        (head.starts_with(&MAGIC) && NAMES.contains(&len)).then_some(len)
    }

    /// The agent with `key` is said hello to; `nonce` has never been used. `None` if it is none.
    pub fn new(key: Key, hello: &[u8], nonce: [u8; NONCE]) -> Option<Responder> {
        let (head, name) = hello.split_first_chunk::<HELLO_HEAD>()?;
        if Responder::name_len(head)? != name.len() {
            return None;
        }
        let (_, incarnation) = head[..HELLO_HEAD - 1].split_last_chunk()?;
        let who = AgentId {
            node: core::str::from_utf8(name).ok()?.to_owned(),
            incarnation: u64::from_be_bytes(*incarnation),
        };
        Some(Responder { key, who, hello: hello.to_vec(), nonce })
    }

    /// What to send first.
    pub fn reply(&self) -> [u8; REPLY] {
        let mut reply = [0; REPLY];
        reply[..NONCE].copy_from_slice(&self.nonce);
        reply[NONCE..].copy_from_slice(&self.key.tag(&said("responder", &self.hello, &self.nonce)));
        reply
    }

    /// Who it is that connected; `None` if it does not know the key.
    pub fn proven(self, proof: &[u8; TAG]) -> Option<AgentId> {
        self.key.proves(&said("initiator", &self.hello, &self.nonce), proof).then_some(self.who)
    }
}

fn said(side: &str, hello: &[u8], nonce: &[u8]) -> Vec<u8> {
    [side.as_bytes(), hello, nonce].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn me() -> AgentId {
        AgentId { node: "h1".to_owned(), incarnation: 77 }
    }

    fn sides(keys: [u8; 2]) -> (Initiator, Responder) {
        let initiator = Initiator::new(&me(), [keys[0]; 32].into(), [3; NONCE]);
        let responder = Responder::new([keys[1]; 32].into(), initiator.hello(), [4; NONCE]).unwrap();
        (initiator, responder)
    }

    #[test]
    fn agents_that_know_the_same_key_prove_it_to_each_other() {
        let (initiator, responder) = sides([1, 1]);
        let proof = initiator.proof(&responder.reply()).unwrap();
        assert_eq!(responder.proven(&proof), Some(me()));
    }

    #[test]
    fn who_has_another_key_is_found_out_by_both() {
        let (initiator, responder) = sides([1, 2]);
        assert_eq!(initiator.proof(&responder.reply()), None);
        let (_, said) = sides([1, 1]);
        let proof = initiator.proof(&said.reply()).unwrap();
        assert_eq!(responder.proven(&proof), None);
    }

    #[test]
    fn what_was_heard_before_proves_nothing_and_neither_does_what_the_other_side_said() {
        let (initiator, responder) = sides([1, 1]);
        let (reply, proof) = (responder.reply(), initiator.proof(&responder.reply()).unwrap());
        let again = |nonce| Responder::new([1; 32].into(), initiator.hello(), [nonce; NONCE]).unwrap();
        assert_eq!(again(5).proven(&proof), None);
        assert_eq!(again(4).proven(reply[NONCE..].try_into().unwrap()), None);
        let later = Initiator::new(&me(), [1; 32].into(), [6; NONCE]);
        assert_eq!(later.proof(&reply), None);
    }

    proptest! {
        #[test]
        fn any_bytes_for_a_hello_are_taken_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), magic: bool) {
            if magic && bytes.len() >= HELLO_HEAD {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[HELLO_HEAD - 1] = (bytes.len() - HELLO_HEAD) as u8;
            }
            if let Some(responder) = Responder::new([1; 32].into(), &bytes, [4; NONCE]) {
                let name = String::from_utf8(bytes[HELLO_HEAD..].to_vec()).unwrap();
                prop_assert_eq!(responder.who.node, name);
            }
        }
    }
}
