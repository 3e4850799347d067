//! The cost of a conversion grows with the size of a body or a stream, not with its square, for any
//! content: a body of four times the size may cost at most eight times as much. Time is the
//! thread's CPU time, so a busy machine does not matter.

use std::fmt::Write as _;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use penstock_api::Engine;
use penstock_api::Operation::{self, Chat, Messages, OllamaChat, Responses};

use super::context;
use crate::{ReplyTerms, RequestTerms, ResponseConverter, ShiftConversation, convert_request};

/// The size of the smaller body.
const SIZE: usize = 96 * 1024;
/// The ratio of the two sizes, and the maximum ratio of their costs.
const FACTOR: usize = 4;
const MAX_RATIO: f64 = 8.0;
/// The number of tries, of which the lowest ratio counts: caches and allocators vary.
const TRIES: usize = 4;

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    Duration::new(time.tv_sec().try_into().unwrap(), time.tv_nsec().try_into().unwrap())
}

fn time_of(work: &mut impl FnMut(usize), size: usize) -> f64 {
    let before = cpu_time();
    work(size);
    (cpu_time() - before).as_secs_f64()
}

fn check(name: &str, mut work: impl FnMut(usize)) {
    work(1024);
    let ratios = (0..TRIES).map(|_| {
        let small = time_of(&mut work, SIZE);
        time_of(&mut work, SIZE * FACTOR) / small
    });
    let mut least = f64::INFINITY;
    for ratio in ratios {
        least = least.min(ratio);
        if least < MAX_RATIO {
            return;
        }
    }
    panic!("{name}: {FACTOR} times the size cost {least:.1} times as much");
}

/// Returns one JSON piece for every number up to `size` bytes, with `#` replaced by the number,
/// separated by commas.
fn list(piece: &str, size: usize) -> String {
    let mut out = String::with_capacity(size + piece.len());
    for number in 0.. {
        if out.len() >= size {
            break;
        }
        if number > 0 {
            out.push(',');
        }
        out += &piece.replace('#', &number.to_string());
    }
    out
}

