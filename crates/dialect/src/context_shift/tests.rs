use penstock_api::Operation::{self, Chat, Messages, OllamaChat, Responses};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[test]
fn room_leaves_a_quarter_or_what_the_response_needs() {
    assert_eq!((room_in(512, 0), room_in(512, 300), room_in(512, 600)), (384, 212, 0));
}

/// A turn of a conversation.
#[derive(Debug, Clone)]
enum Turn {
    System,
    User,
    Assistant,
    /// Calls of this many tools, and their results.
    Tools(usize),
}

fn turns() -> impl Strategy<Value = Vec<(Turn, usize)>> {
    let turn = prop_oneof![
        1 => Just(Turn::System),
        3 => Just(Turn::User),
        3 => Just(Turn::Assistant),
        2 => (1..3_usize).prop_map(Turn::Tools),
    ];
    vec((turn, 1..400_usize), 0..12)
}

/// Returns the messages of a conversation in the form of a dialect. Each text occurs once.
fn messages(operation: Operation, turns: &[(Turn, usize)]) -> Vec<Value> {
    let mut list = Vec::new();
    for (index, (turn, length)) in turns.iter().enumerate() {
        let text = format!("{index} é\"{}", "wo ".repeat(*length));
        match turn {
            Turn::System if operation == Messages => {}
            Turn::System => list.push(json!({"role": "system", "content": text})),
            Turn::User => list.push(json!({"role": "user", "content": text})),
            Turn::Assistant => list.push(json!({"role": "assistant", "content": text})),
            Turn::Tools(count) => tools(operation, index, *count, &text, &mut list),
        }
    }
    list
}

fn tools(operation: Operation, turn: usize, count: usize, text: &str, list: &mut Vec<Value>) {
    let ids: Vec<String> = (0..count).map(|call| format!("call-{turn}-{call}")).collect();
    match operation {
        Messages => {
            let calls = ids
                .iter()
                .map(|id| json!({"type": "tool_use", "id": id, "name": "f", "input": {}}));
            list.push(json!({"role": "assistant", "content": calls.collect::<Vec<_>>()}));
            let results = ids
                .iter()
                .map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": text}));
            list.push(json!({"role": "user", "content": results.collect::<Vec<_>>()}));
        }
        Responses => {
            list.push(json!({"type": "reasoning", "id": format!("r{turn}"), "summary": []}));
            list.extend(
                ids.iter().map(|id| json!({"type": "function_call", "call_id": id, "name": "f"})),
            );
            list.extend(
                ids.iter().map(
                    |id| json!({"type": "function_call_output", "call_id": id, "output": text}),
                ),
            );
        }
        _ => {
            let calls = ids
                .iter()
                .map(|id| json!({"id": id, "type": "function", "function": {"name": "f"}}));
            list.push(json!({"role": "assistant", "content": null, "tool_calls": calls.collect::<Vec<_>>()}));
            list.extend(ids.iter().map(|id| match operation {
                OllamaChat => json!({"role": "tool", "tool_name": "f", "content": text}),
                _ => json!({"role": "tool", "tool_call_id": id, "content": text}),
            }));
        }
    }
}

fn field(operation: Operation) -> &'static str {
    if operation == Responses { "input" } else { "messages" }
}

fn body(operation: Operation, list: &[Value], pretty: bool) -> Vec<u8> {
    let body = json!({"model": "m", "tools": [{"x": 1}], "tool_choice": "auto", field(operation): list, "stream": true});
    if pretty {
        serde_json::to_vec_pretty(&body).unwrap()
    } else {
        serde_json::to_vec(&body).unwrap()
    }
}

fn list_of(operation: Operation, body: &[u8]) -> Vec<Value> {
    let read: Value = serde_json::from_slice(body).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(body));
    });
    read[field(operation)].as_array().unwrap().clone()
}

fn is_words(message: &Value) -> bool {
    message["role"] == "user" && message["content"].is_string()
}

