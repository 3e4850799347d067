//! The latencies of one more request, from the state of a backend.

use super::coefficients::Coefficients;
use super::prompts::Work;
use super::residual::{Factors, Regime};
use super::stall::Silence;
use super::wait_curve::WaitCurve;

/// The capacity of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineLimits {
    /// The number of requests in a batch (vLLM: `max_num_seqs`); infinite if unknown.
    pub slots: f64,
    /// The number of tokens in the KV cache; infinite if unknown.
    pub kv_tokens: f64,
    /// The most tokens of a step (vLLM: `max_num_batched_tokens`).
    pub step_tokens: f64,
}

impl Default for EngineLimits {
    /// Returns unknown limits, with the step size that vLLM has by default.
    fn default() -> Self {
        Self { slots: f64::INFINITY, kv_tokens: f64::INFINITY, step_tokens: 2048.0 }
    }
}

/// The state of a backend when a request arrives.
#[derive(Debug, Clone, Copy)]
pub struct EngineView<'a> {
    /// The step times.
    pub coefficients: Coefficients,
    /// The capacity of the engine.
    pub limits: EngineLimits,
    /// The end of its last step.
    pub step_ended: f64,
    /// The number of requests without a first token.
    pub waiting: f64,
    /// The prompts that it computes now.
    pub inside: Work,
    /// The prompts that it computes next.
    pub outside: Work,
    /// The share of the time that prefills took lately.
    pub prefill_share: f64,
    /// The number of streams.
    pub streams: f64,
    /// The number of streams that this penstock has there.
    pub own_streams: f64,
    /// The tokens in the contexts of all streams.
    pub context: f64,
    /// The curve by which the streams of this penstock end.
    pub waits: &'a WaitCurve,
    /// The factors that correct predictions, per regime.
    pub factors: Factors,
    /// The time before the first step of a request: network, front end, tokenizer.
    pub front_end: f64,
    /// The mean number of tokens of an output.
    pub output: f64,
    /// The factor by which tokens come more slowly than its steps and prompts explain.
    pub pace: f64,
    /// The 90th percentile of the time per token in relation to its mean.
    pub pace_percentile: f64,
    /// The silence of its streams.
    pub silence: Silence,
}

impl EngineView<'_> {
    /// Returns the factor by which a step grows once the requests without a first token have
    /// theirs.
    pub(super) fn growth(&self) -> f64 {
        let (streams, context) = (self.streams + 1.0, self.context);
        let waiting = self.waiting.min((self.limits.slots - streams).max(0.0));
        let prompts = self.inside.tokens + self.outside.tokens;
        let now = self.coefficients.step(streams, context).max(1.0);
        self.coefficients.step(streams + waiting, context + prompts).max(now) / now
    }
}

/// A request that may be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sent {
    /// The number of tokens of its prompt.
    pub prompt: f64,
    /// The number of prompt tokens that the backend has cached.
    pub cached: f64,
    /// The most tokens that its output may have; infinite without a limit.
    pub max_output: f64,
    /// True if its response comes in one piece: the first token arrives with the last.
    pub is_whole: bool,
}

impl Sent {
    /// Returns the tokens to compute: at least one, because the last one gives the first output.
    pub fn uncached(&self) -> f64 {
        (self.prompt - self.cached).max(1.0)
    }
}

/// The latencies of a request on a backend, and their terms; times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prediction {
    /// The time of the prompts before it, with the step that computes some of them.
    pub backlog: f64,
    /// The time until a stream has ended and makes room.
    pub slot_wait: f64,
    /// The time of its prompt, with the steps that this takes.
    pub prefill: f64,
    /// The part of `prefill` that the steps take without the prompt.
    pub steps: f64,
    /// The time until the current step ends, if that computes no prompt.
    pub phase: f64,
    /// The time of network and front end.
    pub front_end: f64,
    /// The time of the tokens after the first, if the response comes in one piece.
    pub decode: f64,
    /// The time to the first token by these terms, before it is corrected.
    pub raw: f64,
    /// The kind of wait.
    pub regime: Regime,
    /// The mean time to the first token, or to the end of a whole response.
    pub ttft: f64,
    /// The 90th percentile of `ttft`.
    pub ttft_p90: f64,
    /// The mean time per token after the first.
    pub tpot: f64,
    /// The 90th percentile of `tpot`.
    pub tpot_p90: f64,
    /// The time of its prompt beyond the steps: its addition to the backlog.
    pub work: f64,
    /// The time of its further tokens, if they come one by one.
    pub further: f64,
    /// The number of prompt tokens that are not cached.
    pub uncached: f64,
    /// The tokens of prompts before it.
    pub before: f64,
    /// The remaining silence of the engine: part of the times to the first token, and of `further`.
    pub stall: f64,
    /// The delay of each stream that runs there by its tokens, while they are in one batch.
    pub slowdown: f64,
    /// The increase of the time per token of each stream that runs there.
    pub added: f64,
    /// The expected number of its tokens.
    pub output: f64,
    /// The number of streams that run there.
    pub streams: f64,
    /// The number of these streams and of requests without a first token.
    pub requests: f64,
}

impl Prediction {
    /// Returns the time to the first token from when the request may be sent: once the prompts
    /// before it take no more than `most_backlog`, and there is a slot. Its mean and its 90th
    /// percentile, without the remaining silence.
    pub fn admitted(&self, most_backlog: f64) -> (f64, f64) {
        let slot = (self.slot_wait - self.backlog - self.phase).max(0.0);
        let waits = slot + (self.backlog - most_backlog).max(0.0);
        let without = (self.raw - waits).max(0.0) / self.raw.max(1.0);
        (without * (self.ttft - self.stall), without * (self.ttft_p90 - self.stall))
    }
}

