//! Joins the results of tool calls with their calls. OpenAI and Anthropic name the call by its id,
//! Ollama may name the tool only; afterwards every call and result has both.

use super::conversation::{CallResult, Conversation, Part};
use super::json::Text;

/// A call that has been read.
struct Seen {
    id: String,
    name: String,
    has_result: bool,
}

/// Gives every call an id, and every result the id and the tool of its call: the one it names, else
/// the last call of that tool without a result, else the oldest call without one.
pub(super) fn link_calls(conversation: &mut Conversation<'_>) {
    let mut seen: Vec<Seen> = Vec::new();
    for part in conversation.messages.iter_mut().flat_map(|message| &mut message.parts) {
        match part {
            Part::Call(call) => {
                if call.id.is_empty() {
                    call.id = Text::from(format!("call_{}", seen.len()));
                }
                let (id, name) = (call.id.to_string(), call.name.to_string());
                seen.push(Seen { id, name, has_result: false });
            }
            Part::Result(result) => link_result(result, &mut seen),
            Part::Text(_) | Part::Image(_) | Part::Thinking { .. } => {}
        }
    }
}

fn link_result(result: &mut CallResult<'_>, seen: &mut [Seen]) {
    let has_id = !result.call.is_empty();
    let place = if has_id {
        seen.iter().rposition(|call| call.id == *result.call)
    } else {
        let open = |call: &&Seen| !call.has_result;
        let named = seen.iter().rposition(|call| open(&call) && call.name == *result.name);
        named.or_else(|| seen.iter().position(|call| open(&call)))
    };
    let Some(call) = place.and_then(|place| seen.get_mut(place)) else { return };
    call.has_result = true;
    if !has_id {
        result.call = Text::from(call.id.clone());
    }
    if result.name.is_empty() {
        result.name = Text::from(call.name.clone());
    }
}
