//! A captured decision beside its replay, as JSON and as text.

use serde_json::{Value, json};

use super::capture::Capture;
use super::dry_run::{candidate_lines, number, text};
use super::replay::Replayed;
use crate::routing::Router;

/// Replays a captured decision: `{"number", …, "recorded", "replayed", "candidates"}`, and
/// `"identical"`, or in a what-if `"moved"`. `turn` as in [`Router::replay`].
pub fn replay(capture: &Capture, router: &Router, turn: u64, is_what_if: bool) -> Value {
    let again = router.replay(capture, turn);
    let (operation, asked) = capture.asked();
    let mut report = json!({
        "number": capture.number,
        "request_id": capture.request_id,
        "attempt": capture.attempt,
        "operation": operation,
        "asked": asked,
        "model": capture.model,
        "next_probe": capture.decision.next_probe,
        "recorded": side(Some(&capture.decision.backend), capture.strategy(), capture.total()),
        "replayed": side(again.backend.as_deref(), router.strategy().name(), again.total),
        "candidates": candidates(capture, &again),
    });
    if let Some(fields) = report.as_object_mut() {
        let (key, value) = match is_what_if {
            true => ("moved", !again.goes_there(capture)),
            false => ("identical", again.is_identical(capture)),
        };
        fields.insert(key.to_owned(), value.into());
    }
    report
}

fn side(backend: Option<&str>, strategy: &str, total: Option<f64>) -> Value {
    let mut side = json!({ "backend": backend, "strategy": strategy });
    if let (Some(total), Some(fields)) = (total, side.as_object_mut()) {
        fields.insert("total".to_owned(), total.into());
    }
    side
}

fn candidates(capture: &Capture, again: &Replayed) -> Vec<Value> {
    let rejected = capture.rejected().map(|(backend, model, excluded, reason)| {
        json!({ "backend": backend, "model": model, "excluded": excluded, "reason": reason })
    });
    again.candidates.iter().map(|one| json!(one)).chain(rejected).collect()
}

/// Returns the text of a result of [`replay`], without a trailing newline.
pub fn render_replay(report: &Value) -> String {
    let [identical, moved] = ["identical", "moved"].map(|key| report.get(key)?.as_bool());
    let verdict = match (identical, moved) {
        (Some(true), _) => "identical",
        (Some(false), _) => "NOT identical",
        (None, Some(true)) => "another backend",
        (None, _) => "the same backend",
    };
    let picked = report
        .get("replayed")
        .map(|side| json!({ "backend": side.get("backend"), "model": report.get("model"), "next_probe": report.get("next_probe") }));
    let all = report.get("candidates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut lines = vec![format!(
        "decision    {}, {} with '{}', attempt {} of {}",
        number(report, "number"),
        text(report, "operation"),
        text(report, "asked"),
        number(report, "attempt"),
        text(report, "request_id"),
    )];
    lines.extend(candidate_lines(all, picked.as_ref()));
    lines.push(format!("recorded    {}", side_text(report, "recorded")));
    lines.push(format!("replayed    {}: {verdict}", side_text(report, "replayed")));
    lines.join("\n")
}

/// Returns a text like `b0 by weighted, total 0.830`.
fn side_text(report: &Value, key: &str) -> String {
    let side = report.get(key).unwrap_or(&Value::Null);
    let total = side.get("total").and_then(Value::as_f64);
    let total = total.map_or_else(String::new, |total| format!(", total {total:.3}"));
    let backend = side.get("backend").and_then(Value::as_str).unwrap_or("no backend");
    format!("{backend} by {}{total}", text(side, "strategy"))
}
