//! Properties of any conversation and any response: round trips keep everything that both sides can
//! express, chunks may end anywhere, and a complete response has the content of its stream.

use std::time::Duration;

use penstock_api::Operation::{
    self, Chat, Completions, Messages, OllamaChat, OllamaGenerate, Responses,
};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{PAIRS, context, convert, ndjson, sse};
use crate::{ReplyTerms, ResponseConverter};

fn text() -> impl Strategy<Value = String> {
    "[a-zé😀\"\\\\\n ]{1,12}"
}

/// The output of a model: pieces of thinking, pieces of text, and calls with their pieces.
#[derive(Debug, Clone)]
struct Said {
    thinking: Vec<String>,
    texts: Vec<String>,
    calls: Vec<(String, Value)>,
}

fn said() -> impl Strategy<Value = Said> {
    let call = ("[a-z]{1,5}", text()).prop_map(|(name, text)| (name, json!({"x": text, "y": [1]})));
    (vec(text(), 0..3), vec(text(), 1..5), vec(call, 0..3))
        .prop_map(|(thinking, texts, calls)| Said { thinking, texts, calls })
}

impl Said {
    /// Returns the stream of `backend`.
    fn stream(&self, backend: Operation) -> String {
        match backend {
            Chat => self.chat_stream(),
            Completions => {
                let chunk = |text: &str, end: Value| json!({"choices": [{"index": 0, "text": text, "finish_reason": end}]});
                let mut events: Vec<Value> =
                    self.texts.iter().map(|text| chunk(text, Value::Null)).collect();
                events.push(chunk("", json!("stop")));
                sse(&events) + "data: [DONE]\n\n"
            }
            Messages => self.anthropic_stream(),
            _ => self.ollama_stream(backend == OllamaGenerate),
        }
    }

    fn chat_stream(&self) -> String {
        let chunk = |delta: Value, end: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": end}]});
        let mut events = vec![chunk(json!({"role": "assistant"}), Value::Null)];
        let thinking = self.thinking.iter().map(|one| json!({"reasoning_content": one}));
        let texts = self.texts.iter().map(|one| json!({"content": one}));
        events.extend(thinking.chain(texts).map(|delta| chunk(delta, Value::Null)));
        for ((name, arguments), index) in self.calls.iter().zip(0..) {
            let call = |function: Value| json!({"tool_calls": [{"index": index, "id": format!("c{index}"), "function": function}]});
            let arguments = arguments.to_string();
            let (start, end) = arguments.split_at(1);
            events.push(chunk(call(json!({"name": name, "arguments": start})), Value::Null));
            events.push(chunk(call(json!({"arguments": end})), Value::Null));
        }
        events.push(chunk(json!({}), json!("stop")));
        events.push(json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}));
        sse(&events) + "data: [DONE]\n\n"
    }

    fn anthropic_stream(&self) -> String {
        let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let start = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
        let mut events = vec![json!({"type": "message_start", "message": {}})];
        events.push(start(0, json!({"type": "thinking", "thinking": ""})));
        events.extend(
            self.thinking
                .iter()
                .map(|one| delta(0, json!({"type": "thinking_delta", "thinking": one}))),
        );
        events.push(start(1, json!({"type": "text", "text": ""})));
        events.extend(
            self.texts.iter().map(|one| delta(1, json!({"type": "text_delta", "text": one}))),
        );
        for ((name, arguments), index) in self.calls.iter().zip(2..) {
            events.push(start(index, json!({"type": "tool_use", "id": format!("c{}", index - 2), "name": name, "input": {}})));
            events.push(delta(
                index,
                json!({"type": "input_json_delta", "partial_json": arguments.to_string()}),
            ));
        }
        events.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}));
        events.push(json!({"type": "message_stop"}));
        sse(&events)
    }

    fn ollama_stream(&self, is_generate: bool) -> String {
        let line = |text: &str, thinking: &str, calls: Value| {
            if is_generate {
                json!({"response": text, "thinking": thinking, "done": false})
            } else {
                json!({"message": {"content": text, "thinking": thinking, "tool_calls": calls}, "done": false})
            }
        };
        let mut lines: Vec<Value> =
            self.thinking.iter().map(|one| line("", one, Value::Null)).collect();
        lines.extend(self.texts.iter().map(|one| line(one, "", Value::Null)));
        for ((name, arguments), index) in self.calls.iter().zip(0..) {
            let call = json!([{"id": format!("c{index}"), "function": {"name": name, "arguments": arguments}}]);
            lines.push(line("", "", call));
        }
        lines.push(json!({"done": true, "done_reason": "stop", "eval_count": 2}));
        ndjson(&lines)
    }

    /// Returns the complete response of `backend`.
    fn whole(&self, backend: Operation) -> Value {
        let (thinking, text) = (self.thinking.concat(), self.texts.concat());
        let calls = |form: fn(usize, &str, &Value) -> Value| -> Vec<Value> {
            let calls = self.calls.iter().enumerate();
            calls.map(|(index, (name, arguments))| form(index, name, arguments)).collect()
        };
        match backend {
            Chat => json!({"choices": [{"message": {"content": text, "reasoning_content": thinking,
                "tool_calls": calls(|index, name, arguments| json!({"id": format!("c{index}"),
                    "function": {"name": name, "arguments": arguments.to_string()}}))},
                "finish_reason": "stop"}]}),
            Completions => json!({"choices": [{"text": text, "finish_reason": "stop"}]}),
            Messages => {
                let mut content = vec![
                    json!({"type": "thinking", "thinking": thinking}),
                    json!({"type": "text", "text": text}),
                ];
                content.extend(calls(|index, name, arguments| {
                    json!({"type": "tool_use", "id": format!("c{index}"), "name": name, "input": arguments})
                }));
                json!({"type": "message", "content": content, "stop_reason": "end_turn"})
            }
            OllamaGenerate => json!({"response": text, "thinking": thinking, "done": true}),
            _ => json!({"message": {"content": text, "thinking": thinking,
                "tool_calls": calls(|index, name, arguments| json!({"id": format!("c{index}"),
                    "function": {"name": name, "arguments": arguments}}))}, "done": true}),
        }
    }

    /// Returns the most that a client can receive.
    fn expected(&self, client: Operation, backend: Operation) -> Received {
        let has_thinking = client != Completions && backend != Completions;
        let has_calls = !matches!(client, OllamaGenerate | Completions);
        Received {
            thinking: if has_thinking { self.thinking.concat() } else { String::new() },
            text: self.texts.concat(),
            calls: if has_calls { self.calls.clone() } else { Vec::new() },
        }
    }
}

