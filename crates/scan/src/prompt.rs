//! Reads the prompt in a JSON body: the members that the operation's row names, each in its layout.

use penstock_api::Layout;
use penstock_api::slices::after;

use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::ollama::count_images;
use super::part::{PartKind, PartMember, ScannedPart, is_unread};
use super::text::Text;
use super::weight::{Weight, weigh_blobs};

/// The contents of one prompt field.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Prompt {
    /// The length of its text, with the arguments and the results of tool calls; a token id counts
    /// as the text of one token.
    pub(super) text: u64,
    /// The length of everything else that an engine reads: thinking, images, and the punctuation of
    /// JSON.
    pub(super) besides: u64,
    /// True if it contains an image.
    pub(super) has_image: bool,
    /// The number of messages and items.
    pub(super) messages: u64,
    /// The number of prompts in a list: an engine responds to each of them.
    pub(super) texts: u64,
    /// The length of all prompts of a list but the longest.
    pub(super) others: u64,
    /// True if it has a part or an item other than text and calls: files, searches, items that the
    /// engine keeps. An engine may read more there than the body holds.
    pub(super) refers: bool,
}

impl Prompt {
    /// Adds `other`. The body's length bounds the sum, so it cannot overflow.
    #[inline(always)]
    pub(super) fn add(&mut self, other: Self) {
        self.text += other.text;
        self.besides += other.besides;
        self.has_image |= other.has_image;
        self.messages += other.messages;
        self.texts += other.texts;
        self.others += other.others;
        self.refers |= other.refers;
    }

    fn length(&self) -> u64 {
        self.text + self.besides
    }

    #[inline(always)]
    fn add_text(&mut self, cursor: &Cursor<'_>, text: Text) {
        self.text += cursor.measure(text);
    }

    /// Adds the arguments of a tool call.
    fn add_call(&mut self, arguments: Weight) {
        self.text += arguments.text;
        self.besides += arguments.as_json() - arguments.text;
    }
}

/// Consumes the value of a prompt field.
#[inline(always)]
pub(super) fn read_prompt(
    cursor: &mut Cursor<'_>,
    kind: u8,
    layout: Layout,
    into: &mut Prompt,
) -> Parsed {
    *into = Prompt::default();
    match layout {
        Layout::Messages | Layout::Items => messages(cursor, kind, false, into),
        Layout::MessagesWithImages => messages(cursor, kind, true, into),
        Layout::Content => content(cursor, kind, Nesting::Outer, into),
        Layout::Plain => plain_prompt(cursor, kind, false, into),
        Layout::Joined => plain_prompt(cursor, kind, true, into),
    }
}

/// The first bytes of most messages, up to their content. Short messages gain most from this fast
/// path.
const OPENINGS: [&[u8]; 3] = [
    br#"{"role":"user","content":"#,
    br#"{"role":"assistant","content":"#,
    br#"{"role":"system","content":"#,
];

/// A member of a message, or of an item of a conversation.
#[derive(Clone, Copy)]
enum MessageMember {
    Content,
    /// Ollama's own API has images next to the text.
    Images,
    /// The result of a tool call.
    Output,
    /// Tool calls.
    Calls,
    /// The arguments of a tool call.
    Arguments,
    /// A member that no engine reads.
    Unread,
    Other,
}

const LIKELY_IN_MESSAGE: [(&[u8], MessageMember); 2] =
    [(b"role\":", MessageMember::Unread), (b"content\":", MessageMember::Content)];

