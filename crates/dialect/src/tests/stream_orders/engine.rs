//! The streams of engines for the output of a model.

mod whole;

pub(super) use whole::whole;

use penstock_api::Operation::{self, Chat, Completions, Messages, OllamaGenerate};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Delta, Said};

/// The format variations of an engine, or of a gateway before it.
#[derive(Debug, Clone)]
pub(super) struct Manner {
    line_end: &'static str,
    has_mark: bool,
    has_comments: bool,
    /// If set, JSON takes several `data` lines.
    is_pretty: bool,
    /// If set, counts are strings.
    quotes_counts: bool,
    /// If set, `content` is a list of chunks.
    lists_content: bool,
    /// If set, one delta has the pieces of several calls.
    joins_calls: bool,
    /// If set, every piece of a call has the id.
    resends_id: bool,
    /// If set, arguments are objects where they should be strings, and the reverse.
    swaps_arguments: bool,
    /// If set, the chunk that ends the choice has the counts.
    counts_early: bool,
    has_done: bool,
}

impl Manner {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        (proptest::sample::select(vec!["\n", "\r\n", "\r"]), any::<[bool; 10]>()).prop_map(
            |(line_end, flags)| {
                let [mark, comments, pretty, quotes, lists, joins, resends, swaps, early, done] =
                    flags;
                Self {
                    line_end,
                    has_mark: mark,
                    has_comments: comments,
                    is_pretty: pretty,
                    quotes_counts: quotes,
                    lists_content: lists,
                    joins_calls: joins,
                    resends_id: resends,
                    swaps_arguments: swaps,
                    counts_early: early,
                    has_done: done,
                }
            },
        )
    }

    fn count(&self, count: u64) -> Value {
        if self.quotes_counts { count.to_string().into() } else { count.into() }
    }

    fn usage(&self, said: &Said) -> Value {
        json!({"prompt_tokens": self.count(said.tokens.0), "completion_tokens": self.count(said.tokens.1)})
    }

    fn content(&self, text: Value) -> Value {
        if self.lists_content { json!([{"type": "text", "text": text}]) } else { text }
    }

    fn thinking(&self, text: Value) -> (&'static str, Value) {
        match self.lists_content {
            true => {
                let chunks = json!([{"type": "text", "text": text}]);
                ("content", json!([{"type": "thinking", "thinking": chunks}]))
            }
            false => ("reasoning_content", text),
        }
    }

    /// Frames server-sent events.
    fn frame(&self, events: &[(Option<&str>, String)]) -> String {
        let mut out = String::from(if self.has_mark { "\u{feff}" } else { "" });
        for (name, data) in events {
            if self.has_comments {
                out += ": ping\n\n";
            }
            if let Some(name) = name {
                out += &format!("event: {name}\n");
            }
            data.lines().for_each(|line| out += &format!("data: {line}\n"));
            out += "\n";
        }
        out.replace('\n', self.line_end)
    }

    fn json(&self, value: &Value, strings: &[Vec<u16>]) -> String {
        let text = match self.is_pretty {
            true => serde_json::to_string_pretty(value).unwrap(),
            false => value.to_string(),
        };
        with_strings(text, strings)
    }
}

/// Returns a placeholder in JSON for a string of UTF-16, in which halves may be alone.
fn slot(index: usize) -> Value {
    format!("@{index}@").into()
}

fn with_strings(mut json: String, strings: &[Vec<u16>]) -> String {
    for (index, units) in strings.iter().enumerate() {
        json = json.replace(&slot(index).to_string(), &quoted(units));
    }
    json
}

fn quoted(units: &[u16]) -> String {
    let mut out = String::from("\"");
    for unit in units {
        match u8::try_from(*unit) {
            Ok(byte) if byte.is_ascii_alphanumeric() || byte == b' ' => out.push(byte.into()),
            _ => out += &format!("\\u{unit:04x}"),
        }
    }
    out + "\""
}

fn units(text: &str) -> Vec<u16> {
    text.encode_utf16().collect()
}

