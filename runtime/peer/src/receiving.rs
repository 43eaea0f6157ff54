//! Blocks that come, part by part.

use cool_swarm::Member;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// From one member at once: one, and the next, and some that were announced in vain.
const FROM_ONE: usize = 4;

/// A block that comes.
#[derive(Debug)]
struct Coming {
    block: usize,
    bytes: Vec<u8>,
    /// When the first bytes came, and how many.
    began: Option<(Instant, usize)>,
}

impl Coming {
    /// What all of it has taken if it is here at `now`: what came behind the first part shows how fast it came.
    fn took(&self, now: Instant) -> Option<Duration> {
        let (began, first) = self.began.filter(|(_, first)| *first < self.block)?;
        let share = (self.block - first) as f64 / self.block as f64;
        Some(now.saturating_duration_since(began).div_f64(share))
    }
}

/// What a part brings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Some more of a block, or of none that is awaited.
    More,
    /// The block is half here.
    Half,
    /// It is here, and has taken so long, unless it came in one part.
    Whole(Vec<u8>, Option<Duration>),
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
        self.0.entry((from, transfer)).or_insert_with(|| Coming { block, bytes: Vec::new(), began: None });
    }

    /// Its bytes need not come any more.
    pub(crate) fn forget(&mut self, from: Member, transfer: u32) {
        self.0.remove(&(from, transfer));
    }

    /// Nothing comes from a member any more.
    pub(crate) fn forget_all(&mut self, from: Member) {
        self.0.retain(|(other, _), _| *other != from);
    }

    /// Takes the next bytes of a block, that came at `now`.
    pub(crate) fn take(&mut self, now: Instant, from: Member, transfer: u32, part: &[u8]) -> Step {
        let Some(coming) = self.0.get_mut(&(from, transfer)) else { return Step::More };
        let before = coming.bytes.len();
        coming.bytes.extend_from_slice(part);
        coming.began.get_or_insert((now, part.len()));
        let (here, half) = (coming.bytes.len(), coming.block.div_ceil(2));
        if here > coming.block {
            self.0.remove(&(from, transfer));
        } else if here == coming.block {
            let whole = self.0.remove(&(from, transfer));
            return whole.map_or(Step::More, |coming| {
                let took = coming.took(now);
                Step::Whole(coming.bytes, took)
            });
        } else if before < half && here >= half {
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
        let now = Instant::now();
        let later = now + Duration::from_millis(30);
        let mut receiving = Receiving::default();
        receiving.expect(FROM, 3, 4);
        assert_eq!(receiving.take(now, FROM, 3, &[1]), Step::More);
        assert_eq!(receiving.take(now, FROM, 3, &[2]), Step::Half);
        assert_eq!(receiving.take(now, FROM, 4, &[9]), Step::More, "nobody has announced it");
        let Step::Whole(bytes, Some(took)) = receiving.take(later, FROM, 3, &[3, 4]) else {
            panic!("not whole")
        };
        assert_eq!(
            (bytes, took),
            (vec![1, 2, 3, 4], Duration::from_millis(40)),
            "of three quarters it is known when they came"
        );
        assert_eq!(receiving.take(later, FROM, 3, &[5]), Step::More);
        receiving.expect(FROM, 4, 1);
        assert_eq!(receiving.take(now, FROM, 4, &[1]), Step::Whole(vec![1], None));
    }

    #[test]
    fn what_is_longer_than_announced_or_forgotten_does_not_come() {
        let now = Instant::now();
        let mut receiving = Receiving::default();
        receiving.expect(FROM, 3, 4);
        assert_eq!(receiving.take(now, FROM, 3, &[0; 5]), Step::More);
        assert!(receiving.0.is_empty());
        receiving.expect(FROM, 4, 4);
        receiving.forget(FROM, 4);
        assert_eq!(receiving.take(now, FROM, 4, &[0; 4]), Step::More);
        for transfer in 0..100 {
            receiving.expect(FROM, transfer, 4);
        }
        assert_eq!(receiving.0.len(), FROM_ONE);
        receiving.forget_all(FROM);
        assert!(receiving.0.is_empty());
    }
}
