//! JSON without a tree: the members of an object as borrowed text, and a writer that appends to a
//! buffer. Text that needs no unescaping is never copied.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::ConvertError;

/// The byte order mark that some programs write before JSON.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Returns the text of a response without its byte order mark. Invalid bytes become U+FFFD, as they
/// do for clients of the engine itself.
pub(super) fn text_of(response: &[u8]) -> Cow<'_, str> {
    let bytes = response.strip_prefix(BYTE_ORDER_MARK).unwrap_or(response);
    simdutf8::basic::from_utf8(bytes)
        .map_or_else(|_error| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// A JSON string, borrowed from the body unless it has escapes.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

/// The members of a JSON object that have not been taken yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields<'a>(Vec<(Text<'a>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields<'de>, M::Error> {
                let mut fields = Vec::with_capacity(12);
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl<'a> Fields<'a> {
    /// Reads the members of a request body.
    pub(super) fn of_body(body: &'a [u8]) -> Result<Self, ConvertError> {
        let text = simdutf8::basic::from_utf8(body).map_err(|_error| ConvertError::NotJson)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        serde_json::from_str(text).map_err(|_error| ConvertError::NotJson)
    }

    /// Removes a member and returns its value. The last of two with one name counts; null counts as
    /// absent.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let mut found = None;
        self.0.retain(|(own, value)| {
            let is_other = &**own != name;
            if !is_other {
                found = Some(*value);
            }
            is_other
        });
        found.filter(|value| value.get() != "null")
    }

    /// Removes a member and reads its value; `expected` describes it for the error.
    pub(super) fn take_as<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, ConvertError> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        read_value(raw, name, expected).map(Some)
    }

    /// Removes a member and reads its list; the error names the item.
    pub(super) fn take_list<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Vec<T>, ConvertError> {
        let Some(raw) = self.take(name) else { return Ok(Vec::new()) };
        // The fast path: items are read one by one only to name the invalid one.
        if let Ok(list) = serde_json::from_str(raw.get()) {
            return Ok(list);
        }
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw.get()) else {
            return Err(ConvertError::Invalid { field: name, expected: "a list" });
        };
        let index = items.iter().position(|item| serde_json::from_str::<T>(item.get()).is_err());
        Err(ConvertError::InvalidItem { field: name, index: index.unwrap_or(0), expected })
    }

    /// Removes members that have no meaning for the other side.
    pub(super) fn discard(&mut self, names: &[&str]) {
        self.0.retain(|(own, _)| !names.contains(&&**own));
    }

    /// Returns the remaining members.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (&**name, *value))
    }
}

/// Reads a value; `expected` describes it for the error.
pub(super) fn read_value<'a, T: Deserialize<'a>>(
    raw: &'a RawValue,
    field: &'static str,
    expected: &'static str,
) -> Result<T, ConvertError> {
    serde_json::from_str(raw.get()).map_err(|_error| ConvertError::Invalid { field, expected })
}

/// Returns whether a value is a string, as opposed to a list or an object.
pub(super) fn is_string(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

/// Returns whether a text is a JSON object.
pub(super) fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Appends a JSON string.
pub(super) fn push_text(out: &mut Vec<u8>, text: &str) {
    // Writing to a vector cannot fail.
    let written = serde_json::to_writer(&mut *out, text);
    debug_assert!(written.is_ok(), "a string is JSON");
}

/// Appends the inside of a JSON string.
fn push_escaped(out: &mut Vec<u8>, text: &str) {
    // Most texts need no escapes and are copied at once.
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let mut quoted = Vec::with_capacity(text.len() + 8);
    push_text(&mut quoted, text);
    out.extend_from_slice(quoted.get(1..quoted.len() - 1).unwrap_or_default());
}

/// A JSON object being written. It is closed when it goes out of scope.
pub(super) struct ObjectWriter<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
    /// The closing bytes: a comma for members that precede others.
    end: &'static [u8],
}

