//! The edits of a body: another model name in place of the client's, and the option that a stream
//! ends with its usage. Nothing is copied: the body is sent as the bytes around the edits and
//! between them.

use std::borrow::Cow;

use penstock_api::BodyFormat;
use penstock_api::slices::after;
use penstock_api::units::ByteSpan;
use penstock_scan::{ModelForm, RequestProfile};

/// A body in the form that is sent: up to five slices, in order.
pub type BodyParts<'a> = [&'a [u8]; 5];

/// A body without edits.
pub fn whole(body: &[u8]) -> BodyParts<'_> {
    [body, &[], &[], &[], &[]]
}

/// An edit: `text` in place of the bytes of `span`.
#[derive(Debug, Clone, Copy)]
struct Replacement<'a> {
    span: ByteSpan,
    text: &'a [u8],
}

/// Returns `name` in its written form: inside the quotes of a JSON string, or as the value of a
/// form field. If the body names no model, returns the whole member or form part for it.
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

/// Replaces the model's name by `name` (from [`wire_name`]). Returns the same bytes if the body
/// already has it.
pub fn splice<'a>(body: &'a [u8], profile: &RequestProfile, name: &'a str) -> BodyParts<'a> {
    if profile.model.of(body) == name.as_bytes() {
        return whole(body);
    }
    edited(body, [Some(Replacement { span: profile.model, text: name.as_bytes() }), None])
}

/// Adds the option that the stream ends with usage and, if given, replaces the model's name by
/// `name` (from [`wire_name`]).
pub fn splice_usage<'a>(
    body: &'a [u8],
    profile: &RequestProfile,
    name: Option<&'a str>,
) -> BodyParts<'a> {
    let name = name.map(|name| Replacement { span: profile.model, text: name.as_bytes() });
    let usage =
        profile.usage_edit.map(|edit| Replacement { span: edit.span, text: edit.text.as_bytes() });
    edited(body, [name, usage])
}

fn edited<'a>(body: &'a [u8], edits: [Option<Replacement<'a>>; 2]) -> BodyParts<'a> {
    // Cut in the order of the body, where either edit may come first.
    let edits = match edits {
        [Some(first), Some(second)] if second.span.start < first.span.start => {
            [Some(second), Some(first)]
        }
        edits => edits,
    };
    let mut parts = whole(&[]);
    let mut slots = parts.iter_mut();
    let mut at = 0;
    for Replacement { span, text } in edits.into_iter().flatten() {
        let span = span.range();
        let (Some(before), Some(slot), Some(next)) =
            (body.get(at..span.start), slots.next(), slots.next())
        else {
            debug_assert!(false, "the spans of the edits lie outside the body, or in each other");
            return whole(body);
        };
        (*slot, *next, at) = (before, text, span.end);
    }
    if let Some(slot) = slots.next() {
        *slot = after(body, at);
    }
    parts
}

/// The length of a body in parts.
pub fn total_len(parts: &BodyParts<'_>) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_api::Operation;
    use penstock_scan::{ScanOptions, scan};

    fn with_usage(body: &str, name: Option<&str>) -> String {
        let profile = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        let name = name.map(|name| wire_name(&profile, body.as_bytes(), name));
        let parts = splice_usage(body.as_bytes(), &profile, name.as_deref());
        assert_eq!(total_len(&parts), parts.concat().len());
        String::from_utf8(parts.concat()).unwrap()
    }

    #[test]
    fn usage_is_requested_in_place() {
        let option = r#""stream_options":{"include_usage":true}"#;
        for (body, expected) in [
            (r#"{"model":"m"}"#.to_owned(), format!(r#"{{{option},"model":"m"}}"#)),
            (
                r#"{"model":"m","stream_options":null}"#.to_owned(),
                format!(r#"{{"model":"m",{option}}}"#),
            ),
            (
                r#"{"model":"m","stream_options":{}}"#.to_owned(),
                format!(r#"{{"model":"m",{option}}}"#),
            ),
            (
                r#"{"stream_options":{"include_usage":false,"x":1},"model":"m"}"#.to_owned(),
                r#"{"stream_options":{"include_usage":true,"x":1},"model":"m"}"#.to_owned(),
            ),
            (
                r#"{"stream_options":{ "x":1},"model":"m"}"#.to_owned(),
                r#"{"stream_options":{"include_usage":true, "x":1},"model":"m"}"#.to_owned(),
            ),
            (
                r#"{"stream_options":{"include_usage":true},"model":"m"}"#.to_owned(),
                r#"{"stream_options":{"include_usage":true},"model":"m"}"#.to_owned(),
            ),
        ] {
            assert_eq!(with_usage(&body, None), expected, "{body}");
            let renamed = expected.replace("\"m\"", "\"other\"");
            assert_eq!(with_usage(&body, Some("other")), renamed, "{body}");
        }
        let unnamed = with_usage(r#"{"stream":true}"#, Some("m"));
        let read: serde_json::Value = serde_json::from_str(&unnamed).unwrap();
        assert_eq!(
            (&read["model"], &read["stream_options"]["include_usage"]),
            (&"m".into(), &true.into())
        );
    }
}
