//! The members of an event that report how a stream ends.

/// A member of an event that reports how the stream ends.
#[derive(Clone, Copy)]
pub(super) enum EventMember {
    Error,
    Kind,
    /// The last event of llama.cpp's own streams has `"stop": true`.
    Stop,
    /// The whole response so far.
    Response,
    Other,
}

impl EventMember {
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"error" => Self::Error,
            b"type" | b"object" => Self::Kind,
            b"stop" => Self::Stop,
            b"response" => Self::Response,
            _ => Self::Other,
        }
    }
}
