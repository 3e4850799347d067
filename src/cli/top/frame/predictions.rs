//! The predictions of latencies: a row per model and backend that has predicted any.

use serde::Deserialize;
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

/// A prediction in `/fleet`, as far as the table shows it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ShownPrediction {
    trusted: bool,
    error: Option<f64>,
    coverage: Option<f64>,
    backlog_ms: Option<f64>,
    step_ms: Option<f64>,
    prompt_token_us: Option<f64>,
    front_end_ms: Option<f64>,
    slots: Option<f64>,
}

/// Returns the table; empty if nothing is predicted.
pub(super) fn predictions(fleet: &Value) -> Vec<FrameLine> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let backends = fleet.get("backends").and_then(Value::as_array);
    for backend in backends.into_iter().flatten() {
        let models = backend.get("models").and_then(Value::as_array);
        for model in models.into_iter().flatten() {
            let prediction = model.get("prediction").map(Option::<ShownPrediction>::deserialize);
            if let Some(Ok(Some(prediction))) = prediction {
                rows.push(row(text_of(backend, "name"), text_of(model, "id"), &prediction));
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

fn row(backend: &str, model: &str, prediction: &ShownPrediction) -> Vec<Cell> {
    let trusted = match prediction.trusted {
        true => ("yes", Tone::Good),
        false => ("not yet", Tone::Warning),
    };
    let cells = [
        prediction.error.map_or_else(missing, show_share),
        prediction.coverage.map_or_else(missing, show_share),
        show_millis(prediction.backlog_ms),
        show_millis(prediction.step_ms),
        // Microseconds per token are milliseconds per thousand tokens.
        show_millis(prediction.prompt_token_us),
        show_millis(prediction.front_end_ms),
        prediction.slots.map_or_else(missing, |slots| format!("{slots:.0}")),
    ];
    let mut row = vec![
        (printable(backend), Tone::Plain),
        (printable(model), Tone::Plain),
        (trusted.0.to_owned(), trusted.1),
    ];
    row.extend(cells.map(|cell| (cell, Tone::Plain)));
    row
}

fn show_millis(millis: Option<f64>) -> String {
    show_latency(millis.map(|millis| millis / 1000.0))
}

fn missing() -> String {
    "-".to_owned()
}
