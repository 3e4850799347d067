//! How much of a response a conversion holds at most.

/// The most tool calls of one response.
pub(super) const MAX_CALLS: usize = 1024;
/// The most bytes of a tool's name that arrives in pieces.
pub(super) const MAX_NAME: usize = 4096;

/// How much of a response a conversion holds at most, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseLimits {
    /// Of one event of a stream.
    pub event: usize,
    /// Of the arguments of all tool calls of a response.
    pub arguments: usize,
    /// Of a response that is no stream.
    pub whole: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { event: 4 << 20, arguments: 4 << 20, whole: 256 << 20 }
    }
}
