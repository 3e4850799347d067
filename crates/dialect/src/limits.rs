//! The limits on the parts of a response that a conversion holds.

/// The maximum number of tool calls in a response.
pub(super) const MAX_CALLS: usize = 1024;
/// The maximum bytes of a tool's name that arrives in pieces.
pub(super) const MAX_NAME: usize = 4096;

/// The limits on the parts of a response that a conversion holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseLimits {
    /// The limit of one event of a stream.
    pub event: usize,
    /// The limit of the arguments of all tool calls of a response.
    pub arguments: usize,
    /// The limit of a response that is not a stream.
    pub whole: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { event: 4 << 20, arguments: 4 << 20, whole: 256 << 20 }
    }
}
