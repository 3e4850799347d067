//! Gathers the results of a turn's tool calls. Engines refuse calls that are not followed by all of
//! their results, and dialects whose results are text have a result's images in a message of the
//! user: with results in several messages, such a message would come between them.

use super::conversation::{Conversation, Message, Part, Role};

/// Puts all results between two messages of the assistant into one message, directly after the
/// calls. The user's own words follow in the same message.
pub(super) fn gather_results(conversation: &mut Conversation<'_>) {
    let mut messages = std::mem::take(&mut conversation.messages).into_iter().peekable();
    let mut gathered: Vec<Message<'_>> = Vec::with_capacity(messages.len());
    let is_assistant = |message: &Message<'_>| message.role == Role::Assistant;
    while messages.peek().is_some() {
        let mut has_calls = false;
        while let Some(message) = messages.next_if(is_assistant) {
            has_calls |= message.calls().next().is_some();
            gathered.push(message);
        }
        let run = std::iter::from_fn(|| messages.next_if(|message| !is_assistant(message)));
        // Without calls there is no place that results must have.
        if has_calls {
            gather_run(run.collect(), &mut gathered);
        } else {
            gathered.extend(run);
        }
    }
    conversation.messages = gathered;
}

/// Gathers the results of the messages that follow calls.
fn gather_run<'a>(run: Vec<Message<'a>>, gathered: &mut Vec<Message<'a>>) {
    let Some(last) = run.iter().rposition(|message| message.results().next().is_some()) else {
        gathered.extend(run);
        return;
    };
    let (mut results, mut own, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for (index, message) in run.into_iter().enumerate() {
        // The message after the last result takes the images, unless an earlier one does.
        let takes_images = own.is_empty() && rest.is_empty() && !message.parts.is_empty();
        if message.role == Role::System || (index > last && !takes_images) {
            rest.push(message);
            continue;
        }
        let is_result = |part: &Part<'_>| matches!(part, Part::Result(_));
        let (of_calls, others): (Vec<_>, Vec<_>) = message.parts.into_iter().partition(is_result);
        results.extend(of_calls);
        if rest.is_empty() {
            own.extend(others);
        } else if !others.is_empty() {
            // Behind the instructions that it came behind.
            rest.push(Message { role: Role::User, parts: others });
        }
    }
    let role = if own.is_empty() { Role::Tool } else { Role::User };
    results.extend(own);
    gathered.push(Message { role, parts: results });
    gathered.extend(rest);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::codecs::read_request;
    use penstock_api::Operation;

    /// Returns the messages of a chat after gathering: `c` is a message with a call, `r` a result,
    /// `i` an image of one; other letters are texts, capitals those of the system.
    fn gathered(messages: &str) -> String {
        let image = json!([{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]);
        let list: Vec<Value> = messages
            .chars()
            .map(|one| match one {
                'c' => json!({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}),
                'a' => json!({"role": "assistant", "content": "a"}),
                'r' => json!({"role": "tool", "tool_call_id": "1", "content": "r"}),
                'i' => json!({"role": "tool", "tool_call_id": "1", "content": image}),
                '-' => json!({"role": "user", "content": ""}),
                _ if one.is_uppercase() => json!({"role": "system", "content": one.to_string()}),
                _ => json!({"role": "user", "content": one.to_string()}),
            })
            .collect();
        let body = json!({"messages": list}).to_string();
        let mut conversation = read_request(Operation::Chat, body.as_bytes()).unwrap().unwrap();
        gather_results(&mut conversation);
        let text_of = |part: &Part<'_>| match part {
            Part::Text(text) => text.to_string(),
            Part::Image(_) | Part::Thinking { .. } => String::new(),
            Part::Call(_) => "c".to_owned(),
            Part::Result(result) => match result.parts.first() {
                Some(Part::Text(_)) => "r".to_owned(),
                _ => "i".to_owned(),
            },
        };
        let of = |message: &Message<'_>| message.parts.iter().map(text_of).collect::<String>();
        conversation.messages.iter().map(of).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn results_come_together_after_their_calls() {
        for (messages, expected) in [
            ("xcrr", "x c rr"),
            ("xcir", "x c ir"),
            ("xcirn", "x c irn"),
            ("xcrnrm", "x c rrn m"),
            ("xcnr", "x c rn"),
            ("xcrSr", "x c rr S"),
            ("xcrSn", "x c r S n"),
            ("xciSrn", "x c ir S n"),
            ("xcSnr", "x c r S n"),
            ("xcrSnr", "x c rr S n"),
            ("xcnSmr", "x c rn S m"),
            ("xcrnm", "x c rn m"),
            ("xcr-n", "x c r  n"),
            ("xccir", "x c c ir"),
            ("xcacirn", "x c a c irn"),
            ("xcrcir", "x c r c ir"),
        ] {
            assert_eq!(gathered(messages), expected, "{messages}");
        }
    }

    #[test]
    fn results_without_calls_and_texts_stay_where_they_are() {
        for messages in ["xrn", "xryi", "xarn", "xyS", "xcnSa", "S", "-"] {
            let expected: Vec<String> = messages.chars().map(|one| one.to_string()).collect();
            assert_eq!(gathered(messages), expected.join(" ").replace('-', ""), "{messages}");
        }
    }
}
