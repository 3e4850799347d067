//! Reads the responses of `/v1/completions`: whole, and as chunks.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::chat::report_finish;
use super::wire::{Count, is_end, read_chunk};
use super::{EventSink, ResponseReader, report_halves};
use crate::error::Done;
use crate::event::Event;
use crate::json::{Fields, ListWriter, Text, text_of};
use crate::piece::{Channel, Halves, Piece};

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CompletionChoice<'a> {
    index: Option<Count>,
    text: Option<Piece<'a>>,
    finish_reason: Option<Text<'a>>,
    error: Option<&'a RawValue>,
    logprobs: Option<&'a RawValue>,
}

/// The probabilities of tokens as parallel lists.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SideBySide<'a> {
    tokens: Vec<Text<'a>>,
    token_logprobs: Vec<Option<&'a RawValue>>,
    top_logprobs: Option<Vec<Option<Fields<'a>>>>,
}

/// The probabilities of tokens in the form of chat, which llama.cpp uses here too.
#[derive(Deserialize)]
struct InChatForm<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
}

/// Reads chunks and whole responses.
#[derive(Debug, Default)]
pub(crate) struct CompletionsReader {
    halves: Halves,
}

impl ResponseReader for CompletionsReader {
    fn read(&mut self, data: &[u8], sink: &mut EventSink<'_>) -> Done {
        if is_end(data) {
            self.end(sink)?;
            return sink(Event::Done);
        }
        let data = text_of(data);
        let read = |choice, sink: &mut EventSink<'_>| self.read_choice(choice, sink);
        read_chunk(&data, "completion", sink, |choice: &CompletionChoice<'_>| choice.index, read)
    }

    fn end(&mut self, sink: &mut EventSink<'_>) -> Done {
        report_halves(&mut self.halves, sink)
    }
}

impl CompletionsReader {
    fn read_choice(&mut self, choice: CompletionChoice<'_>, sink: &mut EventSink<'_>) -> Done {
        let list = choice.logprobs.map(logprobs_list).unwrap_or_default();
        let logprobs = (!list.is_empty()).then_some(&*list);
        let piece = choice.text.unwrap_or_default();
        let text = self.halves.join(Channel::Text, &piece);
        if !text.is_empty() || logprobs.is_some() {
            sink(Event::Text { text: &text, logprobs })?;
        }
        report_finish(choice.finish_reason, choice.error, sink)
    }
}

/// Returns the list of probabilities in the form of chat; empty if they have neither form.
fn logprobs_list(raw: &RawValue) -> String {
    if let Ok(chat) = serde_json::from_str::<InChatForm<'_>>(raw.get()) {
        return chat.content.get().to_owned();
    }
    let Ok(lists) = serde_json::from_str::<SideBySide<'_>>(raw.get()) else { return String::new() };
    if lists.tokens.is_empty() {
        return String::new();
    }
    let mut out = Vec::with_capacity(64 * lists.tokens.len());
    let mut list = ListWriter::new(&mut out);
    for (index, token) in lists.tokens.iter().enumerate() {
        let mut object = list.object();
        object.text("token", token);
        let logprob = lists.token_logprobs.get(index).copied().flatten();
        object.raw("logprob", logprob.map_or("null", RawValue::get));
        object.bytes_of(token);
        let top = lists.top_logprobs.as_ref().and_then(|top| top.get(index)?.as_ref());
        let mut alternatives = object.list("top_logprobs");
        for (token, logprob) in top.into_iter().flat_map(Fields::iter) {
            let mut object = alternatives.object();
            object.text("token", token);
            object.raw("logprob", logprob.get());
            object.bytes_of(token);
        }
    }
    drop(list);
    // Only strings and valid JSON were written.
    String::from_utf8(out).unwrap_or_default()
}
