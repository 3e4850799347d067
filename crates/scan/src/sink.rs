//! The destination of an outline.

/// Receives an outline piece by piece. Text is decoded directly into the sink's memory
/// ([`OutlineSink::room`]), so that hashing a prompt copies it only once.
pub trait OutlineSink {
    /// Appends a piece.
    fn add(&mut self, piece: &[u8]);
    /// Memory for the next piece, never empty.
    fn room(&mut self) -> &mut [u8];
    /// Appends the first `count` bytes of the room.
    fn fill(&mut self, count: usize);
    /// Returns whether the sink ignores further pieces, so that the walk may stop.
    fn is_full(&self) -> bool;
}
