//! The canonical form of a prompt: tools first, then the system text, then the messages with role
//! before content. Two requests with the same prompt yield the same bytes, whatever the order,
//! spacing and escapes of their JSON. Prefix routing hashes these bytes.

use memchr::{memchr, memchr2, memmem};
use penstock_api::slices::{after, between};
use penstock_api::units::ByteSpan;
use penstock_api::{BILLING_LINE, BodyFormat, Layout, PromptPlace, Work};
use twox_hash::XxHash3_128;

use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::file::{File, MIN_LONG};
use super::part::{PartKind, PartMember, ScannedPart};
use super::pieces::{OutlineSink, write_string};
use super::weight::weigh_blobs;
use super::{RequestProfile, TokenEstimate};

/// Separators of the pieces of an outline: bytes that never occur in UTF-8.
const TOOLS: &[u8] = &[0xf8];
const MESSAGE: &[u8] = &[0xf9];
const CONTENT: &[u8] = &[0xfa];
const PART: &[u8] = &[0xfb];
const IMAGE: &[u8] = &[0xfc];
const OTHER: &[u8] = &[0xfd];

/// The members of most messages; the value is true for the role, false for the content.
const LIKELY_IN_MESSAGE: [(&[u8], Option<bool>); 2] =
    [(b"role\":", Some(true)), (b"content\":", Some(false))];

/// The place of a value.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: usize,
    to: usize,
}

/// The parts of a body that make up its prompt.
#[derive(Debug, Clone, Copy)]
pub struct Outline<'a> {
    body: &'a [u8],
    request: &'a RequestProfile,
}

impl<'a> Outline<'a> {
    /// Returns the outline of `body`, from which `scan` made `request`; `None` for operations
    /// without a prompt that an engine could cache.
    pub fn of(request: &'a RequestProfile, body: &'a [u8]) -> Option<Self> {
        let row = request.operation.row();
        let has_one = row.work == Work::Generation;
        debug_assert!(!has_one || row.body == BodyFormat::Json);
        has_one.then_some(Self { body, request })
    }

