//! An explanation for people: what the request needs, every candidate, the winner or the reason.

use serde_json::Value;

/// The text of what [`super::explain`] returned, without a trailing newline.
pub fn render_text(result: &Value) -> String {
    let mut lines = Vec::new();
    if let Some(requirements) = result.get("requirements") {
        lines.extend(requirement_lines(requirements));
    }
    let decision = result.get("decision");
    let candidates = decision.unwrap_or(result).get("candidates").and_then(Value::as_array);
    if let Some(candidates) = candidates {
        lines.extend(candidate_lines(candidates, decision));
    }
    match decision {
        Some(decision) => lines.push(format!("decision    {}", decision_text(decision))),
        None => lines.push(format!("refused     {}", error_text(result))),
    }
    lines.join("\n")
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
        format!("prompt      about {} tokens", number(requirements, "estimated_tokens")),
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
    let width = |key| candidates.iter().map(|one| text(one, key).chars().count()).max();
    let (backend, model) = (width("backend").unwrap_or(0), width("model").unwrap_or(0));
    let is_probe = decision.is_some_and(|picked| is_true(picked, "next_probe"));
    let line = |candidate: &Value| {
        let same = |key| decision.is_some_and(|picked| picked.get(key) == candidate.get(key));
        let is_picked = same("backend") && same("model");
        format!(
            "  {} {:backend$}  {:model$}  {}",
            if is_picked { '*' } else { ' ' },
            text(candidate, "backend"),
            text(candidate, "model"),
            verdict(candidate, is_picked, is_probe),
        )
    };
    std::iter::once("candidates".to_owned()).chain(candidates.iter().map(line)).collect()
}

/// `total 0.83 (prefix-affinity 0.50 with 10/20 blocks, queue-depth 1.00), `; empty without scorers.
fn scores_text(candidate: &Value) -> String {
    let (Some(total), Some(scores)) = (
        candidate.get("total").and_then(Value::as_f64),
        candidate.get("scores").and_then(Value::as_object),
    ) else {
        return String::new();
    };
    let one = |(name, score): (&String, &Value)| {
        let blocks = match name.as_str() {
            "prefix-affinity" => {
                let (matched, all) = ("matched_blocks", "prompt_blocks");
                format!(" with {}/{} blocks", number(candidate, matched), number(candidate, all))
            }
            _ => String::new(),
        };
        format!("{name} {:.2}{blocks}", score.as_f64().unwrap_or_default())
    };
    let scores: Vec<String> = scores.iter().map(one).collect();
    format!("total {total:.3} ({}), ", scores.join(", "))
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
    let assumed = if is_true(candidate, "assumed") { ", capabilities assumed" } else { "" };
    format!(
        "{score}{scores}priority {}, {} in flight, {:.1} ms{}{assumed}",
        number(candidate, "priority"),
        number(candidate, "in_flight"),
        candidate.get("latency_ms").and_then(Value::as_f64).unwrap_or_default(),
        telemetry_text(candidate),
    )
}

/// `, telemetry fresh, 31 ms old`; empty where telemetry does not count.
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

fn error_text(result: &Value) -> String {
    let Some(error) = result.get("error") else { return result.to_string() };
    format!("{} {}: {}", number(error, "status"), text(error, "code"), text(error, "message"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or_default()
}

fn is_true(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or_default()
}
