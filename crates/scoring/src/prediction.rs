//! The prediction for a request on a candidate, as scorers read it.

use penstock_api::units::{narrow, widen};
use penstock_predict::Estimate;
use serde_json::{Value, json};

use super::reading_values::ReadingValue;

/// The predicted latencies of a request on a candidate, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PredictedLatency {
    /// Mean time to the first token, or to the end of a response that is not streamed.
    pub ttft: f32,
    pub ttft_p90: f32,
    /// Time per token after the first.
    pub tpot: f32,
    pub tpot_p90: f32,
    /// The tightest objective for the time per token among the streams there; infinite without any.
    pub tightest_tpot: f32,
    /// Time for the prompts before it.
    pub backlog: f32,
    /// Time until a stream ends and frees its slot.
    pub slot_wait: f32,
    /// Time for its own prompt.
    pub prefill: f32,
    /// Time until the current step ends.
    pub phase: f32,
    /// Time for which the engine, which now emits nothing, is expected to stay silent. Part of the
    /// times to the first token, and of `further`.
    pub stall: f32,
    /// Time for the network and the front end.
    pub front_end: f32,
    /// Time for the tokens after the first, if the response comes in one piece. Part of the times
    /// to the first token.
    pub decode: f32,
    /// Time for its further tokens, if they are streamed.
    pub further: f32,
    /// Time that its own prompt takes beyond the steps.
    pub work: f32,
    /// Tokens of its prompt that are not cached.
    pub uncached: f32,
    /// Tokens of prompts before it.
    pub before: f32,
    /// The delay of each stream there by all of its tokens.
    pub slowdown: f32,
    /// The increase of the time per token of each stream there.
    pub added: f32,
    /// The expected number of its tokens.
    pub output: f32,
    /// The number of requests there.
    pub requests: f32,
    /// The number of sheddable requests among them.
    pub sheddable: f32,
    /// Time of the whole response if nothing else was there.
    pub alone: f32,
    /// Time since a first token there was last learned from; infinite if none was.
    pub since_learned: f32,
    /// The number of first tokens there that were learned from.
    pub first_tokens: f32,
    /// True if enough is known of the backend to refuse a request because of it.
    pub is_trusted: bool,
}

impl From<Estimate> for PredictedLatency {
    #[inline(always)]
    fn from(estimate: Estimate) -> Self {
        let Estimate {
            prediction,
            tightest_tpot_us: tightest,
            alone_us,
            since_learned_us,
            first_token_count,
            is_trusted,
            ..
        } = estimate;
        // Two dozen divisions per backend would be a tenth of a decision.
        let millis = |micros: f64| narrow(micros * 1e-3);
        Self {
            ttft: millis(prediction.ttft_us),
            ttft_p90: millis(prediction.ttft_p90_us),
            tpot: millis(prediction.tpot_us),
            tpot_p90: millis(prediction.tpot_p90_us),
            tightest_tpot: millis(tightest),
            backlog: millis(prediction.backlog_us),
            slot_wait: millis(prediction.slot_wait_us),
            prefill: millis(prediction.prefill_us),
            phase: millis(prediction.phase_us),
            stall: millis(prediction.stall_us),
            front_end: millis(prediction.front_end_us),
            decode: millis(prediction.decode_us),
            further: millis(prediction.further_tokens_us),
            work: millis(prediction.work_us),
            uncached: narrow(prediction.uncached_tokens),
            before: narrow(prediction.tokens_ahead),
            slowdown: millis(prediction.slowdown_us),
            added: millis(prediction.added_tpot_us),
            output: narrow(prediction.output_tokens),
            requests: narrow(prediction.request_count),
            // The predictor does not count them; the readings of a candidate do.
            sheddable: 0.0,
            alone: millis(alone_us),
            since_learned: millis(since_learned_us),
            first_tokens: narrow(first_token_count),
            is_trusted,
        }
    }
}

