//! What a prompt says, in an order of its own: tools first, then system text, then the messages with
//! role before content. Two requests that put the same prompt into an engine give the same bytes,
//! however their JSON is laid out, spaced and escaped. Prefix routing hashes these bytes.

use memchr::{memchr, memchr2};

use super::TokenEstimate;
use super::cursor::{Cursor, Members, Syntax};
use super::part::{Part, PartKind, PartMember};
use super::unescape::Unescape;
use crate::api::{BodyFormat, Operation};

/// Stand between the pieces of an outline: bytes that decoded text does not hold.
const TOOLS: &[u8] = &[0xf8];
const MESSAGE: &[u8] = &[0xf9];
const CONTENT: &[u8] = &[0xfa];
const PART: &[u8] = &[0xfb];
const IMAGE: &[u8] = &[0xfc];
const OTHER: &[u8] = &[0xfd];

/// Takes an outline piece by piece.
pub trait OutlineSink {
    /// The next piece.
    fn add(&mut self, piece: &[u8]);
    /// Whether further pieces make no difference.
    fn is_full(&self) -> bool;
}

/// What keeps the caches of an engine apart beside the prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheSalt<'a> {
    /// The raw bytes of `cache_salt`, quotes and all; empty without one.
    pub bytes: &'a [u8],
}

/// Where the values of a body lie.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    tools: Option<Span>,
    functions: Option<Span>,
    system: Option<Span>,
    prompt: Option<Span>,
    salt: Option<Span>,
}

/// Where a value begins and ends.
type Span = (usize, usize);

#[derive(Clone, Copy)]
enum Field {
    Tools,
    Functions,
    System,
    Prompt,
    Salt,
    Other,
}

/// The parts of a valid body that make up its prompt.
#[derive(Debug, Clone, Copy)]
pub struct Outline<'a> {
    body: &'a [u8],
    operation: Operation,
    places: Places,
}

impl<'a> Outline<'a> {
    /// The outline of a body that `scan` has passed; `None` for operations without a prompt whose
    /// beginning an engine could have cached.
    pub fn of(operation: Operation, body: &'a [u8]) -> Option<Self> {
        let names: [&[u8]; 2] = match operation {
            Operation::Chat => [b"messages", b""],
            Operation::Messages => [b"messages", b"system"],
            Operation::Responses => [b"input", b"instructions"],
            Operation::Completions => [b"prompt", b""],
            _ => return None,
        };
        debug_assert_eq!(operation.row().body, BodyFormat::Json);
        let of = |name: &[u8]| match name {
            b"tools" => Field::Tools,
            b"functions" => Field::Functions,
            b"cache_salt" => Field::Salt,
            name if name == names[0] => Field::Prompt,
            name if name == names[1] => Field::System,
            _ => Field::Other,
        };
        let mut places = Places::default();
        let mut cursor = cursor(body, 0);
        cursor.peek();
        let walked = cursor.members(Members::named(of), |cursor, field, kind| {
            let place = match field {
                Field::Tools => Some(&mut places.tools),
                Field::Functions => Some(&mut places.functions),
                Field::System => Some(&mut places.system),
                Field::Prompt => Some(&mut places.prompt),
                Field::Salt => Some(&mut places.salt),
                Field::Other => None,
            };
            let span = take(cursor, kind)?;
            if let Some(place) = place {
                *place = Some(span);
            }
            Ok(())
        });
        walked.ok().map(|()| Self { body, operation, places })
    }

