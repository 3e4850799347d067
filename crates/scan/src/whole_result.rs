//! Judges a whole response with a success status: as a result of its operation, and by the output
//! in it. Most results are read only up to their first output.

mod form;

use penstock_api::Operation;

use self::form::{ResultForm, ResultMember};
use super::blank::{is_blank_string, is_cut_short, may_be_blank};
use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::failed_choice::is_withheld;
use super::missing_result::is_foreign_refusal;
use super::ollama::is_filled;
use super::tool_call::MemberOutput;

/// The result in a whole response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WholeResult {
    /// None: JSON that is cut off, or says that it is no result.
    Missing,
    /// A result without any output.
    Empty,
    /// A result with output, or JSON of a form that is not known.
    Filled,
}

/// The members that a response to a chat begins with, up to its first output: most responses are
/// these, and each is read as it ends.
const CHAT: &[(&[u8], ResultMember)] = &[
    (b"id\":", ResultMember::Other),
    (b"object\":", ResultMember::Other),
    (b"created\":", ResultMember::Other),
    (b"model\":", ResultMember::Other),
    (b"choices\":", ResultMember::Output),
];
const CHOICE: &[(&[u8], bool)] = &[(b"index\":", false), (b"message\":", true)];
const MESSAGE: &[(&[u8], MemberOutput)] =
    &[(b"role\":", MemberOutput::Nothing), (b"content\":", MemberOutput::Text)];

/// The parts of a result that have been found.
struct Found {
    form: ResultForm,
    /// True if white space is output.
    may_be_blank: bool,
    /// True if it has a member for its output.
    has_member: bool,
    has_output: bool,
    /// True if its state is that of no result.
    is_unfit: bool,
    /// True if its output comes later, to another request.
    is_pending: bool,
}

impl WholeResult {
    /// Reads the whole response to a request for `operation`.
    pub fn read(operation: Operation, body: &[u8]) -> Self {
        let Some(form) = ResultForm::of(operation) else { return Self::Filled };
        let body = body.strip_prefix(super::BYTE_ORDER_MARK).unwrap_or(body).trim_ascii();
        if form == ResultForm::Transcript && !is_object(body) && !is_list_of_errors(body) {
            // Plain text. Its lines may begin with a note in brackets.
            return if body.is_empty() { Self::Empty } else { Self::Filled };
        }
        match (body.first(), body.last()) {
            (Some(b'{'), Some(b'}')) => {}
            (Some(b'['), Some(b']')) if form.may_be_list() => return Self::Filled,
            (Some(b'['), Some(b']')) if !is_list_of_errors(body) => return Self::Filled,
            (Some(b'{' | b'['), _) => return Self::Missing,
            // Text, or numbers that a client requested as bytes.
            _ => return Self::Filled,
        }
        let mut found = Found::new(form, may_be_blank(operation));
        let mut cursor = Cursor::of_response(body);
        let likely = if form == ResultForm::Choices { CHAT } else { &[] };
        let read: Parsed = cursor.members(
            Members::with_likely(likely, |name: &[u8]| form.member(name)),
            |cursor, member, kind| {
                // Any list may be one of ranks, but not any member.
                found.has_member |= matches!(member, ResultMember::Output | ResultMember::Text)
                    && (form != ResultForm::Rows || kind == b'[');
                match member {
                    ResultMember::Output => found.read_output(cursor, kind)?,
                    ResultMember::Text if kind == b'"' => found.read_text(cursor, kind)?,
                    ResultMember::State => found.read_state(cursor, kind)?,
                    ResultMember::Text | ResultMember::Other => cursor.skip(kind)?,
                }
                found.stop_at_output()
            },
        );
        // Some servers declare a stream of lines as JSON.
        let is_stream = form == ResultForm::Ollama && read.is_ok() && cursor.end().is_err();
        // Code models often have nothing to insert.
        let may_be_empty = matches!(operation, Operation::Infill | Operation::FillInTheMiddle);
        match found {
            _ if is_stream => Self::Filled,
            Found { is_unfit: true, .. } => Self::Missing,
            Found { has_output: true, .. } => Self::Filled,
            _ if read.is_err() => Self::Missing,
            // An engine of its operator may respond in another form.
            Found { is_pending: true, .. } => Self::Filled,
            _ if is_foreign_refusal(body) => Self::Missing,
            Found { has_member: false, .. } => Self::Filled,
            _ if may_be_empty || is_withheld(body) => Self::Filled,
            _ => Self::Empty,
        }
    }
}

