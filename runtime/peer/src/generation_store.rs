//! The store of the generations that a swarm distributes.

/// Reads and stores the generations of a member. The member calls it from several threads.
pub trait GenerationStore: Send + Sync + 'static {
    /// The error if a generation cannot be read or stored.
    type Error: Send + 'static;

    /// Returns the bytes of a generation that the member holds.
    ///
    /// # Errors
    /// Returns an error if they cannot be read any more. The member then ends.
    fn read(&self, generation: u32) -> Result<Vec<u8>, Self::Error>;

    /// Returns whether these are the right bytes of a generation, for example by comparing their
    /// hash.
    fn is_right(&self, generation: u32, bytes: &[u8]) -> bool;

    /// Stores the bytes of a generation that has arrived and is right.
    ///
    /// # Errors
    /// Returns an error if they cannot be stored. The member then ends.
    fn keep(&self, generation: u32, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Returns a description of the content for late members ([`crate::inquire`]).
    fn describe(&self) -> Vec<u8>;
}
