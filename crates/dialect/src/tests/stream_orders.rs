//! Streams in every legal order and framing: interleaved pieces of text, thinking and tool calls,
//! and strings cut between the halves of a surrogate pair. For all dialects the client gets the
//! same text, thinking, calls, counts and ending, in events that its dialect allows.

mod client;
mod engine;

use std::time::Duration;

use penstock_api::Operation::{
    self, Chat, Completions, Messages, OllamaChat, OllamaGenerate, Responses,
};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{PAIRS, context};
use crate::{ReplyTerms, ResponseConverter};
use client::{Received, received};
use engine::Manner;

/// The output of a model.
#[derive(Debug, Clone)]
struct Said {
    thinking: String,
    text: String,
    calls: Vec<Call>,
    is_cut: bool,
    /// The numbers of prompt and output tokens.
    tokens: (u64, u64),
}

#[derive(Debug, Clone, PartialEq)]
struct Call {
    id: String,
    name: String,
    arguments: Value,
}

/// A piece of a model's output; strings are UTF-16, because gateways cut there.
#[derive(Debug, Clone, PartialEq)]
enum Delta {
    Thinking(Vec<u16>),
    Text(Vec<u16>),
    Start(usize, String),
    Name(usize, String),
    Arguments(usize, Vec<u16>),
}

fn text() -> impl Strategy<Value = String> {
    "[a-z😀é\"\\\\\n {}]{0,10}"
}

fn said() -> impl Strategy<Value = Said> {
    let arguments =
        prop_oneof![Just(json!({})), text().prop_map(|text| json!({"x": text, "y": [{"😀": 1}]})),];
    let call = ("[a-z_]{1,9}", arguments);
    (text(), text(), vec(call, 0..4), any::<bool>(), (1_u64..99, 1_u64..99)).prop_map(
        |(thinking, text, calls, is_cut, tokens)| {
            let calls = calls.into_iter().enumerate().map(|(place, (name, arguments))| Call {
                id: format!("id{place}"),
                name,
                arguments,
            });
            Said { thinking, text, calls: calls.collect(), is_cut, tokens }
        },
    )
}

impl Said {
    /// Returns its pieces in an order that `choices` pick: each string keeps its order, and calls
    /// start in theirs.
    fn deltas(&self, choices: &[u8]) -> Vec<Delta> {
        let mut choices = choices.iter().copied().chain(std::iter::repeat(0));
        let mut next = |below: usize| usize::from(choices.next().unwrap()) % below;
        let mut lanes: Vec<Vec<Delta>> = vec![
            pieces(&self.thinking, &mut next).into_iter().map(Delta::Thinking).collect(),
            pieces(&self.text, &mut next).into_iter().map(Delta::Text).collect(),
        ];
        for (place, call) in self.calls.iter().enumerate() {
            let cut = next(call.name.len());
            let (start, rest) = call.name.split_at(cut + 1);
            // Two equal pieces of a name cannot be distinguished from a name sent twice.
            let is_cut = !rest.is_empty() && rest != start;
            let start = if is_cut { start } else { &*call.name };
            let mut lane = vec![Delta::Start(place, start.to_owned())];
            if is_cut {
                lane.push(Delta::Name(place, rest.to_owned()));
            }
            let arguments = pieces(&call.arguments.to_string(), &mut next);
            lane.extend(arguments.into_iter().map(|piece| Delta::Arguments(place, piece)));
            lanes.push(lane);
        }
        lanes.iter_mut().for_each(|lane| lane.reverse());
        let mut deltas = Vec::new();
        loop {
            let may_go = |lane: usize| {
                let has_more = !lanes[lane].is_empty();
                // A call starts after the calls before it.
                let starts = matches!(lanes[lane].last(), Some(Delta::Start(..)));
                let before = lanes.get(2..lane).unwrap_or_default();
                let waits = before.iter().any(|one| matches!(one.last(), Some(Delta::Start(..))));
                has_more && !(starts && waits)
            };
            let open: Vec<usize> = (0..lanes.len()).filter(|lane| may_go(*lane)).collect();
            if open.is_empty() {
                return deltas;
            }
            let lane = open[next(open.len())];
            deltas.extend(lanes[lane].pop());
        }
    }

    /// Returns the most that a client can receive.
    fn expected(&self, client: Operation, backend: Operation) -> Received {
        let has_thinking = client != Completions && backend != Completions;
        let has_calls = !matches!(client, OllamaGenerate | Completions)
            && !matches!(backend, OllamaGenerate | Completions);
        let ends_with_calls = has_calls
            && !self.calls.is_empty()
            && !matches!(client, OllamaChat)
            && client != Responses;
        Received {
            thinking: if has_thinking { self.thinking.clone() } else { String::new() },
            text: self.text.clone(),
            calls: if has_calls { self.calls.clone() } else { Vec::new() },
            ending: match (self.is_cut, ends_with_calls) {
                (true, _) => "length",
                (false, true) => "calls",
                (false, false) => "stop",
            },
            tokens: self.tokens,
        }
    }
}

/// Cuts a text between any two units of UTF-16.
fn pieces(text: &str, next: &mut impl FnMut(usize) -> usize) -> Vec<Vec<u16>> {
    let units: Vec<u16> = text.encode_utf16().collect();
    let mut pieces: Vec<Vec<u16>> = Vec::new();
    for unit in units {
        match pieces.last_mut() {
            Some(last) if next(3) > 0 => last.push(unit),
            _ => pieces.push(vec![unit]),
        }
    }
    pieces
}

