//! The handshake by which two agents that connect prove their identities, before the first frame.
//!
//! Every agent has a key of its own, which it makes when it starts. The controller hands the key to
//! all agents that share a group with it. The initiator proves that it knows the responder's key,
//! and the responder proves that it has the key. Each proof covers a fresh nonce of the other side,
//! so recorded handshakes cannot be replayed:
//!
//! ```text
//! initiator -> responder   hello:  magic "COOLKEY1", number (32 bytes), incarnation u64, length of the name u8, name
//! responder -> initiator   reply:  number (32 bytes), HMAC("responder", hello, number)
//! initiator -> responder   proof:  HMAC("initiator", hello, number of the reply)
//! ```
//!
//! If the connection is to be encrypted, the magic is "COOLKEY2", and hello and number are each
//! followed by an X25519 public key (RFC 7748) that was made for this connection. All later bytes
//! are encrypted under keys derived from the shared secret. An attacker that obtains an agent's key
//! later, or shares a group with it, cannot decrypt recorded traffic, because only the two sides
//! know the secret.
//!
//! The members of a large group do not receive the keys of its agents, but derive them from the
//! group's key ([`agent_key`]). The magic of the hello is then "COOLKEY3", or "COOLKEY4" with
//! encryption, and the hello ends with the group's number (u64) and epoch (u32).
//!
//! A connection of two agents may consist of several TCP streams ([`StreamPlace`]). Each of them
//! makes this handshake. The magic is then "COOLKEY5" to "COOLKEY8", and the hello ends with the
//! token of the connection (16 bytes), the index of the stream (u8) and the number of streams (u8).
//! The last digit of the magic is 1, plus 1 with encryption, 2 with a group and 4 with a place.
//!
//! An agent without this handshake begins with a frame, and the first byte of a frame is zero.

use super::message::AgentId;
use cool_types::{Key, NODE_NAME_MAX, TAG_BYTES};
use core::ops::RangeInclusive;

/// The beginning of every hello. The digit behind it states the parts of the hello.
const MAGIC: [u8; 7] = *b"COOLKEY";

/// Bytes by which a hello names a group.
const GROUP_BYTES: usize = 12;

/// Bytes of the token of a connection.
pub const TOKEN_BYTES: usize = 16;

/// Bytes by which a hello states the place of a stream.
const PLACE_BYTES: usize = TOKEN_BYTES + 2;

/// Maximum number of streams of a connection.
pub const STREAMS_MAX: u8 = 16;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;

/// Bytes of a public key.
pub const PUBLIC_KEY_BYTES: usize = 32;

/// Bytes of a hello before the name. The last of them is the length of the name.
pub const HELLO_HEADER_BYTES: usize = MAGIC.len() + 1 + NONCE_BYTES + 9;

/// Bytes of the longest hello.
pub const HELLO_BYTES_MAX: usize =
    HELLO_HEADER_BYTES + NODE_NAME_MAX + PUBLIC_KEY_BYTES + GROUP_BYTES + PLACE_BYTES;

/// Valid lengths of names.
const NAME_LENGTHS: RangeInclusive<usize> = 1..=NODE_NAME_MAX;

/// Returns whether a connection with this first byte begins with a hello.
pub fn begins_with_hello(first: u8) -> bool {
    first == MAGIC[0]
}

/// The key by which an agent proves its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerKey {
    /// The key.
    pub key: Key,
    /// The group, with its epoch, from whose key the agent's key is derived; `None` if it is the
    /// agent's own key.
    pub group: Option<(u64, u32)>,
}

/// Returns the key of an agent that is derived from a group's key.
pub fn agent_key(group: &Key, agent: &AgentId) -> Key {
    group.derive(&[b"agent ", &agent.incarnation.to_be_bytes()[..], agent.node.as_bytes()].concat())
}

/// The place of a TCP stream in a connection that consists of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// A random number that the streams of this connection have in common.
    pub token: [u8; TOKEN_BYTES],
    /// The index of the stream, less than `count`.
    pub index: u8,
    /// Number of streams, from 2 to [`STREAMS_MAX`].
    pub count: u8,
}

impl StreamPlace {
    fn encode(&self) -> [u8; PLACE_BYTES] {
        let mut bytes = [self.count; PLACE_BYTES];
        bytes[..TOKEN_BYTES].copy_from_slice(&self.token);
        bytes[TOKEN_BYTES] = self.index;
        bytes
    }

