//! The prompt of a request: its position in the JSON body of an operation, the methods of
//! estimating its length without a tokenizer, and a line in it that is not for a model.

use crate::choice;

/// The layout of a member's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// An array of objects with `content`; any other type is an error.
    Messages,
    /// The same, or null; the objects may have `images` besides their content.
    MessagesWithImages,
    /// A string, or an array of objects with `content`.
    Items,
    /// A string, or an array of content parts.
    Content,
    /// A string, a token id, an object with `text`, or arrays of them. An array is a list of
    /// prompts unless it has token ids.
    Plain,
    /// The same, but an array is a part of one prompt.
    Joined,
    /// An array of images.
    Images,
}

/// The relation of a member to the prompt prefix that an engine caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPlace {
    /// The text to continue, or the conversation.
    Main,
    /// Text before the main part.
    System,
    /// Text outside the prefix: it counts towards the length only.
    Counted,
}

/// A member with prompt text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptField {
    /// The member's name in the request.
    pub name: &'static str,
    /// The layout of its text.
    pub layout: Layout,
    /// Its relation to the prompt's prefix.
    pub place: PromptPlace,
}

/// The largest number of prompt fields of any operation.
pub const MAX_PROMPT_FIELDS: usize = 4;

/// A member that is the prompt.
pub(super) const fn main(name: &'static str, layout: Layout) -> PromptField {
    PromptField { name, layout, place: PromptPlace::Main }
}

/// A member that comes before the prompt.
pub(super) const fn system(name: &'static str, layout: Layout) -> PromptField {
    PromptField { name, layout, place: PromptPlace::System }
}

/// A member with the images of a prompt.
pub(super) const fn images(name: &'static str) -> PromptField {
    PromptField { name, layout: Layout::Images, place: PromptPlace::Counted }
}

/// A member whose text only counts.
pub(super) const fn counted(name: &'static str) -> PromptField {
    PromptField { name, layout: Layout::Plain, place: PromptPlace::Counted }
}

choice! {
    /// The method that estimates the number of prompt tokens.
    pub enum TokenEstimate {
        /// By script, a quarter of the sum: most letters count one, Chinese, Japanese and Korean
        /// characters three, emoji and rare scripts up to twelve. In long texts digits, punctuation
        /// and changes of case count more, and runs of one character less.
        Auto = "auto",
        /// Characters / 4: as `auto` for alphabets, several times too low for Chinese, Japanese,
        /// Korean.
        Chars = "chars",
        /// UTF-8 bytes / 4: as `auto` for Chinese, Japanese, Korean, too high for Cyrillic.
        Utf8 = "utf8",
    }
}

#[expect(clippy::derivable_impls, reason = "`choice!` takes no attributes on its values")]
impl Default for TokenEstimate {
    fn default() -> Self {
        Self::Auto
    }
}

/// The start of the first line of Claude Code's instructions: a provider header in the text of the
/// prompt. Its value changes with each request, and means nothing to a model.
pub const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// Returns the text without that line, if it begins with it.
pub fn without_billing_line(text: &str) -> &str {
    if !text.starts_with(BILLING_LINE) {
        return text;
    }
    // The line alone: nothing of it is for a model.
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn billing_line_is_removed_and_following_text_is_kept() {
        let line =
            "x-anthropic-billing-header: cc_version=2.1.30.a1b; cc_entrypoint=cli; cch=00ff1;";
        assert_eq!(without_billing_line(line), "");
        assert_eq!(without_billing_line(&format!("{line}\nBe brief.\nNow.")), "Be brief.\nNow.");
        for other in ["", "Be brief.", "A x-anthropic-billing-header: is a header."] {
            assert_eq!(without_billing_line(other), other);
        }
    }
}