impl Found {
    fn new(form: ResultForm, may_be_blank: bool) -> Self {
        Self {
            form,
            may_be_blank,
            has_member: false,
            has_output: false,
            is_unfit: false,
            is_pending: false,
        }
    }

    /// Ends the walk at the first output, unless the rest decides, too.
    fn stop_at_output(&self) -> Parsed {
        if self.has_output && !self.form.has_state() { Err(Syntax::End) } else { Ok(()) }
    }

    fn read_output(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        match (self.form, kind) {
            (ResultForm::Choices, b'[') => self.each(cursor, Self::read_choice),
            (ResultForm::Items, b'[') => self.each(cursor, Self::read_item),
            (ResultForm::Vectors, b'[' | b'"') => self.read_vectors(cursor, kind),
            (ResultForm::Blocks, b'[') => self.each(cursor, Self::read_part),
            (ResultForm::Ollama, b'{') => self.read_message(cursor),
            (
                ResultForm::Text | ResultForm::Rows | ResultForm::Transcript | ResultForm::Pictures,
                b'[',
            )
            | (
                ResultForm::Text | ResultForm::Blocks | ResultForm::Items | ResultForm::Transcript,
                b'"',
            ) => self.read_text(cursor, kind),
            // A score may be a fraction: counts and codes are not.
            (ResultForm::Rows, b'0'..=b'9' | b'-') => {
                let start = cursor.at;
                cursor.skip(kind)?;
                let number = cursor.bytes.get(start..cursor.at).unwrap_or_default();
                self.has_output |= number.contains(&b'.');
                Ok(())
            }
            _ => cursor.skip(kind),
        }
    }

    /// Returns whether a string at the cursor is no output, as it has only white space.
    fn is_blank(&self, cursor: &Cursor<'_>) -> bool {
        !self.may_be_blank && is_blank_string(cursor) && !is_cut_short(cursor.bytes)
    }

    /// Reads a string, or a list of any content.
    fn read_text(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        let is_blank = self.is_blank(cursor);
        self.has_output |= is_filled(cursor, kind)? && !is_blank;
        Ok(())
    }