    /// Returns the place, or `None` if there is no such place.
    fn decode(bytes: [u8; PLACE_BYTES]) -> Option<StreamPlace> {
        let [token @ .., index, count] = bytes;
        let exists = (2..=STREAMS_MAX).contains(&count) && index < count;
        exists.then_some(StreamPlace { token, index, count })
    }
}

/// The parts that a hello contains, as its magic states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HelloContents {
    public_key: bool,
    group: bool,
    place: bool,
}

impl HelloContents {
    fn digit(self) -> u8 {
        b'1' + u8::from(self.public_key) + 2 * u8::from(self.group) + 4 * u8::from(self.place)
    }

    /// Returns the contents of a hello, or `None` if its magic is invalid.
    fn of(hello: &[u8]) -> Option<HelloContents> {
        let (digit, _) = hello.strip_prefix(&MAGIC)?.split_first()?;
        let flags = digit.checked_sub(b'1').filter(|flags| *flags < 8)?;
        Some(HelloContents { public_key: flags & 1 > 0, group: flags & 2 > 0, place: flags & 4 > 0 })
    }

    /// Returns the number of bytes after the name.
    fn bytes(self) -> usize {
        let of = |contained, bytes| if contained { bytes } else { 0 };
        of(self.public_key, PUBLIC_KEY_BYTES) + of(self.group, GROUP_BYTES) + of(self.place, PLACE_BYTES)
    }
}

/// The values that one side makes for this connection only.
#[derive(Clone, Debug)]
pub struct Ephemeral {
    /// A nonce. It must never be used again.
    pub nonce: [u8; NONCE_BYTES],
    /// The side's public key, if the connection is to be encrypted.
    pub public_key: Option<[u8; PUBLIC_KEY_BYTES]>,
}

impl Ephemeral {
    fn bytes(&self) -> Vec<u8> {
        [&self.nonce[..], self.public_key.as_ref().map_or(&[], |key| &key[..])].concat()
    }
}

/// A connection on which both sides have proven their identities.
#[derive(Debug, PartialEq, Eq)]
pub struct EstablishedConnection {
    /// The other side's public key, if the connection is encrypted.
    pub peer: Option<[u8; PUBLIC_KEY_BYTES]>,
    key: Key,
    /// The bytes of the handshake.
    transcript: Vec<u8>,
}

impl EstablishedConnection {
    /// Returns the keys for the initiator's and the responder's records, given the shared secret of
    /// X25519.
    pub fn keys(&self, shared_secret: &[u8]) -> [Key; 2] {
        // This is HKDF (RFC 5869): extraction with the agent's key as the salt, and one block of
        // expansion.
        let secret = self.key.derive(&[shared_secret, &self.transcript].concat());
        ["initiator sends", "responder sends"].map(|purpose| secret.derive(purpose.as_bytes()))
    }
}

/// The side that connects.
#[derive(Debug)]
pub struct Initiator {
    key: Key,
    hello: Vec<u8>,
    encrypts: bool,
}

impl Initiator {
    /// Returns the initiator for a connection from agent `me` to the agent with this key, or for
    /// one of its streams.
    ///
    /// # Panics
    /// Panics if the name of `me` is too long.
    pub fn new(
        me: &AgentId,
        PeerKey { key, group }: PeerKey,
        ephemeral: &Ephemeral,
        place: Option<StreamPlace>,
    ) -> Initiator {
        assert!(NAME_LENGTHS.contains(&me.node.len()), "a node's name has at most {NODE_NAME_MAX} bytes");
        let encrypts = ephemeral.public_key.is_some();
        let contents = HelloContents { public_key: encrypts, group: group.is_some(), place: place.is_some() };
        let mut hello = MAGIC.to_vec();
        hello.push(contents.digit());
        hello.extend(ephemeral.nonce);
        hello.extend(me.incarnation.to_be_bytes());
        hello.push(me.node.len() as u8);
        hello.extend(me.node.as_bytes());
        hello.extend(ephemeral.public_key.iter().flatten());
        if let Some((group, epoch)) = group {
            hello.extend(group.to_be_bytes());
            hello.extend(epoch.to_be_bytes());
        }
        hello.extend(place.iter().flat_map(StreamPlace::encode));
        Initiator { key, hello, encrypts }
    }

    /// Returns the hello, which must be sent first.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Returns the bytes of the reply.
    pub fn reply_len(&self) -> usize {
        NONCE_BYTES + if self.encrypts { PUBLIC_KEY_BYTES } else { 0 } + TAG_BYTES
    }

