//! The format of a line. Clients choose most of its texts, so each text has a maximum length, and
//! characters that a terminal or log reader could interpret are escaped (log injection).

use std::time::{Duration, UNIX_EPOCH};

use penstock_api::units::to_millis;
use penstock_api::{Operation, is_unprintable};
use penstock_core::fleet::Outcome;
use penstock_core::prefix::MAX_FOLDED;
use penstock_core::routing::{ReplayFields, RequestOutcome};
use penstock_predict::Prediction;

/// The longest line, including its line break.
pub(super) const MAX_LINE: usize = 6272;
/// The maximum bytes of a path, including escapes. Together with keys and numbers, all texts stay
/// below [`MAX_LINE`].
const MAX_LONG: usize = 768;
/// The maximum bytes of the name of a model or a backend, including escapes.
const MAX_MIDDLE: usize = 384;
/// The maximum bytes of any other text, including escapes.
const MAX_SHORT: usize = 160;
/// The part of a hash that is logged: 12 digits.
// A collision among a million prompts has odds of 1 in 500, and lines stay short.
const HASH: u64 = (1 << 48) - 1;

/// The line of a request that finished at `at`, with the fields for a replay if `has_replay`.
pub(super) fn to_line(outcome: &RequestOutcome<'_>, at: Duration, has_replay: bool) -> Vec<u8> {
    let mut line = LogLine::begin();
    let (about, record) = (&outcome.details, outcome.record);
    let upstream_id = record.response.upstream_request_id.as_ref();
    line.text("time", Some(&to_rfc3339(at)), MAX_SHORT);
    line.text("id", Some(about.request_id).filter(|id| !id.is_empty()), MAX_SHORT);
    line.text("upstream_id", upstream_id.and_then(|id| id.to_str().ok()), MAX_SHORT);
    line.text("key", about.key, MAX_SHORT);
    line.text("client", about.client.map(|client| client.to_string()).as_deref(), MAX_SHORT);
    line.text("method", Some(about.method).filter(|method| !method.is_empty()), 32);
    line.text("path", Some(about.path).filter(|path| !path.is_empty()), MAX_LONG);
    line.text("operation", outcome.operation.map(Operation::name), MAX_SHORT);
    line.text("model_requested", record.request.requested_model.as_deref(), MAX_MIDDLE);
    line.text("model", outcome.model(), MAX_MIDDLE);
    line.text("backend", outcome.last_backend(), MAX_MIDDLE);
    line.number("status", Some(record.response.status.into()).filter(|status| *status > 0));
    line.text("error", record.response.code.map(|code| code.row().name), MAX_SHORT);
    line.text("outcome", Some(outcome.outcome.name()), MAX_SHORT);
    line.flag("stream", record.request.is_streaming);
    line.flag("fallback", record.routing.is_fallback);
    if let Some(policy) = &record.routing.policy {
        line.text("policy", Some(policy), MAX_SHORT);
    }
    if record.routing.is_below_tier {
        line.flag("below_tier", true);
    }
    line.number("attempts", Some(record.routing.attempts.into()));
    write_tokens(&mut line, outcome);
    line.millis("queue_ms", record.queue.wait);
    line.millis("ttft_ms", outcome.first_token.filter(|_| record.request.is_streaming));
    line.millis("duration_ms", Some(outcome.took));
    if let Some(predicted) = &record.routing.prediction {
        line.prediction(predicted, per_token(outcome));
    }
    line.number("bytes_in", Some(record.request.bytes_in as u64));
    line.number("bytes_out", Some(about.bytes_out));
    let trace = about.trace.map(|trace| format!("{:032x}", trace.trace_id));
    line.text("trace", trace.as_deref(), MAX_SHORT);
    let ensemble = record.request.ensemble.map(|call| call.to_string());
    line.text("ensemble", ensemble.as_deref(), MAX_SHORT);
    if let Some(fields) = record.request.replay.as_deref().filter(|_| has_replay) {
        line.replay(fields);
    }
    line.end()
}

/// Writes the token counts reported by the engine; otherwise penstock's own counts, marked as
/// estimated.
fn write_tokens(line: &mut LogLine, outcome: &RequestOutcome<'_>) {
    let usage = outcome.record.response.usage.unwrap_or_default();
    // Otherwise a refused request would count tokens that no engine computed.
    let is_served = outcome.backend().is_some();
    let estimated = outcome.record.request.prompt_tokens.filter(|_| is_served);
    let events = Some(outcome.record.response.token_events)
        .filter(|_| is_served && outcome.record.request.is_streaming);
    let sent = usage.prompt_tokens.or(estimated.map(|tokens| tokens.0));
    let received = usage.completion_tokens.or(events);
    let is_estimated = (usage.prompt_tokens.is_none() && sent.is_some())
        || (usage.completion_tokens.is_none() && received.is_some());
    line.number("tokens_in", sent.map(u64::from));
    line.number("tokens_out", received.map(u64::from));
    line.number("tokens_cached", usage.cached_tokens.map(u64::from));
    line.flag("tokens_estimated", is_estimated);
}

