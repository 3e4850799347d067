//! The separation of events on the wire in a response stream.

/// The framing of a response stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFraming {
    /// Server-sent events: an empty line ends each.
    Events,
    /// JSON lines (NDJSON): each line is an event.
    Lines,
}

/// The beginnings of a stream of server-sent events.
const EVENT_STARTS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
/// U+FEFF in UTF-8, which may come before a stream.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

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

    /// Returns the framing that a body starts with; `None` for a body that is no stream, or whose
    /// start does not show it. A stream of JSON lines starts with an object that ends in its line.
    pub fn of_content(start: &[u8]) -> Option<Self> {
        let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start).trim_ascii_start();
        if EVENT_STARTS.iter().any(|start| text.starts_with(start)) {
            return Some(Self::Events);
        }
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_line = line.len() < text.len() && line.trim_ascii_end().ends_with(b"}");
        (is_line && line.starts_with(b"{")).then_some(Self::Lines)
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
    fn streams_are_known_by_their_start() {
        for (start, framing) in [
            ("data: {\"a\":1}\n\n", Some(StreamFraming::Events)),
            ("\u{feff}\n: ping\n\n", Some(StreamFraming::Events)),
            ("event: message_start\n", Some(StreamFraming::Events)),
            ("{\"done\":false}\n", Some(StreamFraming::Lines)),
            ("{\"done\":false} \r\n{\"do", Some(StreamFraming::Lines)),
            ("{\"done\":false}", None),
            ("{\n  \"id\": 1\n}\n", None),
            ("dat", None),
            ("<html>", None),
            ("", None),
        ] {
            assert_eq!(StreamFraming::of_content(start.as_bytes()), framing, "{start}");
        }
    }

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
