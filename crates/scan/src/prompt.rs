//! The contents of a prompt, as far as a decision needs them: lengths, numbers, images.

use super::cursor::{Cursor, Parsed};
use super::ollama::count_images;
use super::text::BodyString;
use super::weight::{Weight, weigh_blobs};

/// The contents of one prompt field.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PromptContents {
    /// The length of its text, with the arguments and the results of tool calls; a token id counts
    /// as the text of one token.
    pub(super) text: u64,
    /// The length of everything else that an engine reads: thinking, images, and the punctuation of
    /// JSON.
    pub(super) besides: u64,
    /// True if it contains an image.
    pub(super) has_image: bool,
    /// The number of messages and items.
    pub(super) messages: u64,
    /// The number of prompts in a list: an engine responds to each of them.
    pub(super) texts: u64,
    /// The length of all prompts of a list but the longest.
    pub(super) others: u64,
    /// True if it has a part or an item other than text and calls: files, searches, items that the
    /// engine keeps. An engine may read more there than the body holds.
    pub(super) refers: bool,
}

impl PromptContents {
    #[inline(always)]
    pub(super) fn sum(fields: &[Self]) -> Self {
        let mut sum = Self::default();
        fields.iter().for_each(|field| sum.add(*field));
        sum
    }

    /// Adds `other`. The body's length bounds the sum, so it cannot overflow.
    #[inline(always)]
    pub(super) fn add(&mut self, other: Self) {
        self.text += other.text;
        self.besides += other.besides;
        self.has_image |= other.has_image;
        self.messages += other.messages;
        self.texts += other.texts;
        self.others += other.others;
        self.refers |= other.refers;
    }

    pub(super) fn length(&self) -> u64 {
        self.text + self.besides
    }

    #[inline(always)]
    pub(super) fn add_text(&mut self, cursor: &Cursor<'_>, text: BodyString) {
        self.text += cursor.measure(text);
    }

    /// Adds the arguments of a tool call.
    pub(super) fn add_call(&mut self, arguments: Weight) {
        self.text += arguments.text;
        self.besides += arguments.as_json() - arguments.text;
    }

    /// Consumes Ollama's list of images. The last of repeated lists decides whether there are any.
    pub(super) fn read_images(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        let count = count_images(cursor, kind)?;
        self.has_image = count > 0;
        self.besides += weigh_blobs(count);
        Ok(())
    }

    /// Consumes a list of images of any form.
    pub(super) fn read_image_list(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        if kind != b'[' {
            return cursor.skip(kind);
        }
        let mut count = 0;
        cursor.elements(|cursor, kind| {
            count += 1;
            cursor.skip(kind)
        })?;
        self.add_images(count);
        Ok(())
    }

    pub(super) fn add_images(&mut self, count: u64) {
        self.has_image |= count > 0;
        self.besides += weigh_blobs(count);
    }
}
