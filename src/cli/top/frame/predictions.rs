//! The predictions of latencies: a row per model and backend that has predicted any.

use serde_json::Value;

use super::table::{Cell, Columns};
use super::{FrameLine, Tone, printable, show_latency, show_share, text_of};

/// The maximum number of rows.
const MAX_ROWS: usize = 30;
const COLUMNS: Columns<'_> = Columns {
    heads: &[
        "PREDICTIONS",
        "MODEL",
        "TRUSTED",
        "ERROR",
        "BELOW P90",
        "BACKLOG",
        "STEP",
        "1K PROMPT",
        "FRONT END",
        "SLOTS",
    ],
    numbers: 3..=9,
    optional: 0..0,
};

/// Returns the table; empty if nothing is predicted.
pub(super) fn predictions(fleet: &Value) -> Vec<FrameLine> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let backends = fleet.get("backends").and_then(Value::as_array);
    for backend in backends.into_iter().flatten() {
        let models = backend.get("models").and_then(Value::as_array);
        for model in models.into_iter().flatten() {
            if let Some(prediction) = model.get("prediction").filter(|one| one.is_object()) {
                rows.push(row(text_of(backend, "name"), text_of(model, "id"), prediction));
            }
        }
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let more = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    let mut lines = vec![FrameLine::default()];
    lines.extend(COLUMNS.lines(&rows));
    if more > 0 {
        let mut line = FrameLine::default();
        line.add(format!("and {more} more in /fleet"), Tone::Dim);
        lines.push(line);
    }
    lines
}

fn row(backend: &str, model: &str, prediction: &Value) -> Vec<Cell> {
    let number = |key: &str| prediction.get(key).and_then(Value::as_f64);
    let millis = |key: &str| show_latency(number(key).map(|millis| millis / 1000.0));
    let share = |key: &str| number(key).map_or_else(|| "-".to_owned(), show_share);
    let is_trusted = prediction.get("trusted").and_then(Value::as_bool).unwrap_or(false);
    let trusted = if is_trusted { ("yes", Tone::Good) } else { ("not yet", Tone::Warning) };
    // Microseconds per token are milliseconds per thousand tokens.
    let prompt = show_latency(number("prompt_token_us").map(|micros| micros / 1000.0));
    let cells = [
        share("error"),
        share("coverage"),
        millis("backlog_ms"),
        millis("step_ms"),
        prompt,
        millis("front_end_ms"),
        number("slots").map_or_else(|| "-".to_owned(), |slots| format!("{slots:.0}")),
    ];
    let mut row = vec![
        (printable(backend), Tone::Plain),
        (printable(model), Tone::Plain),
        (trusted.0.to_owned(), trusted.1),
    ];
    row.extend(cells.map(|cell| (cell, Tone::Plain)));
    row
}
