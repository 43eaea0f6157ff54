//! Datagrams that prove of which group they are: their bytes, and which of them have come before. The
//! [`Cipher`] that makes tags is the driver's.
//!
//! A tagged datagram is one of [packets](crate::packet) whose first 16 bytes (magic, version, type, group, epoch) are
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | magic `C2`; `C3` if the payload is encrypted |
//! | 1 | type of the first packet |
//! | 2..8 | sequence number, from 1 on |
//! | 8..16 | group |
//!
//! and that ends with the tag. The key is the group's of this epoch and the sender's in it, so the epoch need not be said. The nonce is the
//! address that the datagram goes to and its sequence number, of which an agent uses none twice: a datagram cannot be sent on to
//! another place, nor a second time to the same. An address of IPv6, which is longer than a nonce, is in the key instead.

mod anti_replay;
mod header;

pub use anti_replay::AntiReplay;
pub use header::{Protection, SEQUENCE_MAX, TaggedHeader};

use cool_types::Key;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// A cipher that makes tags (AES-GCM), under one key.
pub trait Cipher {
    /// With this key.
    fn new(key: &Key) -> Self;

    /// The tag for bytes that stay as they are.
    fn tag(&self, nonce: [u8; 12], clear: &[u8]) -> [u8; 16];

    /// Encrypts a payload; the tag for it and for the bytes before it, which stay as they are.
    fn encrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> [u8; 16];

    /// Decrypts a payload with its tag behind it; whether the tag is right.
    fn decrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> bool;
}

/// The key of a group, which its agents have and nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupKey {
    /// The secret.
    pub key: Key,
    /// What it is used for.
    pub protection: Protection,
}

/// Why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// Its group is not here, or has no key or no such node.
    #[error("it is of no group with a key here")]
    Unknown,
    /// It was not made with the key, for this place, or was changed on the way.
    #[error("its tag is wrong")]
    Forged,
    /// It has come before, or is older than is remembered.
    #[error("it has come before")]
    Replayed,
}

/// Tags the datagrams that an agent sends, and examines those that come.
#[derive(Debug)]
pub struct Tagger<C> {
    /// The last number. One sequence for all groups, so that no number is used twice even for a group that is made again.
    sequence: u64,
    groups: BTreeMap<u64, TaggedGroup<C>>,
}

/// A group with a key.
#[derive(Debug)]
struct TaggedGroup<C> {
    secret: GroupKey,
    epoch: u32,
    /// The place of this agent's node in it.
    me: u16,
    /// How many nodes it has.
    nodes: u16,
    /// Of the nodes that have sent or been heard, by their places.
    senders: BTreeMap<u16, SenderKeys<C>>,
}

/// A node of a group.
#[derive(Debug)]
struct SenderKeys<C> {
    /// For what it sends by IPv4, and to each address of IPv6: this node's own and those of its trees; of this node itself, those that
    /// it sends to.
    ciphers: BTreeMap<Option<Ipv6Addr>, C>,
    window: AntiReplay,
}

impl<C: Cipher> TaggedGroup<C> {
    /// What a node of the group sends to an address with, and what has come of it.
    fn sender(&mut self, place: u16, to: IpAddr) -> (&C, &mut AntiReplay) {
        let TaggedGroup { secret, epoch, senders, .. } = self;
        let new = || SenderKeys { ciphers: BTreeMap::new(), window: AntiReplay::default() };
        let SenderKeys { ciphers, window } = senders.entry(place).or_insert_with(new);
        let to = match to {
            IpAddr::V4(_) => None,
            IpAddr::V6(to) => Some(to),
        };
        let cipher = ciphers.entry(to).or_insert_with(|| {
            let mut purpose = [&b"datagrams"[..], &epoch.to_be_bytes(), &place.to_be_bytes()].concat();
            to.iter().for_each(|to| purpose.extend(to.octets()));
            C::new(&secret.key.derive(&purpose))
        });
        (cipher, window)
    }
}

impl<C> Default for Tagger<C> {
    fn default() -> Tagger<C> {
        Tagger { sequence: 0, groups: BTreeMap::new() }
    }
}

impl<C: Cipher> Tagger<C> {
    /// A group of this epoch is here, in which this agent has a place among this number of nodes.
    pub fn insert(&mut self, (group, epoch): (u64, u32), secret: GroupKey, (me, nodes): (u16, u16)) {
        self.groups.insert(group, TaggedGroup { secret, epoch, me, nodes, senders: BTreeMap::new() });
    }

    /// A group is here no more.
    pub fn remove(&mut self, group: u64) {
        self.groups.remove(&group);
    }

    /// Bytes that a group's datagrams are longer than their packets.
    pub fn tag_bytes(&self, group: u64) -> usize {
        self.groups.get(&group).map_or(0, |keyed| keyed.secret.protection.tag_bytes())
    }

    /// Tags what stands in `out` from `start` on: the packets of one group, from this agent to an address. Of a group without a
    /// key they stay as they are.
    ///
    /// Packets in another's name are refused wherever they come: numbers are told apart by whose they are, so they
    /// would pass for repeated, and two agents might use one nonce.
    pub fn seal(&mut self, (group, to): (u64, IpAddr), out: &mut Vec<u8>, start: usize) {
        let Some(keyed) = self.groups.get_mut(&group) else { return };
        self.sequence += 1;
        let protection = keyed.secret.protection;
        let header = TaggedHeader::write(&mut out[start..], protection, self.sequence);
        let (clear, payload) = out[start..].split_at_mut(header.clear);
        debug_assert_eq!(header.from, keyed.me, "an agent sends in its own name");
        let (cipher, _) = keyed.sender(keyed.me, to);
        let tag = match payload.is_empty() {
            true => cipher.tag(header.nonce(to), clear),
            false => cipher.encrypt(header.nonce(to), clear, payload),
        };
        out.extend_from_slice(&tag[..protection.tag_bytes()]);
    }

    /// Examines what came to an address, and restores the packets: their length, and the group if they were tagged.
    ///
    /// # Errors
    /// If they must not be believed.
    pub fn open(&mut self, datagram: &mut [u8], to: IpAddr) -> Result<(usize, Option<u64>), TagError> {
        let Some(header) = TaggedHeader::read(datagram) else { return Ok((datagram.len(), None)) };
        let keyed = self.groups.get_mut(&header.group).ok_or(TagError::Unknown)?;
        if header.protection != keyed.secret.protection || header.from >= keyed.nodes {
            return Err(TagError::Unknown);
        }
        let epoch = keyed.epoch;
        let (cipher, window) = keyed.sender(header.from, to);
        if !window.is_new(header.sequence) {
            return Err(TagError::Replayed);
        }
        let len = datagram.len() - header.protection.tag_bytes();
        let (clear, rest) = datagram.split_at_mut(header.clear);
        let right = match header.clear == len {
            true => is_same(&cipher.tag(header.nonce(to), clear)[..rest.len()], rest),
            false => cipher.decrypt(header.nonce(to), clear, rest),
        };
        if !right {
            return Err(TagError::Forged);
        }
        window.record(header.sequence);
        header.restore(&mut datagram[..len], epoch);
        Ok((len, Some(header.group)))
    }
}

/// Whether tags are the same; takes the same time for every wrong one.
fn is_same(right: &[u8], tag: &[u8]) -> bool {
    right.len() == tag.len() && right.iter().zip(tag).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests;