/// Consumes a string, or an array of objects with `content` and, where `has_images`, `images`.
fn messages(cursor: &mut Cursor<'_>, kind: u8, has_images: bool, into: &mut Prompt) -> Parsed {
    match kind {
        b'"' => {
            let text = cursor.text()?;
            into.add_text(cursor, text);
            return Ok(());
        }
        b'[' => {}
        _ => return cursor.skip(kind),
    }
    cursor.elements(|cursor, kind| {
        if kind != b'{' {
            return cursor.skip(kind);
        }
        let mut found = Prompt::default();
        let has_content = open_message(cursor)?;
        if has_content {
            let kind = cursor.peek();
            content(cursor, kind, Nesting::Outer, &mut found)?;
        }
        // Apart, because a repeated content replaces what was found in it.
        let mut beside = Prompt::default();
        let members = Members::with_likely(&LIKELY_IN_MESSAGE, MessageMember::of);
        let visit = |cursor: &mut Cursor<'_>, member: MessageMember, kind| match member {
            MessageMember::Content => {
                found = Prompt::default();
                content(cursor, kind, Nesting::Outer, &mut found)
            }
            MessageMember::Unread => cursor.skip(kind),
            MessageMember::Images if has_images => beside.read_images(cursor, kind),
            _ => member.read(cursor, kind, &mut beside),
        };
        if has_content {
            cursor.rest_of_members(true, members, visit)?;
        } else {
            cursor.members(members, visit)?;
        }
        found.add(beside);
        found.messages = 1;
        // An item of a conversation without content may refer to one that the engine keeps.
        found.refers |= found.text + found.besides == 0;
        into.add(found);
        Ok(())
    })
}

impl Prompt {
    /// Consumes Ollama's list of images. The last of repeated lists decides whether there are any.
    fn read_images(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        let count = count_images(cursor, kind)?;
        self.has_image = count > 0;
        self.besides += weigh_blobs(count);
        Ok(())
    }
}

impl MessageMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"content" => Self::Content,
            b"images" => Self::Images,
            b"output" => Self::Output,
            b"tool_calls" => Self::Calls,
            b"function_call" | b"arguments" | b"input" => Self::Arguments,
            _ if is_unread(name) => Self::Unread,
            _ => Self::Other,
        }
    }

    /// Consumes a member other than the content. A repeated one counts each time.
    #[inline(never)]
    fn read(self, cursor: &mut Cursor<'_>, kind: u8, into: &mut Prompt) -> Parsed {
        match (self, kind) {
            (Self::Output, b'{') => part(cursor, Nesting::ToolResult, into),
            (Self::Output, _) => content(cursor, kind, Nesting::Outer, into),
            (Self::Calls, b'[') => cursor.elements(|cursor, kind| {
                if kind != b'{' {
                    return cursor.skip(kind);
                }
                cursor.members(Members::named(is_unread), |cursor, is_unread, kind| {
                    if is_unread {
                        return cursor.skip(kind);
                    }
                    into.add_call(cursor.weighed(kind)?);
                    Ok(())
                })
            }),
            (Self::Calls | Self::Arguments, _) => {
                into.add_call(cursor.weighed(kind)?);
                Ok(())
            }
            (Self::Content | Self::Unread, _) => cursor.skip(kind),
            (Self::Images | Self::Other, _) => {
                into.besides += cursor.weighed(kind)?.with_blobs();
                Ok(())
            }
        }
    }
}

/// Consumes the start of a message if it is one of [`OPENINGS`]. Returns whether it was.
#[inline(always)]
fn open_message(cursor: &mut Cursor<'_>) -> Result<bool, Syntax> {
    let rest = after(cursor.bytes, cursor.at);
    for opening in OPENINGS {
        if rest.starts_with(opening) {
            cursor.open()?;
            cursor.at += opening.len() - 1;
            return Ok(true);
        }
    }
    Ok(false)
}

/// The place of content: in a message, or in a tool result inside a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nesting {
    Outer,
    ToolResult,
}

/// Consumes a string or an array of content parts.
#[inline(always)]
fn content(cursor: &mut Cursor<'_>, kind: u8, nesting: Nesting, into: &mut Prompt) -> Parsed {
    if kind != b'"' {
        return parts(cursor, kind, nesting, into);
    }
    let text = cursor.text()?;
    into.add_text(cursor, text);
    Ok(())
}

