//! Blocks that come, part by part.

use cool_swarm::Member;
use std::collections::BTreeMap;

/// From one member at once: one, and the next, and some that were announced in vain.
const FROM_ONE: usize = 4;

/// A block that comes.
#[derive(Debug)]
struct Coming {
    block: usize,
    bytes: Vec<u8>,
}

/// What a part brings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Some more of a block, or of none that is awaited.
    More,
    /// The block is half here.
    Half,
    /// It is here.
    Whole(Vec<u8>),
}

/// Blocks that come, by who sends them and its numbers.
#[derive(Debug, Default)]
pub(crate) struct Receiving(BTreeMap<(Member, u32), Coming>);

impl Receiving {
    /// A block of this length is announced.
    pub(crate) fn expect(&mut self, from: Member, transfer: u32, block: usize) {
        let mut others = self.0.range((from, 0)..=(from, u32::MAX)).map(|(key, _)| *key);
        if let Some(oldest) = others.next()
            && others.count() + 1 >= FROM_ONE
        {
            self.0.remove(&oldest);
        }
        self.0.entry((from, transfer)).or_insert_with(|| Coming { block, bytes: Vec::new() });
    }

    /// Its bytes need not come any more.
    pub(crate) fn forget(&mut self, from: Member, transfer: u32) {
        self.0.remove(&(from, transfer));
    }

    /// Nothing comes from a member any more.
    pub(crate) fn forget_all(&mut self, from: Member) {
        self.0.retain(|(other, _), _| *other != from);
    }

    /// Takes the next bytes of a block.
    pub(crate) fn take(&mut self, from: Member, transfer: u32, part: &[u8]) -> Step {
        let Some(coming) = self.0.get_mut(&(from, transfer)) else { return Step::More };
        let before = coming.bytes.len();
        coming.bytes.extend_from_slice(part);
        let (now, half) = (coming.bytes.len(), coming.block.div_ceil(2));
        if now > coming.block {
            self.0.remove(&(from, transfer));
        } else if now == coming.block {
            return self.0.remove(&(from, transfer)).map_or(Step::More, |coming| Step::Whole(coming.bytes));
        } else if before < half && now >= half {
            return Step::Half;
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Member = Member { rack: 0, slot: 1 };

    #[test]
    fn a_block_comes_in_parts() {
        let mut receiving = Receiving::default();
        receiving.expect(FROM, 3, 4);
        assert_eq!(receiving.take(FROM, 3, &[1]), Step::More);
        assert_eq!(receiving.take(FROM, 3, &[2]), Step::Half);
        assert_eq!(receiving.take(FROM, 4, &[9]), Step::More, "nobody has announced it");
        assert_eq!(receiving.take(FROM, 3, &[3, 4]), Step::Whole(vec![1, 2, 3, 4]));
        assert_eq!(receiving.take(FROM, 3, &[5]), Step::More);
    }

    #[test]
    fn what_is_longer_than_announced_or_forgotten_does_not_come() {
        let mut receiving = Receiving::default();
        receiving.expect(FROM, 3, 4);
        assert_eq!(receiving.take(FROM, 3, &[0; 5]), Step::More);
        assert!(receiving.0.is_empty());
        receiving.expect(FROM, 4, 4);
        receiving.forget(FROM, 4);
        assert_eq!(receiving.take(FROM, 4, &[0; 4]), Step::More);
        for transfer in 0..100 {
            receiving.expect(FROM, transfer, 4);
        }
        assert_eq!(receiving.0.len(), FROM_ONE);
        receiving.forget_all(FROM);
        assert!(receiving.0.is_empty());
    }
}
