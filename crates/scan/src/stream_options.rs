//! `stream_options`: detects whether a stream will end with its usage, and edits the body so that
//! it does.

use penstock_api::units::ByteSpan;

use super::cursor::{Cursor, Members, Syntax};
use super::twin::twin_among;
use super::{UsageEdit, to_offset, to_span};

/// The value of `stream_options`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum StreamOptions {
    #[default]
    Missing,
    /// A value that is not an object.
    Other(ByteSpan),
    /// An object without `include_usage`, and the offset of its first member.
    Without {
        start: u32,
        is_empty: bool,
    },
    /// An `include_usage` that is not true.
    Excluded(ByteSpan),
    Included,
}

impl StreamOptions {
    #[inline(never)]
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        kind: u8,
        twin: &mut Option<&'static str>,
    ) -> Result<Self, Syntax> {
        let start = cursor.at;
        if kind != b'{' {
            cursor.skip(kind)?;
            return Ok(Self::Other(to_span(start, cursor.at)));
        }
        let (mut found, mut is_empty) = (None, true);
        cursor.members(Members::named(OptionName::of), |cursor, name, kind| {
            is_empty = false;
            let start = cursor.at;
            cursor.skip(kind)?;
            if let OptionName::Twin(field) = name {
                *twin = Some(field);
            }
            if matches!(name, OptionName::IncludeUsage) {
                let excluded = Self::Excluded(to_span(start, cursor.at));
                found = Some(if kind == b't' { Self::Included } else { excluded });
            }
            Ok(())
        })?;
        Ok(found.unwrap_or(Self::Without { start: to_offset(start + 1), is_empty }))
    }

    /// Returns the edit that requests usage. `insertion` is the offset at which the body can take a
    /// member.
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

#[derive(Debug, Clone, Copy)]
enum OptionName {
    IncludeUsage,
    /// A name that an engine may read as this member.
    Twin(&'static str),
    Other,
}

impl OptionName {
    fn of(name: &[u8]) -> Self {
        match name {
            b"include_usage" => Self::IncludeUsage,
            _ => twin_among(name, &["include_usage"]).map_or(Self::Other, Self::Twin),
        }
    }
}
