//! Reads the prompt in a JSON body: the members that the operation's row names, each in its layout.

use penstock_api::Layout;
use penstock_api::slices::after;

use super::content::{content, part};
use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::part::is_unread;
use super::prompt::PromptContents;
use super::prompt_list::plain_prompt;

/// Returns whether the type of a value is an error; `None` if every type is fine.
#[inline(always)]
pub(super) fn is_wrong_type(layout: Layout, kind: u8) -> Option<bool> {
    match layout {
        Layout::Messages => Some(kind != b'['),
        Layout::MessagesWithImages => Some(!matches!(kind, b'[' | b'n')),
        Layout::Items | Layout::Content | Layout::Plain | Layout::Joined | Layout::Images => None,
    }
}

/// Consumes the value of a prompt field.
#[inline(always)]
pub(super) fn read_prompt(
    cursor: &mut Cursor<'_>,
    kind: u8,
    layout: Layout,
    into: &mut PromptContents,
) -> Parsed {
    *into = PromptContents::default();
    match layout {
        Layout::Messages | Layout::Items => messages(cursor, kind, false, into),
        Layout::MessagesWithImages => messages(cursor, kind, true, into),
        Layout::Content => content(cursor, kind, 0, into),
        Layout::Images => into.read_image_list(cursor, kind),
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
fn messages(
    cursor: &mut Cursor<'_>,
    kind: u8,
    has_images: bool,
    into: &mut PromptContents,
) -> Parsed {
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
        let mut found = PromptContents::default();
        let has_content = open_message(cursor)?;
        if has_content {
            let kind = cursor.peek();
            content(cursor, kind, 0, &mut found)?;
        }
        // Apart, because a repeated content replaces what was found in it.
        let mut beside = PromptContents::default();
        let members = Members::with_likely(&LIKELY_IN_MESSAGE, MessageMember::of);
        let visit = |cursor: &mut Cursor<'_>, member: MessageMember, kind| match member {
            MessageMember::Content => {
                found = PromptContents::default();
                content(cursor, kind, 0, &mut found)
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
    fn read(self, cursor: &mut Cursor<'_>, kind: u8, into: &mut PromptContents) -> Parsed {
        match (self, kind) {
            (Self::Output, b'{') => part(cursor, 0, into),
            (Self::Output, _) => content(cursor, kind, 0, into),
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
                into.besides += cursor.weighed(kind)?.with_files();
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
