//! One frame of the view: summary lines, and a row per backend.

mod predictions;
mod table;

use penstock_api::units::ByteSize;
use serde_json::Value;

use super::figures::TopFigures;
use table::{Cell, Columns};

/// The style of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// The maximum number of columns of a line.
    pub(super) width: usize,
    pub(super) has_colors: bool,
}

/// The meaning of a text, shown as a color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tone {
    Plain,
    Dim,
    Good,
    Warning,
    Bad,
    Title,
}

impl Tone {
    /// Returns the "select graphic rendition" parameter of the tone.
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
            Self::Title => "1",
        }
    }
}

/// A line of pieces, each with its tone.
#[derive(Default)]
struct FrameLine(Vec<(String, Tone)>);

impl FrameLine {
    fn add(&mut self, text: impl Into<String>, tone: Tone) {
        self.0.push((text.into(), tone));
    }

    /// A name in grey and its value.
    fn fact(&mut self, name: &str, value: impl Into<String>, tone: Tone) {
        self.add(format!("{name} "), Tone::Dim);
        self.add(value, tone);
        self.add("   ", Tone::Plain);
    }

    fn render(&self, style: Style) -> String {
        let mut out = String::new();
        let mut left = style.width;
        for (text, tone) in &self.0 {
            // Cut by characters before colours are added: their codes take no room on the screen.
            let fits: String = text.chars().take(left).collect();
            left -= fits.chars().count();
            if style.has_colors && *tone != Tone::Plain && !fits.is_empty() {
                out.push_str(&format!("\u{1b}[{}m{fits}\u{1b}[0m", tone.code()));
            } else {
                out.push_str(&fits);
            }
        }
        out.trim_end().to_owned()
    }
}

/// The content of a frame, except its figures.
pub(super) struct Scene<'a> {
    pub(super) authority: &'a str,
    pub(super) version: &'a str,
    pub(super) fleet: &'a Value,
    /// Seconds since the start of the process.
    pub(super) up: f64,
}

/// Draws a frame; lines have no line breaks.
pub(super) fn draw(scene: &Scene<'_>, figures: &TopFigures<'_>, style: Style) -> Vec<String> {
    let mut lines = vec![title(scene), requests(figures), latencies(figures)];
    lines.extend(show_shadow(figures));
    lines.push(FrameLine::default());
    let rows: Vec<Vec<Cell>> = scene
        .fleet
        .get("backends")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|backend| row(backend, figures))
        .collect();
    lines.extend(BACKENDS.lines(&rows));
    lines.extend(predictions::predictions(scene.fleet));
    let errors = figures.errors();
    if !errors.is_empty() {
        lines.push(FrameLine::default());
        let mut line = FrameLine::default();
        line.add("errors/s  ", Tone::Dim);
        // A line has no room for all codes.
        for (code, rate) in errors.iter().take(6) {
            line.fact(code, show_rate(*rate), Tone::Warning);
        }
        lines.push(line);
    }
    lines.iter().map(|line| line.render(style)).collect()
}

fn title(scene: &Scene<'_>) -> FrameLine {
    let mut line = FrameLine::default();
    line.add(format!("penstock {}", scene.version), Tone::Title);
    line.add(format!("  {}", scene.authority), Tone::Plain);
    line.add(format!("  up {}", show_time(scene.up)), Tone::Dim);
    line
}

fn requests(figures: &TopFigures<'_>) -> FrameLine {
    let mut line = FrameLine::default();
    let all = figures.requests();
    line.fact("requests/s", show_rate(all), Tone::Title);
    for (outcome, tone) in [
        ("ok", Tone::Good),
        ("client", Tone::Plain),
        ("busy", Tone::Warning),
        ("fault", Tone::Bad),
        ("cancel", Tone::Plain),
    ] {
        let rate = figures.requests_with(outcome);
        let share = if all > 0.0 { format!("{:.1} %", rate / all * 100.0) } else { "-".to_owned() };
        line.fact(outcome, share, if rate > 0.0 { tone } else { Tone::Dim });
    }
    line.fact("retries/s", show_rate(figures.rate("penstock_retries_total", &[])), Tone::Plain);
    line
}