/// Returns the stream of a backend.
pub(super) fn stream(said: &Said, deltas: &[Delta], backend: Operation, manner: &Manner) -> String {
    match backend {
        Chat => chat(said, deltas, manner),
        Messages => anthropic(said, deltas, manner),
        Completions => completions(said, deltas, manner),
        _ => ollama(said, deltas, backend == OllamaGenerate, manner),
    }
}

#[expect(clippy::too_many_lines, reason = "one stream from its first chunk to its last")]
fn chat(said: &Said, deltas: &[Delta], manner: &Manner) -> String {
    let chunk = |delta: Value, finish: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let mut events = vec![(
        None,
        manner.json(&chunk(json!({"role": "assistant", "content": ""}), Value::Null), &[]),
    )];
    let mut pending: Vec<(Value, Vec<u16>)> = Vec::new();
    let send_calls = |pending: &mut Vec<(Value, Vec<u16>)>, events: &mut Vec<_>| {
        if pending.is_empty() {
            return;
        }
        let strings: Vec<Vec<u16>> = pending.iter().map(|(_, units)| units.clone()).collect();
        let calls: Vec<Value> = pending
            .drain(..)
            .enumerate()
            .map(|(index, (mut call, _))| {
                call["function"]["arguments"] = slot(index);
                call
            })
            .collect();
        let delta = chunk(json!({"tool_calls": calls}), Value::Null);
        events.push((None, manner.json(&delta, &strings)));
    };
    for delta in deltas {
        let (member, value, string) = match delta {
            Delta::Thinking(piece) => {
                let (member, value) = manner.thinking(slot(0));
                (member, value, piece)
            }
            Delta::Text(piece) => ("content", manner.content(slot(0)), piece),
            Delta::Start(place, _) | Delta::Name(place, _) | Delta::Arguments(place, _) => {
                let mut call = json!({"index": place, "function": {}});
                if manner.resends_id || matches!(delta, Delta::Start(..)) {
                    call["id"] = said.calls[*place].id.clone().into();
                }
                let mut piece = Vec::new();
                match delta {
                    Delta::Start(_, name) | Delta::Name(_, name) => {
                        call["function"]["name"] = name.clone().into();
                    }
                    Delta::Arguments(_, units) => piece.clone_from(units),
                    Delta::Thinking(_) | Delta::Text(_) => {}
                }
                pending.push((call, piece));
                if !manner.joins_calls || pending.len() > 2 {
                    send_calls(&mut pending, &mut events);
                }
                continue;
            }
        };
        send_calls(&mut pending, &mut events);
        let delta = chunk(json!({member: value}), Value::Null);
        events.push((None, manner.json(&delta, std::slice::from_ref(string))));
    }
    send_calls(&mut pending, &mut events);
    let reason = match (said.is_cut, said.calls.is_empty()) {
        (true, _) => "length",
        (false, true) => "stop",
        (false, false) => "tool_calls",
    };
    let mut end = chunk(json!({}), reason.into());
    if manner.counts_early {
        end["usage"] = manner.usage(said);
    }
    events.push((None, manner.json(&end, &[])));
    if !manner.counts_early {
        events.push((None, manner.json(&json!({"choices": [], "usage": manner.usage(said)}), &[])));
    }
    if manner.has_done {
        events.push((None, "[DONE]".to_owned()));
    }
    manner.frame(&events)
}

fn completions(said: &Said, deltas: &[Delta], manner: &Manner) -> String {
    let mut events = Vec::new();
    for delta in deltas {
        if let Delta::Text(piece) = delta {
            let chunk = json!({"choices": [{"index": 0, "text": slot(0)}]});
            events.push((None, manner.json(&chunk, std::slice::from_ref(piece))));
        }
    }
    let reason = if said.is_cut { "length" } else { "stop" };
    let end =
        json!({"choices": [{"text": "", "finish_reason": reason}], "usage": manner.usage(said)});
    events.push((None, manner.json(&end, &[])));
    events.push((None, "[DONE]".to_owned()));
    manner.frame(&events)
}