/// The fraction of the prompts that arrive during a step that is added: the others arrived before
/// the request, and are known.
const LATER: f64 = 0.5;
/// The most tokens that streams are taken to have left, in outputs of mean length.
const MOST_OUTPUTS: f64 = 4.0;

/// Predicts the latencies of `request` at `now`.
pub fn predict(view: &EngineView<'_>, request: &Sent, now: f64) -> Prediction {
    let EngineView { coefficients, limits, streams, context, front_end, .. } = *view;
    let uncached = request.uncached();
    let step = coefficients.step(streams, context);
    let budget = (limits.step_tokens - streams).max(1.0);
    let own = coefficients.prefill(request.cached, uncached);
    // Prompts that wait together are computed together.
    let together = (view.outside.tokens + uncached) / budget;
    let steps = together.max(1.0) * step;
    let stall = view.silence.rest(step, view.inside.time, now);
    let current = current_step(view, step, budget, now);
    let (phase, inside) = if view.inside.tokens > 0.0 { (0.0, current) } else { (current, 0.0) };
    let backlog = inside + view.outside.time;
    let slot_wait = slot_wait(view, request, now);
    let output = view.output.min(request.max_output);
    let mean_context = context + request.prompt + output * 0.5;
    let tpot =
        coefficients.step(streams + 1.0, mean_context) / (1.0 - view.prefill_share) * view.pace;
    let added = coefficients.added(1.0, request.prompt + output * 0.5);
    let further = tpot * (output - 1.0).max(0.0);
    let (decode, further) = match request.is_whole {
        true => (further, 0.0),
        // A silent engine may emit the first token and then nothing.
        false => (0.0, further + stall),
    };
    let wait = (backlog + phase).max(slot_wait);
    let regime = match (request.is_whole, slot_wait > backlog + phase) {
        (true, _) => Regime::Whole,
        (false, true) => Regime::Slot,
        (false, false) if streams < 1.0 && view.waiting < 1.0 => Regime::Idle,
        (false, false) => Regime::Prefill,
    };
    let later = current * view.prefill_share * LATER;
    let raw = front_end + wait + later + own + steps + decode;
    let (mean, percentile) = view.factors.of(regime);
    Prediction {
        backlog,
        slot_wait,
        prefill: own + steps,
        steps,
        phase,
        front_end,
        decode,
        raw,
        regime,
        // The stall is no part of `raw`: the residual must not learn from a guess.
        ttft: raw * mean + stall,
        ttft_p90: raw * percentile + stall,
        tpot,
        tpot_p90: tpot * view.pace_percentile,
        work: own,
        further,
        uncached,
        stall,
        before: view.inside.tokens + view.outside.tokens,
        slowdown: output * added,
        added: added / (1.0 - view.prefill_share) * view.pace,
        output,
        streams,
        requests: streams + view.waiting,
    }
}

/// Returns the remaining time of the step that runs when the request arrives.
fn current_step(view: &EngineView<'_>, step: f64, budget: f64, now: f64) -> f64 {
    if view.streams < 1.0 && view.waiting < 1.0 {
        return 0.0;
    }
    let steps = (view.inside.tokens / budget).max(1.0);
    let ends = view.step_ended + steps * step + view.inside.time;
    (ends - now - view.front_end).max(0.0)
}

/// Returns the time until enough streams have ended for the request, and all that wait before it,
/// to be in the batch.
fn slot_wait(view: &EngineView<'_>, request: &Sent, now: f64) -> f64 {
    let EngineView { coefficients, limits, waiting, streams, context, .. } = *view;
    if streams < 1.0 {
        return 0.0;
    }
    // Room is counted in streams of mean context; a longer prompt takes the room of several.
    let each = (context / streams).max(1.0);
    let room = limits.slots.min(limits.kv_tokens / each);
    let own = if limits.kv_tokens.is_finite() { (request.prompt / each).max(1.0) } else { 1.0 };
    let needed = (streams + waiting + 1.0 - limits.slots)
        .max(streams + waiting + own - limits.kv_tokens / each)
        .min(streams + waiting);
    if needed <= 0.0 {
        return 0.0;
    }
    let waiting_tokens = (view.inside.tokens + view.outside.tokens) / waiting.max(1.0);
    // Waiting requests join until the batch is full; their prompts lengthen the steps of the
    // others.
    let joining = (room - streams).clamp(0.0, waiting);
    let step = coefficients.step(streams + joining, context + joining * waiting_tokens);
    let tokens = match view.own_streams < streams {
        true => tokens_until_ended(view, needed, step, now),
        false => view.waits.tokens_until(needed, step, now),
    };
    let tokens = tokens.unwrap_or(view.output * needed / streams);
    tokens * step + (joining + needed).min(waiting) * waiting_tokens * coefficients.token
}

/// Returns the tokens until `needed` streams have ended if some belong to peers, which are taken to
/// end as the own ones do. A few own streams say little of many others: the result is bounded by
/// the length of usual outputs.
fn tokens_until_ended(view: &EngineView<'_>, needed: f64, step: f64, now: f64) -> Option<f64> {
    if view.own_streams < 1.0 {
        return None;
    }
    let share = view.own_streams / view.streams;
    let most = MOST_OUTPUTS * view.output * (1.0 + needed / view.streams);
    Some(view.waits.tokens_until(needed * share, step, now)?.min(most))
}
