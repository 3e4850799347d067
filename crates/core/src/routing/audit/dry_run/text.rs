//! An explanation for people: the request's needs, every candidate, the winner or the error.

use serde_json::Value;

/// Returns the text of a result of [`super::explain`], without a trailing newline.
pub fn render_text(result: &Value) -> String {
    let mut lines = Vec::new();
    if let Some(requirements) = result.get("requirements") {
        lines.extend(requirement_lines(requirements));
    }
    if let Some(objectives) = result.get("objectives") {
        lines.push(format!("objective   {}", objectives_text(objectives)));
    }
    if let Some(shift) = result.get("context_shift") {
        lines.push(format!("shift       {}", shift_text(shift)));
    }
    if let Some(split) = result.get("split") {
        lines.push(format!("split       {}", split_text(split)));
    }
    if let Some(session) = result.get("session") {
        lines.push(format!("session     {}", session_text(session)));
    }
    if let Some(ensemble) = result.get("ensemble") {
        lines.extend(ensemble_lines(ensemble));
    }
    let decision = result.get("decision");
    let candidates = decision.unwrap_or(result).get("candidates").and_then(Value::as_array);
    if let Some(candidates) = candidates {
        lines.extend(candidate_lines(candidates, decision));
    }
    match decision {
        Some(decision) => {
            lines.push(format!("decision    {}", decision_text(decision)));
            let reason = decision.get("strategy_reason").and_then(Value::as_str);
            let strategy = text(decision, "strategy");
            lines.extend(reason.map(|reason| format!("strategy    {strategy}, because {reason}")));
        }
        None => lines.push(undecided_text(result)),
    }
    lines.join("\n")
}

