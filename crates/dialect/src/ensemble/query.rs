//! The query of a conversation: the text of the user's last message that contains text.

use serde_json::value::RawValue;

use crate::json::{Fields, ListWriter, ObjectWriter, Text, push_text};

/// The kinds of parts that are text.
const TEXT_PARTS: &[&str] = &["text", "input_text"];

/// A query and its position.
#[derive(Debug)]
pub(super) struct Query<'a> {
    pub(super) text: String,
    place: QueryPlace<'a>,
}

#[derive(Debug)]
enum QueryPlace<'a> {
    /// The complete value is the query.
    Whole,
    /// The message with this index contains the query.
    Message {
        list: Vec<&'a RawValue>,
        index: usize,
        message: Fields<'a>,
        content: QueryContent<'a>,
    },
}

#[derive(Debug)]
enum QueryContent<'a> {
    Text(String),
    Parts(Vec<Fields<'a>>),
}

/// Finds the query in `messages`, `input` or `prompt`.
pub(super) fn find_query(value: &RawValue) -> Option<Query<'_>> {
    if let Ok(text) = serde_json::from_str::<Text<'_>>(value.get()) {
        let text = text.to_string();
        return has_text(&text).then_some(Query { text, place: QueryPlace::Whole });
    }
    let list: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
    // Results of tools come in the user's name, too: the last message with words has the query.
    for (index, raw) in list.iter().enumerate().rev() {
        let Ok(message) = serde_json::from_str::<Fields<'_>>(raw.get()) else { continue };
        let Some(content) = user_content(&message) else { continue };
        let text = content.text();
        if has_text(&text) {
            return Some(Query {
                text,
                place: QueryPlace::Message { list, index, message, content },
            });
        }
    }
    None
}

fn has_text(text: &str) -> bool {
    !text.trim().is_empty()
}

/// Returns the content of a message of the user.
fn user_content<'a>(message: &Fields<'a>) -> Option<QueryContent<'a>> {
    if text_member(message, "role")? != "user" {
        return None;
    }
    let (_, content) = message.iter().find(|(name, _)| *name == "content")?;
    if let Ok(text) = serde_json::from_str::<Text<'_>>(content.get()) {
        return Some(QueryContent::Text(text.to_string()));
    }
    serde_json::from_str(content.get()).ok().map(QueryContent::Parts)
}

fn text_member(fields: &Fields<'_>, wanted: &str) -> Option<String> {
    let (_, value) = fields.iter().find(|(name, _)| *name == wanted)?;
    serde_json::from_str(value.get()).ok()
}

/// Returns the text of a text part.
fn part_text(part: &Fields<'_>) -> Option<String> {
    let kind = text_member(part, "type")?;
    TEXT_PARTS.contains(&&*kind).then(|| text_member(part, "text")).flatten()
}

impl QueryContent<'_> {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<String> = parts.iter().filter_map(part_text).collect();
                texts.join("\n")
            }
        }
    }

    /// Writes the message with `prompt` in place of its texts; images and results of tools stay.
    fn write(&self, prompt: &str, message: &mut ObjectWriter<'_>) {
        let parts = match self {
            Self::Text(_) => return message.text("content", prompt),
            Self::Parts(parts) => parts,
        };
        let mut list = message.list("content");
        let mut is_written = false;
        for part in parts {
            let is_text = part_text(part).is_some();
            // The prompt takes the place of all texts, so further ones are dropped.
            if is_text && std::mem::replace(&mut is_written, true) {
                continue;
            }
            let mut written = list.object();
            for (name, value) in part.iter() {
                match is_text && name == "text" {
                    true => written.text(name, prompt),
                    false => written.raw(name, value.get()),
                }
            }
        }
    }
}

impl Query<'_> {
    /// Returns the value in which the query was found, with `prompt` in its place.
    pub(super) fn replaced(&self, prompt: &str) -> String {
        let mut out = Vec::new();
        match &self.place {
            QueryPlace::Whole => push_text(&mut out, prompt),
            QueryPlace::Message { list, index, message, content } => {
                let mut written = ListWriter::new(&mut out);
                for (position, raw) in list.iter().enumerate() {
                    if position != *index {
                        written.raw(raw.get());
                        continue;
                    }
                    let mut object = written.object();
                    for (name, value) in message.iter().filter(|(name, _)| *name != "content") {
                        object.raw(name, value.get());
                    }
                    content.write(prompt, &mut object);
                }
            }
        }
        String::from_utf8(out).unwrap_or_else(|error| {
            debug_assert!(false, "JSON is UTF-8: {error}");
            "null".to_owned()
        })
    }
}
