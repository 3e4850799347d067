//! Links the results of tool calls to their calls. OpenAI and Anthropic name the call by its id,
//! Ollama may name only the tool; afterwards every call and result has both. Linear in the calls: a
//! conversation may have tens of thousands.

use std::collections::{HashMap, VecDeque};

use super::conversation::{CallResult, Conversation, Part, Role};
use super::json::Text;

/// A call that has been read.
struct CallToLink {
    id: String,
    name: String,
    has_result: bool,
}

/// The calls so far.
#[derive(Default)]
struct Calls {
    list: Vec<CallToLink>,
    /// The number of the turn: successive messages of the assistant are one.
    turn: usize,
    /// The last call of each id.
    by_id: HashMap<String, usize>,
    /// The calls of each tool.
    by_name: HashMap<String, OpenCalls>,
    all: OpenCalls,
}

/// Calls that may lack a result, by turn. Each call is added once and removed once.
#[derive(Default)]
struct OpenCalls(Vec<(usize, VecDeque<usize>)>);

/// Gives every call an id, and every result the id and the tool of its call. That is the call it
/// names, else a call of that tool without a result, else any call without one.
pub(super) fn link_calls(conversation: &mut Conversation<'_>) {
    let mut calls = Calls::default();
    for message in &mut conversation.messages {
        if matches!(message.role, Role::User | Role::Tool) {
            calls.turn += 1;
        }
        for part in &mut message.parts {
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
}

impl Calls {
    fn add(&mut self, id: String, name: String) {
        let place = self.list.len();
        self.by_id.insert(id.clone(), place);
        self.by_name.entry(name.clone()).or_default().add(self.turn, place);
        self.all.add(self.turn, place);
        self.list.push(CallToLink { id, name, has_result: false });
    }

    fn link(&mut self, result: &mut CallResult<'_>) {
        let has_id = !result.call.is_empty();
        let place = if has_id {
            self.by_id.get(&*result.call).copied()
        } else {
            let named = self.by_name.get_mut(&*result.name);
            let named = named.and_then(|calls| calls.next(&self.list));
            named.or_else(|| self.all.next(&self.list))
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
}

impl OpenCalls {
    fn add(&mut self, turn: usize, place: usize) {
        match self.0.last_mut() {
            Some((last, places)) if *last == turn => places.push_back(place),
            Some(_) | None => self.0.push((turn, VecDeque::from([place]))),
        }
    }

    /// Returns the oldest call without a result in the last turn that has one: results come in the
    /// order of the calls, and calls of earlier turns are those that the client gave up.
    fn next(&mut self, list: &[CallToLink]) -> Option<usize> {
        loop {
            let (_, places) = self.0.last_mut()?;
            match places.front() {
                None => _ = self.0.pop(),
                Some(place) if list.get(*place).is_some_and(|call| !call.has_result) => {
                    return Some(*place);
                }
                Some(_) => _ = places.pop_front(),
            }
        }
    }
}
