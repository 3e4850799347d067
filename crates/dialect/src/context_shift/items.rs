//! The messages of each dialect: their authors, and the messages that belong together.

use std::collections::HashMap;

use penstock_api::Operation;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::Text;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    /// Instructions: never dropped.
    System,
    /// The user's words.
    User,
    /// The model, or the results of tools.
    Other,
}

/// The properties of a message that determine its author and its unit.
#[derive(Debug)]
pub(super) struct ShiftItem {
    author: Author,
    /// True if the model wrote it, in a turn of several items.
    is_output: bool,
    /// True if it calls tools.
    calls_tools: bool,
    /// The ids of its calls.
    calls: Vec<String>,
    /// True if it contains results of tools.
    is_result: bool,
    /// The calls whose results it contains.
    results: Vec<String>,
}

/// The relevant members of messages in all dialects.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct WireMessage<'a> {
    role: Option<Text<'a>>,
    #[serde(rename = "type")]
    kind: Option<Text<'a>>,
    call_id: Option<Text<'a>>,
    tool_call_id: Option<Text<'a>>,
    tool_calls: Option<&'a RawValue>,
    function_call: Option<&'a RawValue>,
    content: Option<&'a RawValue>,
}

/// A call or a block of content.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ItemContent<'a> {
    #[serde(rename = "type")]
    kind: Option<Text<'a>>,
    id: Option<Text<'a>>,
    tool_use_id: Option<Text<'a>>,
}

fn owned(text: &Text<'_>) -> String {
    text.to_string()
}

impl ShiftItem {
    pub(super) fn read(operation: Operation, raw: &RawValue) -> Option<Self> {
        let wire: WireMessage<'_> = serde_json::from_str(raw.get()).ok()?;
        let role = wire.role.as_deref().unwrap_or_default();
        let kind = wire.kind.as_deref().unwrap_or_default();
        let mut item = ShiftItem {
            author: match role {
                "system" | "developer" => Author::System,
                "user" => Author::User,
                _ => Author::Other,
            },
            is_output: false,
            calls_tools: false,
            calls: Vec::new(),
            is_result: matches!(role, "tool" | "function"),
            results: wire.tool_call_id.iter().map(owned).collect(),
        };
        match operation {
            Operation::Messages => item.read_blocks(wire.content),
            Operation::Responses => {
                // The items of all tools end so, those of tools to come as well.
                item.is_result = kind.ends_with("_output");
                item.is_output = !item.is_result && role != "user" && item.author != Author::System;
                item.calls_tools = kind.ends_with("_call");
                let ids = if item.is_result { &mut item.results } else { &mut item.calls };
                ids.extend(wire.call_id.iter().map(owned));
            }
            _ => {
                let calls = wire.tool_calls.map(|calls| serde_json::from_str(calls.get()));
                let calls: Vec<ItemContent<'_>> = calls.and_then(Result::ok).unwrap_or_default();
                item.calls_tools = !calls.is_empty() || wire.function_call.is_some();
                item.calls.extend(calls.iter().filter_map(|call| call.id.as_ref()).map(owned));
            }
        }
        Some(item)
    }

    /// Reads the tool calls and results among Anthropic's blocks of content.
    fn read_blocks(&mut self, content: Option<&RawValue>) {
        let blocks = content.and_then(|content| serde_json::from_str(content.get()).ok());
        let blocks: Vec<ItemContent<'_>> = blocks.unwrap_or_default();
        for block in &blocks {
            match block.kind.as_deref() {
                Some("tool_use") => {
                    self.calls_tools = true;
                    self.calls.extend(block.id.iter().map(owned));
                }
                Some("tool_result") => {
                    self.is_result = true;
                    // The message is in the user's name, but the words are not the user's.
                    self.author = Author::Other;
                    self.results.extend(block.tool_use_id.iter().map(owned));
                }
                _ => {}
            }
        }
    }
}

/// Returns the author and the unit of each message. A unit is the first of the messages that stay
/// or go together: a result with its call, and the items of one turn of the model.
pub(super) fn units_of(items: &[ShiftItem]) -> Vec<(Author, usize)> {
    let mut units = Units::default();
    for (index, item) in items.iter().enumerate() {
        units.add(index, item, index.checked_sub(1).and_then(|before| items.get(before)));
    }
    items.iter().enumerate().map(|(index, item)| (item.author, units.first_of(index))).collect()
}

/// The units of messages that stay or go together. Nearly linear in the number of calls and
/// results.
#[derive(Default)]
struct Units<'i> {
    /// For each message an earlier one of its unit; for the first message of a unit, itself.
    earlier: Vec<usize>,
    /// The last message with the call of each id.
    calls: HashMap<&'i str, usize>,
    /// The last message that calls tools.
    last_calling: Option<usize>,
}

impl<'i> Units<'i> {
    fn add(&mut self, index: usize, item: &'i ShiftItem, before: Option<&ShiftItem>) {
        self.earlier.push(index);
        if item.is_result {
            // Results belong to their call's id, else to the last message that calls tools.
            let calls = item.results.iter().filter_map(|id| self.calls.get(&**id).copied());
            if let Some(call) = calls.max().or(self.last_calling) {
                self.join(call, index);
            }
        } else if item.is_output && before.is_some_and(|last| last.is_output) {
            self.join(index.saturating_sub(1), index);
        }
        // A message with results of several turns joins these turns.
        for id in &item.results {
            if let Some(call) = self.calls.get(&**id).copied() {
                self.join(call, index);
            }
        }
        if item.calls_tools {
            self.last_calling = Some(index);
        }
        self.calls.extend(item.calls.iter().map(|id| (&**id, index)));
    }

    fn join(&mut self, one: usize, other: usize) {
        // As in a union-find structure; the root of a unit is its first message, which names it.
        let (one, other) = (self.first_of(one), self.first_of(other));
        if let Some(earlier) = self.earlier.get_mut(one.max(other)) {
            *earlier = one.min(other);
        }
    }

    /// Returns the first message of a unit.
    fn first_of(&mut self, mut index: usize) -> usize {
        while let Some(earlier) = self.earlier.get(index).copied()
            && earlier != index
        {
            // Path halving shortens the next search.
            let next = self.earlier.get(earlier).copied().unwrap_or(earlier);
            if let Some(own) = self.earlier.get_mut(index) {
                *own = next;
            }
            index = next;
        }
        index
    }
}
