//! What one backend holds: its blocks in the order of their last use, in pieces of memory that are
//! its own.

use super::pages::PAGE;
use super::slots::NONE;

/// Nodes of one chunk: a page.
pub(super) const CHUNK: u32 = 256;

const _: () = assert!(CHUNK as usize == PAGE);

/// A block held by a backend. Whose it is follows from the chunk it lies in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The one used next after this; `NONE` for the newest.
    pub(super) newer: u32,
    /// The one used last before this; `NONE` for the oldest. Of a free node, the next free one.
    pub(super) older: u32,
    /// The block.
    pub(super) slot: u32,
    /// The next holder of the same block.
    pub(super) next: u32,
}

impl Node {
    pub(super) const FREE: Self = Self { newer: NONE, older: NONE, slot: NONE, next: NONE };
}

/// The ends of one backend's list.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) newest: u32,
    pub(super) oldest: u32,
    pub(super) free: u32,
    /// Blocks held.
    pub(super) count: u32,
    /// The most it may hold.
    pub(super) capacity: u32,
    pub(super) chunks: Vec<u32>,
}

impl Lane {
    pub(super) fn new(capacity: u32) -> Self {
        Self { newest: NONE, oldest: NONE, free: NONE, count: 0, capacity, chunks: Vec::new() }
    }
}