    /// Returns the proof to send in answer to the reply, and the established connection. Returns
    /// `None` if the reply was not made by the agent with the key.
    pub fn proof(&self, reply: &[u8]) -> Option<([u8; TAG_BYTES], EstablishedConnection)> {
        let (ephemeral, tag) = reply.split_last_chunk()?;
        let right = reply.len() == self.reply_len()
            && self.key.verifies(&transcript("responder", &self.hello, ephemeral), tag);
        right.then(|| {
            let proof = self.key.tag(&transcript("initiator", &self.hello, ephemeral));
            (proof, established(&self.key, &self.hello, ephemeral, ephemeral[NONCE_BYTES..].try_into().ok()))
        })
    }
}

/// The side that accepts the connection.
#[derive(Debug)]
pub struct Responder {
    key: Key,
    initiator: AgentId,
    hello: Vec<u8>,
    /// The other side's public key, if the connection is to be encrypted.
    peer: Option<[u8; PUBLIC_KEY_BYTES]>,
    place: Option<StreamPlace>,
}

impl Responder {
    /// Returns how many bytes of a hello follow its header, or `None` if the header is invalid.
    pub fn remaining_len(head: &[u8; HELLO_HEADER_BYTES]) -> Option<usize> {
        let name = usize::from(head[HELLO_HEADER_BYTES - 1]);
        let more = HelloContents::of(head)?.bytes();
        NAME_LENGTHS.contains(&name).then_some(name + more)
    }

    /// Returns the group, with its epoch, from whose key the responder's key must be derived, or
    /// `None` if the responder must use its own key.
    pub fn group(hello: &[u8]) -> Option<(u64, u32)> {
        let contents = HelloContents::of(hello).filter(|contents| contents.group)?;
        let place = if contents.place { PLACE_BYTES } else { 0 };
        let (rest, epoch) = hello[..hello.len().checked_sub(place)?].split_last_chunk()?;
        let (_, group) = rest.split_last_chunk()?;
        Some((u64::from_be_bytes(*group), u32::from_be_bytes(*epoch)))
    }

    /// Returns the responder with `key` for a hello, or `None` if the hello is invalid.
    pub fn new(key: Key, hello: &[u8]) -> Option<Responder> {
        let (head, rest) = hello.split_first_chunk::<HELLO_HEADER_BYTES>()?;
        if Responder::remaining_len(head)? != rest.len() {
            return None;
        }
        let (name, more) = rest.split_at(usize::from(head[HELLO_HEADER_BYTES - 1]));
        let contents = HelloContents::of(hello)?;
        let peer = if contents.public_key { Some(*more.first_chunk()?) } else { None };
        let place = match contents.place {
            true => Some(StreamPlace::decode(*more.last_chunk()?)?),
            false => None,
        };
        let (_, incarnation) = head[..HELLO_HEADER_BYTES - 1].split_last_chunk()?;
        let initiator = AgentId {
            node: core::str::from_utf8(name).ok()?.to_owned(),
            incarnation: u64::from_be_bytes(*incarnation),
        };
        Some(Responder { key, initiator, hello: hello.to_vec(), peer, place })
    }

    /// Returns whether the connection is to be encrypted, which requires a public key.
    pub fn encrypts(&self) -> bool {
        self.peer.is_some()
    }

    /// Returns the place of this stream, if the connection consists of several.
    pub fn place(&self) -> Option<StreamPlace> {
        self.place
    }

    /// Returns the reply, which must be sent first.
    pub fn reply(&self, ephemeral: &Ephemeral) -> Vec<u8> {
        let mut reply = ephemeral.bytes();
        reply.extend(self.key.tag(&transcript("responder", &self.hello, &reply)));
        reply
    }

    /// Returns the identity of the agent that connected, and the established connection. Returns
    /// `None` if the proof was not made with the key.
    pub fn verify(
        self,
        ephemeral: &Ephemeral,
        proof: &[u8; TAG_BYTES],
    ) -> Option<(AgentId, EstablishedConnection)> {
        let ephemeral = ephemeral.bytes();
        let right = self.key.verifies(&transcript("initiator", &self.hello, &ephemeral), proof);
        right.then(|| (self.initiator, established(&self.key, &self.hello, &ephemeral, self.peer)))
    }
}

fn transcript(side: &str, hello: &[u8], ephemeral: &[u8]) -> Vec<u8> {
    [side.as_bytes(), hello, ephemeral].concat()
}

