//! The ids of objects that an engine keeps between requests: a response and a conversation.

use penstock_api::units::ByteSpan;

use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::twin::twin_among;
use super::{BYTE_ORDER_MARK, ScanError, TokenEstimate, to_offset};

/// The members of a conversation.
#[derive(Debug, Clone, Copy)]
enum IdMember {
    Id,
    Twin,
    Other,
}

impl IdMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"id" => Self::Id,
            _ if twin_among(name, &["id"]).is_some() => Self::Twin,
            _ => Self::Other,
        }
    }
}

/// Consumes a value. Returns the span of a string between its quotes, or an empty span for any
/// other value.
pub(super) fn read_id(cursor: &mut Cursor<'_>, kind: u8) -> Result<ByteSpan, Syntax> {
    if kind != b'"' {
        cursor.skip(kind)?;
        return Ok(ByteSpan::default());
    }
    let id = cursor.string()?;
    Ok(ByteSpan { start: to_offset(id.start), end: to_offset(id.end) })
}

/// Consumes the id of a response. `twin` is set if null follows an id: Go ignores that null.
#[inline(never)]
pub(super) fn read_response(
    cursor: &mut Cursor<'_>,
    kind: u8,
    id: &mut ByteSpan,
    twin: &mut Option<&'static str>,
) -> Parsed {
    let earlier = std::mem::replace(id, read_id(cursor, kind)?);
    if !earlier.range().is_empty() && id.range().is_empty() {
        *twin = Some("previous_response_id");
    }
    Ok(())
}

/// Consumes a conversation: its id, or an object with it. `twin` is set if null follows an id, or
/// if the id is in another spelling.
#[inline(never)]
pub(super) fn read_conversation(
    cursor: &mut Cursor<'_>,
    kind: u8,
    id: &mut ByteSpan,
    twin: &mut Option<&'static str>,
) -> Parsed {
    let earlier = std::mem::take(id);
    if kind == b'{' {
        cursor.members(Members::named(IdMember::of), |cursor, member, kind| {
            match member {
                IdMember::Id => *id = read_id(cursor, kind)?,
                IdMember::Twin => {
                    *twin = Some("conversation.id");
                    cursor.skip(kind)?;
                }
                IdMember::Other => cursor.skip(kind)?,
            }
            Ok(())
        })?;
    } else {
        *id = read_id(cursor, kind)?;
    }
    if !earlier.range().is_empty() && id.range().is_empty() {
        *twin = Some("conversation");
    }
    Ok(())
}

/// The ids in a body that is otherwise forwarded unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredIds {
    /// The span of `previous_response_id`, between its quotes; empty without it.
    pub previous_response: ByteSpan,
    /// The span of the id in `conversation`, between its quotes; empty without one.
    pub conversation: ByteSpan,
}

impl StoredIds {
    /// Reads the ids in `body`; there are none unless it is a JSON object.
    ///
    /// # Errors
    /// [`ScanError::Twin`] if an id has a second spelling.
    pub fn of(body: &[u8]) -> Result<Self, ScanError> {
        let mut cursor = Cursor::new(body, TokenEstimate::Utf8);
        cursor.at = if body.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let (mut found, mut twin) = (Self::default(), None);
        if cursor.peek() == b'{' {
            // The engine refuses a body that does not parse.
            _ = cursor.members(
                Members::named(StoredMember::of),
                |cursor, member, kind| match member {
                    StoredMember::Response => {
                        read_response(cursor, kind, &mut found.previous_response, &mut twin)
                    }
                    StoredMember::Conversation => {
                        read_conversation(cursor, kind, &mut found.conversation, &mut twin)
                    }
                    StoredMember::Twin(field) => {
                        twin = Some(field);
                        cursor.skip(kind)
                    }
                    StoredMember::Other => cursor.skip(kind),
                },
            );
        }
        twin.map_or(Ok(found), |field| Err(ScanError::Twin { field }))
    }
}

#[derive(Debug, Clone, Copy)]
enum StoredMember {
    Response,
    Conversation,
    Twin(&'static str),
    Other,
}

impl StoredMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"previous_response_id" => Self::Response,
            b"conversation" => Self::Conversation,
            _ => twin_among(name, &["previous_response_id", "conversation"])
                .map_or(Self::Other, Self::Twin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_every_form() {
        for (body, expected) in [
            (r#"{"previous_response_id":"r","conversation":"c"}"#, Ok(("r", "c"))),
            (r#"{"conversation":{"id":"c"}}"#, Ok(("", "c"))),
            (r#"{"metadata":{"conversation":"c"}}"#, Ok(("", ""))),
            (r#"{"conversation":"a","conversation":"b"}"#, Ok(("", "b"))),
            (r#"{"Conversation":"c"}"#, Err("conversation")),
            (r#"{"conversation":{"ID":"c"}}"#, Err("conversation.id")),
            (r#"{"conversation":"c","conversation":null}"#, Err("conversation")),
            (r#"{"Previou\u017f_response_id":"r"}"#, Err("previous_response_id")),
            ("[]", Ok(("", ""))),
            ("", Ok(("", ""))),
        ] {
            let found = StoredIds::of(body.as_bytes());
            let text = |span: ByteSpan| std::str::from_utf8(span.of(body.as_bytes())).unwrap();
            let found = found.map(|ids| (text(ids.previous_response), text(ids.conversation)));
            assert_eq!(found, expected.map_err(|field| ScanError::Twin { field }), "{body}");
        }
    }
}