#[inline(never)]
fn parts(cursor: &mut Cursor<'_>, kind: u8, nesting: Nesting, into: &mut Prompt) -> Parsed {
    if kind != b'[' {
        return cursor.skip(kind);
    }
    cursor.elements(|cursor, kind| {
        if kind != b'{' {
            return cursor.skip(kind);
        }
        part(cursor, nesting, into)
    })
}

/// Consumes a content part. Its `type` may come after its text, so the text counts only at the end.
fn part(cursor: &mut Cursor<'_>, nesting: Nesting, into: &mut Prompt) -> Parsed {
    let mut part = ScannedPart::EMPTY;
    let mut result = Prompt::default();
    let mut others = Weight::default();
    let members = Members::with_likely(&PartMember::LIKELY, PartMember::of);
    cursor.members(members, |cursor, member, kind| match member {
        PartMember::Content if nesting == Nesting::Outer => {
            result = Prompt::default();
            content(cursor, kind, Nesting::ToolResult, &mut result)
        }
        PartMember::Content | PartMember::Other => {
            others.add(cursor.weighed(kind)?);
            Ok(())
        }
        PartMember::Kind | PartMember::Text | PartMember::Unread => part.read(member, cursor, kind),
    })?;
    match part.kind {
        PartKind::Text => into.text += part.text,
        PartKind::Image => {
            into.has_image = true;
            into.besides += weigh_blobs(1);
        }
        PartKind::Blob => {
            into.refers = true;
            into.besides += weigh_blobs(1);
        }
        PartKind::ToolCall => into.add_call(others),
        PartKind::ToolResult => into.add(result),
        PartKind::Unknown => {
            into.refers = true;
            into.besides += part.text + result.text + result.besides + others.with_blobs();
        }
    }
    Ok(())
}

/// Consumes a string, a token id, an object with text, or up to two levels of arrays of them.
/// `is_joined` if the elements of an array make up one prompt.
fn plain_prompt(cursor: &mut Cursor<'_>, kind: u8, is_joined: bool, into: &mut Prompt) -> Parsed {
    if kind != b'[' {
        return prompt_element(cursor, kind, into);
    }
    let mut longest = 0;
    let mut is_one = is_joined;
    cursor.elements(|cursor, kind| {
        // Numbers in the outer list are the token ids of a single prompt, with or without strings.
        if matches!(kind, b'-' | b'0'..=b'9') {
            is_one = true;
            return prompt_element(cursor, kind, into);
        }
        let before = into.length();
        into.texts += u64::from(matches!(kind, b'"' | b'['));
        if kind == b'[' {
            cursor.elements(|cursor, kind| prompt_element(cursor, kind, into))?;
        } else {
            prompt_element(cursor, kind, into)?;
        }
        longest = longest.max(into.length() - before);
        Ok(())
    })?;
    if is_one {
        into.texts = 0;
    } else {
        into.others = into.length() - longest;
    }
    Ok(())
}

fn prompt_element(cursor: &mut Cursor<'_>, kind: u8, into: &mut Prompt) -> Parsed {
    match kind {
        b'"' => {
            let text = cursor.string()?;
            into.add_text(cursor, text);
            Ok(())
        }
        b'-' | b'0'..=b'9' => {
            into.text += super::TEXT_PER_TOKEN;
            cursor.number().map(|_| ())
        }
        // A document to rerank, or an image part of a moderation request.
        b'{' => {
            let mut part = ScannedPart::EMPTY;
            cursor.members(Members::named(PartMember::of), |cursor, member, kind| {
                part.read(member, cursor, kind)
            })?;
            into.text += part.text;
            if part.kind == PartKind::Image {
                into.has_image = true;
                into.besides += weigh_blobs(1);
            }
            Ok(())
        }
        _ => cursor.skip(kind),
    }
}
