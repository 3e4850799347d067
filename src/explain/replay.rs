//! A captured decision beside what it is when it is made anew.

use serde_json::{Value, json};

use super::text::candidate_lines;
use crate::routing::{Capture, Replayed, Router};

/// Decides anew by a captured decision: `{"number", …, "recorded", "replayed", "candidates"}`, and
/// `"identical"`, or in a what-if `"moved"`.
pub fn replay(capture: &Capture, router: &Router, (turn, is_what_if): (u64, bool)) -> Value {
    let again = router.replay(capture, turn);
    let (operation, asked) = capture.asked();
    let mut told = json!({
        "number": capture.number,
        "request_id": capture.request_id,
        "attempt": capture.attempt,
        "operation": operation,
        "asked": asked,
        "model": capture.model,
        "recorded": side(Some(&capture.decision.backend), capture.strategy(), capture.total()),
        "replayed": side(again.backend.as_deref(), router.strategy().name(), again.total),
        "candidates": candidates(capture, &again),
    });
    if let Some(fields) = told.as_object_mut() {
        let (key, value) = match is_what_if {
            true => ("moved", !again.goes_there(capture)),
            false => ("identical", again.is_identical(capture)),
        };
        fields.insert(key.to_owned(), value.into());
    }
    told
}

fn side(backend: Option<&str>, strategy: &str, total: Option<f64>) -> Value {
    let mut side = json!({ "backend": backend, "strategy": strategy });
    if let (Some(total), Some(fields)) = (total, side.as_object_mut()) {
        fields.insert("total".to_owned(), total.into());
    }
    side
}

fn candidates(capture: &Capture, again: &Replayed) -> Vec<Value> {
    let left_out = capture.left_out().map(|(backend, model, excluded, reason)| {
        json!({ "backend": backend, "model": model, "excluded": excluded, "reason": reason })
    });
    again.candidates.iter().map(|one| json!(one)).chain(left_out).collect()
}

/// The text of what [`replay`] returned, without a trailing newline.
pub fn render_replay(told: &Value) -> String {
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let number = |key| told.get(key).and_then(Value::as_u64).unwrap_or_default();
    let side = |key| {
        let side = told.get(key).unwrap_or(&Value::Null);
        let total = side.get("total").and_then(Value::as_f64);
        let total = total.map_or_else(String::new, |total| format!(", total {total:.3}"));
        let backend = side.get("backend").and_then(Value::as_str).unwrap_or("nobody");
        format!("{backend} by {}{total}", text(side, "strategy"))
    };
    let is = |key| told.get(key).and_then(Value::as_bool);
    let verdict = match (is("identical"), is("moved")) {
        (Some(true), _) => "identical",
        (Some(false), _) => "NOT identical",
        (None, Some(true)) => "elsewhere",
        (None, _) => "the same backend",
    };
    let picked = told
        .get("replayed")
        .map(|side| json!({ "backend": side.get("backend"), "model": told.get("model") }));
    let all = told.get("candidates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut lines = vec![format!(
        "decision    {}, {} with '{}', attempt {} of {}",
        number("number"),
        text(told, "operation"),
        text(told, "asked"),
        number("attempt"),
        text(told, "request_id"),
    )];
    lines.extend(candidate_lines(all, picked.as_ref()));
    lines.push(format!("recorded    {}", side("recorded")));
    lines.push(format!("replayed    {}: {verdict}", side("replayed")));
    lines.join("\n")
}