/// Returns blocks by index, with interleaved pieces.
fn anthropic(said: &Said, deltas: &[Delta], manner: &Manner) -> String {
    let mut events = vec![(
        Some("message_start"),
        json!({"type": "message_start", "message": {"usage": {
            "input_tokens": manner.count(said.tokens.0), "output_tokens": 1}}})
        .to_string(),
    )];
    let mut indices: Vec<usize> = Vec::new();
    for delta in deltas {
        let (lane, block, piece) = match delta {
            Delta::Thinking(piece) => {
                let piece = (json!({"type": "thinking_delta", "thinking": slot(0)}), piece);
                (0, json!({"type": "thinking", "thinking": ""}), piece)
            }
            Delta::Text(piece) => {
                let piece = (json!({"type": "text_delta", "text": slot(0)}), piece);
                (1, json!({"type": "text", "text": ""}), piece)
            }
            // The name comes in one piece.
            Delta::Start(..) | Delta::Name(..) => continue,
            Delta::Arguments(place, piece) => {
                let call = &said.calls[*place];
                let block =
                    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
                let piece = (json!({"type": "input_json_delta", "partial_json": slot(0)}), piece);
                // Calls start in their order, with the first piece of any.
                for (earlier, call) in said.calls.iter().enumerate().take(*place) {
                    if !indices.contains(&(earlier + 2)) {
                        let block = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
                        events.push(start(indices.len(), &block));
                        indices.push(earlier + 2);
                    }
                }
                (place + 2, block, piece)
            }
        };
        let index = indices.iter().position(|own| *own == lane).unwrap_or_else(|| {
            events.push(start(indices.len(), &block));
            indices.push(lane);
            indices.len() - 1
        });
        let (value, string) = piece;
        let value = json!({"type": "content_block_delta", "index": index, "delta": value});
        events
            .push((Some("content_block_delta"), manner.json(&value, std::slice::from_ref(string))));
    }
    let reason = match (said.is_cut, said.calls.is_empty()) {
        (true, _) => "max_tokens",
        (false, true) => "end_turn",
        (false, false) => "tool_use",
    };
    let end = json!({"type": "message_delta", "delta": {"stop_reason": reason},
        "usage": {"output_tokens": manner.count(said.tokens.1)}});
    events.push((Some("message_delta"), manner.json(&end, &[])));
    events.push((Some("message_stop"), json!({"type": "message_stop"}).to_string()));
    manner.frame(&events)
}

fn start(index: usize, block: &Value) -> (Option<&'static str>, String) {
    let event = json!({"type": "content_block_start", "index": index, "content_block": block});
    (Some("content_block_start"), event.to_string())
}

fn ollama(said: &Said, deltas: &[Delta], is_generate: bool, manner: &Manner) -> String {
    let line = |member: &str, value: Value| {
        let mut line = json!({"model": "m", "done": false});
        match (is_generate, member) {
            (true, "content") => line["response"] = value,
            (true, _) => line[member] = value,
            (false, _) => {
                line["message"] = json!({"role": "assistant", "content": "", member: value})
            }
        }
        line.to_string()
    };
    let mut lines = Vec::new();
    for delta in deltas {
        match delta {
            Delta::Thinking(piece) => {
                lines.push(with_strings(line("thinking", slot(0)), std::slice::from_ref(piece)));
            }
            Delta::Text(piece) => {
                lines.push(with_strings(line("content", slot(0)), std::slice::from_ref(piece)));
            }
            Delta::Start(place, _) if !is_generate => {
                lines.push(line("tool_calls", json!([ollama_call(said, *place, manner)])));
            }
            Delta::Start(..) | Delta::Name(..) | Delta::Arguments(..) => {}
        }
    }
    let mut end = json!({"model": "m", "done": true, "done_reason": if said.is_cut { "length" } else { "stop" },
        "prompt_eval_count": manner.count(said.tokens.0), "eval_count": manner.count(said.tokens.1)});
    if !is_generate {
        end["message"] = json!({"role": "assistant", "content": ""});
    }
    lines.push(end.to_string());
    let mark = if manner.has_mark { "\u{feff}" } else { "" };
    mark.to_owned() + &lines.join(manner.line_end) + manner.line_end
}

fn ollama_call(said: &Said, place: usize, manner: &Manner) -> Value {
    let call = &said.calls[place];
    let arguments = match manner.swaps_arguments {
        true => call.arguments.to_string().into(),
        false => call.arguments.clone(),
    };
    json!({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
}