/// Returns the time per token after the first, for a complete stream.
fn per_token(outcome: &RequestOutcome<'_>) -> Option<Duration> {
    let is_whole = outcome.record.request.is_streaming && outcome.outcome == Outcome::Ok;
    let reported = outcome.record.response.usage.and_then(|usage| usage.completion_tokens);
    // The first token is measured by TTFT: only what follows is a pace.
    let gaps = reported
        .unwrap_or(outcome.record.response.token_events)
        .checked_sub(1)
        .filter(|_| is_whole)?;
    outcome.took.checked_sub(outcome.first_token?)?.checked_div(gaps)
}

struct LogLine(Vec<u8>);

impl LogLine {
    fn begin() -> Self {
        let mut bytes = Vec::with_capacity(768);
        bytes.push(b'{');
        Self(bytes)
    }

    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn text(&mut self, key: &str, text: Option<&str>, limit: usize) {
        self.key(key);
        match text {
            None => self.0.extend_from_slice(b"null"),
            Some(text) => write_text(&mut self.0, text, limit),
        }
    }

    fn number(&mut self, key: &str, number: Option<u64>) {
        self.key(key);
        match number {
            None => self.0.extend_from_slice(b"null"),
            Some(number) => {
                let mut digits = itoa::Buffer::new();
                self.0.extend_from_slice(digits.format(number).as_bytes());
            }
        }
    }

    fn millis(&mut self, key: &str, time: Option<Duration>) {
        self.key(key);
        let shown = time.map_or_else(|| "null".to_owned(), |time| to_millis(time).to_string());
        self.0.extend_from_slice(shown.as_bytes());
    }

    /// Writes the prediction in milliseconds, and the actual time per token.
    fn prediction(&mut self, predicted: &Prediction, per_token: Option<Duration>) {
        let time = |micros: f64| Duration::try_from_secs_f64(micros * 1e-6).ok();
        self.millis("predicted_ttft_ms", time(predicted.ttft_us.round()));
        self.millis("predicted_ttft_p90_ms", time(predicted.ttft_p90_us.round()));
        self.millis("predicted_tpot_ms", time(predicted.tpot_us.round()));
        self.millis("tpot_ms", per_token);
    }

    fn flag(&mut self, key: &str, is_set: bool) {
        self.key(key);
        self.0.extend_from_slice(if is_set { b"true" } else { b"false" });
    }

    /// Writes the fields for a replay, as an object.
    fn replay(&mut self, fields: &ReplayFields) {
        let mut object = Self::begin();
        object.number("max_tokens", fields.max_tokens.map(|most| most.0.into()));
        let session = fields.session.map(|session| format!("{:012x}", session & HASH));
        object.text("session", session.as_deref(), MAX_SHORT);
        object.number("block_tokens", Some(fields.block_tokens.into()));
        let hashes = fields.blocks.iter().take(MAX_FOLDED);
        let blocks: String = hashes.map(|hash| format!("{:012x}", hash & HASH)).collect();
        object.text("blocks", Some(&blocks), 12 * MAX_FOLDED);
        self.key("replay");
        self.0.extend_from_slice(&object.0);
        self.0.push(b'}');
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"}\n");
        debug_assert!(self.0.len() <= MAX_LINE, "the maximum lengths of all texts add up to less");
        self.0
    }
}

/// Writes a JSON string of at most `limit` bytes between its quotes; a longer text is cut with `…`.
fn write_text(out: &mut Vec<u8>, text: &str, limit: usize) {
    const CUT: &str = "\u{2026}";
    out.push(b'"');
    let start = out.len();
    let mut last_fit = start;
    for character in text.chars() {
        write_character(out, character);
        if out.len() - start > limit {
            out.truncate(last_fit);
            out.extend_from_slice(CUT.as_bytes());
            break;
        }
        // The last place at which the mark of a cut fits within the limit.
        if out.len() - start <= limit - CUT.len() {
            last_fit = out.len();
        }
    }
    out.push(b'"');
}

fn write_character(out: &mut Vec<u8>, character: char) {
    match character {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        _ if is_unprintable(character) => {
            out.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes());
        }
        _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// A time since 1970 by RFC 3339, in UTC with milliseconds: `2026-11-20T19:53:26.123Z`.
fn to_rfc3339(since_1970: Duration) -> String {
    // RFC 3339 ends with the year 9999; later times are clamped.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since_1970.min(LAST)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_utc_with_milliseconds() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_795_204_406, "2026-11-20T19:53:26.007Z"),
        ] {
            assert_eq!(to_rfc3339(Duration::new(seconds, 7_999_999)), expected);
        }
        assert_eq!(to_rfc3339(Duration::MAX), "9999-12-31T23:59:59.000Z");
    }
}
