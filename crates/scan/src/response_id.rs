//! Finds the id of a response of OpenAI's Responses API while the response passes: the `id` of the
//! whole object, or of `response` in the first event of a stream.

use super::TokenEstimate;
use super::cursor::{Cursor, Members, Parsed};

/// The number of bytes searched at the beginning of a response.
const SEARCHED: usize = 4 << 10;
/// The longest id that is recognised.
const MAX_ID: usize = 256;

/// Searches the beginning of one response.
#[derive(Debug, Default)]
pub struct ResponseIdFinder {
    /// The beginning of the response, until the id is found.
    seen: Vec<u8>,
    found: Option<Box<[u8]>>,
    is_over: bool,
}

impl ResponseIdFinder {
    /// Reads the next bytes of the response.
    pub fn feed(&mut self, payload: &[u8]) {
        if self.is_over || payload.is_empty() {
            return;
        }
        let room = SEARCHED - self.seen.len();
        self.seen.extend_from_slice(payload.get(..room).unwrap_or(payload));
        // Read again with each chunk: the beginning is short, and a partial parse would need state.
        self.found = find_id(&self.seen);
        self.is_over = self.found.is_some() || self.seen.len() >= SEARCHED;
        if self.is_over {
            self.seen = Vec::new();
        }
    }

    /// Returns the id, once it has been read.
    pub fn id(&self) -> Option<&[u8]> {
        self.found.as_deref()
    }
}

/// Finds the id in the beginning of a response, which may end anywhere.
fn find_id(start: &[u8]) -> Option<Box<[u8]>> {
    let trimmed = start.trim_ascii_start();
    if trimmed.starts_with(b"{") {
        return id_of(trimmed);
    }
    let mut lines = start.split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.find_map(|line| id_of(line.strip_prefix(b"data:")?))
}

/// Finds the id of an object whose end may be missing.
fn id_of(object: &[u8]) -> Option<Box<[u8]>> {
    let mut cursor = Cursor::new(object, TokenEstimate::Utf8);
    let mut id = None;
    if cursor.peek() == b'{' {
        // Members before the end of the bytes count.
        _ = cursor.members(Members::named(ResponseMember::of), |cursor, member, kind| {
            match (member, kind) {
                (ResponseMember::Id, b'"') => read_id(cursor, &mut id),
                (ResponseMember::Response, b'{') => cursor.members(
                    Members::named(ResponseMember::of),
                    |cursor, member, kind| match (member, kind) {
                        (ResponseMember::Id, b'"') => read_id(cursor, &mut id),
                        _ => cursor.skip(kind),
                    },
                ),
                _ => cursor.skip(kind),
            }
        });
    }
    id
}

fn read_id(cursor: &mut Cursor<'_>, id: &mut Option<Box<[u8]>>) -> Parsed {
    let text = cursor.string()?;
    let raw = cursor.raw(text);
    if id.is_none() && (1..=MAX_ID).contains(&raw.len()) {
        *id = Some(raw.into());
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum ResponseMember {
    Id,
    Response,
    Other,
}

impl ResponseMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"id" => Self::Id,
            b"response" => Self::Response,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"created_at":1,"conversation":{"id":"conv_1"},"id":"resp_1","output":[{"id":"msg_1"}]}"#;
    const STREAM: &str = "event: response.created\ndata: {\"type\":\"response.created\",\
        \"response\":{\"metadata\":{\"id\":\"x\"},\"id\":\"resp_2\",\"output\":[]}}\n\n";

    fn found(pieces: impl Iterator<Item = Vec<u8>>) -> Option<String> {
        let mut finder = ResponseIdFinder::default();
        pieces.for_each(|piece| finder.feed(&piece));
        finder.id().map(|id| String::from_utf8(id.to_vec()).unwrap())
    }

    #[test]
    fn ids_are_found_in_any_pieces() {
        for (text, id) in [(WHOLE, "resp_1"), (STREAM, "resp_2")] {
            for size in [1, 2, 7, 30, 1000] {
                let pieces = text.as_bytes().chunks(size).map(<[u8]>::to_vec);
                assert_eq!(found(pieces).as_deref(), Some(id), "{size}");
            }
        }
    }

    #[test]
    fn responses_without_an_id_cost_a_bounded_buffer() {
        for text in
            ["", "null", "{\"output\":[{\"id\":\"msg_1\"}]}", "data: [DONE]\n\n", "{\"id\":7}"]
        {
            assert_eq!(found([text.as_bytes().to_vec()].into_iter()), None, "{text}");
        }
        let mut finder = ResponseIdFinder::default();
        for _ in 0..100 {
            finder.feed(&[b' '; 1000]);
            assert!(finder.seen.len() <= SEARCHED);
        }
        finder.feed(WHOLE.as_bytes());
        assert_eq!(finder.id(), None, "only the beginning is searched");
    }
}
