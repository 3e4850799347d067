//! An item of a response's output: thinking, a message, a call of a tool.

use std::borrow::Cow;

use serde::Deserialize;

use crate::event::CallStart;
use crate::gathered::{add_inside, call_id};
use crate::json::{ObjectWriter, Text, is_object};
use crate::reply::ReplyFacts;

/// The kind of an item.
#[derive(Debug, Default)]
pub(super) enum ItemKind {
    /// A message of the model.
    #[default]
    Text,
    /// A message in which the model refuses to respond.
    Refusal,
    /// The model's thinking.
    Thinking,
    /// A call of a function.
    Call(Target),
    /// A call of a tool that takes any text.
    FreeForm(Target),
}

/// The tool that is called.
#[derive(Debug)]
pub(super) struct Target {
    /// The index among the calls of the response.
    place: usize,
    call_id: String,
    name: String,
    namespace: Option<String>,
}

impl ItemKind {
    /// Creates a call with the backend's id and name, in the form that the client knows.
    pub(super) fn call(start: &CallStart<'_>, reply: &ReplyFacts) -> Self {
        let CallStart { place, id, name } = *start;
        let call_id = call_id(id, place, &reply.context.request_id).into_owned();
        let form = reply.terms.tools.get(name);
        let namespace = form.and_then(|form| form.namespace.clone());
        let (namespace, name) = namespace
            .map_or_else(|| (None, name.to_owned()), |(namespace, name)| (Some(namespace), name));
        let target = Target { place, call_id, name, namespace };
        match form.is_some_and(|form| form.is_free_form) {
            true => Self::FreeForm(target),
            false => Self::Call(target),
        }
    }
}

/// An item, open or complete.
#[derive(Debug, Default)]
pub(super) struct Item {
    pub(super) kind: ItemKind,
    /// The text so far; of a call, the arguments.
    pub(super) text: String,
    /// The token probabilities: the inside of a JSON list.
    pub(super) logprobs: String,
    id: String,
    index: u64,
}

impl Item {
    /// Creates an empty item at an index of the output.
    pub(super) fn new(kind: ItemKind, index: u64, request_id: &str) -> Self {
        // As OpenAI's ids start.
        let prefix = match kind {
            ItemKind::Text | ItemKind::Refusal => "msg",
            ItemKind::Thinking => "rs",
            ItemKind::Call(_) => "fc",
            ItemKind::FreeForm(_) => "ctc",
        };
        let id = format!("{prefix}_{request_id}_{index}");
        Self { kind, id, index, ..Self::default() }
    }

    /// Returns its index in the output.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// Returns the index of the call among the calls.
    pub(super) fn place(&self) -> Option<usize> {
        match &self.kind {
            ItemKind::Text | ItemKind::Refusal | ItemKind::Thinking => None,
            ItemKind::Call(target) | ItemKind::FreeForm(target) => Some(target.place),
        }
    }

    /// Returns whether a piece of this kind belongs to it.
    pub(super) fn continues(&self, kind: &ItemKind) -> bool {
        matches!(
            (&self.kind, kind),
            (ItemKind::Text, ItemKind::Text)
                | (ItemKind::Refusal, ItemKind::Refusal)
                | (ItemKind::Thinking, ItemKind::Thinking)
        )
    }

    /// Adds the probabilities of a piece: the text of a JSON list.
    pub(super) fn add_logprobs(&mut self, list: Option<&str>) {
        add_inside(&mut self.logprobs, list);
    }

    /// Returns the type of its content part, and of the event of a piece.
    pub(super) fn part(&self) -> Option<(&'static str, &'static str)> {
        match self.kind {
            ItemKind::Text => Some(("output_text", "response.output_text.delta")),
            ItemKind::Refusal => Some(("refusal", "response.refusal.delta")),
            ItemKind::Thinking => Some(("reasoning_text", "response.reasoning_text.delta")),
            ItemKind::Call(_) | ItemKind::FreeForm(_) => None,
        }
    }