/// The content that a client has received.
#[derive(Debug, Default, PartialEq)]
struct Received {
    thinking: String,
    text: String,
    calls: Vec<(String, Value)>,
}

/// Feeds a payload in pieces that end at `cuts`, in 1/65536 of its length.
fn feed(pair: (Operation, Operation), is_stream: bool, payload: &str, cuts: &[u16]) -> String {
    let terms = ReplyTerms { stream: is_stream, ..ReplyTerms::default() };
    let mut converter = ResponseConverter::new(pair.0, pair.1, terms, context());
    let bytes = payload.as_bytes();
    let mut ends: Vec<usize> =
        cuts.iter().map(|cut| bytes.len() * usize::from(*cut) / 65_536).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let (mut out, mut start) = (Vec::new(), 0);
    for end in ends {
        converter.feed(&bytes[start..end], Duration::from_millis(1), &mut out).unwrap();
        start = end;
    }
    converter.finish(Duration::from_millis(1), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Reads the content that a client received; other dialects are converted to Ollama's chat first.
fn received(client: Operation, is_stream: bool, text: &str) -> Received {
    let mut received = Received::default();
    match client {
        OllamaChat | OllamaGenerate => {
            for line in text.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                let message = if client == OllamaChat { &line["message"] } else { &line };
                let name = if client == OllamaChat { "content" } else { "response" };
                received.text += message[name].as_str().unwrap();
                received.thinking += message["thinking"].as_str().unwrap_or_default();
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let name = call["function"]["name"].as_str().unwrap().to_owned();
                    received.calls.push((name, call["function"]["arguments"].clone()));
                }
            }
            received
        }
        Responses => {
            let body: Value = match is_stream {
                true => super::events(text).pop().unwrap()["response"].clone(),
                false => serde_json::from_str(text).unwrap(),
            };
            for item in body["output"].as_array().unwrap() {
                let text = item["content"][0]["text"].as_str().unwrap_or_default();
                match item["type"].as_str().unwrap() {
                    "message" => received.text += text,
                    "reasoning" => received.thinking += text,
                    _ => received.calls.push((
                        item["name"].as_str().unwrap().to_owned(),
                        serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap(),
                    )),
                }
            }
            received
        }
        _ => {
            let back = feed((OllamaChat, client), is_stream, text, &[]);
            self::received(OllamaChat, is_stream, &back)
        }
    }
}

