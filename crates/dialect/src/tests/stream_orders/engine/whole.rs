//! The complete responses of engines for the output of a model.

use penstock_api::Operation::{self, Chat, Completions, Messages, OllamaGenerate};
use serde_json::{Value, json};

use super::{Manner, ollama_call, slot, units};
use crate::tests::stream_orders::Said;

/// Returns the complete response of a backend.
#[expect(clippy::too_many_lines, reason = "a table with the form of each backend")]
pub(in super::super) fn whole(said: &Said, backend: Operation, manner: &Manner) -> String {
    let reason = match (said.is_cut, said.calls.is_empty()) {
        (true, _) => "length",
        (false, true) => "stop",
        (false, false) => "tool_calls",
    };
    let strings = [units(&said.thinking), units(&said.text)];
    let value = match backend {
        Chat => {
            let calls = said.calls.iter().map(|call| {
                let arguments = match manner.swaps_arguments {
                    true => call.arguments.clone(),
                    false => call.arguments.to_string().into(),
                };
                json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
            });
            let mut message = json!({"role": "assistant", "tool_calls": calls.collect::<Vec<_>>()});
            match manner.lists_content {
                true => {
                    message["content"] = json!([
                    {"type": "thinking", "thinking": [{"type": "text", "text": slot(0)}]},
                    {"type": "text", "text": slot(1)}, {"type": "reference", "reference_ids": [1]}])
                }
                false => {
                    message["reasoning_content"] = slot(0);
                    message["content"] = slot(1);
                }
            }
            json!({"choices": [{"message": message, "finish_reason": reason}], "usage": manner.usage(said)})
        }
        Completions => {
            json!({"choices": [{"text": slot(1), "finish_reason": reason}], "usage": manner.usage(said)})
        }
        Messages => {
            let mut content = vec![
                json!({"type": "thinking", "thinking": slot(0), "signature": ""}),
                json!({"type": "text", "text": slot(1)}),
            ];
            content.extend(said.calls.iter().map(|call| {
                json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
            }));
            let reason = match reason {
                "length" => "max_tokens",
                "stop" => "end_turn",
                _ => "tool_use",
            };
            json!({"type": "message", "content": content, "stop_reason": reason, "usage": {
                "input_tokens": manner.count(said.tokens.0), "output_tokens": manner.count(said.tokens.1)}})
        }
        _ => {
            let calls: Vec<Value> =
                (0..said.calls.len()).map(|place| ollama_call(said, place, manner)).collect();
            let mut body = json!({"done": true, "done_reason": if said.is_cut { "length" } else { "stop" },
                "prompt_eval_count": manner.count(said.tokens.0), "eval_count": manner.count(said.tokens.1)});
            match backend {
                OllamaGenerate => {
                    body["response"] = slot(1);
                    body["thinking"] = slot(0);
                }
                _ => {
                    body["message"] =
                        json!({"content": slot(1), "thinking": slot(0), "tool_calls": calls});
                }
            }
            body
        }
    };
    let mark = if manner.has_mark { "\u{feff}" } else { "" };
    mark.to_owned() + &manner.json(&value, &strings)
}
