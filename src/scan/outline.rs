//! What a prompt says, in an order of its own: tools first, then system text, then the messages with
//! role before content. Two requests that put the same prompt into an engine give the same bytes,
//! however their JSON is laid out, spaced and escaped. Prefix routing hashes these bytes.

use memchr::{memchr, memchr2};
use twox_hash::XxHash3_128;

use super::cursor::{Cursor, Members, Syntax};
use super::part::{Part, PartKind, PartMember};
use super::pieces::write_string;
use super::sink::OutlineSink;
use super::{RequestProfile, TokenEstimate};
use crate::api::{BodyFormat, Operation};
use crate::units::ByteSpan;

/// Stand between the pieces of an outline: bytes that decoded text does not hold.
const TOOLS: &[u8] = &[0xf8];
const MESSAGE: &[u8] = &[0xf9];
const CONTENT: &[u8] = &[0xfa];
const PART: &[u8] = &[0xfb];
const IMAGE: &[u8] = &[0xfc];
const OTHER: &[u8] = &[0xfd];

/// What most messages hold, and whether it is the role.
const LIKELY_IN_MESSAGE: [(&[u8], Option<bool>); 2] =
    [(b"role\":", Some(true)), (b"content\":", Some(false))];

/// Where a value begins and ends.
type Span = (usize, usize);

/// The parts of a body that make up its prompt.
#[derive(Debug, Clone, Copy)]
pub struct Outline<'a> {
    body: &'a [u8],
    request: &'a RequestProfile,
}

impl<'a> Outline<'a> {
    /// The outline of a body that `scan` made `request` of; `None` for operations without a prompt
    /// whose beginning an engine could have cached.
    pub fn of(request: &'a RequestProfile, body: &'a [u8]) -> Option<Self> {
        let has_one = matches!(
            request.operation,
            Operation::Chat | Operation::Messages | Operation::Responses | Operation::Completions
        );
        debug_assert!(!has_one || request.operation.row().body == BodyFormat::Json);
        has_one.then_some(Self { body, request })
    }

    /// What keeps the caches of an engine apart beside the prompt itself: the raw bytes of
    /// `cache_salt`, quotes and all; empty without one.
    pub fn salt(&self) -> &'a [u8] {
        self.request.prompt.salt.of(self.body)
    }

    /// Hands the outline to `sink`.
    pub fn write(&self, sink: &mut impl OutlineSink) {
        let places = self.request.prompt;
        for tools in [places.tools, places.functions].into_iter().filter(|span| !is_empty(*span)) {
            sink.add(TOOLS);
            write_compact(tools.of(self.body), sink);
        }
        if !is_empty(places.system) {
            sink.add(MESSAGE);
            sink.add(b"system");
            sink.add(CONTENT);
            self.write_content(&mut cursor(self.body, places.system.range().start), sink);
        }
        if is_empty(places.main) || sink.is_full() {
            return;
        }
        let mut cursor = cursor(self.body, places.main.range().start);
        let written = match self.request.operation {
            Operation::Completions => self.write_plain(&mut cursor, sink),
            _ => self.write_messages(&mut cursor, sink),
        };
        debug_assert!(written.is_ok() || sink.is_full(), "the body has been scanned");
    }

    fn write_messages(
        &self,
        cursor: &mut Cursor<'_>,
        sink: &mut impl OutlineSink,
    ) -> Result<(), Syntax> {
        match cursor.peek() {
            b'"' => {
                sink.add(MESSAGE);
                sink.add(b"user");
                sink.add(CONTENT);
                self.write_content(cursor, sink);
                Ok(())
            }
            b'[' => cursor.elements(|cursor, kind| {
                if sink.is_full() {
                    leave(cursor);
                    return Ok(());
                }
                if kind != b'{' {
                    return cursor.skip(kind);
                }
                self.write_message(cursor, sink)
            }),
            kind => cursor.skip(kind),
        }
    }

    /// Role, content, and then whatever else there is, in its own order.
    fn write_message(
        &self,
        cursor: &mut Cursor<'_>,
        sink: &mut impl OutlineSink,
    ) -> Result<(), Syntax> {
        let start = cursor.at;
        let (mut role, mut content, mut is_written, mut others) = (None, None, false, false);
        let of = |name: &[u8]| match name {
            b"role" => Some(true),
            b"content" => Some(false),
            _ => None,
        };
        let members = Members::with_likely(&LIKELY_IN_MESSAGE, of);
        cursor.members(members, |cursor, member, kind| {
            match (member, role) {
                (Some(true), _) => role = Some(take(cursor, kind)?),
                // Nearly all messages begin with their role, so what they say needs no second look.
                (Some(false), Some(span)) if !is_written => {
                    is_written = true;
                    self.begin_message(Some(span), sink);
                    self.write_content(cursor, sink);
                }
                (Some(false), _) => content = Some(take(cursor, kind)?),
                (None, _) => {
                    others = true;
                    cursor.skip(kind)?;
                }
            }
            Ok(())
        })?;
        if !is_written {
            self.begin_message(role, sink);
        }
        if let Some((from, _)) = content {
            self.write_content(&mut self::cursor(self.body, from), sink);
        }
        if !others {
            return Ok(());
        }
        let mut again = self::cursor(self.body, start);
        again.members(Members::named(of), |cursor, member, kind| {
            let span = take(cursor, kind)?;
            if member.is_none() {
                sink.add(OTHER);
                write_compact(part(self.body, span), sink);
            }
            Ok(())
        })
    }

    fn begin_message(&self, role: Option<Span>, sink: &mut impl OutlineSink) {
        sink.add(MESSAGE);
        if let Some((from, _)) = role {
            write_value(&mut cursor(self.body, from), sink);
        }
        sink.add(CONTENT);
    }

    /// Takes a string, or an array of parts.
    fn write_content(&self, cursor: &mut Cursor<'_>, sink: &mut impl OutlineSink) {
        if cursor.peek() != b'[' {
            return write_value(cursor, sink);
        }
        let mut is_first = true;
        let walked = cursor.elements(|cursor, kind| {
            if sink.is_full() {
                leave(cursor);
                return Ok(());
            }
            // One part of text is the same as that text alone.
            if !std::mem::take(&mut is_first) {
                sink.add(PART);
            }
            if kind != b'{' {
                write_value(cursor, sink);
                return Ok(());
            }
            self.write_part(cursor, sink)
        });
        debug_assert!(walked.is_ok() || sink.is_full(), "the body has been scanned");
    }

    fn write_part(
        &self,
        cursor: &mut Cursor<'_>,
        sink: &mut impl OutlineSink,
    ) -> Result<(), Syntax> {
        let start = cursor.at;
        let mut found = Part::EMPTY;
        let mut text = None;
        let members = Members::with_likely(&PartMember::LIKELY, PartMember::of);
        cursor.members(members, |cursor, member, kind| {
            let from = cursor.at;
            found.read(member, cursor, kind)?;
            if matches!(member, PartMember::Text) {
                text = Some((from, cursor.at));
            }
            Ok(())
        })?;
        match (found.kind, text) {
            (PartKind::Text, Some((from, _))) => {
                write_value(&mut self::cursor(self.body, from), sink);
            }
            (PartKind::Image, _) => {
                // By its hash: an image is long, and says nothing about what follows it in blocks.
                sink.add(IMAGE);
                let raw = self.body.get(start..cursor.at).unwrap_or_default();
                sink.add(&XxHash3_128::oneshot(raw).to_le_bytes());
            }
            _ => write_compact(self.body.get(start..cursor.at).unwrap_or_default(), sink),
        }
        Ok(())
    }

    /// A prompt as it is; of several, each behind a mark.
    fn write_plain(
        &self,
        cursor: &mut Cursor<'_>,
        sink: &mut impl OutlineSink,
    ) -> Result<(), Syntax> {
        if cursor.peek() != b'[' {
            write_value(cursor, sink);
            return Ok(());
        }
        cursor.elements(|cursor, _| {
            write_value(cursor, sink);
            sink.add(PART);
            Ok(())
        })
    }
}

