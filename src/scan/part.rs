//! An object with `type` and `text` in a prompt: a content part, or a document to rerank.

use super::cursor::{Cursor, Syntax};

/// The `type` of a content part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKind {
    Text,
    Image,
    ToolResult,
    Unknown,
}

impl PartKind {
    fn of(name: &[u8]) -> Self {
        match name {
            b"text" | b"input_text" | b"output_text" => Self::Text,
            b"image_url" | b"input_image" | b"image" => Self::Image,
            b"tool_result" => Self::ToolResult,
            _ => Self::Unknown,
        }
    }
}

/// A member of a content part or a document.
#[derive(Clone, Copy)]
pub(super) enum PartMember {
    Kind,
    Text,
    Content,
    Other,
}

impl PartMember {
    pub(super) const LIKELY: [(&[u8], Self); 2] =
        [(b"type\":", Self::Kind), (b"text\":", Self::Text)];

    /// The member with this name.
    #[inline(always)]
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"type" => Self::Kind,
            b"text" => Self::Text,
            b"content" => Self::Content,
            _ => Self::Other,
        }
    }
}

/// The values of `type` and `text`, which may come in any order.
pub(super) struct Part {
    pub(super) kind: PartKind,
    /// The length of its text.
    pub(super) text: u64,
}

impl Part {
    pub(super) const EMPTY: Self = Self { kind: PartKind::Unknown, text: 0 };

    #[inline(always)]
    pub(super) fn read(
        &mut self,
        member: PartMember,
        cursor: &mut Cursor<'_>,
        kind: u8,
    ) -> Result<(), Syntax> {
        let is_string = kind == b'"';
        match member {
            PartMember::Kind => {
                self.kind = PartKind::Unknown;
                if is_string {
                    let name = cursor.string()?;
                    self.kind = cursor.decoded(name, PartKind::of);
                    return Ok(());
                }
            }
            PartMember::Text => {
                self.text = 0;
                if is_string {
                    let text = cursor.text()?;
                    self.text = cursor.measure(text);
                    return Ok(());
                }
            }
            PartMember::Content | PartMember::Other => {}
        }
        cursor.skip(kind)
    }
}
