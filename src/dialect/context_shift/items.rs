//! The messages of each dialect: who wrote them, and which of them belong together.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::Operation;
use crate::dialect::json::Text;

/// Whose a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    /// Instructions: never dropped.
    System,
    /// The user, in words.
    User,
    /// The model, and what tools returned.
    Other,
}

/// What decides who a message is by and what it belongs to.
#[derive(Debug)]
pub(super) struct Item {
    author: Author,
    /// Whether the model wrote it, in a turn of several items.
    is_output: bool,
    /// Whether it calls tools.
    calls_tools: bool,
    /// The ids of its calls.
    calls: Vec<String>,
    /// Whether it holds what tools returned.
    is_result: bool,
    /// The calls whose results it holds.
    results: Vec<String>,
}

/// The members of all dialects' messages that matter here.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(default, borrow)]
    role: Option<Text<'a>>,
    #[serde(default, borrow, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(default, borrow)]
    call_id: Option<Text<'a>>,
    #[serde(default, borrow)]
    tool_call_id: Option<Text<'a>>,
    #[serde(default, borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(default, borrow)]
    function_call: Option<&'a RawValue>,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
}

/// A call or a block of content.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(default, borrow)]
    id: Option<Text<'a>>,
    #[serde(default, borrow)]
    tool_use_id: Option<Text<'a>>,
}

fn owned(text: &Text<'_>) -> String {
    text.to_string()
}

impl Item {
    pub(super) fn read(operation: Operation, raw: &RawValue) -> Option<Self> {
        let wire: Wire<'_> = serde_json::from_str(raw.get()).ok()?;
        let role = wire.role.as_deref().unwrap_or_default();
        let kind = wire.kind.as_deref().unwrap_or_default();
        let mut item = Item {
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
                item.is_result = kind.ends_with("_output");
                item.is_output = !item.is_result && role != "user" && item.author != Author::System;
                item.calls_tools = kind.ends_with("_call");
                let ids = if item.is_result { &mut item.results } else { &mut item.calls };
                ids.extend(wire.call_id.iter().map(owned));
            }
            _ => {
                let calls = wire.tool_calls.map(|calls| serde_json::from_str(calls.get()));
                let calls: Vec<Part<'_>> = calls.and_then(Result::ok).unwrap_or_default();
                item.calls_tools = !calls.is_empty() || wire.function_call.is_some();
                item.calls.extend(calls.iter().filter_map(|call| call.id.as_ref()).map(owned));
            }
        }
        Some(item)
    }

    /// Reads the tool calls and results among Anthropic's blocks of content.
    fn read_blocks(&mut self, content: Option<&RawValue>) {
        let blocks = content.and_then(|content| serde_json::from_str(content.get()).ok());
        let blocks: Vec<Part<'_>> = blocks.unwrap_or_default();
        for block in &blocks {
            match block.kind.as_deref() {
                Some("tool_use") => {
                    self.calls_tools = true;
                    self.calls.extend(block.id.iter().map(owned));
                }
                Some("tool_result") => {
                    self.is_result = true;
                    // In the user's name, but not the user's words.
                    self.author = Author::Other;
                    self.results.extend(block.tool_use_id.iter().map(owned));
                }
                _ => {}
            }
        }
    }
}

/// Whose each message is, and the first message of those that it stays or goes with: a result with its
/// call, and what the model wrote in one turn.
pub(super) fn units_of(items: &[Item]) -> Vec<(Author, usize)> {
    let mut units: Vec<usize> = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let before = items.get(..index).unwrap_or_default();
        let with = if item.is_result {
            call_of(before, item)
        } else if item.is_output && before.last().is_some_and(|last| last.is_output) {
            index.checked_sub(1)
        } else {
            None
        };
        let unit = with.and_then(|with| units.get(with).copied()).unwrap_or(index);
        units.push(unit);
        join_results(item, before, unit, &mut units);
    }
    items.iter().map(|item| item.author).zip(units).collect()
}

/// A message that holds results of several turns joins them.
fn join_results(item: &Item, before: &[Item], unit: usize, units: &mut [usize]) {
    for id in &item.results {
        let call = before.iter().rposition(|other| other.calls.contains(id));
        let Some(other) = call.and_then(|call| units.get(call).copied()) else { continue };
        let (first, later) = (other.min(unit), other.max(unit));
        units.iter_mut().filter(|one| **one == later).for_each(|one| *one = first);
    }
}

/// The message with the call whose result `item` holds: by id, else the last one that calls tools.
fn call_of(before: &[Item], item: &Item) -> Option<usize> {
    let by_id =
        before.iter().rposition(|other| other.calls.iter().any(|id| item.results.contains(id)));
    by_id.or_else(|| before.iter().rposition(|other| other.calls_tools))
}