proptest! {
    #[test]
    fn streams_and_whole_responses_say_the_same(
        said in said(), pair in proptest::sample::select(PAIRS),
    ) {
        let (client, backend) = pair;
        let expected = said.expected(client, backend);
        let streamed = feed(pair, true, &said.stream(backend), &[]);
        prop_assert_eq!(&received(client, true, &streamed), &expected);
        let whole = feed(pair, false, &said.whole(backend).to_string(), &[]);
        prop_assert_eq!(&received(client, false, &whole), &expected);
    }

    #[test]
    fn streams_may_be_cut_anywhere(
        said in said(), pair in proptest::sample::select(PAIRS), cuts in vec(any::<u16>(), 0..40),
        ends in proptest::sample::select(vec!["\n", "\r\n"]),
    ) {
        let payload = said.stream(pair.1).replace('\n', ends);
        prop_assert_eq!(feed(pair, true, &payload, &cuts), feed(pair, true, &payload, &[]));
    }

    #[test]
    fn chat_survives_a_way_through_ollama_and_back(
        texts in vec(text(), 1..4), arguments in text(), seed in 0_u32..9, limit in 1_u32..99,
    ) {
        let mut messages = vec![json!({"role": "system", "content": "s"})];
        messages.extend(texts.iter().map(|text| json!({"role": "user", "content": text})));
        messages.push(json!({"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {
                "name": "f", "arguments": json!({"x": arguments}).to_string()}}]}));
        messages.push(json!({"role": "tool", "tool_call_id": "c1", "name": "f", "content": "r"}));
        let body = json!({
            "model": "backend-model", "messages": messages, "seed": seed, "max_tokens": limit,
            "temperature": 0.5, "top_p": 0.25, "stop": ["x"], "stream": false,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "response_format": {"type": "json_object"},
        });
        let ollama = convert(Chat, OllamaChat, &body);
        prop_assert_eq!(convert(OllamaChat, Chat, &ollama), body);
    }

    #[test]
    fn chat_survives_a_way_through_anthropic_and_back(
        // Anthropic takes no text of whitespace alone.
        texts in vec(text().prop_map(|text| text + "x"), 1..4), arguments in text(), limit in 1_u32..99,
    ) {
        let call = json!([{"id": "c1", "type": "function", "function": {
            "name": "f", "arguments": json!({"x": arguments}).to_string()}}]);
        let mut messages = vec![json!({"role": "system", "content": "s"})];
        for text in &texts {
            messages.push(json!({"role": "user", "content": text}));
            messages.push(json!({"role": "assistant", "content": text}));
        }
        messages.push(json!({"role": "user", "content": "go"}));
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": call}));
        messages.push(json!({"role": "tool", "tool_call_id": "c1", "name": "f", "content": "r"}));
        let body = json!({
            "model": "backend-model", "messages": messages, "max_tokens": limit, "temperature": 0.5,
            "stop": ["x"], "stream": false, "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        });
        let anthropic = convert(Chat, Messages, &body);
        prop_assert_eq!(convert(Messages, Chat, &anthropic), body);
    }

    #[test]
    fn any_bytes_end_in_a_response_or_an_error(
        bytes in vec(any::<u8>(), 0..200), pair in proptest::sample::select(PAIRS), is_stream in any::<bool>(),
    ) {
        let terms = ReplyTerms { stream: is_stream, ..ReplyTerms::default() };
        let mut converter = ResponseConverter::new(pair.0, pair.1, terms, context());
        let mut out = Vec::new();
        let result = converter.feed(&bytes, Duration::ZERO, &mut out)
            .and_then(|()| converter.finish(Duration::ZERO, &mut out));
        prop_assert!(result.is_err(), "no response is complete by chance");
    }
}

#[test]
fn held_response_bytes_are_bounded() {
    use crate::{BadResponse, ResponseLimits};
    let mut context = context();
    context.limits = ResponseLimits { event: 200, arguments: 50, whole: 300 };
    let long = "x".repeat(120);
    let delta = |delta: Value| sse(&[json!({"choices": [{"index": 0, "delta": delta}]})]);
    let call = json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "x".repeat(60)}}]});
    for (is_stream, payload, held) in [
        (true, "data: ".to_owned() + &long + &long, "an event"),
        (true, format!("data: {long}\n").repeat(2), "an event"),
        (true, delta(call), "the arguments of tool calls"),
        (false, long.repeat(3), "the body"),
    ] {
        let terms = ReplyTerms { stream: is_stream, ..ReplyTerms::default() };
        let mut converter = ResponseConverter::new(OllamaChat, Chat, terms, context.clone());
        let result = converter.feed(payload.as_bytes(), Duration::ZERO, &mut Vec::new());
        assert!(
            matches!(result, Err(BadResponse::TooLarge { held: one, .. }) if one == held),
            "{result:?}"
        );
    }
}
