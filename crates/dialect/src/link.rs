//! Links the results of tool calls to their calls. OpenAI and Anthropic name the call by its id,
//! Ollama may name only the tool; afterwards every call and result has both. Linear in the calls: a
//! conversation may have tens of thousands.

use std::collections::HashMap;

use super::conversation::{CallResult, Conversation, Part};
use super::json::Text;

/// A call that has been read.
struct Seen {
    id: String,
    name: String,
    has_result: bool,
}

/// The calls so far.
#[derive(Default)]
struct Calls {
    list: Vec<Seen>,
    /// The last call of each id.
    by_id: HashMap<String, usize>,
    /// The calls of each tool, the last at the end; without trailing calls that have a result.
    by_name: HashMap<String, Vec<usize>>,
    /// The index before which every call has a result.
    oldest: usize,
}

/// Gives every call an id, and every result the id and the tool of its call. That is the call it
/// names, else the last call of that tool without a result, else the oldest call without one.
pub(super) fn link_calls(conversation: &mut Conversation<'_>) {
    let mut calls = Calls::default();
    for part in conversation.messages.iter_mut().flat_map(|message| &mut message.parts) {
        match part {
            Part::Call(call) => {
                if call.id.is_empty() {
                    call.id = Text::from(format!("call_{}", calls.list.len()));
                }
                calls.add(call.id.to_string(), call.name.to_string());
            }
            Part::Result(result) => calls.link(result),
            Part::Text(_) | Part::Image(_) | Part::Thinking { .. } => {}
        }
    }
}

impl Calls {
    fn add(&mut self, id: String, name: String) {
        let place = self.list.len();
        self.by_id.insert(id.clone(), place);
        self.by_name.entry(name.clone()).or_default().push(place);
        self.list.push(Seen { id, name, has_result: false });
    }

    fn link(&mut self, result: &mut CallResult<'_>) {
        let has_id = !result.call.is_empty();
        let place = if has_id {
            self.by_id.get(&*result.call).copied()
        } else {
            self.last_open(&result.name).or_else(|| self.oldest_open())
        };
        let Some(call) = place.and_then(|place| self.list.get_mut(place)) else { return };
        call.has_result = true;
        if !has_id {
            result.call = Text::from(call.id.clone());
        }
        if result.name.is_empty() {
            result.name = Text::from(call.name.clone());
        }
    }

    fn last_open(&mut self, name: &str) -> Option<usize> {
        let places = self.by_name.get_mut(name)?;
        while let Some(place) = places.last().copied() {
            if self.list.get(place).is_some_and(|call| !call.has_result) {
                return Some(place);
            }
            places.pop();
        }
        None
    }

    fn oldest_open(&mut self) -> Option<usize> {
        while self.list.get(self.oldest)?.has_result {
            self.oldest += 1;
        }
        Some(self.oldest)
    }
}