fn established(
    key: &Key,
    hello: &[u8],
    ephemeral: &[u8],
    peer: Option<[u8; PUBLIC_KEY_BYTES]>,
) -> EstablishedConnection {
    EstablishedConnection { peer, key: key.clone(), transcript: transcript("session", hello, ephemeral) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn me() -> AgentId {
        AgentId { node: "h1".to_owned(), incarnation: 77 }
    }

    /// Returns ephemeral values with these bytes.
    fn made(nonce: u8, public_key: Option<u8>) -> Ephemeral {
        Ephemeral { nonce: [nonce; NONCE_BYTES], public_key: public_key.map(|byte| [byte; PUBLIC_KEY_BYTES]) }
    }

    /// Returns an agent's own key with these bytes.
    fn own(byte: u8) -> PeerKey {
        PeerKey { key: [byte; 32].into(), group: None }
    }

    fn sides(keys: [u8; 2], public_key: Option<u8>) -> (Initiator, Responder) {
        let initiator = Initiator::new(&me(), own(keys[0]), &made(3, public_key), None);
        let responder = Responder::new([keys[1]; 32].into(), initiator.hello()).unwrap();
        (initiator, responder)
    }

    #[test]
    fn agents_that_know_the_same_key_prove_it_to_each_other() {
        let (initiator, responder) = sides([1, 1], None);
        let ours = made(4, None);
        let (proof, at_initiator) = initiator.proof(&responder.reply(&ours)).unwrap();
        assert!(!responder.encrypts());
        assert_eq!(responder.verify(&ours, &proof), Some((me(), at_initiator)));
    }

    #[test]
    fn encrypting_sides_derive_the_same_keys() {
        let (initiator, responder) = sides([1, 1], Some(8));
        let ours = made(4, Some(9));
        assert!(responder.encrypts());
        let reply = responder.reply(&ours);
        assert_eq!(reply.len(), initiator.reply_len());
        let (proof, at_initiator) = initiator.proof(&reply).unwrap();
        let (initiator, at_responder) = responder.verify(&ours, &proof).unwrap();
        assert_eq!((initiator, at_initiator.peer, at_responder.peer), (me(), Some([9; 32]), Some([8; 32])));
        let [ours, theirs] = at_initiator.keys(b"shared");
        assert_ne!(ours, theirs);
        assert_eq!(at_responder.keys(b"shared"), [ours.clone(), theirs]);
        assert_ne!(at_responder.keys(b"other")[0], ours);
    }

    #[test]
    fn a_group_stands_for_the_keys_of_its_agents_which_differ() {
        let group: Key = [7; 32].into();
        let other = AgentId { incarnation: 78, ..me() };
        assert_ne!(agent_key(&group, &me()), agent_key(&group, &other));
        for public_key in [None, Some(8)] {
            let key = PeerKey { key: agent_key(&group, &other), group: Some((5, 6)) };
            let initiator = Initiator::new(&me(), key, &made(3, public_key), None);
            let named = Responder::group(initiator.hello());
            assert_eq!((named, Responder::group(sides([1, 1], public_key).0.hello())), (Some((5, 6)), None));
            let responder = Responder::new(agent_key(&group, &other), initiator.hello()).unwrap();
            assert_eq!(responder.encrypts(), public_key.is_some());
            let ours = made(4, public_key);
            let (proof, at_initiator) = initiator.proof(&responder.reply(&ours)).unwrap();
            let (initiator, at_responder) = responder.verify(&ours, &proof).unwrap();
            assert_eq!((initiator, at_responder.keys(b"shared")), (me(), at_initiator.keys(b"shared")));
        }
    }

    #[test]
    fn a_hello_without_a_place_is_as_in_earlier_releases() {
        let group = Some((5, 6));
        let hellos = [(None, None), (Some(8), None), (None, group), (Some(8), group)];
        for (digit, (public_key, group)) in (b'1'..).zip(hellos) {
            let key = PeerKey { group, ..own(1) };
            let hello = Initiator::new(&me(), key, &made(3, public_key), None).hello().to_vec();
            let public_key = public_key.map_or(Vec::new(), |byte| vec![byte; PUBLIC_KEY_BYTES]);
            let group = group.map_or(Vec::new(), |_| [&5u64.to_be_bytes()[..], &6u32.to_be_bytes()].concat());
            let head = [&b"COOLKEY"[..], &[digit], &[3; NONCE_BYTES], &77u64.to_be_bytes(), b"\x02h1"];
            assert_eq!(hello, [&head.concat()[..], &public_key, &group].concat());
        }
    }

    #[test]
    fn a_stream_states_its_place_which_is_authenticated() {
        let place = |index, count| Some(StreamPlace { token: [7; TOKEN_BYTES], index, count });
        for (group, public_key) in
            [(None, None), (None, Some(8)), (Some((5, 6)), None), (Some((5, 6)), Some(8))]
        {
            let key = PeerKey { group, ..own(1) };
            let initiator = |place| Initiator::new(&me(), key.clone(), &made(3, public_key), place);
            for (place, exists) in [
                (place(0, 2), true),
                (place(15, STREAMS_MAX), true),
                (place(0, 1), false),
                (place(2, 2), false),
                (place(0, STREAMS_MAX + 1), false),
            ] {
                let responder = Responder::new([1; 32].into(), initiator(place).hello());
                assert_eq!(responder.map(|responder| responder.place()), exists.then_some(place));
            }
            let sent = initiator(place(0, 2));
            assert_eq!(Responder::group(sent.hello()), group);
            let mut changed = sent.hello().to_vec();
            *changed.last_mut().unwrap() = 3;
            let deceived = Responder::new([1; 32].into(), &changed).unwrap();
            let reply = deceived.reply(&made(4, public_key));
            assert_eq!((deceived.place(), sent.proof(&reply)), (place(0, 3), None));
        }
    }

    #[test]
    fn a_public_key_cannot_be_changed_or_removed_on_the_way() {
        let (initiator, responder) = sides([1, 1], Some(8));
        let mut reply = responder.reply(&made(4, Some(9)));
        reply[NONCE_BYTES] ^= 1;
        assert_eq!(initiator.proof(&reply), None);
        assert_eq!(initiator.proof(&responder.reply(&made(4, None))), None);
        let mut hello = initiator.hello().to_vec();
        *hello.last_mut().unwrap() ^= 1;
        let deceived = Responder::new([1; 32].into(), &hello).unwrap();
        assert_eq!(initiator.proof(&deceived.reply(&made(4, Some(9)))), None);
        let mut without = initiator.hello()[..initiator.hello().len() - PUBLIC_KEY_BYTES].to_vec();
        without[MAGIC.len()] = b'1';
        let deceived = Responder::new([1; 32].into(), &without).unwrap();
        assert_eq!(initiator.proof(&deceived.reply(&made(4, None))), None);
    }

    #[test]
    fn both_sides_refuse_another_key() {
        let (initiator, responder) = sides([1, 2], None);
        let ours = made(4, None);
        assert_eq!(initiator.proof(&responder.reply(&ours)), None);
        let (_, transcript) = sides([1, 1], None);
        let (proof, _) = initiator.proof(&transcript.reply(&ours)).unwrap();
        assert_eq!(responder.verify(&ours, &proof), None);
    }

    #[test]
    fn replayed_and_reflected_proofs_are_refused() {
        let (initiator, responder) = sides([1, 1], None);
        let reply = responder.reply(&made(4, None));
        let (proof, _) = initiator.proof(&reply).unwrap();
        let again = || Responder::new([1; 32].into(), initiator.hello()).unwrap();
        assert_eq!(again().verify(&made(5, None), &proof), None);
        assert_eq!(again().verify(&made(4, None), reply[NONCE_BYTES..].try_into().unwrap()), None);
        let later = Initiator::new(&me(), own(1), &made(6, None), None);
        assert_eq!(later.proof(&reply), None);
    }

    proptest! {
        #[test]
        fn any_hello_bytes_are_accepted_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..160),
            digit in prop::option::of(b'0'..=b'9'),
        ) {
            if let Some(digit) = digit && bytes.len() >= HELLO_HEADER_BYTES {
                bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
                bytes[MAGIC.len()] = digit;
                let more = HelloContents::of(&bytes).map_or(0, HelloContents::bytes);
                let name = bytes.len().saturating_sub(HELLO_HEADER_BYTES + more);
                bytes[HELLO_HEADER_BYTES - 1] = name as u8;
            }
            if let Some(responder) = Responder::new([1; 32].into(), &bytes) {
                let contents = HelloContents::of(&bytes).unwrap();
                prop_assert_eq!(Responder::group(&bytes).is_some(), contents.group);
                prop_assert_eq!(responder.encrypts(), contents.public_key);
                prop_assert_eq!(responder.place().is_some(), contents.place);
                if let Some(StreamPlace { index, count, .. }) = responder.place() {
                    prop_assert!(index < count && (2..=STREAMS_MAX).contains(&count));
                }
                let name = &bytes[HELLO_HEADER_BYTES..bytes.len() - contents.bytes()];
                prop_assert_eq!(responder.initiator.node.as_bytes(), name);
            }
        }
    }
}
