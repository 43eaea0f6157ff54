//! How all ranks of a communicator join a group of COOL, or none does: their vote, the key under
//! which they join, and the reason why a rank cannot join. Also the table of known communicators.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Maximum bytes of a reason that is sent to the other ranks.
pub const REASON_BYTES: usize = 400;

/// Returns a rank's contribution to an allreduce by `MPI_MIN`.
pub fn vote(can: bool, rank: usize, size: usize) -> i32 {
    i32::try_from(if can { size } else { rank }).unwrap_or(i32::MAX)
}

/// Returns the first rank that cannot join, given the result of the allreduce.
pub fn first_to_fail(least: i32, size: usize) -> Option<usize> {
    usize::try_from(least).ok().filter(|rank| *rank < size)
}

/// Returns a key made of random bytes, as hexadecimal digits, because keys are text.
pub fn group_key(random: [u8; KEY_BYTES / 2]) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    for (letters, byte) in key.chunks_exact_mut(2).zip(random) {
        letters.copy_from_slice(&[byte >> 4, byte & 15].map(|half| b"0123456789abcdef"[usize::from(half)]));
    }
    key
}

/// Returns a reason as it is sent, truncated to the maximum length.
pub fn reason_bytes(reason: &str) -> [u8; REASON_BYTES] {
    let mut bytes = [0; REASON_BYTES];
    let cut = &reason[..reason.floor_char_boundary(REASON_BYTES)];
    bytes[..cut.len()].copy_from_slice(cut.as_bytes());
    bytes
}

/// Returns a received reason.
pub fn reason(bytes: &[u8; REASON_BYTES]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(REASON_BYTES);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Communicators by their handles. A communicator must be removed when it is freed, because its
/// handle may be reused.
#[derive(Debug)]
pub struct Communicators<C> {
    known: BTreeMap<usize, Arc<C>>,
}

impl<C> Communicators<C> {
    /// Creates an empty table.
    pub const fn new() -> Communicators<C> {
        Communicators { known: BTreeMap::new() }
    }

    /// Returns the state of a communicator.
    pub fn get(&self, handle: usize) -> Option<Arc<C>> {
        self.known.get(&handle).map(Arc::clone)
    }

    /// Adds the state of a communicator.
    pub fn insert(&mut self, handle: usize, communicator: C) -> Arc<C> {
        let communicator = Arc::new(communicator);
        self.known.insert(handle, Arc::clone(&communicator));
        communicator
    }

    /// Removes a communicator that was freed.
    pub fn remove(&mut self, handle: usize) -> Option<Arc<C>> {
        self.known.remove(&handle)
    }

    /// Removes all communicators.
    pub fn take_all(&mut self) -> Vec<Arc<C>> {
        std::mem::take(&mut self.known).into_values().collect()
    }
}

impl<C> Default for Communicators<C> {
    fn default() -> Communicators<C> {
        Communicators::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_cannot_is_known_to_all() {
        let outcome = |can: [bool; 4]| {
            let least = can.into_iter().enumerate().map(|(rank, can)| vote(can, rank, 4)).min();
            first_to_fail(least.unwrap(), 4)
        };
        assert_eq!(outcome([true; 4]), None);
        assert_eq!(outcome([true, false, true, false]), Some(1));
        assert_eq!(outcome([false; 4]), Some(0));
    }

    #[test]
    fn a_key_is_its_bytes_in_letters() {
        let mut random = [0; 16];
        (random[0], random[15]) = (0xf1, 0x0a);
        assert_eq!(&group_key(random), b"f100000000000000000000000000000a");
    }

    #[test]
    fn a_long_reason_is_truncated_between_characters() {
        assert_eq!(reason(&reason_bytes("no agent")), "no agent");
        let long = "a".repeat(REASON_BYTES - 1) + "é";
        assert_eq!(reason(&reason_bytes(&long)), &long[..REASON_BYTES - 1]);
    }

    #[test]
    fn a_handle_that_was_freed_is_not_known_again() {
        let mut communicators = Communicators::new();
        communicators.insert(7, "first");
        assert_eq!(communicators.remove(7).as_deref(), Some(&"first"));
        assert!(communicators.get(7).is_none());
        communicators.insert(7, "second");
        assert_eq!(communicators.get(7).as_deref(), Some(&"second"));
    }
}
