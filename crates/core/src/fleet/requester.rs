//! The sender of a request, as failure handling and fairness distinguish senders.

/// Hashes that identify the sender of a request; equal senders have equal hashes within one
/// process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requester {
    /// The client: its key, or else its address.
    pub client: u64,
    /// The credential that backends with `authorization: pass` receive; never 0, also without one.
    pub credential: u64,
    /// The owner whose turn the request takes in a queue.
    pub owner: Owner,
}

/// A key, an address or a tenant, whose requests take turns with those of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    pub id: u64,
    /// Its share in relation to others; 0 counts as 1.
    pub weight: u32,
}
