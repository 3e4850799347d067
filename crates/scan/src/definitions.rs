//! Reads the parts of a prompt outside the conversation: definitions of tools, documents, and the
//! format that a response must have.

use super::cursor::{Cursor, Members, Parsed, Syntax};

/// A member of the body that an engine reads in addition to the conversation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Definition {
    Tools,
    Functions,
    Format,
    TextFormat,
    Documents,
}

/// The lengths of the definitions, in the unit of the token estimate. A repeated member replaces
/// the earlier one.
#[derive(Debug, Default)]
pub(super) struct Definitions([u64; 5]);

impl Definitions {
    /// Consumes a definition.
    #[inline(never)]
    pub(super) fn read(
        &mut self,
        definition: Definition,
        cursor: &mut Cursor<'_>,
        kind: u8,
    ) -> Parsed {
        self.set(definition, cursor.weighed(kind)?.as_json());
        Ok(())
    }

    pub(super) fn set(&mut self, definition: Definition, length: u64) {
        if let Some(slot) = self.0.get_mut(definition as usize) {
            *slot = length;
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// The format of a response.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Format {
    /// True if it has the form `{"type": "json_…"}`.
    pub(super) is_json: bool,
    /// The length of its schema, in the unit of the token estimate.
    pub(super) schema: u64,
}

/// Consumes a format.
pub(super) fn read_format(cursor: &mut Cursor<'_>, kind: u8) -> Result<Format, Syntax> {
    let mut format = Format::default();
    if kind != b'{' {
        cursor.skip(kind)?;
        return Ok(format);
    }
    cursor.members(Members::named(|name| name == b"type"), |cursor, is_type, kind| {
        if !is_type {
            format.schema += cursor.weighed(kind)?.as_json();
            return Ok(());
        }
        format.is_json = false;
        if kind != b'"' {
            return cursor.skip(kind);
        }
        let kind = cursor.string()?;
        format.is_json =
            cursor.decoded(kind, |kind| matches!(kind, b"json_object" | b"json_schema"));
        Ok(())
    })?;
    Ok(format)
}

/// Consumes the member `text` of the Responses API, which contains a format.
pub(super) fn read_text_format(cursor: &mut Cursor<'_>, kind: u8) -> Result<Format, Syntax> {
    let mut format = Format::default();
    if kind != b'{' {
        cursor.skip(kind)?;
        return Ok(format);
    }
    cursor.members(Members::named(|name| name == b"format"), |cursor, is_format, kind| {
        if is_format {
            format = read_format(cursor, kind)?;
            return Ok(());
        }
        cursor.skip(kind)
    })?;
    Ok(format)
}