    /// Returns the raw bytes of `cache_salt` with their quotes; empty if it is missing. Engines
    /// share no cached prefix between requests with different salts.
    pub fn salt(&self) -> &'a [u8] {
        self.request.prompt.salt.of(self.body)
    }

    /// Writes the outline to `sink`.
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
            let author = TextAuthor::System;
            self.write_content(&mut cursor(self.body, places.system.range().start), author, sink);
        }
        if is_empty(places.main) || sink.is_full() {
            return;
        }
        let mut cursor = cursor(self.body, places.main.range().start);
        let fields = self.request.operation.row().prompt;
        let main = fields.iter().find(|field| field.place == PromptPlace::Main);
        let written = match main.map(|field| field.layout) {
            Some(Layout::Plain) => self.write_plain(&mut cursor, sink),
            _ => self.write_messages(&mut cursor, sink),
        };
        debug_assert!(written.is_ok() || sink.is_full(), "the body has been scanned");
    }

    fn write_messages(&self, cursor: &mut Cursor<'_>, sink: &mut impl OutlineSink) -> Parsed {
        match cursor.peek() {
            b'"' => {
                sink.add(MESSAGE);
                sink.add(b"user");
                sink.add(CONTENT);
                self.write_content(cursor, TextAuthor::Other, sink);
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

    /// Writes the role, the content, and then the other members in their original order.
    fn write_message(&self, cursor: &mut Cursor<'_>, sink: &mut impl OutlineSink) -> Parsed {
        let start = cursor.at;
        let (mut role, mut content, mut is_written, mut others) = (None, None, false, false);
        let members = Members::with_likely(&LIKELY_IN_MESSAGE, is_role);
        cursor.members(members, |cursor, member, kind| {
            match (member, role) {
                (Some(true), _) => role = Some(take(cursor, kind)?),
                // Nearly all messages begin with their role; their content is written in the same
                // pass.
                (Some(false), Some(span)) if !is_written => {
                    is_written = true;
                    self.begin_message(Some(span), sink);
                    self.write_content(cursor, TextAuthor::of(part(self.body, span)), sink);
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
        if let Some(Span { from, .. }) = content {
            let author =
                role.map_or(TextAuthor::Other, |span| TextAuthor::of(part(self.body, span)));
            self.write_content(&mut self::cursor(self.body, from), author, sink);
        }
        if !others {
            return Ok(());
        }
        // Few messages have other members: only those are read twice.
        let mut again = self::cursor(self.body, start);
        again.members(Members::named(is_role), |cursor, member, kind| {
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
        if let Some(Span { from, .. }) = role {
            write_value(&mut cursor(self.body, from), sink);
        }
        sink.add(CONTENT);
    }

    /// Consumes and writes a string, or an array of parts.
    fn write_content(
        &self,
        cursor: &mut Cursor<'_>,
        author: TextAuthor,
        sink: &mut impl OutlineSink,
    ) {
        if cursor.peek() != b'[' {
            return author.write_text(cursor, sink);
        }
        let mut is_first = true;
        let walked = cursor.elements(|cursor, kind| {
            if sink.is_full() {
                leave(cursor);
                return Ok(());
            }
            // A single text part yields the same bytes as a plain string.
            if !std::mem::take(&mut is_first) {
                sink.add(PART);
            }
            if kind != b'{' {
                write_value(cursor, sink);
                return Ok(());
            }
            self.write_part(cursor, author, sink)
        });
        debug_assert!(walked.is_ok() || sink.is_full(), "the body has been scanned");
    }

    fn write_part(
        &self,
        cursor: &mut Cursor<'_>,
        author: TextAuthor,
        sink: &mut impl OutlineSink,
    ) -> Parsed {
        let start = cursor.at;
        let mut found = ScannedPart::EMPTY;
        let mut text = None;
        let members = Members::with_likely(&PartMember::LIKELY, PartMember::of);
        cursor.members(members, |cursor, member, kind| {
            let from = cursor.at;
            found.read(member, cursor, kind)?;
            if matches!(member, PartMember::Text) {
                text = Some(from);
            }
            Ok(())
        })?;
        match (found.kind, text) {
            (PartKind::Text, Some(from)) => {
                author.write_text(&mut self::cursor(self.body, from), sink);
            }
            _ if found.is_image() => write_blob(between(self.body, start, cursor.at), sink),
            _ => write_compact(between(self.body, start, cursor.at), sink),
        }
        Ok(())
    }

    /// Writes a single prompt unchanged, or several with a separator after each.
    fn write_plain(&self, cursor: &mut Cursor<'_>, sink: &mut impl OutlineSink) -> Parsed {
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

/// Writes an image or another file that is no text as its hash, repeated to the length of the
/// tokens that it counts: its bytes are many and are no text tokens.
fn write_blob(raw: &[u8], sink: &mut impl OutlineSink) {
    sink.add(IMAGE);
    let hash = XxHash3_128::oneshot(raw).to_le_bytes();
    for _ in 0..weigh_blobs(1) / hash.len() as u64 {
        if sink.is_full() {
            return;
        }
        sink.add(&hash);
    }
}

/// The author of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextAuthor {
    System,
    Other,
}

impl TextAuthor {
    /// The author by the raw value of `role`.
    fn of(role: &[u8]) -> Self {
        match role {
            // Compared as written: a role with escapes only keeps its changing line in the outline.
            br#""system""# | br#""developer""# => Self::System,
            _ => Self::Other,
        }
    }

    /// Consumes and writes a text. A line of Claude Code's instructions differs in every request
    /// and is left out: two prompts that differ in it alone share everything after it.
    fn write_text(self, cursor: &mut Cursor<'_>, sink: &mut impl OutlineSink) {
        let is_text = cursor.peek() == b'"';
        let string = after(cursor.bytes, cursor.at);
        let has_line = after(string, 1).starts_with(BILLING_LINE.as_bytes());
        if self == Self::Other || !is_text || !has_line {
            return write_value(cursor, sink);
        }
        let text = between(string, 1, string_end(string).saturating_sub(1));
        let line = memmem::find(text, b"\\n").map_or(text.len(), |end| end + 2);
        cursor.at = write_string(cursor.bytes, cursor.at + line, sink);
    }
}

/// Returns true if a member of a message is its role, false if it is its content.
fn is_role(name: &[u8]) -> Option<bool> {
    match name {
        b"role" => Some(true),
        b"content" => Some(false),
        _ => None,
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

/// Ends the walk by moving the cursor to the end of the body.
fn leave(cursor: &mut Cursor<'_>) {
    cursor.at = cursor.bytes.len();
}

/// Consumes the value at the cursor, which starts with `kind`, and returns its span.
fn take(cursor: &mut Cursor<'_>, kind: u8) -> Result<Span, Syntax> {
    let from = cursor.at;
    cursor.skip(kind)?;
    Ok(Span { from, to: cursor.at })
}

fn part(body: &[u8], Span { from, to }: Span) -> &[u8] {
    between(body, from, to)
}

/// Consumes the value at the cursor and writes it: strings decoded, other values without white
/// space.
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

/// Writes JSON without the white space outside its strings.
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
        match is_blob(string) {
            true => write_blob(string, sink),
            false => sink.add(string),
        }
        json = behind;
    }
}

/// Returns whether a string, with its quotes, is a file that is no text: it counts as an image.
fn is_blob(string: &[u8]) -> bool {
    string.len() >= MIN_LONG
        && matches!(File::of(between(string, 1, string.len() - 1)), Some(File::Other))
}

/// The length of the string at the start of `bytes`, with its quotes.
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
