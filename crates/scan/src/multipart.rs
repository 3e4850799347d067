//! Extracts the fields `model`, `stream` and `prompt` from a `multipart/form-data` body. The parser
//! rejects any form in which a backend could read a different model; files may contain any bytes.

use memchr::memmem::Finder;
use std::ops::Range;

use penstock_api::slices::{after, before, split_at};
use penstock_api::units::{ByteSpan, TokenCount};
use penstock_api::{Capabilities, Operation, percent_decode};

use super::density::measured;
use super::ids::StoredIds;
use super::prompt_limit::PromptLimit;
use super::script::weigh;
use super::twin::deciding_in_query;
use super::{ModelForm, PromptPlaces, RequestProfile, ScanError, ScanOptions, TokenEstimate};
use super::{is_blank, to_offset, to_span, to_tokens};

/// The longest boundary that RFC 2046 allows.
const MAX_BOUNDARY: usize = 70;
/// The longest accepted head of a part.
const MAX_HEAD: usize = 16 << 10;

/// The syntax expected in a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MultipartSyntax {
    /// The content-type header, which names the boundary.
    #[error("a content-type of multipart/form-data with a boundary")]
    ContentType,
    /// The line between parts.
    #[error("the boundary of the content-type")]
    Boundary,
    /// The end of the boundary line.
    #[error("a line break, or the two dashes that end the form")]
    BoundaryEnd,
    /// The head of a part.
    #[error("the head of a part, and an empty line")]
    PartHead,
    /// The name of a part.
    #[error("one content-disposition of form-data with one plain name")]
    PartName,
    /// The end of the body.
    #[error("the end of the body")]
    End,
}

/// `CRLF "--" boundary`, on the stack.
struct Delimiter {
    bytes: [u8; MAX_BOUNDARY + 4],
    len: usize,
}

impl Delimiter {
    fn from_content_type(content_type: &str) -> Option<Self> {
        let (kind, parameters) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = only_parameter(parameters.as_bytes(), b"boundary")?;
        // Parsers disagree about escapes in a boundary.
        if boundary.is_empty() || boundary.contains(&b'\\') {
            return None;
        }
        let mut delimiter = Self { bytes: [0; MAX_BOUNDARY + 4], len: boundary.len() + 4 };
        let (start, room) = delimiter.bytes.split_at_mut(4);
        start.copy_from_slice(b"\r\n--");
        room.get_mut(..boundary.len())?.copy_from_slice(boundary);
        Some(delimiter)
    }

    fn as_bytes(&self) -> &[u8] {
        before(&self.bytes, self.len)
    }
}

/// Returns the value of the parameter `wanted` in a list such as `; name=value; name="value"`.
/// `None` if it is missing or repeated, or if the list is malformed.
fn only_parameter<'a>(list: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut found = None;
    each_parameter(list, |name, value| {
        if name.eq_ignore_ascii_case(wanted) && found.replace(value).is_some() {
            return None;
        }
        Some(())
    })?;
    found
}

fn each_parameter<'a>(
    list: &'a [u8],
    mut visit: impl FnMut(&'a [u8], &'a [u8]) -> Option<()>,
) -> Option<()> {
    let mut rest = list.trim_ascii();
    while !rest.is_empty() {
        let equals = memchr::memchr2(b'=', b';', rest)?;
        let (name, behind) = rest.split_at_checked(equals)?;
        let value;
        (value, rest) = match behind {
            [b'=', b'"', quoted @ ..] => {
                let end = closing_quote(quoted)?;
                (quoted.get(..end)?, quoted.get(end + 1..)?)
            }
            [b'=', plain @ ..] => {
                let end = memchr::memchr(b';', plain).unwrap_or(plain.len());
                let (value, rest) = plain.split_at_checked(end)?;
                (value.trim_ascii(), rest)
            }
            _ => return None,
        };
        visit(name.trim_ascii(), value)?;
        rest = match rest.trim_ascii_start() {
            [] => &[],
            [b';', more @ ..] => more.trim_ascii_start(),
            _ => return None,
        };
    }
    Some(())
}

fn closing_quote(quoted: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', quoted.get(at..)?)?;
        if quoted.get(at) == Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}

