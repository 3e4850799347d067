//! The ids of objects that an engine keeps between requests: a response and a conversation.

use penstock_api::units::ByteSpan;

use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::twin::twin_among;
use super::{BYTE_ORDER_MARK, ScanError, TokenEstimate};

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
    Ok(id.span())
}

/// The ids in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredIds {
    /// The span of `previous_response_id`, between its quotes; empty without it.
    pub previous_response: ByteSpan,
    /// The span of the id in `conversation`, between its quotes; empty without one.
    pub conversation: ByteSpan,
    /// A field whose value is no plain id.
    wrong: Option<&'static str>,
}

impl StoredIds {
    /// Checks that each id is null or a string without escapes: known ids are found by their bytes
    /// as written.
    ///
    /// # Errors
    /// [`ScanError::WrongType`] otherwise.
    pub fn check(&self) -> Result<(), ScanError> {
        let expected = "a string without escapes";
        self.wrong.map_or(Ok(()), |field| Err(ScanError::WrongType { field, expected }))
    }

    /// Returns whether the body continues something that an engine keeps.
    pub(super) fn continues(&self) -> bool {
        [self.previous_response, self.conversation].iter().any(|span| !span.range().is_empty())
    }

    /// Consumes the id of a response. `twin` is set if null follows an id: Go ignores that null.
    #[inline(never)]
    pub(super) fn read_response(
        &mut self,
        cursor: &mut Cursor<'_>,
        kind: u8,
        twin: &mut Option<&'static str>,
    ) -> Parsed {
        const FIELD: &str = "previous_response_id";
        let earlier = std::mem::replace(&mut self.previous_response, read_id(cursor, kind)?);
        self.note(FIELD, cursor, kind, self.previous_response);
        if !earlier.range().is_empty() && self.previous_response.range().is_empty() {
            *twin = Some(FIELD);
        }
        Ok(())
    }

    /// Consumes a conversation: its id, or an object with it. `twin` is set if null follows an id,
    /// or if the id is in another spelling.
    #[inline(never)]
    pub(super) fn read_conversation(
        &mut self,
        cursor: &mut Cursor<'_>,
        kind: u8,
        twin: &mut Option<&'static str>,
    ) -> Parsed {
        let earlier = std::mem::take(&mut self.conversation);
        if kind == b'{' {
            cursor.members(Members::named(IdMember::of), |cursor, member, kind| {
                match member {
                    IdMember::Id => {
                        self.conversation = read_id(cursor, kind)?;
                        self.note("conversation.id", cursor, kind, self.conversation);
                    }
                    IdMember::Twin => {
                        *twin = Some("conversation.id");
                        cursor.skip(kind)?;
                    }
                    IdMember::Other => cursor.skip(kind)?,
                }
                Ok(())
            })?;
        } else {
            self.conversation = read_id(cursor, kind)?;
            self.note("conversation", cursor, kind, self.conversation);
        }
        if !earlier.range().is_empty() && self.conversation.range().is_empty() {
            *twin = Some("conversation");
        }
        Ok(())
    }

    /// Notes a value that is no plain id. It stays noted: engines differ in which of repeated
    /// members they read.
    fn note(&mut self, field: &'static str, cursor: &Cursor<'_>, kind: u8, id: ByteSpan) {
        let is_plain = match kind {
            b'"' => !id.of(cursor.bytes).contains(&b'\\'),
            _ => kind == b'n',
        };
        if !is_plain {
            self.wrong = Some(field);
        }
    }

    /// Reads the ids in `body`, which is otherwise forwarded unread; there are none unless it is a
    /// JSON object.
    ///
    /// # Errors
    /// [`ScanError::Twin`] if an id has a second spelling, [`ScanError::WrongType`] if it is
    /// something else than a plain string.
    pub fn of(body: &[u8]) -> Result<Self, ScanError> {
        let mut cursor = Cursor::new(body, TokenEstimate::Utf8);
        cursor.at = if body.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let (mut found, mut twin) = (Self::default(), None);
        if cursor.peek() == b'{' {
            // The engine refuses a body that does not parse.
            _ = cursor.members(
                Members::named(StoredMember::of),
                |cursor, member, kind| match member {
                    StoredMember::Response => found.read_response(cursor, kind, &mut twin),
                    StoredMember::Conversation => found.read_conversation(cursor, kind, &mut twin),
                    StoredMember::Twin(field) => {
                        twin = Some(field);
                        cursor.skip(kind)
                    }
                    StoredMember::Other => cursor.skip(kind),
                },
            );
        }
        twin.map_or(Ok(()), |field| Err(ScanError::Twin { field }))?;
        found.check()?;
        Ok(found)
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

    #[test]
    fn values_that_are_no_plain_ids_are_refused() {
        for (body, field) in [
            (r#"{"previous_response_id":5}"#, "previous_response_id"),
            (r#"{"previous_response_id":["r"]}"#, "previous_response_id"),
            (r#"{"previous_response_id":{"id":"r"}}"#, "previous_response_id"),
            (r#"{"previous_response_id":"resp\u005f1"}"#, "previous_response_id"),
            (r#"{"previous_response_id":5,"previous_response_id":"r"}"#, "previous_response_id"),
            (r#"{"conversation":true}"#, "conversation"),
            (r#"{"conversation":["c"]}"#, "conversation"),
            (r#"{"conversation":"conv\u005f1"}"#, "conversation"),
            (r#"{"conversation":{"id":["c"]}}"#, "conversation.id"),
            (r#"{"conversation":{"id":"conv\u005f1"}}"#, "conversation.id"),
        ] {
            let expected = ScanError::WrongType { field, expected: "a string without escapes" };
            assert_eq!(StoredIds::of(body.as_bytes()), Err(expected), "{body}");
        }
        for body in [
            r#"{"previous_response_id":null,"conversation":null}"#,
            r#"{"conversation":{"id":null},"metadata":{"conversation":5}}"#,
        ] {
            assert!(StoredIds::of(body.as_bytes()).is_ok(), "{body}");
        }
    }
}
