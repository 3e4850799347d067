//! The one edit a body may see: another model name in place of the client's. Nothing is copied: the
//! body is sent as the bytes before the name, the new name, and the bytes after it.

use std::borrow::Cow;

use crate::api::BodyFormat;
use crate::scan::{ModelForm, RequestProfile};
use crate::wire::after;

/// A body as it goes out: up to three slices, in order.
pub type BodyParts<'a> = [&'a [u8]; 3];

/// The name as it is written in the body: inside the quotes of a JSON string or as the value of a form's
/// field. Where the body names no model, the whole member or part that does.
pub fn wire_name<'a>(profile: &RequestProfile, body: &[u8], name: &'a str) -> Cow<'a, str> {
    let format = profile.operation.row().body;
    let escaped = escape(format, name);
    let rest = after(body, profile.model.range().start);
    match (profile.model_form, format) {
        (ModelForm::Plain | ModelForm::Escaped, _) => escaped,
        (ModelForm::Null, _) => format!("\"{escaped}\"").into(),
        (ModelForm::Missing, BodyFormat::Json) => {
            let is_only = rest.trim_ascii_start().first() == Some(&b'}');
            let comma = if is_only { "" } else { "," };
            format!("\"model\":\"{escaped}\"{comma}").into()
        }
        (ModelForm::Missing, BodyFormat::Multipart) => {
            let line = rest.split(u8::is_ascii_whitespace).next().unwrap_or(rest);
            let boundary = String::from_utf8_lossy(line);
            let field = "Content-Disposition: form-data; name=\"model\"";
            format!("{boundary}\r\n{field}\r\n\r\n{escaped}\r\n").into()
        }
    }
}

fn escape(format: BodyFormat, name: &str) -> Cow<'_, str> {
    let is_plain = !name.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\');
    if format == BodyFormat::Multipart || is_plain {
        return Cow::Borrowed(name);
    }
    let quoted = serde_json::Value::from(name).to_string();
    let inner = quoted.strip_prefix('"').and_then(|quoted| quoted.strip_suffix('"'));
    debug_assert!(inner.is_some(), "a JSON string is written with quotes");
    Cow::Owned(inner.unwrap_or(&quoted).to_owned())
}

/// The body with `name` (as [`wire_name`] gives it) in place of the model's. The same bytes come
/// back when the name is already there.
pub fn splice<'a>(body: &'a [u8], profile: &RequestProfile, name: &'a str) -> BodyParts<'a> {
    let span = profile.model.range();
    if body.get(span.clone()) == Some(name.as_bytes()) {
        return [body, &[], &[]];
    }
    match (body.get(..span.start), body.get(span.end..)) {
        (Some(before), Some(after)) => [before, name.as_bytes(), after],
        _ => {
            debug_assert!(false, "the scan's span of the model lies outside the body");
            [body, &[], &[]]
        }
    }
}

/// The length of a body in parts.
pub fn total_len(parts: &BodyParts<'_>) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