/// Feeds a payload in pieces that end at `cuts`, in 1/65536 of its length.
fn feed(pair: (Operation, Operation), is_stream: bool, payload: &[u8], cuts: &[u16]) -> String {
    let terms = ReplyTerms { stream: is_stream, include_usage: true, ..ReplyTerms::default() };
    let mut converter = ResponseConverter::new(pair.0, pair.1, terms, context());
    let mut ends: Vec<usize> =
        cuts.iter().map(|cut| payload.len() * usize::from(*cut) / 65_536).collect();
    ends.push(payload.len());
    ends.sort_unstable();
    let (mut out, mut start) = (Vec::new(), 0);
    for end in ends {
        let fed = converter.feed(&payload[start..end], Duration::from_millis(1), &mut out);
        fed.unwrap_or_else(|error| panic!("{error}: {}", payload.escape_ascii()));
        start = end;
    }
    let ended = converter.finish(Duration::from_millis(1), &mut out);
    ended.unwrap_or_else(|error| panic!("{error}: {}", payload.escape_ascii()));
    String::from_utf8(out).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn streams_in_any_order_lose_nothing(
        said in said(), pair in proptest::sample::select(PAIRS), choices in vec(any::<u8>(), 0..120),
        manner in Manner::any(), cuts in vec(any::<u16>(), 0..20),
    ) {
        let (client, backend) = pair;
        let payload = engine::stream(&said, &said.deltas(&choices), backend, &manner);
        let text = feed(pair, true, payload.as_bytes(), &cuts);
        prop_assert_eq!(&received(client, &text), &said.expected(client, backend), "{}\n{}", payload, text);
    }

    #[test]
    fn whole_responses_lose_nothing(
        said in said(), pair in proptest::sample::select(PAIRS), manner in Manner::any(),
    ) {
        let (client, backend) = pair;
        let payload = engine::whole(&said, backend, &manner);
        let text = feed(pair, false, payload.as_bytes(), &[]);
        let expected = said.expected(client, backend);
        prop_assert_eq!(&client::whole(client, &text), &expected, "{}\n{}", payload, text);
    }
}

/// Returns a stream of OpenAI's chat with these deltas.
fn chat_stream(deltas: &[&str]) -> String {
    let chunk = |delta: &&str| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    deltas.iter().map(chunk).collect::<String>() + end
}

#[test]
fn lone_surrogate_is_replaced() {
    for client in [Messages, Responses, OllamaChat] {
        let call = r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\":\"\ud83d"}}]}"#;
        let rest = r#"{"tool_calls":[{"index":0,"function":{"arguments":"\"}"}}]}"#;
        let stream = chat_stream(&[
            r#"{"content":"a\ud83d"}"#,
            r#"{"content":"b"}"#,
            call,
            rest,
            r#"{"content":"\ud83d"}"#,
        ]);
        let seen = received(client, &feed((client, Chat), true, stream.as_bytes(), &[]));
        assert_eq!(seen.text, "a\u{fffd}b\u{fffd}");
        assert_eq!(seen.calls[0].arguments, json!({"a": "\u{fffd}"}));
    }
}

#[test]
fn calls_without_index_and_id_stay_apart() {
    let calls = [
        r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{\"a\""}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":":1}"}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":{"a":2}}}]}"#,
        r#"{"tool_calls":[{"id":"x","function":{"name":"g","arguments":"{}"}},{"id":"y","function":{"name":"h","arguments":null}}]}"#,
    ];
    for client in [Messages, Responses, OllamaChat] {
        let stream = chat_stream(&calls);
        let seen = received(client, &feed((client, Chat), true, stream.as_bytes(), &[]));
        let seen: Vec<_> = seen.calls.iter().map(|call| (&*call.name, &call.arguments)).collect();
        let [one, two, none] = [json!({"a": 1}), json!({"a": 2}), json!({})];
        assert_eq!(seen, [("f", &one), ("f", &two), ("g", &none), ("h", &none)], "{client:?}");
    }
}

#[test]
fn text_and_calls_that_are_whole_do_not_wait() {
    let call = |index: usize, name: &str, arguments: &str| {
        json!({"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]})
            .to_string()
    };
    for client in [Messages, Responses] {
        let terms = ReplyTerms { stream: true, ..ReplyTerms::default() };
        let mut converter = ResponseConverter::new(client, Chat, terms, context());
        let mut feed = |delta: &str| {
            let mut out = Vec::new();
            let event = format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
            converter.feed(event.as_bytes(), Duration::ZERO, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(
            feed(&call(0, "f", "{\"a")).contains("\\\"a"),
            "the first call is written as it comes"
        );
        assert_eq!(feed(&call(1, "g", "{\"later")), "", "the second one waits");
        assert_eq!(feed(r#"{"content":"word"}"#), "");
        assert!(feed(&call(0, "", "\":1}")).contains("later"), "the first one is whole");
        let rest = feed(&call(1, "", "\":2}"));
        assert!(rest.contains("word"), "{rest}");
        assert!(feed(r#"{"content":"more"}"#).contains("more"));
        assert!(feed(&call(2, "h", "{}")).contains("\"h\""));
    }
}

#[test]
fn text_behind_open_tool_calls_is_bounded() {
    use crate::{BadResponse, ResponseLimits};
    let mut context = context();
    context.limits = ResponseLimits { arguments: 4096, ..ResponseLimits::default() };
    let terms = ReplyTerms { stream: true, ..ReplyTerms::default() };
    let mut converter = ResponseConverter::new(Messages, Chat, terms, context);
    let open = r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{"}}]}"#;
    let pieces = [r#"{"content":"x"}"#, r#"{"reasoning":"y"}"#].repeat(100);
    let stream = chat_stream(&[&[open], &*pieces].concat());
    let result = converter.feed(stream.as_bytes(), Duration::ZERO, &mut Vec::new());
    assert!(matches!(result, Err(BadResponse::TooLarge { limit: 4096, .. })), "{result:?}");
}
