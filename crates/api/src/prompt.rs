//! The position of the prompt in the JSON body of an operation.

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
