//! Reads prompts without messages: a text, token ids, a document, or lists of them.

use super::content::{content, element_of_content};
use super::cursor::{Cursor, Members, Parsed};
use super::part::{PartMember, ScannedPart};
use super::prompt::PromptContents;

/// Consumes a string, a token id, an object with text, or up to two levels of arrays of them.
/// `is_joined` if the elements of an array make up one prompt.
pub(super) fn plain_prompt(
    cursor: &mut Cursor<'_>,
    kind: u8,
    is_joined: bool,
    into: &mut PromptContents,
) -> Parsed {
    if kind != b'[' {
        return prompt_element(cursor, kind, into);
    }
    let mut longest = 0;
    let mut is_one = is_joined;
    cursor.elements(|cursor, kind| {
        // Numbers in the outer list are the token ids of a single prompt, with or without strings.
        if matches!(kind, b'-' | b'0'..=b'9') {
            is_one = true;
            return prompt_element(cursor, kind, into);
        }
        let before = into.length();
        into.texts += u64::from(matches!(kind, b'"' | b'['));
        if kind == b'[' {
            cursor.elements(|cursor, kind| prompt_element(cursor, kind, into))?;
        } else {
            prompt_element(cursor, kind, into)?;
        }
        longest = longest.max(into.length() - before);
        Ok(())
    })?;
    if is_one {
        into.texts = 0;
    }
    into.others = if is_one { 0 } else { into.length() - longest };
    Ok(())
}

fn prompt_element(cursor: &mut Cursor<'_>, kind: u8, into: &mut PromptContents) -> Parsed {
    match kind {
        b'"' => {
            let text = cursor.string()?;
            into.add_text(cursor, text);
            Ok(())
        }
        b'-' | b'0'..=b'9' => {
            into.text += super::TEXT_PER_TOKEN;
            cursor.number().map(|_| ())
        }
        b'{' => prompt_object(cursor, into),
        _ => cursor.skip(kind),
    }
}

/// A member of a prompt that is an object.
#[derive(Clone, Copy)]
enum ObjectMember {
    /// A document to rerank, or a part of a request for moderation or embeddings.
    Part(PartMember),
    /// The text of a prompt of llama.cpp's own API.
    PromptText,
    /// The images of such a prompt.
    Images,
}

impl ObjectMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"prompt_string" => Self::PromptText,
            b"multimodal_data" => Self::Images,
            _ => Self::Part(PartMember::of(name)),
        }
    }
}

/// Consumes a prompt that is an object. Each part of its content may be a document.
fn prompt_object(cursor: &mut Cursor<'_>, into: &mut PromptContents) -> Parsed {
    let mut part = ScannedPart::EMPTY;
    let mut inner = PromptContents::default();
    let mut found = PromptContents::default();
    cursor.members(Members::named(ObjectMember::of), |cursor, member, kind| match member {
        ObjectMember::Part(PartMember::Content) => {
            inner = PromptContents::default();
            documents(cursor, kind, &mut inner)
        }
        ObjectMember::Part(member) => part.read(member, cursor, kind),
        ObjectMember::PromptText if kind == b'"' => {
            found.texts += 1;
            let text = cursor.text()?;
            found.add_text(cursor, text);
            Ok(())
        }
        ObjectMember::PromptText => cursor.skip(kind),
        ObjectMember::Images => found.read_image_list(cursor, kind),
    })?;
    if part.is_image() {
        found.add_images(1);
    }
    into.add(inner);
    into.add(found);
    into.text += part.text;
    Ok(())
}

fn documents(cursor: &mut Cursor<'_>, kind: u8, into: &mut PromptContents) -> Parsed {
    if kind != b'[' {
        return content(cursor, kind, 1, into);
    }
    let mut longest = 0;
    cursor.elements(|cursor, kind| {
        let before = into.length();
        element_of_content(cursor, kind, 1, into)?;
        longest = longest.max(into.length() - before);
        Ok(())
    })?;
    into.others = into.length() - longest;
    Ok(())
}
