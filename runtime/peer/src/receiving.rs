//! Incoming blocks, which arrive in parts.

use cool_swarm::Member;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum number of blocks from one member at a time: the current one, the next one, and some that
/// were announced and then not sent.
const FROM_ONE: usize = 4;

/// An incoming block.
#[derive(Debug)]
struct IncomingBlock {
    block: usize,
    bytes: Vec<u8>,
    /// When the first bytes arrived, and how many they were.
    began: Option<(Instant, usize)>,
}

impl IncomingBlock {
    /// Returns the time that all bytes would have taken, if the last ones arrived at `now`. It is
    /// extrapolated from the bytes after the first part, because it is unknown when the first part
    /// was sent. Returns `None` if the block arrived in one part.
    fn took(&self, now: Instant) -> Option<Duration> {
        let (began, first) = self.began.filter(|(_, first)| *first < self.block)?;
        let share = (self.block - first) as f64 / self.block as f64;
        Some(now.saturating_duration_since(began).div_f64(share))
    }
}

/// The effect of a part that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PartEffect {
    /// More bytes of a block have arrived, or the part belongs to no expected block.
    More,
    /// Half of the block has arrived.
    Half,
    /// The whole block has arrived, and took this long, unless it arrived in one part.
    Whole(Vec<u8>, Option<Duration>),
}

/// The incoming blocks, by sender and transfer number.
#[derive(Debug, Default)]
pub(crate) struct IncomingBlocks(BTreeMap<(Member, u32), IncomingBlock>);

impl IncomingBlocks {
    /// Records that a block of this length was announced.
    pub(crate) fn expect(&mut self, from: Member, transfer: u32, block: usize) {
        let mut others = self.0.range((from, 0)..=(from, u32::MAX)).map(|(key, _)| *key);
        if let Some(oldest) = others.next()
            && others.count() + 1 >= FROM_ONE
        {
            self.0.remove(&oldest);
        }
        self.0.entry((from, transfer)).or_insert_with(|| IncomingBlock {
            block,
            bytes: Vec::new(),
            began: None,
        });
    }

    /// Drops a block that is no longer needed.
    pub(crate) fn forget(&mut self, from: Member, transfer: u32) {
        self.0.remove(&(from, transfer));
    }

    /// Drops all blocks from a member.
    pub(crate) fn forget_all(&mut self, from: Member) {
        self.0.retain(|(other, _), _| *other != from);
    }

    /// Adds the next bytes of a block, which arrived at `now`. Returns their effect.
    pub(crate) fn take(&mut self, now: Instant, from: Member, transfer: u32, part: &[u8]) -> PartEffect {
        let Some(incoming) = self.0.get_mut(&(from, transfer)) else { return PartEffect::More };
        let before = incoming.bytes.len();
        incoming.bytes.extend_from_slice(part);
        incoming.began.get_or_insert((now, part.len()));
        let (here, half) = (incoming.bytes.len(), incoming.block.div_ceil(2));
        if here > incoming.block {
            self.0.remove(&(from, transfer));
        } else if here == incoming.block {
            let whole = self.0.remove(&(from, transfer));
            return whole.map_or(PartEffect::More, |incoming| {
                let took = incoming.took(now);
                PartEffect::Whole(incoming.bytes, took)
            });
        } else if before < half && here >= half {
            return PartEffect::Half;
        }
        PartEffect::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Member = Member { rack: 0, slot: 1 };

    #[test]
    fn a_block_arrives_in_parts() {
        let now = Instant::now();
        let later = now + Duration::from_millis(30);
        let mut receiving = IncomingBlocks::default();
        receiving.expect(FROM, 3, 4);
        assert_eq!(receiving.take(now, FROM, 3, &[1]), PartEffect::More);
        assert_eq!(receiving.take(now, FROM, 3, &[2]), PartEffect::Half);
        assert_eq!(receiving.take(now, FROM, 4, &[9]), PartEffect::More, "it was not announced");
        let PartEffect::Whole(bytes, Some(took)) = receiving.take(later, FROM, 3, &[3, 4]) else {
            panic!("not whole")
        };
        assert_eq!(
            (bytes, took),
            (vec![1, 2, 3, 4], Duration::from_millis(40)),
            "three quarters arrived at a known time"
        );
        assert_eq!(receiving.take(later, FROM, 3, &[5]), PartEffect::More);
        receiving.expect(FROM, 4, 1);
        assert_eq!(receiving.take(now, FROM, 4, &[1]), PartEffect::Whole(vec![1], None));
    }

    #[test]
    fn blocks_that_are_too_long_or_dropped_do_not_arrive() {
        let now = Instant::now();
        let mut receiving = IncomingBlocks::default();
        receiving.expect(FROM, 3, 4);
        assert_eq!(receiving.take(now, FROM, 3, &[0; 5]), PartEffect::More);
        assert!(receiving.0.is_empty());
        receiving.expect(FROM, 4, 4);
        receiving.forget(FROM, 4);
        assert_eq!(receiving.take(now, FROM, 4, &[0; 4]), PartEffect::More);
        for transfer in 0..100 {
            receiving.expect(FROM, transfer, 4);
        }
        assert_eq!(receiving.0.len(), FROM_ONE);
        receiving.forget_all(FROM);
        assert!(receiving.0.is_empty());
    }
}
