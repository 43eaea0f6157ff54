//! Datagrams with a tag that proves that they belong to a group: their wire format, and the
//! detection of replays. The [`Cipher`] that makes tags belongs to the driver.
//!
//! A tagged datagram consists of [packets](crate::packet), but its first 16 bytes (magic, version,
//! type, group, epoch) are replaced by
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | magic `C2`; `C3` if the payload is encrypted |
//! | 1 | type of the first packet |
//! | 2..8 | sequence number, starting at 1 |
//! | 8..16 | group |
//!
//! and the tag follows at the end. The key is derived from the group's key, its epoch and the
//! sender, so the epoch is not sent. The nonce consists of the destination address and the sequence
//! number. An agent must use each number only once, so a datagram can be replayed neither to
//! another destination nor to the same one. An IPv6 address is longer than a nonce, so it is part
//! of the key instead.

mod anti_replay;
mod header;

pub use anti_replay::AntiReplay;
pub use header::{Protection, SEQUENCE_MAX, TaggedHeader};

use cool_types::Key;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// A cipher that makes tags (AES-GCM) under one key.
pub trait Cipher {
    /// Returns a cipher with this key.
    fn new(key: &Key) -> Self;

    /// Returns the tag of bytes that stay in the clear.
    fn tag(&self, nonce: [u8; 12], clear: &[u8]) -> [u8; 16];

    /// Encrypts a payload. Returns the tag of the payload and of the clear bytes before it.
    fn encrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> [u8; 16];

    /// Decrypts a payload that is followed by its tag. Returns whether the tag is valid.
    fn decrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> bool;
}

/// The key of a group. Only the agents of the group must have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupKey {
    /// The key.
    pub key: Key,
    /// The protection that it is used for.
    pub protection: Protection,
}

/// The reason why a tagged datagram is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The group is unknown, has no key, or has no such node.
    #[error("it belongs to no group with a key on this node")]
    Unknown,
    /// The datagram was not made with the key or not for this destination, or was changed on the
    /// way.
    #[error("its tag is wrong")]
    Forged,
    /// The datagram was received before, or is too old to tell.
    #[error("it was received before")]
    Replayed,
}

/// Tags the datagrams that an agent sends, and verifies those that it receives.
#[derive(Debug)]
pub struct Tagger<C> {
    /// The last sequence number. All groups share one sequence, because a group that is created
    /// again must not reuse a number.
    sequence: u64,
    groups: BTreeMap<u64, TaggedGroup<C>>,
}

/// A group with a key.
#[derive(Debug)]
struct TaggedGroup<C> {
    secret: GroupKey,
    epoch: u32,
    /// The place of this agent's node in the group.
    me: u16,
    /// The number of nodes.
    nodes: u16,
    /// The nodes that have sent or received datagrams, by their places.
    senders: BTreeMap<u16, SenderKeys<C>>,
}

/// A node of a group.
#[derive(Debug)]
struct SenderKeys<C> {
    /// The ciphers for its IPv4 datagrams and for each IPv6 destination. Destinations of other
    /// nodes' datagrams are this node's own addresses and those of its trees.
    ciphers: BTreeMap<Option<Ipv6Addr>, C>,
    window: AntiReplay,
}

impl<C: Cipher> TaggedGroup<C> {
    /// Returns the cipher for a node's datagrams to an address, and the record of those received.
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
    /// Adds a group of this epoch, in which this agent has place `me` among `nodes` nodes.
    pub fn insert(&mut self, (group, epoch): (u64, u32), secret: GroupKey, (me, nodes): (u16, u16)) {
        self.groups.insert(group, TaggedGroup { secret, epoch, me, nodes, senders: BTreeMap::new() });
    }

    /// Removes a group.
    pub fn remove(&mut self, group: u64) {
        self.groups.remove(&group);
    }

    /// Returns the bytes that a group's datagrams have in addition to their packets.
    pub fn tag_bytes(&self, group: u64) -> usize {
        self.groups.get(&group).map_or(0, |keyed| keyed.secret.protection.tag_bytes())
    }

    /// Tags the packets of one group in `out` from `start` on, sent by this agent to an address.
    /// Packets of a group without a key stay unchanged.
    ///
    /// An agent must only send packets in its own name. Otherwise two agents might use the same
    /// nonce, and receivers would take the packets for replays.
    pub fn seal(&mut self, (group, to): (u64, IpAddr), out: &mut Vec<u8>, start: usize) {
        let Some(keyed) = self.groups.get_mut(&group) else { return };
        self.sequence += 1;
        let protection = keyed.secret.protection;
        let header = TaggedHeader::write(&mut out[start..], protection, self.sequence);
        let (clear, payload) = out[start..].split_at_mut(header.clear);
        debug_assert_eq!(header.from, keyed.me, "an agent must send in its own name");
        let (cipher, _) = keyed.sender(keyed.me, to);
        let tag = match payload.is_empty() {
            true => cipher.tag(header.nonce(to), clear),
            false => cipher.encrypt(header.nonce(to), clear, payload),
        };
        out.extend_from_slice(&tag[..protection.tag_bytes()]);
    }

    /// Verifies a datagram that arrived at an address and restores its packets. Returns their
    /// length, and the group if they were tagged.
    ///
    /// # Errors
    /// Returns an error if the datagram must not be trusted.
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

/// Returns whether two tags are equal. Takes the same time for every wrong tag.
fn is_same(right: &[u8], tag: &[u8]) -> bool {
    right.len() == tag.len() && right.iter().zip(tag).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests;
