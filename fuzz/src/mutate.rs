//! Inputs derived from valid ones by small mutations, with a fixed seed.

/// Maximum length of a random input, and maximum number of bytes that a mutation inserts.
const MAX_BYTES: u64 = 256;

/// Values at which lengths and counts are likely to be handled incorrectly.
const CORNERS: [u8; 6] = [0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff];

pub(crate) struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    state: u64,
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(seeds: &'a [Vec<u8>], state: u64) -> Self {
        Self { seeds, state }
    }

    /// Returns the next random number, by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> usize {
        // The remainder fits, because `end` is a length.
        (self.random() % end) as usize
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.below(MAX_BYTES);
        (0..length).map(|_| self.random() as u8).collect()
    }

    fn seed(&mut self) -> &'a [u8] {
        let index = self.below(self.seeds.len() as u64);
        &self.seeds[index]
    }

    /// Returns the next input. One in eight is random; the others are seeds with one to four
    /// mutations.
    pub(crate) fn next_input(&mut self) -> Vec<u8> {
        if self.below(8) == 0 {
            return self.bytes();
        }
        let mut input = self.seed().to_vec();
        for _ in 0..=self.below(4) {
            self.damage(&mut input);
        }
        input
    }

    fn damage(&mut self, input: &mut Vec<u8>) {
        // The end is a valid position too, for insertions.
        let at = self.below(input.len() as u64 + 1);
        let end = at + self.below((input.len() - at) as u64 + 1);
        match self.below(7) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => drop(input.splice(at..at, self.bytes())),
            3 => input.extend_from_within(at..end),
            4 => {
                let other = self.seed();
                let from = self.below(other.len() as u64 + 1);
                drop(input.splice(at.., other[from..].iter().copied()));
            }
            kind if at < input.len() => {
                let random = self.random() as u8;
                input[at] = if kind == 5 { random } else { CORNERS[usize::from(random) % CORNERS.len()] };
            }
            _ => {}
        }
    }
}