/// The shapes of requests of an operation: `@` is a list of this piece; if there are two lists,
/// each takes half of the body.
const BODIES: &[(Operation, &str, &[&str])] = &[
    (Chat, r#"{"messages":[@]}"#, &[r#"{"role":"user","content":"x"}"#]),
    (
        Chat,
        r#"{"messages":[@]}"#,
        &[r#"{"role":"assistant","content":"x"},{"role":"system","content":"x"}"#],
    ),
    (
        Chat,
        r#"{"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[@]},@]}"#,
        &[
            r#"{"id":"c#","type":"function","function":{"name":"f","arguments":"{}"}}"#,
            r#"{"role":"tool","tool_call_id":"c#","content":"r"}"#,
        ],
    ),
    (Chat, r#"{"messages":[{"role":"user","content":[@]}]}"#, &[r#"{"type":"text","text":"x"}"#]),
    (
        Chat,
        r#"{"messages":[@]}"#,
        &[
            r#"{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"c","content":"r"}"#,
        ],
    ),
    (
        Chat,
        r#"{"messages":[{"role":"user","content":"x"}],"tools":[@],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[@]}}}"#,
        &[
            r#"{"type":"function","function":{"name":"f#"}}"#,
            r#"{"type":"function","function":{"name":"f#"}}"#,
        ],
    ),
    (
        Chat,
        r#"{"messages":[{"role":"user","content":"x"}],@,"stop":[@]}"#,
        &[r#""field#":[[[[1]]]]"#, r#""s#""#],
    ),
    (
        Messages,
        r#"{"max_tokens":5,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[@]},{"role":"user","content":[@]}]}"#,
        &[
            r#"{"type":"tool_use","id":"c#","name":"f","input":{}}"#,
            r#"{"type":"tool_result","tool_use_id":"c#","content":"r"}"#,
        ],
    ),
    (Messages, r#"{"max_tokens":5,"messages":[@]}"#, &[r#"{"role":"user","content":"x"}"#]),
    (
        Messages,
        r#"{"max_tokens":5,"messages":[@]}"#,
        &[
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"c#","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c0","content":"r"}]}"#,
        ],
    ),
    (
        OllamaChat,
        r#"{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"","tool_calls":[@]},@]}"#,
        &[
            r#"{"function":{"name":"f#","arguments":{}}}"#,
            r#"{"role":"tool","tool_name":"f#","content":"r"}"#,
        ],
    ),
    (
        OllamaChat,
        r#"{"messages":[{"role":"assistant","content":"","tool_calls":[@]},@,{"role":"user","content":"x"}]}"#,
        &[
            r#"{"function":{"name":"f","arguments":{}}}"#,
            r#"{"role":"tool","tool_name":"g","content":"r"}"#,
        ],
    ),
    (
        OllamaChat,
        r#"{"messages":[{"role":"user","content":"x"}],"options":{@},@}"#,
        &[r#""o#":1"#, r#""e#":1"#],
    ),
    (Responses, r#"{"input":[@]}"#, &[r#"{"role":"user","content":"x"}"#]),
    (
        Responses,
        r#"{"input":[@,@]}"#,
        &[
            r#"{"type":"function_call","call_id":"c#","name":"f","arguments":"{}"}"#,
            r#"{"type":"function_call_output","call_id":"c#","output":"r"}"#,
        ],
    ),
    (
        Responses,
        r#"{"input":"x","tools":[{"type":"namespace","name":"n","tools":[@]}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[@]}}"#,
        &[r#"{"type":"custom","name":"f#"}"#, r#"{"type":"custom","name":"f#","namespace":"n"}"#],
    ),
];

fn body(shape: &str, pieces: &[&str], size: usize) -> String {
    let mut out = String::from("{\"model\":\"m\",");
    let mut pieces = pieces.iter();
    let share = size / pieces.len();
    for (number, part) in shape.trim_start_matches('{').split('@').enumerate() {
        if number > 0 {
            out += &list(pieces.next().unwrap(), share);
        }
        out += part;
    }
    out
}

#[test]
fn requests_cost_in_proportion_to_their_size() {
    let terms = RequestTerms { model: "m", engine: Engine::LlamaCpp, num_ctx: None };
    for (from, shape, pieces) in BODIES {
        for to in [Chat, Messages, OllamaChat] {
            if to == *from {
                continue;
            }
            check(&format!("{from:?} to {to:?}, {shape}"), |size| {
                let body = body(shape, pieces, size);
                let converted = convert_request(*from, to, body.as_bytes(), &terms);
                converted
                    .unwrap_or_else(|error| panic!("{error}: {}", &body[..300.min(body.len())]));
            });
        }
    }
}

#[test]
fn context_shifts_cost_in_proportion_to_their_size() {
    for (operation, shape, pieces) in BODIES {
        check(&format!("shift of {operation:?}, {shape}"), |size| {
            let body = body(shape, pieces, size);
            let Some(conversation) = ShiftConversation::read(*operation, body.as_bytes()) else {
                return;
            };
            for target in [0, conversation.tokens() / 2] {
                if let Some(shift) = conversation.shift(target, false) {
                    assert!(shift.apply(body.as_bytes()).len() < body.len());
                }
            }
        });
    }
}

/// Streams of a chat of `size` bytes: a beginning, and a delta that is repeated.
const STREAMS: &[(&[&str], &str)] = &[
    (&[], r#"{"content":"x"}"#),
    (&[], r#"{"content":"x","reasoning":"y"}"#),
    (
        &[r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}"#],
        r#"{"content":"x","reasoning":"y"}"#,
    ),
    (
        &[r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}"#],
        r#"{"content":"x","tool_calls":[{"index":%,"id":"c%","function":{"name":"f","arguments":" "}}]}"#,
    ),
    (&[], r#"{"tool_calls":[{"index":%,"id":"c%","function":{"name":"f","arguments":"{}"}}]}"#),
    (&[], r#"{"tool_calls":[{"index":0,"id":"c%","function":{"name":"f","arguments":"\ud83d"}}]}"#),
    (
        &[],
        r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"\ud83d"}]},{"type":"text","text":"\ude00"}]}"#,
    ),
];

#[test]
fn streams_cost_in_proportion_to_their_size() {
    for (start, delta) in STREAMS {
        for client in [Messages, Responses, OllamaChat] {
            check(&format!("stream for {client:?}, {delta}"), |size| {
                let terms = ReplyTerms { stream: true, ..ReplyTerms::default() };
                let mut converter = ResponseConverter::new(client, Chat, terms, context());
                let mut event = String::new();
                let mut sent = 0;
                for number in 0_usize.. {
                    event.clear();
                    let one = start.get(number).unwrap_or(delta);
                    // The number of calls is bounded; the number of their pieces is not.
                    let one = one.replace('%', &(number % 999).to_string());
                    write!(event, "data: {{\"choices\":[{{\"delta\":{one}}}]}}\n\n").unwrap();
                    sent += event.len();
                    let mut out = Vec::new();
                    let fed = converter.feed(event.as_bytes(), Duration::ZERO, &mut out);
                    if sent > 2 * size || fed.is_err() {
                        break;
                    }
                }
                let _ended = converter.finish(Duration::ZERO, &mut Vec::new());
            });
        }
    }
}
