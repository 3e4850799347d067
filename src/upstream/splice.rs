//! The one edit a body may see: another model name in place of the client's. Nothing is copied; the
//! body goes out as the bytes before the name, the new name, and the bytes behind it.

use std::borrow::Cow;

use crate::api::BodyFormat;
use crate::scan::RequestProfile;

/// A body as it goes out: up to three slices, in order.
pub type BodyParts<'a> = [&'a [u8]; 3];

/// The name as it stands in a body of that format: escaped inside a JSON string, raw in a form.
pub fn wire_name(format: BodyFormat, name: &str) -> Cow<'_, str> {
    let is_plain = !name.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\');
    if format == BodyFormat::Multipart || is_plain {
        return Cow::Borrowed(name);
    }
    let quoted = serde_json::Value::from(name).to_string();
    let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default();
    Cow::Owned(inner.to_owned())
}

/// The body with `name` (as [`wire_name`] gives it) in place of the model's. The same bytes come
/// back when the name is already there.
pub fn splice<'a>(body: &'a [u8], profile: &RequestProfile, name: &'a str) -> BodyParts<'a> {
    let span = profile.model.range();
    if body.get(span.clone()) == Some(name.as_bytes()) {
        return [body, &[], &[]];
    }
    match (body.get(..span.start), body.get(span.end..)) {
        (Some(before), Some(behind)) => [before, name.as_bytes(), behind],
        // A span outside the body is not one the scan gives; the bytes stay as they came.
        _ => [body, &[], &[]],
    }
}

/// The length of a body in parts.
pub fn total_len(parts: &BodyParts<'_>) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
