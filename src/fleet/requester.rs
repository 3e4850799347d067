//! The sender of a request, as far as failure handling distinguishes senders.

/// Hashes that identify the sender of a request; equal senders have equal hashes within one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requester {
    /// The client: its key, or else its address.
    pub client: u64,
    /// The credential that backends with `authorization: pass` receive; never 0, also without one.
    pub credential: u64,
}
