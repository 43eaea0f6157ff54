//! Detects datagrams that were received before.

/// Number of sequence numbers behind the highest for which receipts are recorded. It must exceed
/// the number of datagrams in a socket's buffer, because multicast and unicast datagrams of a
/// sender wait in different buffers.
const WINDOW: u64 = 16 * 1024;

/// Words of the bitmap. One word more than the window needs, so that a word is cleared before any
/// of its bits counts again.
const WINDOW_WORDS: usize = (WINDOW / 64) as usize + 1;

/// The sequence numbers that were received from a sender (the anti-replay window of RFC 4303,
/// implemented as in RFC 6479). Each number is accepted once, in any order. Numbers further behind
/// the highest than the window are not accepted.
#[derive(Clone, Debug)]
pub struct AntiReplay {
    highest: u64,
    seen: Box<[u64; WINDOW_WORDS]>,
}

impl Default for AntiReplay {
    fn default() -> AntiReplay {
        AntiReplay { highest: 0, seen: Box::new([0; WINDOW_WORDS]) }
    }
}

impl AntiReplay {
    /// Returns whether a number may be accepted.
    pub fn is_new(&self, sequence: u64) -> bool {
        sequence > self.highest
            || self.highest - sequence < WINDOW && self.seen[word(sequence)] & bit(sequence) == 0
    }

    /// Records the number of a datagram with a valid tag. Numbers behind the window change nothing.
    pub fn record(&mut self, sequence: u64) {
        if sequence > self.highest {
            let words = (sequence / 64 - self.highest / 64).min(WINDOW_WORDS as u64);
            for ahead in 1..=words {
                self.seen[((self.highest / 64 + ahead) % WINDOW_WORDS as u64) as usize] = 0;
            }
            self.highest = sequence;
        }
        if self.highest - sequence < WINDOW {
            self.seen[word(sequence)] |= bit(sequence);
        }
    }
}

fn word(sequence: u64) -> usize {
    (sequence / 64 % WINDOW_WORDS as u64) as usize
}

fn bit(sequence: u64) -> u64 {
    1 << (sequence % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn each_number_is_taken_once_in_any_order(steps in proptest::collection::vec((-300i64..400, 1u64..40), 1..200)) {
            let (mut window, mut seen, mut at) = (AntiReplay::default(), BTreeSet::new(), 1_000u64);
            for (step, jump) in steps {
                // Some steps jump far ahead, by more than a window.
                at = if jump == 39 { at + 2 * WINDOW + 7 } else { at.saturating_add_signed(step).max(1) };
                let highest = seen.last().copied().unwrap_or(0);
                let within = at + WINDOW > highest;
                prop_assert_eq!(window.is_new(at), within && !seen.contains(&at), "{} of {}", at, highest);
                if window.is_new(at) {
                    window.record(at);
                    seen.insert(at);
                }
                prop_assert!(!window.is_new(at));
            }
        }
    }
}