fn ensemble_lines(ensemble: &Value) -> Vec<String> {
    let calls = ensemble.get("calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (model, backend) = (width(calls, "model"), width(calls, "backend"));
    let costs = |value: &Value| {
        let price = value.get("price").and_then(Value::as_f64);
        let price = price.map_or_else(String::new, |price| format!(", price {price:.6}"));
        let (input, output) = (number(value, "input_tokens"), number(value, "output_tokens"));
        format!("about {input} input and {output} output tokens{price}")
    };
    let lines = calls.iter().map(|call| {
        let end = match text(call, "error") {
            "" => costs(call),
            error => format!("refused: {error}"),
        };
        let (name, of, to) = (text(call, "call"), text(call, "model"), text(call, "backend"));
        format!("    {name:10}  {of:model$}  {to:backend$}  {end}")
    });
    let sum = format!("ensemble    {} calls, {}", calls.len(), costs(ensemble));
    std::iter::once(sum).chain(lines).collect()
}

/// Returns a text like `first token in 500 ms, 50 ms per token, priority 5`.
fn objectives_text(objectives: &Value) -> String {
    let millis = |key: &str| objectives.get(key).and_then(Value::as_f64);
    let parts = [
        millis("ttft_ms").map(|ms| format!("first token in {ms} ms")),
        millis("tpot_ms").map(|ms| format!("{ms} ms per token")),
        objectives.get("priority").map(|priority| format!("priority {priority}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn shift_text(shift: &Value) -> String {
    let (dropped, whole) =
        (number(shift, "dropped_messages"), number(shift, "whole_prompt_tokens"));
    format!("drops the {dropped} oldest messages of a prompt of about {whole} tokens")
}

fn split_text(split: &Value) -> String {
    let branches = split.get("branches").and_then(Value::as_array);
    let shares: Vec<String> = branches
        .into_iter()
        .flatten()
        .map(|branch| format!("{} {}", text(branch, "model"), number(branch, "weight")))
        .collect();
    format!("{} -> {} (of {})", text(split, "alias"), text(split, "model"), shares.join(", "))
}

fn session_text(session: &Value) -> String {
    match text(session, "home") {
        "" => "no home yet".to_owned(),
        home => format!("at home on {home}"),
    }
}

/// Returns the length of all that the engine reads, and of the conversation if that is less.
fn prompt_line(requirements: &Value) -> String {
    let whole = number(requirements, "prompt_tokens");
    let messages = number(requirements, "estimated_tokens");
    if whole == messages {
        return format!("prompt      about {whole} tokens");
    }
    format!("prompt      about {whole} tokens, {messages} of them in messages")
}

fn requirement_lines(requirements: &Value) -> [String; 3] {
    let needs: Vec<&str> = [
        ("needs_vision", "vision"),
        ("needs_tools", "tools"),
        ("needs_json_mode", "json_mode"),
        ("prefers_streaming", "(a stream, if possible)"),
    ]
    .into_iter()
    .filter(|(key, _)| is_true(requirements, key))
    .map(|(_, name)| name)
    .collect();
    let needs = if needs.is_empty() { "nothing special".to_owned() } else { needs.join(", ") };
    [
        format!("model       {}", text(requirements, "model")),
        prompt_line(requirements),
        format!("needs       {needs}"),
    ]
}

pub(in crate::routing::audit) fn candidate_lines(
    candidates: &[Value],
    decision: Option<&Value>,
) -> Vec<String> {
    if candidates.is_empty() {
        return vec!["candidates  none".to_owned()];
    }
    let (backend, model) = (width(candidates, "backend"), width(candidates, "model"));
    let is_probe = decision.is_some_and(|picked| is_true(picked, "next_probe"));
    let indent = backend + model + 8;
    let lines = candidates.iter().map(|candidate| {
        let is_picked = decision.is_some_and(|picked| {
            ["backend", "model"].iter().all(|key| picked.get(key) == candidate.get(key))
        });
        let predicted = match text(candidate, "predicted") {
            "" => String::new(),
            predicted => format!("\n{:indent$}{predicted}", ""),
        };
        format!(
            "  {} {:backend$}  {:model$}  {}{predicted}",
            if is_picked { '*' } else { ' ' },
            text(candidate, "backend"),
            text(candidate, "model"),
            verdict(candidate, is_picked, is_probe),
        )
    });
    std::iter::once("candidates".to_owned()).chain(lines).collect()
}

fn width(candidates: &[Value], key: &str) -> usize {
    candidates.iter().map(|one| text(one, key).chars().count()).max().unwrap_or(0)
}

/// Returns a text like `total 0.83 (prefix-affinity 0.50 with 10/20 blocks, queue-depth 1.00), `;
/// empty without scorers.
fn scores_text(candidate: &Value) -> String {
    let (Some(total), Some(scores)) = (
        candidate.get("total").and_then(Value::as_f64),
        candidate.get("scores").and_then(Value::as_object),
    ) else {
        return String::new();
    };
    let scores = scores.iter().map(|(name, score)| {
        let blocks = match name.as_str() {
            "prefix-affinity" => {
                let (matched, all) = ("matched_blocks", "prompt_blocks");
                format!(" with {}/{} blocks", number(candidate, matched), number(candidate, all))
            }
            _ => String::new(),
        };
        format!("{name} {:.2}{blocks}", score.as_f64().unwrap_or(0.0))
    });
    format!("total {total:.3} ({}), ", scores.collect::<Vec<_>>().join(", "))
}

/// Returns a text like `loadable (evicts idle), 1 of 2 slots, `; empty if there is no placement.
fn placement_text(candidate: &Value) -> String {
    let residency = text(candidate, "residency");
    if residency.is_empty() {
        return String::new();
    }
    let evicts = match text(candidate, "evicts") {
        "" | "nothing" => String::new(),
        what => format!(" (evicts {what})"),
    };
    let used = number(candidate, "model_in_flight");
    match candidate.get("slots") {
        Some(slots) => format!("{residency}{evicts}, {used} of {slots} slots, "),
        None => format!("{residency}{evicts}, {used} of the model, "),
    }
}

fn verdict(candidate: &Value, is_picked: bool, is_probe: bool) -> String {
    let (excluded, reason) = (text(candidate, "excluded"), text(candidate, "reason"));
    if is_picked && is_probe {
        return format!("{reason}; probed: first to leave cooldown");
    }
    if !excluded.is_empty() {
        return format!("rejected ({excluded}): {reason}");
    }
    let score = candidate.get("score").and_then(Value::as_f64);
    let score = score.map_or_else(String::new, |score| format!("score {score:.2}, "));
    let scores = scores_text(candidate);
    let placement = placement_text(candidate);
    let assumed = if is_true(candidate, "assumed") { ", capabilities assumed" } else { "" };
    let converted = match text(candidate, "converted_to") {
        "" => String::new(),
        target => format!(", converted to {target}"),
    };
    format!(
        "{score}{scores}{placement}priority {}, {} in flight, {:.1} ms{}{assumed}{converted}",
        number(candidate, "priority"),
        number(candidate, "in_flight"),
        candidate.get("latency_ms").and_then(Value::as_f64).unwrap_or(0.0),
        telemetry_text(candidate),
    )
}

/// Returns a text like `, telemetry fresh, 31 ms old`; empty if telemetry does not count.
fn telemetry_text(candidate: &Value) -> String {
    let standing = text(candidate, "telemetry");
    if standing.is_empty() {
        return String::new();
    }
    let age = candidate.get("telemetry_age_ms").and_then(Value::as_f64);
    let age = age.map_or_else(String::new, |age| format!(", {age:.0} ms old"));
    format!(", telemetry {standing}{age}")
}

fn decision_text(decision: &Value) -> String {
    let (model, upstream) = (text(decision, "model"), text(decision, "upstream_model"));
    let renamed =
        if model == upstream { String::new() } else { format!(", called '{upstream}' there") };
    let fallback = if is_true(decision, "fallback") { ", as a fallback" } else { "" };
    let assumed = if is_true(decision, "assumed") { ", on assumed capabilities" } else { "" };
    format!(
        "{} with '{model}'{renamed}, by {}{fallback}{assumed}",
        text(decision, "backend"),
        text(decision, "strategy"),
    )
}

/// Returns the reason why no backend gets the request, and whether it waits for one.
fn undecided_text(result: &Value) -> String {
    match result.get("queue_timeout_ms").and_then(Value::as_f64) {
        Some(timeout) => {
            let message = result.get("error").map_or("", |error| text(error, "message"));
            format!(
                "waits       in the queue, if that has room, for at most {} s: {message}",
                timeout / 1000.0
            )
        }
        None => format!("refused     {}", error_text(result)),
    }
}

fn error_text(result: &Value) -> String {
    let Some(error) = result.get("error") else { return result.to_string() };
    format!("{} {}: {}", number(error, "status"), text(error, "code"), text(error, "message"))
}

/// Returns a text of a report; empty if absent.
pub(in crate::routing::audit) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// Returns a number of a report; 0 if absent.
pub(in crate::routing::audit) fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn is_true(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}
