//! The division of a content into blocks, and of the blocks into generations.

/// Maximum number of blocks in a generation. It is limited because each coded block carries one
/// coefficient for each of them.
pub const GENERATION_MAX: u16 = 1024;

/// The division of a content into blocks and generations. Blocks are numbered through all
/// generations; the last generation may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Number of blocks of the content.
    pub blocks: u32,
    /// Number of blocks of a generation, 1 to [`GENERATION_MAX`].
    pub generation: u16,
}

impl Division {
    /// Returns the number of generations.
    pub fn generations(&self) -> u32 {
        self.blocks.div_ceil(self.each())
    }

    /// Returns the number of blocks of a generation, or 0 if the content has no generation of this
    /// number.
    pub fn size(&self, generation: u32) -> u16 {
        let before = u64::from(generation) * u64::from(self.each());
        u64::from(self.blocks).saturating_sub(before).min(u64::from(self.each())) as u16
    }

    /// Returns the first block of a generation.
    pub fn first(&self, generation: u32) -> u32 {
        generation * self.each()
    }

    /// Returns the generation of a block, and its index in that generation.
    pub fn place(&self, block: u32) -> (u32, u16) {
        (block / self.each(), (block % self.each()) as u16)
    }

    fn each(&self) -> u32 {
        u32::from(self.generation.clamp(1, GENERATION_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_generation_holds_the_remaining_blocks() {
        let division = Division { blocks: 10, generation: 4 };
        assert_eq!(division.generations(), 3);
        assert_eq!([0, 1, 2, 3].map(|generation| division.size(generation)), [4, 4, 2, 0]);
        assert_eq!(division.place(9), (2, 1));
        assert_eq!(division.first(2), 8);
    }
}