/// The part of a form that the scan reads.
#[derive(Clone, Copy)]
enum FormField {
    Model,
    /// A file named `model`.
    ModelFile,
    Stream,
    Prompt,
    /// A name that an engine may read as this field.
    Twin(&'static str),
    Other,
}

/// The values of the form's fields. A repeated field replaces the earlier one.
struct Form {
    model: Option<ByteSpan>,
    /// The offset of the first part.
    start: u32,
    model_is_file: bool,
    streaming: bool,
    prompt: u64,
}

/// Scans `body` as a form.
pub(super) fn scan(
    operation: Operation,
    content_type: Option<&str>,
    body: &[u8],
    options: ScanOptions,
) -> Result<RequestProfile, ScanError> {
    let delimiter = content_type
        .and_then(Delimiter::from_content_type)
        .ok_or(ScanError::MalformedForm { offset: 0, expected: MultipartSyntax::ContentType })?;
    let mut form =
        Form { model: None, start: 0, model_is_file: false, streaming: false, prompt: 0 };
    form.read(body, delimiter.as_bytes(), options.estimate)?;
    if form.model_is_file {
        return Err(ScanError::WrongType { field: "model", expected: "a field, not a file" });
    }
    let (model, model_form) = match form.model {
        Some(model) if is_blank(model.of(body), false) => return Err(ScanError::EmptyModel),
        Some(model) => (model, ModelForm::Plain),
        None => (ByteSpan { start: form.start, end: form.start }, ModelForm::Missing),
    };
    Ok(RequestProfile {
        arrived_at: options.arrived_at,
        operation,
        dialect: operation.row().dialect,
        model,
        names_further_models: false,
        model_form,
        streaming: form.streaming,
        estimated_tokens: to_tokens(form.prompt),
        prompt_tokens: to_tokens(form.prompt),
        outside_context: TokenCount::default(),
        cut_to: None,
        max_tokens: None,
        output_limit: None,
        choices: 1,
        prompt_limit: PromptLimit::of_form(body),
        usage_edit: None,
        context_length: None,
        residency_change: None,
        needs: Capabilities::NONE,
        prompt: PromptPlaces::default(),
        stored: StoredIds::default(),
        session: ByteSpan::default(),
    })
}

impl Form {
    fn read(
        &mut self,
        body: &[u8],
        delimiter: &[u8],
        estimate: TokenEstimate,
    ) -> Result<(), ScanError> {
        let finder = Finder::new(delimiter);
        // No line break precedes the first boundary.
        let lead = body.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        self.start = to_offset(lead);
        let opening = after(delimiter, 2);
        let mut rest = body
            .get(lead..)
            .and_then(|rest| rest.strip_prefix(opening))
            .ok_or(malformed(lead, MultipartSyntax::Boundary))?;
        let mut has_parts = false;
        loop {
            let offset = body.len() - rest.len();
            if !has_parts && rest.starts_with(b"--") {
                // RFC 2046 §5.1.1 wants a part, and nothing can be inserted before the end.
                return Err(malformed(offset, MultipartSyntax::PartHead));
            }
            has_parts = true;
            // RFC 2046 §5.1.1 allows text after the last boundary, but a lenient parser may find
            // parts in it.
            if let Some(epilogue) = rest.strip_prefix(b"--") {
                return if epilogue.trim_ascii().is_empty() {
                    Ok(())
                } else {
                    Err(malformed(offset + 2, MultipartSyntax::End))
                };
            }
            // RFC 2046 §5.1.1 allows blanks between a boundary and its line break.
            let head = skip_blanks(rest)
                .strip_prefix(b"\r\n")
                .ok_or(malformed(offset, MultipartSyntax::BoundaryEnd))?;
            let offset = body.len() - head.len();
            let (field, value) = read_head(head).map_err(|expected| malformed(offset, expected))?;
            let start = body.len() - value.len();
            let end = finder.find(value).ok_or(malformed(start, MultipartSyntax::Boundary))?;
            let (value, behind) = split_at(value, end);
            self.take(field, body, start..start + value.len(), estimate)?;
            rest = after(behind, delimiter.len());
        }
    }

