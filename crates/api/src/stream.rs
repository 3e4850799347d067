//! The separation of events on the wire in a response stream.

/// The framing of a response stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFraming {
    /// Server-sent events: an empty line ends each.
    Events,
    /// JSON lines (NDJSON): each line is an event.
    Lines,
}

impl StreamFraming {
    const ALL: [Self; 2] = [Self::Events, Self::Lines];

    /// Returns the framing that a `content-type` announces; `None` for a response that is no
    /// stream.
    pub fn of_content_type(value: &[u8]) -> Option<Self> {
        let has = |kind: &str| {
            // Parameters may follow, such as a `charset`.
            let start = value.get(..kind.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(kind.as_bytes()))
        };
        Self::ALL.into_iter().find(|framing| has(framing.content_type()))
    }

    /// Returns the media type that announces it.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }

    /// Returns the end of an event that was cut, so that another one can follow.
    pub fn event_end(self) -> &'static [u8] {
        match self {
            Self::Events => b"\n\n",
            Self::Lines => b"\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types_announce_streams() {
        for (value, framing) in [
            ("text/event-stream", Some(StreamFraming::Events)),
            ("Text/Event-Stream; charset=utf-8", Some(StreamFraming::Events)),
            ("application/x-ndjson", Some(StreamFraming::Lines)),
            ("application/json; charset=utf-8", None),
            ("", None),
        ] {
            assert_eq!(StreamFraming::of_content_type(value.as_bytes()), framing, "{value}");
        }
    }
}