    /// Reads the objects of a list, and skips its other elements.
    fn each(
        &mut self,
        cursor: &mut Cursor<'_>,
        read: impl Fn(&mut Self, &mut Cursor<'_>) -> Parsed,
    ) -> Parsed {
        cursor.elements(|cursor, kind| {
            if kind != b'{' {
                return cursor.skip(kind);
            }
            read(self, cursor)?;
            self.stop_at_output()
        })
    }

    fn read_choice(&mut self, cursor: &mut Cursor<'_>) -> Parsed {
        let is_output = |name: &[u8]| matches!(name, b"message" | b"delta" | b"text");
        let members = Members::with_likely(CHOICE, is_output);
        cursor.members(members, |cursor, is_output, kind| {
            match kind {
                _ if !is_output => return cursor.skip(kind),
                b'{' => self.read_message(cursor)?,
                _ => self.read_text(cursor, kind)?,
            }
            self.stop_at_output()
        })
    }

    fn read_message(&mut self, cursor: &mut Cursor<'_>) -> Parsed {
        let members = Members::with_likely(MESSAGE, carried_by);
        cursor.members(members, |cursor, carried, kind| {
            match carried {
                MemberOutput::Nothing => return cursor.skip(kind),
                MemberOutput::Text => {}
                MemberOutput::Calls => {
                    let start = cursor.at;
                    let is_filled = is_filled(cursor, kind)?;
                    let calls = cursor.bytes.get(start..cursor.at).unwrap_or_default();
                    self.has_output |= is_filled && carried.is_output(calls);
                    return self.stop_at_output();
                }
            }
            // A text may be long, and nothing after it is read.
            let is_empty = cursor.bytes.get(cursor.at + 1) == Some(&b'"');
            let is_blank = self.is_blank(cursor);
            if kind == b'"' && !is_empty && !is_blank {
                self.has_output = true;
                self.stop_at_output()?;
            }
            self.read_text(cursor, kind)?;
            self.stop_at_output()
        })
    }

    /// Reads an item of a response: a message has parts, any other one is output.
    fn read_item(&mut self, cursor: &mut Cursor<'_>) -> Parsed {
        let members = Members::named(|name: &[u8]| match name {
            b"type" => Some(true),
            b"content" => Some(false),
            _ => None,
        });
        cursor.members(members, |cursor, member, kind| match (member, kind) {
            (Some(true), b'"') => {
                let name = cursor.string()?;
                self.has_output |= cursor.raw(name) != b"message";
                Ok(())
            }
            (Some(false), b'[') => self.each(cursor, Self::read_part),
            _ => cursor.skip(kind),
        })
    }

    /// Reads a part of a content: a text may be empty, any other one is output.
    fn read_part(&mut self, cursor: &mut Cursor<'_>) -> Parsed {
        let members = Members::named(|name: &[u8]| match name {
            b"type" => Some(true),
            b"text" | b"thinking" | b"refusal" => Some(false),
            _ => None,
        });
        cursor.members(members, |cursor, member, kind| {
            match (member, kind) {
                (Some(true), b'"') => {
                    let name = cursor.string()?;
                    let is_text = matches!(
                        cursor.raw(name),
                        b"text" | b"output_text" | b"thinking" | b"refusal"
                    );
                    self.has_output |= !is_text;
                }
                (Some(false), _) => self.read_text(cursor, kind)?,
                _ => cursor.skip(kind)?,
            }
            self.stop_at_output()
        })
    }

    /// Reads a vector, a list of them, or a list of objects with one each.
    fn read_vectors(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        if kind != b'[' {
            self.has_output |= is_filled(cursor, kind)?;
            return self.stop_at_output();
        }
        cursor.elements(|cursor, kind| match kind {
            b'[' => self.read_vectors(cursor, kind),
            b'{' => {
                let members = Members::named(|name: &[u8]| name == b"embedding");
                cursor.members(members, |cursor, is_vector, kind| match (is_vector, kind) {
                    (true, b'[' | b'"') => self.read_vectors(cursor, kind),
                    // Vectors by the type of their numbers.
                    (true, b'{') => {
                        self.has_output |= is_filled(cursor, kind)?;
                        self.stop_at_output()
                    }
                    _ => cursor.skip(kind),
                })
            }
            b'0'..=b'9' | b'-' => {
                self.has_output = true;
                self.stop_at_output()
            }
            // The engine has computed nonsense.
            b'N' => {
                self.is_unfit = true;
                Err(Syntax::End)
            }
            _ => cursor.skip(kind),
        })
    }

    fn read_state(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        if kind != b'"' {
            self.is_unfit |= self.form == ResultForm::Ollama && kind == b'f';
            return cursor.skip(kind);
        }
        let state = cursor.string()?;
        match (self.form, cursor.raw(state)) {
            // The output comes later, or never: its client has cancelled it.
            (ResultForm::Items, b"queued" | b"in_progress" | b"cancelled") => {
                self.is_pending = true
            }
            (ResultForm::Ollama, b"load" | b"unload") => self.is_unfit = true,
            _ => {}
        }
        Ok(())
    }
}

/// Returns whether a text is an object of JSON by its beginning.
fn is_object(body: &[u8]) -> bool {
    let inner = body.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    inner.is_some_and(|inner| matches!(inner.first(), Some(b'"' | b'}') | None))
}

/// Returns whether a list begins with an error, as some gateways wrap one.
fn is_list_of_errors(body: &[u8]) -> bool {
    let inner = body.get(1..).unwrap_or_default().trim_ascii_start();
    inner.strip_prefix(b"{").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\"error\""))
}

/// The output that a member of a message may be.
pub(super) fn carried_by(name: &[u8]) -> MemberOutput {
    match name {
        b"role" | b"name" | b"id" | b"type" | b"annotations" | b"provider_specific_fields" => {
            MemberOutput::Nothing
        }
        _ => MemberOutput::by(name, MemberOutput::Text),
    }
}

#[cfg(test)]
#[path = "tests/whole_result.rs"]
mod tests;