impl PredictedLatency {
    /// The terms, for people: `backlog 310 + prefill 42 + phase 6 + front end 2 ms, mean 360 ms`; a
    /// response that is not streamed also has the tokens after its first, as in `+ decode 3772`.
    pub fn terms_text(&self) -> String {
        // Both waits pass at the same time: the longer one delays the request.
        let wait = if self.slot_wait > self.backlog {
            format!("slot {:.0}", self.slot_wait)
        } else {
            format!("backlog {:.0}", self.backlog)
        };
        let stall = match self.stall > 0.0 {
            true => format!(" (silent, probably for another {:.0} ms)", self.stall),
            false => String::new(),
        };
        let decode = match self.decode > 0.0 {
            true => format!(" + decode {:.0}", self.decode),
            false => String::new(),
        };
        format!(
            "{wait} + prefill {:.0} + phase {:.0} + front end {:.0}{decode} ms{stall}, mean {:.0} ms",
            self.prefill, self.phase, self.front_end, self.ttft
        )
    }

    /// Returns the prediction as JSON.
    pub fn to_value(&self) -> Value {
        let finite = |value: f32| Some(value).filter(|value| value.is_finite()).map(widen);
        json!({
            "ttft_ms": widen(self.ttft), "ttft_p90_ms": widen(self.ttft_p90),
            "tpot_ms": widen(self.tpot), "tpot_p90_ms": widen(self.tpot_p90),
            "tightest_tpot_ms": finite(self.tightest_tpot),
            "backlog_ms": widen(self.backlog), "slot_wait_ms": widen(self.slot_wait),
            "prefill_ms": widen(self.prefill), "phase_ms": widen(self.phase), "stall_ms": widen(self.stall),
            "front_end_ms": widen(self.front_end), "decode_ms": widen(self.decode), "further_ms": widen(self.further),
            "work_ms": widen(self.work), "uncached_tokens": widen(self.uncached),
            "tokens_before": widen(self.before), "slowdown_ms": widen(self.slowdown),
            "added_ms": widen(self.added), "output_tokens": widen(self.output),
            "requests": widen(self.requests), "sheddable_requests": widen(self.sheddable),
            "alone_ms": widen(self.alone),
            "since_learned_ms": finite(self.since_learned),
            "first_tokens": widen(self.first_tokens),
            "trusted": self.is_trusted,
        })
    }

    /// Reads what [`Self::to_value`] writes. Fields that older versions did not write count as
    /// zero.
    pub fn from_value(given: &Value) -> Option<Self> {
        let object = given.as_object()?;
        let get = |key: &str| object.get(key).and_then(Value::as_f64).map(narrow);
        Some(Self {
            ttft: get("ttft_ms")?,
            ttft_p90: get("ttft_p90_ms")?,
            tpot: get("tpot_ms")?,
            tpot_p90: get("tpot_p90_ms").unwrap_or_default(),
            tightest_tpot: get("tightest_tpot_ms").unwrap_or(f32::INFINITY),
            backlog: get("backlog_ms").unwrap_or_default(),
            slot_wait: get("slot_wait_ms").unwrap_or_default(),
            prefill: get("prefill_ms").unwrap_or_default(),
            phase: get("phase_ms").unwrap_or_default(),
            stall: get("stall_ms").unwrap_or_default(),
            front_end: get("front_end_ms").unwrap_or_default(),
            decode: get("decode_ms").unwrap_or_default(),
            further: get("further_ms").unwrap_or_default(),
            work: get("work_ms").unwrap_or_default(),
            uncached: get("uncached_tokens").unwrap_or_default(),
            before: get("tokens_before").unwrap_or_default(),
            slowdown: get("slowdown_ms").unwrap_or_default(),
            added: get("added_ms").unwrap_or_default(),
            output: get("output_tokens").unwrap_or_default(),
            requests: get("requests").unwrap_or_default(),
            sheddable: get("sheddable_requests").unwrap_or_default(),
            alone: get("alone_ms").unwrap_or_default(),
            since_learned: get("since_learned_ms").unwrap_or(f32::INFINITY),
            first_tokens: get("first_tokens").unwrap_or_default(),
            is_trusted: object.get("trusted").and_then(Value::as_bool).unwrap_or_default(),
        })
    }
}

impl ReadingValue for Option<PredictedLatency> {
    const SCHEMA: &'static str = "\"type\": [\"object\", \"null\"]";

    fn to_json(&self) -> Option<Value> {
        self.as_ref().map(PredictedLatency::to_value)
    }

    fn from_json(given: &Value) -> Option<Self> {
        if given.is_null() {
            return Some(None);
        }
        PredictedLatency::from_value(given).map(Some)
    }
}
