//! The bytes of an input as a source of steps. When all bytes are used, zeros follow.

/// The remaining bytes of an input.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns a number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    /// Returns the next bytes, as many as the byte before them states, up to `most`.
    pub(crate) fn take(&mut self, most: u8) -> &'a [u8] {
        let count = usize::from(self.byte().min(most)).min(self.0.len());
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
}