fn latencies(figures: &TopFigures<'_>) -> FrameLine {
    let mut line = FrameLine::default();
    line.fact("ttft p50", show_latency(figures.first_token(0.5, None)), Tone::Title);
    line.fact("p95", show_latency(figures.first_token(0.95, None)), Tone::Title);
    line.fact("tokens/s", show_rate(figures.all_tokens()), Tone::Title);
    line.fact("in flight", figures.now("penstock_in_flight").to_string(), Tone::Title);
    if figures.now("penstock_max_queue_requests") > 0.0 {
        let waiting = figures.now("penstock_queue_requests");
        let tone = if waiting > 0.0 { Tone::Warning } else { Tone::Plain };
        line.fact("queue", waiting.to_string(), tone);
    }
    let (open, most) =
        (figures.now("penstock_connections"), figures.now("penstock_max_connections"));
    let tone = if open > 0.9 * most { Tone::Bad } else { Tone::Plain };
    line.fact("connections", format!("{open}/{most}"), tone);
    let held = figures.now("penstock_held_body_bytes");
    let most = figures.now("penstock_max_held_body_bytes");
    let tone = if held > 0.9 * most { Tone::Bad } else { Tone::Plain };
    line.fact("held bodies", show_bytes(held), tone);
    line.fact("memory", show_bytes(figures.now("penstock_process_resident_bytes")), Tone::Plain);
    line
}

const BACKENDS: Columns<'_> = Columns {
    heads: &[
        "BACKEND",
        "STATE",
        "ENGINE",
        "IN FLIGHT",
        "LOAD",
        "WAIT",
        "RUN",
        "KV",
        "VRAM",
        "REQ/S",
        "FAIL/S",
        "TTFT P50",
        "P95",
        "TOK/S",
        "MODELS",
    ],
    numbers: 4..=13,
    optional: 4..9,
};

fn row(backend: &Value, figures: &TopFigures<'_>) -> Vec<Cell> {
    let name = text_of(backend, "name");
    let in_flight = backend.get("in_flight").and_then(Value::as_u64).unwrap_or(0);
    let most = backend.get("max_in_flight").and_then(Value::as_u64);
    let (state, tone) = state(backend);
    let telemetry = backend.get("telemetry");
    let reading = |key: &str| telemetry?.get(key)?.as_f64();
    let failures = figures.failures(name);
    let models = backend.get("models").and_then(Value::as_array);
    let vram = backend.get("vram_used_bytes").and_then(Value::as_u64);
    let loads_models = backend.get("models_in_memory").is_some();
    let mut models: Vec<&Value> = models.into_iter().flatten().collect();
    // Those in memory first: the end of the line may be cut off.
    models.sort_by_key(|model| !is_resident(model));
    let models: Vec<String> =
        models.into_iter().map(|model| show_model(model, loads_models)).collect();
    let plain = |text: String| (text, Tone::Plain);
    vec![
        plain(printable(name)),
        (state, tone),
        plain(text_of(backend, "engine").to_owned()),
        plain(most.map_or_else(|| in_flight.to_string(), |most| format!("{in_flight}/{most}"))),
        plain(
            most.map_or_else(String::new, |most| show_share(in_flight as f64 / most.max(1) as f64)),
        ),
        plain(reading("waiting").map_or_else(String::new, |count| format!("{count:.0}"))),
        plain(reading("running").map_or_else(String::new, |count| format!("{count:.0}"))),
        plain(reading("kv_utilization").map_or_else(String::new, show_share)),
        plain(vram.map_or_else(String::new, show_gigabytes)),
        plain(show_rate(figures.attempts(name))),
        (show_rate(failures), if failures > 0.0 { Tone::Bad } else { Tone::Plain }),
        plain(show_latency(figures.first_token(0.5, Some(name)))),
        plain(show_latency(figures.first_token(0.95, Some(name)))),
        plain(show_rate(figures.tokens(name))),
        plain(printable(&models.join(" "))),
    ]
}

/// Returns the text of a field; empty if it is missing.
fn text_of<'a>(backend: &'a Value, key: &str) -> &'a str {
    backend.get(key).and_then(Value::as_str).unwrap_or("")
}