    /// What else the engine keeps apart.
    pub fn salt(&self) -> CacheSalt<'a> {
        let raw = self.places.salt.map(|span| part(self.body, span));
        CacheSalt { bytes: raw.unwrap_or_default() }
    }

    /// Hands the outline to `sink`.
    pub fn write(&self, sink: &mut impl OutlineSink) {
        let Places { tools, functions, system, prompt, .. } = self.places;
        for span in [tools, functions].into_iter().flatten() {
            sink.add(TOOLS);
            write_compact(part(self.body, span), sink);
        }
        if let Some(span) = system {
            sink.add(MESSAGE);
            sink.add(b"system");
            sink.add(CONTENT);
            self.write_content(span, sink);
        }
        let Some(span) = prompt else { return };
        let written = match self.operation {
            Operation::Completions => self.write_plain(span, sink),
            _ => self.write_messages(span, sink),
        };
        debug_assert!(written.is_ok(), "the body has been scanned");
    }

    fn write_messages(&self, span: Span, sink: &mut impl OutlineSink) -> Result<(), Syntax> {
        let mut cursor = cursor(self.body, span.0);
        if cursor.peek() == b'"' {
            sink.add(MESSAGE);
            sink.add(b"user");
            sink.add(CONTENT);
            self.write_content(span, sink);
            return Ok(());
        }
        cursor.elements(|cursor, kind| {
            if kind != b'{' || sink.is_full() {
                return cursor.skip(kind);
            }
            self.write_message(cursor, sink)
        })
    }

    /// Role, content, and then whatever else there is, in its own order.
    fn write_message(
        &self,
        cursor: &mut Cursor<'_>,
        sink: &mut impl OutlineSink,
    ) -> Result<(), Syntax> {
        let start = cursor.at;
        let (mut role, mut content, mut others) = (None, None, false);
        let of = |name: &[u8]| match name {
            b"role" => Some(true),
            b"content" => Some(false),
            _ => None,
        };
        cursor.members(Members::named(of), |cursor, member, kind| {
            let span = take(cursor, kind)?;
            match member {
                Some(true) => role = Some(span),
                Some(false) => content = Some(span),
                None => others = true,
            }
            Ok(())
        })?;
        sink.add(MESSAGE);
        if let Some(span) = role {
            write_text(part(self.body, span), sink);
        }
        sink.add(CONTENT);
        if let Some(span) = content {
            self.write_content(span, sink);
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

    fn write_content(&self, span: Span, sink: &mut impl OutlineSink) {
        let mut cursor = cursor(self.body, span.0);
        if cursor.peek() != b'[' {
            return write_value(part(self.body, span), sink);
        }
        let mut is_first = true;
        let walked = cursor.elements(|cursor, kind| {
            if sink.is_full() {
                return cursor.skip(kind);
            }
            // One part of text is the same as that text alone.
            if !std::mem::take(&mut is_first) {
                sink.add(PART);
            }
            if kind != b'{' {
                write_value(part(self.body, take(cursor, kind)?), sink);
                return Ok(());
            }
            self.write_part(cursor, sink)
        });
        debug_assert!(walked.is_ok(), "the body has been scanned");
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
            (PartKind::Text, Some(span)) => write_value(part(self.body, span), sink),
            (PartKind::Image, _) => {
                // By its hash: an image is long, and says nothing about what follows it in blocks.
                sink.add(IMAGE);
                let raw = self.body.get(start..cursor.at).unwrap_or_default();
                sink.add(&xxhash_rust::xxh3::xxh3_128(raw).to_le_bytes());
            }
            _ => write_compact(self.body.get(start..cursor.at).unwrap_or_default(), sink),
        }
        Ok(())
    }

    /// A prompt as it is; of several, each behind a mark.
    fn write_plain(&self, span: Span, sink: &mut impl OutlineSink) -> Result<(), Syntax> {
        let mut cursor = cursor(self.body, span.0);
        if cursor.peek() != b'[' {
            write_value(part(self.body, span), sink);
            return Ok(());
        }
        cursor.elements(|cursor, kind| {
            let span = take(cursor, kind)?;
            write_value(part(self.body, span), sink);
            sink.add(PART);
            Ok(())
        })
    }
}

fn cursor(body: &[u8], at: usize) -> Cursor<'_> {
    let mut cursor = Cursor::new(body, TokenEstimate::Utf8);
    cursor.at = at;
    cursor
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

fn write_value(raw: &[u8], sink: &mut impl OutlineSink) {
    if raw.first() == Some(&b'"') { write_text(raw, sink) } else { write_compact(raw, sink) }
}

/// Hands on a string, decoded; anything else as it is.
fn write_text(raw: &[u8], sink: &mut impl OutlineSink) {
    let Some(mut rest) = raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\"")) else {
        return sink.add(raw);
    };
    while let Some(at) = memchr(b'\\', rest) {
        if sink.is_full() {
            return;
        }
        let (plain, escape) = rest.split_at(at);
        sink.add(plain);
        if let Some((simple, behind)) = simple_escape(escape) {
            sink.add(simple);
            rest = behind;
            continue;
        }
        let length = escape_length(escape);
        let (escape, behind) = escape.split_at(length.min(escape.len()));
        for character in Unescape::new(escape) {
            sink.add(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        rest = behind;
    }
    sink.add(rest);
}

/// What an escape of two characters stands for, and what follows it.
fn simple_escape(escape: &[u8]) -> Option<(&'static [u8], &[u8])> {
    let plain: &[u8] = match escape.get(1)? {
        b'n' => b"\n",
        b'"' => b"\"",
        b'\\' => b"\\",
        b'/' => b"/",
        b't' => b"\t",
        b'r' => b"\r",
        b'b' => b"\x08",
        b'f' => b"\x0c",
        _ => return None,
    };
    Some((plain, escape.get(2..)?))
}

fn escape_length(escape: &[u8]) -> usize {
    let is_high =
        |unit: &[u8]| matches!(unit, [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]);
    match escape.get(1) {
        Some(b'u') if escape.get(2..).is_some_and(is_high) => 12,
        Some(b'u') => 6,
        _ => 2,
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
