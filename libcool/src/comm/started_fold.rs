//! A started reduction by a function of the program, and memory for the vectors of all ranks.

/// State of a started reduction until all vectors have arrived.
pub(crate) struct StartedFold<'a> {
    pub(super) space: Vec<u128>,
    pub(super) bytes: usize,
    pub(super) finish: Box<FinishReduction<'a>>,
}

/// Combines the received vectors into this rank's result.
pub(super) type FinishReduction<'a> = dyn FnOnce(&mut [u8], &mut [u8]) + Send + Sync + 'a;

impl std::fmt::Debug for StartedFold<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedFold").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl StartedFold<'_> {
    /// Returns the memory for the vectors of all ranks.
    pub(crate) fn vectors(&mut self) -> &mut [u8] {
        bytes_of(&mut self.space, self.bytes)
    }

    /// Combines the vectors, all of which must have arrived.
    pub(crate) fn finish(mut self, recv: &mut [u8]) {
        (self.finish)(bytes_of(&mut self.space, self.bytes), recv);
    }
}

/// Returns zeroed memory that is aligned for any element.
pub(super) fn space(bytes: usize) -> Vec<u128> {
    vec![0; bytes.div_ceil(size_of::<u128>())]
}

/// Returns the first `bytes` bytes of memory from [`space`].
pub(super) fn bytes_of(space: &mut [u128], bytes: usize) -> &mut [u8] {
    &mut bytemuck::cast_slice_mut(space)[..bytes]
}