/// Returns the state of a backend in words, and its tone.
fn state(backend: &Value) -> (String, Tone) {
    let cooldown = backend.get("cooldown_remaining_s").and_then(Value::as_f64);
    match (text_of(backend, "health"), text_of(backend, "breaker"), cooldown) {
        ("unhealthy", ..) => ("down".to_owned(), Tone::Bad),
        ("draining", ..) => ("draining".to_owned(), Tone::Warning),
        ("healthy", ..) if backend.get("frozen_s").is_some() => ("frozen".to_owned(), Tone::Bad),
        ("healthy", "open", _) => ("breaker open".to_owned(), Tone::Bad),
        ("healthy", "half_open", _) => ("probing".to_owned(), Tone::Warning),
        ("healthy", _, Some(seconds)) => (format!("cooldown {seconds:.0} s"), Tone::Warning),
        ("healthy", ..) => ("ready".to_owned(), Tone::Good),
        _ => ("unchecked".to_owned(), Tone::Dim),
    }
}

fn is_resident(model: &Value) -> bool {
    text_of(model, "residency") == "resident"
}

/// Formats a model, as in `*llama3:8b(2)`: `*` if it is in memory of a backend that loads models on
/// demand, then the number of requests in flight.
fn show_model(model: &Value, loads_models: bool) -> String {
    let mark = if loads_models && is_resident(model) { "*" } else { "" };
    let in_flight = model.get("in_flight").and_then(Value::as_u64);
    let in_flight = in_flight.map_or_else(String::new, |count| format!("({count})"));
    format!("{mark}{}{in_flight}", text_of(model, "id"))
}

fn show_gigabytes(bytes: u64) -> String {
    format!("{:.1}G", bytes as f64 / 1e9)
}

/// Formats a share without a space, to save width.
fn show_share(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Replaces control characters: names come from configurations and engines, and a terminal would
/// interpret them.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn show_rate(rate: f64) -> String {
    match rate {
        _ if rate >= 10_000.0 => format!("{:.1}k", rate / 1000.0),
        _ if rate >= 100.0 => format!("{rate:.0}"),
        _ if rate > 0.0 => format!("{rate:.1}"),
        _ => "0".to_owned(),
    }
}

fn show_latency(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        Some(seconds) if seconds < 100.0 => format!("{seconds:.1} s"),
        Some(seconds) => format!("{seconds:.0} s"),
    }
}

fn show_bytes(bytes: f64) -> String {
    let mib = ByteSize::mib(1).0 as f64;
    if bytes < mib {
        format!("{:.0} KiB", bytes / 1024.0)
    } else {
        format!("{:.1} MiB", bytes / mib)
    }
}

fn show_time(seconds: f64) -> String {
    let minutes = (seconds / 60.0).floor();
    match (minutes, (minutes / 60.0).floor()) {
        (minutes, _) if minutes < 1.0 => format!("{seconds:.0}s"),
        (minutes, hours) if hours < 1.0 => format!("{minutes}m"),
        (minutes, hours) if hours < 48.0 => format!("{hours}h{:02}m", minutes % 60.0),
        (_, hours) => format!("{}d{}h", (hours / 24.0).floor(), hours % 24.0),
    }
}

const SHADOW_DECISIONS: &str = "penstock_shadow_decisions_total";
const SHADOW_EXPECTED: &str = "penstock_shadow_expected_tokens_total";
const SHADOW_PROMPTS: &str = "penstock_shadow_prompt_tokens_total";

/// Returns the line of the shadow strategy, with totals since its start as in `/shadow`; `None`
/// without one.
fn show_shadow(figures: &TopFigures<'_>) -> Option<FrameLine> {
    if !figures.has(SHADOW_DECISIONS) {
        return None;
    }
    let decisions = |result| figures.total(SHADOW_DECISIONS, &[("result", result)]);
    let (same, other) = (decisions("same"), decisions("other"));
    let prompts = figures.total(SHADOW_PROMPTS, &[]);
    let expected = |side| show_share_of(figures.total(SHADOW_EXPECTED, &[("side", side)]), prompts);
    let mut line = FrameLine::default();
    line.fact("shadow agrees", show_share_of(same, same + other), Tone::Title);
    line.fact("expected cached: live", expected("live"), Tone::Plain);
    line.fact("shadow", expected("shadow"), Tone::Plain);
    let dropped = figures.rate(SHADOW_DECISIONS, &[("result", "dropped")]);
    let tone = if dropped > 0.0 { Tone::Warning } else { Tone::Plain };
    line.fact("dropped/s", show_rate(dropped), tone);
    Some(line)
}

fn show_share_of(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", part / whole * 100.0) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests;