fn is_empty(span: ByteSpan) -> bool {
    span.range().is_empty()
}

fn cursor(body: &[u8], at: usize) -> Cursor<'_> {
    let mut cursor = Cursor::new(body, TokenEstimate::Utf8);
    cursor.at = at;
    cursor
}

/// Nothing that follows makes a difference: the walk ends at the end of the body.
fn leave(cursor: &mut Cursor<'_>) {
    cursor.at = cursor.bytes.len();
}

/// Takes the value at the cursor, which starts with `kind`; says where it lies.
fn take(cursor: &mut Cursor<'_>, kind: u8) -> Result<Span, Syntax> {
    let from = cursor.at;
    cursor.skip(kind)?;
    Ok((from, cursor.at))
}

fn part(body: &[u8], (from, to): Span) -> &[u8] {
    body.get(from..to).unwrap_or_default()
}

/// Takes the value at the cursor: a string decoded, anything else without the space in it.
fn write_value(cursor: &mut Cursor<'_>, sink: &mut impl OutlineSink) {
    let kind = cursor.peek();
    if kind == b'"' {
        cursor.at = write_string(cursor.bytes, cursor.at, sink);
        return;
    }
    let taken = take(cursor, kind);
    debug_assert!(taken.is_ok(), "the body has been scanned");
    if let Ok(span) = taken {
        write_compact(part(cursor.bytes, span), sink);
    }
}

/// Hands on JSON without the space between its pieces.
fn write_compact(mut json: &[u8], sink: &mut impl OutlineSink) {
    while !json.is_empty() && !sink.is_full() {
        let begin = memchr(b'"', json).unwrap_or(json.len());
        let (outside, string) = json.split_at(begin);
        outside
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|piece| !piece.is_empty())
            .for_each(|piece| sink.add(piece));
        let end = string_end(string);
        let (string, behind) = string.split_at(end);
        sink.add(string);
        json = behind;
    }
}

/// The length of the string that `bytes` begins with, quotes and all.
fn string_end(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

#[cfg(test)]
#[path = "tests/outline.rs"]
mod tests;
