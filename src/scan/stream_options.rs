//! `stream_options`: whether a stream is to end with its usage, and how the body is edited so that it does.

use super::UsageEdit;
use super::cursor::{Cursor, Members, Syntax};
use super::to_offset;
use crate::units::ByteSpan;

/// The value of the member.
#[derive(Debug, Clone, Copy)]
pub(super) enum StreamOptions {
    Missing,
    /// No object.
    Other(ByteSpan),
    /// An object without `include_usage`, and where its first member begins.
    Without {
        start: u32,
        is_empty: bool,
    },
    /// `include_usage` is not true.
    Excluded(ByteSpan),
    Included,
}

impl StreamOptions {
    #[inline(never)]
    pub(super) fn read(cursor: &mut Cursor<'_>, kind: u8) -> Result<Self, Syntax> {
        let start = cursor.at;
        if kind != b'{' {
            cursor.skip(kind)?;
            return Ok(Self::Other(span(start, cursor.at)));
        }
        let (mut found, mut is_empty) = (None, true);
        cursor.members(Members::named(is_include_usage), |cursor, is_usage, kind| {
            is_empty = false;
            let start = cursor.at;
            cursor.skip(kind)?;
            if is_usage {
                let excluded = Self::Excluded(span(start, cursor.at));
                found = Some(if kind == b't' { Self::Included } else { excluded });
            }
            Ok(())
        })?;
        Ok(found.unwrap_or(Self::Without { start: to_offset(start + 1), is_empty }))
    }

    /// The edit that requests usage, in a body where a member can be inserted at `insertion`.
    pub(super) fn usage_edit(self, insertion: u32) -> Option<UsageEdit> {
        let at = |offset| ByteSpan { start: offset, end: offset };
        let (span, text) = match self {
            Self::Missing => (at(insertion), r#""stream_options":{"include_usage":true},"#),
            Self::Other(span) => (span, r#"{"include_usage":true}"#),
            Self::Without { start, is_empty: true } => (at(start), r#""include_usage":true"#),
            Self::Without { start, is_empty: false } => (at(start), r#""include_usage":true,"#),
            Self::Excluded(span) => (span, "true"),
            Self::Included => return None,
        };
        Some(UsageEdit { span, text })
    }
}

fn is_include_usage(name: &[u8]) -> bool {
    name == b"include_usage"
}

fn span(start: usize, end: usize) -> ByteSpan {
    ByteSpan { start: to_offset(start), end: to_offset(end) }
}