    /// Returns the type of the event of a piece, if pieces are sent.
    pub(super) fn delta_kind(&self) -> Option<&'static str> {
        match self.kind {
            ItemKind::Text | ItemKind::Refusal | ItemKind::Thinking => {
                self.part().map(|(_, delta)| delta)
            }
            ItemKind::Call(_) => Some("response.function_call_arguments.delta"),
            // The input is a string inside the arguments: it is known once they are complete.
            ItemKind::FreeForm(_) => None,
        }
    }

    /// Returns the type of the event that has the whole text as a piece, where no earlier event
    /// has any of it.
    pub(super) fn last_delta_kind(&self) -> Option<&'static str> {
        match self.kind {
            ItemKind::Call(_) if self.has_no_text() => self.delta_kind(),
            // Its input came as a member of JSON: only the whole of it can be unwrapped.
            ItemKind::FreeForm(_) => Some("response.custom_tool_call_input.delta"),
            ItemKind::Text | ItemKind::Refusal | ItemKind::Thinking | ItemKind::Call(_) => None,
        }
    }

    fn has_no_text(&self) -> bool {
        self.text.trim_ascii().is_empty()
    }

    /// Returns the event that completes its text: type, member, text.
    pub(super) fn done(&self) -> (&'static str, &'static str, Cow<'_, str>) {
        let (kind, member) = match self.kind {
            ItemKind::Text => ("response.output_text.done", "text"),
            ItemKind::Refusal => ("response.refusal.done", "refusal"),
            ItemKind::Thinking => ("response.reasoning_text.done", "text"),
            ItemKind::Call(_) => ("response.function_call_arguments.done", "arguments"),
            ItemKind::FreeForm(_) => ("response.custom_tool_call_input.done", "input"),
        };
        (kind, member, self.whole_text())
    }

    /// Returns the complete text; of a free-form tool, the input within its arguments. Arguments
    /// that the token limit cut are shown as they are.
    fn whole_text(&self) -> Cow<'_, str> {
        #[derive(Deserialize)]
        struct FreeFormArguments<'a> {
            #[serde(borrow)]
            input: Text<'a>,
        }
        match self.kind {
            // Clients parse the arguments, and an empty text is no JSON.
            ItemKind::Call(_) if self.has_no_text() => "{}".into(),
            ItemKind::FreeForm(_) => {
                match serde_json::from_str::<FreeFormArguments<'_>>(&self.text) {
                    Ok(arguments) => arguments.input.to_string().into(),
                    Err(_) => Cow::Borrowed(&self.text),
                }
            }
            ItemKind::Text | ItemKind::Refusal | ItemKind::Thinking | ItemKind::Call(_) => {
                Cow::Borrowed(&self.text)
            }
        }
    }

    /// Returns the status of an item that has ended, within a response of this status. The limit
    /// cuts the last item, unless that is a call with all of its arguments.
    pub(super) fn status(&self, of_response: &'static str, is_last: bool) -> &'static str {
        let is_whole = match self.kind {
            ItemKind::Text | ItemKind::Refusal | ItemKind::Thinking => !is_last,
            ItemKind::Call(_) | ItemKind::FreeForm(_) if self.has_no_text() => !is_last,
            ItemKind::Call(_) | ItemKind::FreeForm(_) => is_object(&self.text),
        };
        if is_whole { "completed" } else { of_response }
    }

    /// Appends the members that identify the item in an event about it.
    pub(super) fn write_place(&self, event: &mut ObjectWriter<'_>) {
        event.text("item_id", &self.id);
        event.number("output_index", self.index);
        if self.part().is_some() {
            // An item has one part.
            event.number("content_index", 0);
        }
    }

    /// Appends the further members of the event that completes the text.
    pub(super) fn write_done_extra(&self, event: &mut ObjectWriter<'_>) {
        match &self.kind {
            ItemKind::Text => event.list("logprobs").inside(self.logprobs.as_bytes()),
            ItemKind::Call(target) => event.text("name", &target.name),
            ItemKind::Refusal | ItemKind::Thinking | ItemKind::FreeForm(_) => {}
        }
    }

    /// Writes the item; an open one is empty.
    pub(super) fn write(&self, status: &str, mut item: ObjectWriter<'_>) {
        item.text("id", &self.id);
        let (is_open, whole) = (status == "in_progress", self.whole_text());
        match &self.kind {
            ItemKind::Text | ItemKind::Refusal => {
                item.text("type", "message");
                item.text("status", status);
                item.text("role", "assistant");
            }
            ItemKind::Thinking => {
                item.text("type", "reasoning");
                item.text("status", status);
                // Clients require the list, and no engine summarizes its thinking.
                drop(item.list("summary"));
            }
            ItemKind::Call(target) => {
                item.text("type", "function_call");
                item.text("status", status);
                item.text("call_id", &target.call_id);
                item.text_if("namespace", target.namespace.as_deref());
                item.text("name", &target.name);
                item.text("arguments", if is_open { "" } else { &whole });
            }
            ItemKind::FreeForm(target) => {
                item.text("type", "custom_tool_call");
                item.text("status", status);
                item.text("call_id", &target.call_id);
                item.text_if("namespace", target.namespace.as_deref());
                item.text("name", &target.name);
                item.text("input", if is_open { "" } else { &whole });
            }
        }
        if let Some((kind, _)) = self.part() {
            let mut content = item.list("content");
            if !is_open {
                write_part(kind, &self.text, &self.logprobs, content.object());
            }
        }
    }
}

/// Writes a content part.
pub(super) fn write_part(kind: &str, text: &str, logprobs: &str, mut part: ObjectWriter<'_>) {
    part.text("type", kind);
    part.text(if kind == "refusal" { kind } else { "text" }, text);
    if kind == "output_text" {
        // Clients require both lists.
        drop(part.list("annotations"));
        part.list("logprobs").inside(logprobs.as_bytes());
    }
}