/// Returns the ids of the tool calls, and those of the calls with results.
fn calls_and_results(list: &[Value]) -> (Vec<String>, Vec<String>) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for message in list {
        let blocks = message["content"].as_array().into_iter().flatten();
        for block in blocks.chain(message["tool_calls"].as_array().into_iter().flatten()) {
            calls.extend(text(&block["id"]));
            results.extend(text(&block["tool_use_id"]));
        }
        results.extend(text(&message["tool_call_id"]));
        let ids = if message["type"] == "function_call_output" { &mut results } else { &mut calls };
        ids.extend(text(&message["call_id"]));
    }
    (calls, results)
}

proptest! {
    #[test]
    fn shifted_conversations_hold_together(
        turns in turns(),
        operation in prop_oneof![Just(Chat), Just(Messages), Just(OllamaChat), Just(Responses)],
        target in 0..2000_u64,
        pretty: bool,
        without_tools: bool,
    ) {
        let list = messages(operation, &turns);
        let before = body(operation, &list, pretty);
        let conversation = ShiftConversation::read(operation, &before).unwrap();
        let shift = conversation.shift(target, without_tools);
        prop_assert_eq!(&shift, &conversation.shift(target, without_tools), "deterministic");
        let Some(shift) = shift else { return Ok(()) };
        let after = shift.apply(&before);
        let kept = list_of(operation, &after);
        prop_assert_eq!(list.len() - kept.len(), shift.dropped() as usize);
        // Remaining messages keep their content and order.
        let mut rest = list.iter();
        prop_assert!(kept.iter().all(|message| rest.any(|other| other == message)), "a subsequence");
        for message in &kept {
            let start = message.to_string();
            if !pretty {
                let text = String::from_utf8_lossy(&before).into_owned();
                prop_assert!(text.contains(&start), "bytes are kept");
            }
        }
        let systems = |list: &[Value]| list.iter().filter(|one| one["role"] == "system").count();
        prop_assert_eq!(systems(&list), systems(&kept), "instructions stay");
        prop_assert_eq!(list.last(), kept.last(), "the last message stays");
        let last_user = list.iter().rfind(|message| is_words(message));
        prop_assert_eq!(last_user, kept.iter().rfind(|message| is_words(message)));
        let (calls, results) = calls_and_results(&kept);
        if operation != OllamaChat {
            prop_assert_eq!(calls, results, "calls and results stay and go together");
        }
        let read: Value = serde_json::from_slice(&after).unwrap();
        prop_assert_eq!(read.get("tools").is_none() && read.get("tool_choice").is_none(), without_tools);
        prop_assert_eq!(&read["stream"], &json!(true));
        if shift.dropped() > 0 && last_user.is_some() {
            let first = kept.iter().find(|message| message["role"] != "system").unwrap();
            prop_assert!(is_words(first), "the first message is one of the user: {first}");
        }
        let again = ShiftConversation::read(operation, &after).unwrap();
        prop_assert_eq!(again.shift(target, without_tools), None, "idempotent");
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..200), text in "\\PC{0,100}") {
        for operation in [Chat, Messages, OllamaChat, Responses] {
            let _ = ShiftConversation::read(operation, &bytes).map(|read| read.shift(0, true));
            let body = format!("{{\"messages\":[{text}],\"input\":[{{\"role\":\"user\",\"content\":{text:?}}}]}}");
            let read = ShiftConversation::read(operation, body.as_bytes());
            let _ = read.map(|read| read.shift(0, true));
        }
        let _ = read_refusal(&bytes);
    }
}

#[test]
fn no_more_is_dropped_than_the_target_needs() {
    let turns: Vec<_> = (0..40).map(|_| (Turn::User, 100)).collect();
    let before = body(Chat, &messages(Chat, &turns), false);
    let conversation = ShiftConversation::read(Chat, &before).unwrap();
    let all = conversation.tokens();
    let shift = conversation.shift(all / 2, false).unwrap();
    assert!(
        (20..=21).contains(&shift.dropped()),
        "half the tokens are half the messages, beside the tools"
    );
    assert_eq!(conversation.shift(all, false), None);
}

