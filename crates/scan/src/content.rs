//! Reads the content of a message: a text, or parts, which may have content themselves.

use super::cursor::{Cursor, Members, Parsed};
use super::file;
use super::part::{PartKind, PartMember, ScannedPart};
use super::prompt::PromptContents;
use super::weight::{Weight, weigh_blobs};

/// The most levels of content in content that are read as parts. APIs have four: a picture in the
/// source of a document that a tool has fetched.
const MAX_LEVELS: u32 = 8;

/// Consumes a string, a content part, or an array of them.
#[inline(always)]
pub(super) fn content(
    cursor: &mut Cursor<'_>,
    kind: u8,
    level: u32,
    into: &mut PromptContents,
) -> Parsed {
    if kind != b'"' {
        return parts(cursor, kind, level, into);
    }
    let text = cursor.text()?;
    into.add_text(cursor, text);
    Ok(())
}

#[inline(never)]
fn parts(cursor: &mut Cursor<'_>, kind: u8, level: u32, into: &mut PromptContents) -> Parsed {
    match kind {
        b'[' => cursor.elements(|cursor, kind| element_of_content(cursor, kind, level, into)),
        // Only content in content, such as the result of a search, may be a single object.
        b'{' if level > 0 => part(cursor, level, into),
        _ => cursor.skip(kind),
    }
}

#[inline(always)]
pub(super) fn element_of_content(
    cursor: &mut Cursor<'_>,
    kind: u8,
    level: u32,
    into: &mut PromptContents,
) -> Parsed {
    match kind {
        b'{' => part(cursor, level, into),
        // Not in the APIs, but some engines read it.
        b'"' => {
            let text = cursor.text()?;
            into.besides += cursor.measure(text);
            Ok(())
        }
        _ => cursor.skip(kind),
    }
}

/// Consumes a content part. Its `type` may come after its text, so the text counts only at the end.
pub(super) fn part(cursor: &mut Cursor<'_>, level: u32, into: &mut PromptContents) -> Parsed {
    let mut part = ScannedPart::EMPTY;
    let (mut result, mut sourced) = (PromptContents::default(), PromptContents::default());
    let mut others = Weight::default();
    let members = Members::with_likely(&PartMember::LIKELY, PartMember::of);
    cursor.members(members, |cursor, member, kind| match member {
        PartMember::Content if level < MAX_LEVELS => {
            result = PromptContents::default();
            content(cursor, kind, level + 1, &mut result)
        }
        PartMember::Source if level < MAX_LEVELS && kind == b'{' => {
            source(cursor, level + 1, &mut sourced)
        }
        PartMember::Content | PartMember::Source | PartMember::Other => {
            others.add(cursor.weighed(kind)?);
            Ok(())
        }
        PartMember::Kind | PartMember::Text | PartMember::Picture | PartMember::Unread => {
            part.read(member, cursor, kind)
        }
    })?;
    if part.is_image() {
        into.add_images(1);
        return Ok(());
    }
    match part.kind {
        PartKind::Text => into.text += part.text,
        PartKind::Image => {}
        PartKind::Blob => {
            into.refers = true;
            into.besides += weigh_blobs(1);
        }
        PartKind::ToolCall => into.add_call(others),
        PartKind::ToolResult => into.add(result),
        PartKind::Unknown => {
            result.add(sourced);
            into.refers = true;
            into.has_image |= result.has_image;
            into.besides += part.text + result.length() + others.with_files();
        }
    }
    Ok(())
}

/// A member of the source of a document.
#[derive(Clone, Copy)]
enum SourceMember {
    Kind,
    MediaType,
    Data,
    Part(PartMember),
}

impl SourceMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"type" => Self::Kind,
            b"media_type" => Self::MediaType,
            b"data" => Self::Data,
            _ => Self::Part(PartMember::of(name)),
        }
    }
}

/// Consumes the source of a document: its data, or its content. The type of the data may come
/// after them.
fn source(cursor: &mut Cursor<'_>, level: u32, into: &mut PromptContents) -> Parsed {
    let (mut is_base64, mut is_text) = (false, false);
    let (mut data, mut length) = (Weight::default(), 0);
    cursor.members(Members::named(SourceMember::of), |cursor, member, kind| match member {
        SourceMember::Part(PartMember::Content) => content(cursor, kind, level, into),
        SourceMember::Kind if kind == b'"' => {
            let name = cursor.string()?;
            is_base64 = cursor.raw(name) == b"base64";
            Ok(())
        }
        SourceMember::MediaType if kind == b'"' => {
            let name = cursor.string()?;
            is_text = file::is_text(cursor.raw(name));
            Ok(())
        }
        SourceMember::Data => {
            let start = cursor.at;
            data = cursor.weighed(kind)?;
            length = cursor.at.saturating_sub(start + 2) as u64;
            Ok(())
        }
        SourceMember::Kind
        | SourceMember::MediaType
        | SourceMember::Part(PartMember::Kind | PartMember::Unread) => cursor.skip(kind),
        SourceMember::Part(_) => {
            into.besides += cursor.weighed(kind)?.with_files();
            Ok(())
        }
    })?;
    let is_text_file = is_base64 && is_text;
    into.besides += if is_text_file { file::decoded_length(length) } else { data.with_files() };
    Ok(())
}
