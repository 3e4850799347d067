//! The kinds of events that have passed in a stream, and the output that they show.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use penstock_api::{EventForm, Operation};

use super::chat_output::ChatOutput;
use super::delta::{DELTA, has_visible_string_at, has_visible_token_in_delta};
use crate::Usage;
use crate::blank::may_be_blank;
use crate::failed_choice::is_withheld;
use crate::missing_result::is_foreign_refusal;
use crate::ollama::is_empty;
use crate::tool_call::is_empty_call;

static TEXT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"text\""));
static CHOICES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"choices\""));
/// The types of items whose output follows in deltas.
static DELTA_ITEMS: LazyLock<[Finder<'static>; 3]> =
    LazyLock::new(|| ["\"text\"", "\"thinking\"", "\"message\""].map(Finder::new));

/// The reasons of a generation that a limit has ended, or a string of the client. Each ends with
/// its quote.
pub(super) const LIMITS: [&[u8]; 3] = [b"length\"", b"max_tokens\"", b"stop_sequence\""];

/// The starts of the types of events in streams of transcripts, speech and pictures.
const MEDIA: [&[u8]; 4] =
    [b"transcript.text.", b"speech.audio.", b"image_generation.", b"image_edit."];
/// The types that end these streams.
const MEDIA_ENDS: [&[u8]; 4] = [
    b"transcript.text.done",
    b"speech.audio.done",
    b"image_generation.completed",
    b"image_edit.completed",
];

/// The kinds of events that have passed.
#[derive(Debug, Default)]
pub(super) struct PassedEvents {
    pub(super) any: bool,
    /// The refusal of something before an engine, which is no event of a result.
    pub(super) foreign: bool,
    /// A token, which is more than white space unless the result may be that.
    pub(super) tokens: bool,
    may_be_blank: bool,
    /// Tokens of white space.
    blank: bool,
    /// An item with output and perhaps no deltas, such as a call.
    pub(super) items: bool,
    /// True if the current event is of a type that may have a message in one piece.
    may_show_text: bool,
    /// The end of a generation by a limit.
    pub(super) limit: bool,
    /// The end of a generation whose output is withheld.
    pub(super) withheld: bool,
    /// An event of a transcript, of speech or of a picture: their streams have an ending.
    media: bool,
    /// An event that ends such a stream, or one of its results: others may follow.
    media_end: bool,
    /// True if the current event is one of these, or such an end.
    pub(super) is_media: bool,
    is_media_end: bool,
}

impl PassedEvents {
    pub(super) fn new(operation: Operation) -> Self {
        Self { may_be_blank: may_be_blank(operation), ..Self::default() }
    }

    /// Notes an event that carries a token.
    #[inline]
    pub(super) fn note_token(&mut self, form: EventForm, data: &[u8]) {
        // Nearly always: nothing else is read of the tokens after the first.
        if !self.tokens {
            self.tokens = self.may_be_blank || has_visible_token(form, data);
            self.blank |= !self.tokens;
        }
    }

    /// Notes a token that was read.
    pub(super) fn note_read_token(&mut self, is_visible: bool) {
        let is_output = self.may_be_blank || is_visible;
        self.tokens |= is_output;
        self.blank |= !is_output;
    }

    /// Notes an event, or a line. The first ones may be no part of a result.
    pub(super) fn note(&mut self, data: &[u8]) {
        // Nearly always: nothing else is read of the events after the first.
        if self.any || !is_event(data) {
            return;
        }
        let is_foreign = is_foreign_refusal(data);
        self.foreign |= is_foreign;
        self.any = !is_foreign;
    }

    /// Reads an event of this type, which carries no token.
    pub(super) fn read(&mut self, name: &[u8], data: &[u8]) {
        let is_incomplete = name == b"response.incomplete";
        self.limit |= is_incomplete;
        self.withheld |= is_incomplete && is_withheld(data);
        let is_item = name == b"content_block_start" || name.starts_with(b"response.output_item");
        let is_other = || DELTA_ITEMS.iter().all(|kind| kind.find(data).is_none());
        // Some engines send a message in one piece.
        let is_call = || is_other() && !is_empty_call(data);
        let has_text = || has_visible_string_at(&TEXT, data);
        self.may_show_text |= is_item || name == b"response.completed";
        self.items |= (is_item && is_call()) || (self.may_show_text && has_text());
    }

    /// Ends a long event, some of whose windows had a visible text.
    pub(super) fn note_text(&mut self) {
        self.items |= self.may_show_text;
    }

    /// Notes the type of an event of a transcript, of speech or of a picture.
    pub(super) fn note_media(&mut self, name: &[u8]) {
        self.is_media |= MEDIA.iter().any(|start| name.starts_with(start));
        self.media |= self.is_media;
        self.is_media_end |= MEDIA_ENDS.contains(&name);
    }

    /// Ends an event.
    pub(super) fn end_event(&mut self) {
        self.media_end |= self.is_media_end;
        (self.is_media, self.is_media_end, self.may_show_text) = (false, false, false);
    }

    /// Returns whether the stream is of a kind that has an ending, and has had none.
    pub(super) fn lacks_ending(&self) -> bool {
        self.media && !self.media_end
    }

    /// Reads an event of a chat, whose output may stand elsewhere than in a delta. `counts_beside`:
    /// it has neither a token nor a usage, so that without choices it may be in another form.
    pub(super) fn read_unknown(&mut self, data: &[u8], counts_beside: bool) {
        if !self.items {
            let is_beside = self.read_choices(data) && counts_beside;
            self.items |= is_beside && !has_choices(data);
        }
    }

    /// Reads the choices of such an event. Returns whether it has something filled beside them.
    pub(super) fn read_choices(&mut self, data: &[u8]) -> bool {
        if !is_event(data) {
            return false;
        }
        let output = ChatOutput::read(data, self.may_be_blank);
        self.items |= output.is_in_choice;
        output.is_beside
    }

    /// Returns whether neither the events nor the counts of the engine show any output. A limit may
    /// have ended a generation before its first visible token.
    pub(super) fn show_no_output(&self, usage: Usage) -> bool {
        let output = usage.completion_tokens;
        let is_hidden = usage.reasoning_tokens.is_some_and(|count| count > 0)
            || (self.items && output != Some(0))
            || self.withheld
            || (self.limit && (self.blank || output.is_some_and(|count| count > 0)))
            // One may be the end itself. Others are work, where text is continued: a string of the
            // client may have ended it at once. A chat shows all its tokens but its reasoning.
            || (self.may_be_blank && output.is_some_and(|count| count > 1));
        !self.tokens && !is_hidden
    }
}

/// Returns whether the token of an event is more than white space.
fn has_visible_token(form: EventForm, data: &[u8]) -> bool {
    match form {
        EventForm::ChatDelta | EventForm::BlockDelta => has_visible_token_in_delta(data),
        EventForm::TypedDelta => has_visible_string_at(&DELTA, data),
        EventForm::CompletionText | EventForm::Content | EventForm::JsonLine | EventForm::Any => {
            true
        }
    }
}

/// Returns whether a part of an event names choices.
pub(super) fn has_choices(data: &[u8]) -> bool {
    CHOICES.find(data).is_some()
}

/// Returns whether the data of a line is an event: neither null nor empty.
pub(crate) fn is_event(data: &[u8]) -> bool {
    !is_empty(data.trim_ascii())
}