#[test]
fn long_agent_loops_lose_their_oldest_rounds() {
    let mut turns = vec![(Turn::System, 5), (Turn::User, 5)];
    turns.extend((0..10).map(|_| (Turn::Tools(2), 100)));
    for operation in [Chat, Messages, OllamaChat, Responses] {
        let list = messages(operation, &turns);
        let before = body(operation, &list, true);
        let conversation = ShiftConversation::read(operation, &before).unwrap();
        let shift = conversation.shift(conversation.tokens() / 2, false).unwrap();
        let kept = list_of(operation, &shift.apply(&before));
        let first = kept.iter().find(|message| message["role"] != "system").unwrap();
        assert!(is_words(first), "{operation:?}: the task stays");
        assert!(kept.len() > 4 && kept.len() < list.len(), "{operation:?}: {}", kept.len());
    }
}

#[test]
fn encoded_files_count_as_files() {
    let image = format!("data:image/png;base64,{}", "A".repeat(400_000));
    let list = [
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}),
        json!({"role": "user", "content": "and now"}),
    ];
    let conversation = ShiftConversation::read(Chat, &body(Chat, &list, false)).unwrap().tokens();
    assert!((700..900).contains(&conversation), "{conversation}");
}

#[test]
fn requests_that_forbid_it_are_not_shortened() {
    for (operation, member) in [
        (OllamaChat, r#""truncate":false"#),
        (OllamaChat, r#""shift":false"#),
        (Responses, r#""truncation":"disabled""#),
    ] {
        let item = r#"{"role":"user","content":"x"}"#;
        let list = field(operation);
        let allowed = format!(r#"{{"{list}":[{item},{item}]}}"#);
        assert!(ShiftConversation::read(operation, allowed.as_bytes()).is_some());
        let forbidden = format!(r#"{{{member},"{list}":[{item},{item}]}}"#);
        assert!(ShiftConversation::read(operation, forbidden.as_bytes()).is_none(), "{member}");
    }
    assert!(ShiftConversation::read(Operation::Embeddings, b"{\"input\":[]}").is_none());
}

/// A strategy for turns: a user's words, then tool calls or words of the model, all of similar
/// size.
fn agent_turns() -> impl Strategy<Value = Vec<(Turn, usize)>> {
    let after = prop_oneof![Just(Turn::Assistant), Just(Turn::Tools(1))];
    let rest = vec((after, 20..60_usize), 0..30);
    let turn =
        (20..60_usize, rest).prop_map(|(length, rest)| [vec![(Turn::User, length)], rest].concat());
    vec(turn, 1..8).prop_map(|turns| turns.concat())
}

proptest! {
    #[test]
    fn three_quarters_of_the_room_stay_in_use(
        turns in agent_turns(),
        // In OpenAI's responses, successive words of the model are one turn, of any size.
        operation in prop_oneof![Just(Chat), Just(Messages), Just(OllamaChat)],
        share in 2..10_u64,
    ) {
        let list = messages(operation, &turns);
        let before = body(operation, &list, false);
        let conversation = ShiftConversation::read(operation, &before).unwrap();
        let target = conversation.tokens() * share / 10;
        let Some(shift) = conversation.shift(target, false) else { return Ok(()) };
        let kept = ShiftConversation::read(operation, &shift.apply(&before)).unwrap();
        // A unit, a call and its result, may be larger than a quarter by itself.
        let largest = 2 * 60 * 4;
        if target / 4 > largest {
            prop_assert!(kept.tokens() >= target * 3 / 4, "{} of {target}", kept.tokens());
        }
    }
}

#[test]
fn long_turn_loses_its_oldest_rounds_before_its_words() {
    let mut turns = vec![(Turn::User, 30)];
    turns.extend((0..40).map(|_| (Turn::Tools(1), 60)));
    turns.extend([(Turn::User, 5), (Turn::Assistant, 5)]);
    for operation in [Chat, Messages, OllamaChat, Responses] {
        let list = messages(operation, &turns);
        let before = body(operation, &list, false);
        let conversation = ShiftConversation::read(operation, &before).unwrap();
        let target = conversation.tokens() * 3 / 4;
        let after = conversation.shift(target, false).unwrap().apply(&before);
        assert_eq!(list_of(operation, &after)[0], list[0], "{operation:?}: the task stays");
        let kept = ShiftConversation::read(operation, &after).unwrap().tokens();
        assert!(kept >= target * 3 / 4, "{operation:?}: {kept} of {target}");
    }
}