    fn take(
        &mut self,
        field: FormField,
        body: &[u8],
        range: Range<usize>,
        estimate: TokenEstimate,
    ) -> Result<(), ScanError> {
        if let FormField::Twin(field) = field {
            return Err(ScanError::Twin { field });
        }
        if matches!(field, FormField::Other | FormField::ModelFile) {
            self.model_is_file |= matches!(field, FormField::ModelFile);
            return Ok(());
        }
        let start = range.start;
        let value = before(after(body, start), range.len());
        let text = simdutf8::compat::from_utf8(value)
            .map_err(|error| ScanError::InvalidUtf8 { offset: start + error.valid_up_to() })?;
        match field {
            FormField::Model => {
                // Some engines read the first of two fields, and a rewrite edits one.
                if self.model.is_some() {
                    return Err(ScanError::Twin { field: "model" });
                }
                self.model_is_file = false;
                self.model = Some(to_span(start, start + value.len()));
            }
            FormField::Stream => self.streaming = text.eq_ignore_ascii_case("true") || text == "1",
            FormField::Prompt => {
                self.prompt = match estimate {
                    TokenEstimate::Auto => measured(weigh(value), value),
                    TokenEstimate::Chars => text.chars().count() as u64,
                    TokenEstimate::Utf8 => text.len() as u64,
                };
            }
            FormField::ModelFile | FormField::Twin(_) | FormField::Other => {}
        }
        Ok(())
    }
}

fn malformed(offset: usize, expected: MultipartSyntax) -> ScanError {
    ScanError::MalformedForm { offset, expected }
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    after(bytes, blanks)
}

/// Reads the head of a part. Returns its field, and everything after the empty line.
fn read_head(part: &[u8]) -> Result<(FormField, &[u8]), MultipartSyntax> {
    let mut field = None;
    let mut rest = part;
    loop {
        let read = part.len() - rest.len();
        let window = rest.get(..MAX_HEAD.saturating_sub(read)).unwrap_or(rest);
        let end = memchr::memmem::find(window, b"\r\n").ok_or(MultipartSyntax::PartHead)?;
        let line = before(rest, end);
        rest = after(rest, end + 2);
        if line.is_empty() {
            return field.map(|field| (field, rest)).ok_or(MultipartSyntax::PartName);
        }
        let colon = memchr::memchr(b':', line).ok_or(MultipartSyntax::PartHead)?;
        let (name, value) = split_at(line, colon);
        // Parsers disagree about folded lines and about spaces before the colon.
        if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
            return Err(MultipartSyntax::PartHead);
        }
        if name.eq_ignore_ascii_case(b"content-disposition") {
            let value = after(value, 1);
            let found = read_disposition(value).ok_or(MultipartSyntax::PartName)?;
            if field.replace(found).is_some() {
                return Err(MultipartSyntax::PartName);
            }
        }
    }
}

fn read_disposition(value: &[u8]) -> Option<FormField> {
    let semicolon = memchr::memchr(b';', value)?;
    let (kind, parameters) = value.split_at_checked(semicolon)?;
    if !kind.trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let mut found = None;
    let mut is_file = false;
    each_parameter(parameters.get(1..)?, |name, value| {
        if name.eq_ignore_ascii_case(b"name") {
            // Parsers disagree about repeated names and about names with escapes.
            if value.contains(&b'\\') || found.replace(value).is_some() {
                return None;
            }
        } else if name.eq_ignore_ascii_case(b"name*") {
            return None;
        } else {
            is_file |=
                name.eq_ignore_ascii_case(b"filename") || name.eq_ignore_ascii_case(b"filename*");
        }
        Some(())
    })?;
    Some(match found? {
        b"model" if is_file => FormField::ModelFile,
        _ if is_file => FormField::Other,
        b"model" => FormField::Model,
        b"stream" => FormField::Stream,
        b"prompt" => FormField::Prompt,
        name => twin_of_field(name).map_or(FormField::Other, FormField::Twin),
    })
}

/// Returns the field that a name stands for in another spelling, also percent-encoded.
fn twin_of_field(name: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(name);
    let name = if text.contains('%') { percent_decode(&text).into() } else { text };
    let field = deciding_in_query(&name)?;
    matches!(field, "model" | "stream").then_some(field)
}
