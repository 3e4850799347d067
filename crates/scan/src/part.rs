//! An object with `type` and `text` in a prompt: a content part, or a document to rerank.

use super::cursor::{Cursor, Parsed};

/// The `type` of a content part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKind {
    Text,
    Image,
    /// A sound, a video, or an image taken by a tool.
    Blob,
    ToolCall,
    ToolResult,
    Unknown,
}

impl PartKind {
    fn of(name: &[u8]) -> Self {
        match name {
            b"text" | b"input_text" | b"output_text" => Self::Text,
            b"image_url" | b"input_image" | b"image" => Self::Image,
            b"input_audio"
            | b"audio"
            | b"audio_url"
            | b"video_url"
            | b"input_video"
            | b"computer_screenshot" => Self::Blob,
            b"tool_use" | b"server_tool_use" | b"mcp_tool_use" => Self::ToolCall,
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
    /// A member that no engine reads.
    Unread,
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
            _ if is_unread(name) => Self::Unread,
            _ => Self::Other,
        }
    }
}

/// Returns whether a member of a message, an item or a part is not for the model, such as its
/// number or signature.
pub(super) fn is_unread(name: &[u8]) -> bool {
    const UNREAD: [&[u8]; 16] = [
        b"id",
        b"type",
        b"role",
        b"name",
        b"status",
        b"index",
        b"call_id",
        b"tool_call_id",
        b"tool_use_id",
        b"signature",
        b"encrypted_content",
        b"cache_control",
        b"annotations",
        b"logprobs",
        b"is_error",
        b"phase",
    ];
    UNREAD.contains(&name)
}

/// The values of `type` and `text`, which may come in any order.
pub(super) struct ScannedPart {
    pub(super) kind: PartKind,
    /// The length of its text.
    pub(super) text: u64,
}

impl ScannedPart {
    pub(super) const EMPTY: Self = Self { kind: PartKind::Unknown, text: 0 };

    #[inline(always)]
    pub(super) fn read(&mut self, member: PartMember, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
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
            PartMember::Content | PartMember::Unread | PartMember::Other => {}
        }
        cursor.skip(kind)
    }
}