impl<'o> ObjectWriter<'o> {
    /// Opens an object.
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true, end: b"}" }
    }

    /// Opens members without braces, to precede those of [`after_members`](Self::after_members).
    pub(super) fn inside(out: &'o mut Vec<u8>) -> Self {
        Self { out, is_empty: true, end: b"," }
    }

    /// Opens the remainder of an object whose first members are written; the caller closes it.
    pub(super) fn after_members(out: &'o mut Vec<u8>) -> Self {
        Self { out, is_empty: true, end: b"" }
    }

    /// Appends a name; the value is to follow.
    fn name(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        push_text(self.out, name);
        self.out.push(b':');
        self.out
    }

    /// Appends a string.
    pub(super) fn text(&mut self, name: &str, text: &str) {
        push_text(self.name(name), text);
    }

    /// Appends a string made of pieces.
    pub(super) fn text_pieces(&mut self, name: &str, pieces: &[&str]) {
        let out = self.name(name);
        out.push(b'"');
        for piece in pieces {
            push_escaped(out, piece);
        }
        out.push(b'"');
    }

    /// Appends a value that is JSON already.
    pub(super) fn raw(&mut self, name: &str, json: &str) {
        self.name(name).extend_from_slice(json.as_bytes());
    }

    /// Appends a value that is JSON already, if there is one.
    pub(super) fn raw_if(&mut self, name: &str, json: Option<&RawValue>) {
        if let Some(json) = json {
            self.raw(name, json.get());
        }
    }

    /// Appends a string, if there is one.
    pub(super) fn text_if(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    /// Appends a string of a value whose text needs no escapes.
    pub(super) fn display(&mut self, name: &str, value: &impl fmt::Display) {
        let out = self.name(name);
        let written = write!(out, "\"{value}\"");
        debug_assert!(written.is_ok(), "writing to a vector cannot fail");
    }

    /// Appends a whole number.
    pub(super) fn number(&mut self, name: &str, number: u64) {
        push_number(self.name(name), number);
    }

    /// Appends `bytes`, the bytes of a text as a list of numbers.
    pub(super) fn bytes_of(&mut self, text: &str) {
        let out = self.name("bytes");
        out.push(b'[');
        for (index, byte) in text.bytes().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_number(out, byte.into());
        }
        out.push(b']');
    }

    /// Appends members that [`inside`](Self::inside) wrote, with their trailing comma.
    pub(super) fn members(&mut self, members: &str) {
        let Some(members) = members.strip_suffix(',') else { return };
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(members.as_bytes());
    }

    /// Appends `true` or `false`.
    pub(super) fn flag(&mut self, name: &str, flag: bool) {
        self.raw(name, if flag { "true" } else { "false" });
    }

    /// Opens an object as a member.
    pub(super) fn object(&mut self, name: &str) -> ObjectWriter<'_> {
        ObjectWriter::new(self.name(name))
    }

    /// Opens a list as a member.
    pub(super) fn list(&mut self, name: &str) -> ListWriter<'_> {
        ListWriter::new(self.name(name))
    }
}

impl Drop for ObjectWriter<'_> {
    fn drop(&mut self) {
        self.out.extend_from_slice(self.end);
    }
}

/// A JSON list being written. It is closed when it goes out of scope.
pub(super) struct ListWriter<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> ListWriter<'o> {
    /// Opens a list.
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        out.push(b'[');
        Self { out, is_empty: true }
    }

    fn item(&mut self) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        self.out
    }

    /// Appends a string.
    pub(super) fn text(&mut self, text: &str) {
        push_text(self.item(), text);
    }

    /// Appends a value that is JSON already.
    pub(super) fn raw(&mut self, json: &str) {
        self.item().extend_from_slice(json.as_bytes());
    }

    /// Appends items that are JSON already, with commas between them.
    pub(super) fn inside(&mut self, items: &[u8]) {
        if !items.is_empty() {
            self.item().extend_from_slice(items);
        }
    }

    /// Appends a number; null if JSON cannot represent it.
    pub(super) fn float(&mut self, float: f32) {
        // Writing to a vector cannot fail.
        let written = serde_json::to_writer(self.item(), &float);
        debug_assert!(written.is_ok(), "a number is JSON, or null");
    }

    /// Opens a list as an item.
    pub(super) fn list(&mut self) -> ListWriter<'_> {
        ListWriter::new(self.item())
    }

    /// Opens an object as an item.
    pub(super) fn object(&mut self) -> ObjectWriter<'_> {
        ObjectWriter::new(self.item())
    }
}

impl Drop for ListWriter<'_> {
    fn drop(&mut self) {
        self.out.push(b']');
    }
}

/// Appends a whole number.
pub(super) fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
