//! Reads ids: strings, or objects with a member `id`.

use super::cursor::{Cursor, Members, Syntax};
use super::to_offset;
use crate::units::ByteSpan;

/// Consumes a value. Returns the span of the id between its quotes; empty where the value is none.
pub(super) fn read_id(cursor: &mut Cursor<'_>, kind: u8) -> Result<ByteSpan, Syntax> {
    match kind {
        b'"' => {
            let id = cursor.string()?;
            Ok(ByteSpan { start: to_offset(id.start), end: to_offset(id.end) })
        }
        b'{' => {
            let mut found = ByteSpan::default();
            cursor.members(Members::named(|name| name == b"id"), |cursor, is_id, kind| {
                if !is_id || kind != b'"' {
                    return cursor.skip(kind);
                }
                let id = cursor.string()?;
                found = ByteSpan { start: to_offset(id.start), end: to_offset(id.end) };
                Ok(())
            })?;
            Ok(found)
        }
        _ => {
            cursor.skip(kind)?;
            Ok(ByteSpan::default())
        }
    }
}
