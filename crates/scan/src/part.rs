//! An object with `type` and `text` in a prompt: a content part, or a document to rerank.

use super::cursor::{Cursor, Parsed};

/// The `type` of a content part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKind {
    Text,
    /// An image, or a video, which engines read as images.
    Image,
    /// A sound.
    Blob,
    ToolCall,
    ToolResult,
    Unknown,
}

impl PartKind {
    fn of(name: &[u8]) -> Self {
        match name {
            b"text" | b"input_text" | b"output_text" => Self::Text,
            b"image_url"
            | b"input_image"
            | b"image"
            | b"image_embeds"
            | b"image_pil"
            | b"computer_screenshot"
            | b"video_url"
            | b"input_video"
            | b"video" => Self::Image,
            b"input_audio" | b"audio" | b"audio_url" => Self::Blob,
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
    /// The data of an image or a document, or its content.
    Source,
    /// A member that stands for the type of an image where there is none.
    Picture,
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
            b"source" => Self::Source,
            b"image_url" | b"image" | b"image_embeds" | b"image_pil" | b"video_url" | b"video" => {
                Self::Picture
            }
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
    /// True if it has a member for an image or a video.
    has_picture: bool,
}

impl ScannedPart {
    pub(super) const EMPTY: Self = Self { kind: PartKind::Unknown, text: 0, has_picture: false };

    /// Returns whether it is an image or a video: by its type, or by its members if they have
    /// neither a known type nor a text.
    #[inline(always)]
    pub(super) fn is_image(&self) -> bool {
        let is_untyped = self.kind == PartKind::Unknown && self.text == 0;
        self.kind == PartKind::Image || is_untyped && self.has_picture
    }

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
            PartMember::Picture if is_string => {
                let text = cursor.string()?;
                self.has_picture = text.start < text.end;
                return Ok(());
            }
            PartMember::Picture => self.has_picture = matches!(kind, b'{' | b'['),
            PartMember::Content | PartMember::Source | PartMember::Unread | PartMember::Other => {}
        }
        cursor.skip(kind)
    }
}
