//! The latencies of one more request, from the state of a backend.

use super::coefficients::Coefficients;
use super::pauses::Pauses;
use super::prompts::{MAX_PREFILL_SHARE, PromptWork};
use super::residual::{Factors, Regime, RegimeFactors};
use super::stall::StreamSilence;
use super::step_size::{DEFAULT_STEP_TOKENS, steps_of};
use super::wait_curve::WaitCurve;

/// The capacity of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineLimits {
    /// The maximum number of requests in a batch (vLLM: `max_num_seqs`); infinite if unknown.
    pub slots: f64,
    /// The number of tokens in the KV cache; infinite if unknown.
    pub kv_tokens: f64,
    /// The most tokens of a step (vLLM: `max_num_batched_tokens`).
    pub step_tokens: f64,
}

impl Default for EngineLimits {
    /// Returns unknown limits, with the step size that vLLM has by default.
    fn default() -> Self {
        Self { slots: f64::INFINITY, kv_tokens: f64::INFINITY, step_tokens: DEFAULT_STEP_TOKENS }
    }
}

/// The state of a backend when a request arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineView<'a> {
    /// The step times.
    pub coefficients: Coefficients,
    /// The capacity of the engine.
    pub limits: EngineLimits,
    /// The end of its last step.
    pub step_ended_at_us: f64,
    /// The number of requests without a first token.
    pub waiting_count: f64,
    /// The prompts that it computes now.
    pub in_batch: PromptWork,
    /// The prompts that it computes next.
    pub queued: PromptWork,
    /// The share of the time that prefills took lately.
    pub prefill_share: f64,
    /// The number of streams.
    pub stream_count: f64,
    /// The number of streams that this penstock has there.
    pub own_stream_count: f64,
    /// The tokens in the contexts of all streams.
    pub context_tokens: f64,
    /// The curve by which the streams of this penstock end.
    pub wait_curve: &'a WaitCurve,
    /// The factors that correct predictions, per regime.
    pub factors: Factors,
    /// The time before the first step of a request: network, front end, tokenizer.
    pub front_end_us: f64,
    /// The further time before that step per token of the prompt.
    pub tokenizer_token_us: f64,
    /// The mean number of tokens of an output.
    pub mean_output_tokens: f64,
    /// The factor by which tokens come more slowly than its steps and prompts explain.
    pub pace_factor: f64,
    /// The 90th percentile of the time per token in relation to its mean.
    pub pace_p90_factor: f64,
    /// The pauses of the engine.
    pub pauses: Pauses,
    /// The silence of its streams.
    pub silence: StreamSilence,
}

impl EngineView<'_> {
    /// Returns the factor by which prompts, pauses and the rest lengthen the time between tokens.
    fn stretch(&self) -> f64 {
        let share = (self.prefill_share * self.pauses.factor).min(MAX_PREFILL_SHARE);
        self.pauses.factor / (1.0 - share) * self.pace_factor
    }

    /// Returns the time of the whole response of the request of `prediction` if nothing else was
    /// there. `step_us` is the duration of a step with this request alone.
    pub(super) fn alone_us(&self, prediction: &Prediction, step_us: f64) -> f64 {
        let Pauses { factor, rest_us } = self.pauses;
        let computed_us = (prediction.work_us + step_us) * factor;
        let first_us = prediction.front_end_us + rest_us + computed_us;
        let further_us =
            (prediction.output_tokens - 1.0).max(0.0) * step_us * factor * self.pace_factor;
        first_us * self.factors.of(Regime::Idle).mean + further_us
    }

    /// Returns the factor by which a step grows once the requests without a first token have
    /// theirs.
    // Inlined, so that weighted scores, which do not read it, do not compute it.
    #[inline(always)]
    pub(super) fn growth(&self) -> f64 {
        let (stream_count, context_tokens) = (self.stream_count + 1.0, self.context_tokens);
        let waiting_count = self.waiting_count.min((self.limits.slots - stream_count).max(0.0));
        let prompt_tokens = self.in_batch.tokens + self.queued.tokens;
        let current_us = self.coefficients.step_us(stream_count, context_tokens).max(1.0);
        self.coefficients
            .step_us(stream_count + waiting_count, context_tokens + prompt_tokens)
            .max(current_us)
            / current_us
    }
}

/// A request that may be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestShape {
    /// The number of tokens of its prompt.
    pub prompt_tokens: f64,
    /// The number of prompt tokens that the backend has cached.
    pub cached_tokens: f64,
    /// The most tokens that its output may have; infinite without a limit.
    pub max_output_tokens: f64,
    /// True if its response comes in one piece: the first token arrives with the last.
    pub is_whole: bool,
}

impl RequestShape {
    /// Returns the tokens to compute: at least one, because the last one gives the first output.
    pub fn uncached_tokens(&self) -> f64 {
        (self.prompt_tokens - self.cached_tokens).max(1.0)
    }
}

/// The latencies of a request on a backend, and their terms; times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prediction {
    /// The time of the prompts before it, with the step that computes some of them.
    pub backlog_us: f64,
    /// The time until a stream has ended and makes room.
    pub slot_wait_us: f64,
    /// The time of its prompt, with the steps that this takes.
    pub prefill_us: f64,
    /// The part of `prefill_us` that the steps take without the prompt.
    pub steps_us: f64,
    /// The time until the current step ends, if that computes no prompt.
    pub phase_us: f64,
    /// The time of network and front end.
    pub front_end_us: f64,
    /// The part of `front_end_us` that grows with the prompt.
    pub tokenizer_us: f64,
    /// The part of `tokenizer_us` during which the current step runs anyway: the wait for that step
    /// is shorter by it.
    pub hidden_us: f64,
    /// The time of the tokens after the first, if the response comes in one piece.
    pub decode_us: f64,
    /// The time to the first token by these terms, before it is corrected.
    pub raw_ttft_us: f64,
    /// The kind of wait.
    pub regime: Regime,
    /// The mean time to the first token, or to the end of a whole response.
    pub ttft_us: f64,
    /// The 90th percentile of `ttft_us`.
    pub ttft_p90_us: f64,
    /// The mean time per token after the first.
    pub tpot_us: f64,
    /// The 90th percentile of `tpot_us`.
    pub tpot_p90_us: f64,
    /// The time of its prompt beyond the steps: its addition to the backlog.
    pub work_us: f64,
    /// The time of its further tokens, if they come one by one.
    pub further_tokens_us: f64,
    /// The number of prompt tokens that are not cached.
    pub uncached_tokens: f64,
    /// The tokens of prompts before it.
    pub tokens_ahead: f64,
    /// The remaining silence of the engine: part of the times to the first token, and of
    /// `further_tokens_us`.
    pub stall_us: f64,
    /// The delay of each stream that runs there by its tokens, while they are in one batch.
    pub slowdown_us: f64,
    /// The increase of the time per token of each stream that runs there.
    pub added_tpot_us: f64,
    /// The expected number of its tokens.
    pub output_tokens: f64,
    /// The number of streams that run there.
    pub stream_count: f64,
    /// The number of these streams and of requests without a first token.
    pub request_count: f64,
}

/// The mean of a time, and its 90th percentile.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeanAndP90 {
    /// The mean.
    pub mean_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
}

impl Prediction {
    /// Returns the time to the first token from when the request may be sent: once the prompts
    /// before it take no more than `max_backlog_us`, and there is a slot. Its mean and its 90th
    /// percentile, without the remaining silence.
    pub fn admitted_ttft(&self, max_backlog_us: f64) -> MeanAndP90 {
        let slot_us = (self.slot_wait_us - self.backlog_us - self.phase_us).max(0.0);
        let skipped_us = slot_us + (self.backlog_us - max_backlog_us).max(0.0);
        let share = (self.raw_ttft_us - skipped_us).max(0.0) / self.raw_ttft_us.max(1.0);
        MeanAndP90 {
            mean_us: share * (self.ttft_us - self.stall_us),
            p90_us: share * (self.ttft_p90_us - self.stall_us),
        }
    }
}

/// The fraction of the prompts that arrive during a step that is added: the others arrived before
/// the request, and are known.
const LATER_SHARE: f64 = 0.5;
/// The most tokens that streams are taken to have left, in outputs of mean length.
const MAX_OUTPUTS: f64 = 4.0;

/// Predicts the latencies of `request` at `now_us`.
#[inline(always)]
pub(crate) fn predict(view: &EngineView<'_>, request: &RequestShape, now_us: f64) -> Prediction {
    let EngineView { coefficients, limits, stream_count, context_tokens, .. } = *view;
    let tokenizer_us = view.tokenizer_token_us * request.prompt_tokens;
    let front_end_us = view.front_end_us + tokenizer_us;
    let uncached_tokens = request.uncached_tokens();
    let step_us = coefficients.step_us(stream_count, context_tokens);
    let budget_tokens = (limits.step_tokens - stream_count).max(1.0);
    let own_us = coefficients.prefill_us(request.cached_tokens, uncached_tokens);
    // Prompts that wait together are computed together.
    let steps_us = steps_of(view.queued.tokens + uncached_tokens, budget_tokens) * step_us;
    let stall_us = view.silence.remaining_us(step_us, view.in_batch.time_us, now_us);
    let current_us = current_step_us(view, step_us, budget_tokens, now_us + front_end_us);
    let hidden_us =
        current_step_us(view, step_us, budget_tokens, now_us + view.front_end_us) - current_us;
    let (phase_us, in_batch_us) =
        if view.in_batch.tokens > 0.0 { (0.0, current_us) } else { (current_us, 0.0) };
    let backlog_us = in_batch_us + view.queued.time_us;
    let slot_wait_us = slot_wait_us(view, request, now_us);
    let output_tokens = view.mean_output_tokens.min(request.max_output_tokens);
    let mean_context_tokens = context_tokens + request.prompt_tokens + output_tokens * 0.5;
    let tpot_us = coefficients.step_us(stream_count + 1.0, mean_context_tokens) * view.stretch();
    let added_tpot_us = coefficients.added_us(1.0, request.prompt_tokens + output_tokens * 0.5);
    let further_tokens_us = tpot_us * (output_tokens - 1.0).max(0.0);
    let (decode_us, further_tokens_us) = match request.is_whole {
        true => (further_tokens_us, 0.0),
        // A silent engine may emit the first token and then nothing.
        false => (0.0, further_tokens_us + stall_us),
    };
    // The longer one: prompts are computed while streams end.
    let wait_us = (backlog_us + phase_us).max(slot_wait_us);
    let regime = regime(view, request, slot_wait_us > backlog_us + phase_us);
    let later_us = current_us * view.prefill_share * LATER_SHARE;
    let Pauses { factor, rest_us } = view.pauses;
    let computed_us = (wait_us + later_us + own_us + steps_us) * factor;
    let raw_ttft_us = front_end_us + rest_us + computed_us + decode_us;
    let RegimeFactors { mean, p90 } = view.factors.of(regime);
    Prediction {
        backlog_us,
        slot_wait_us,
        prefill_us: own_us + steps_us,
        steps_us,
        phase_us,
        front_end_us,
        tokenizer_us,
        hidden_us,
        decode_us,
        raw_ttft_us,
        regime,
        // The stall is no part of `raw_ttft_us`: the residual must not learn from this guess.
        ttft_us: raw_ttft_us * mean + stall_us,
        ttft_p90_us: raw_ttft_us * p90 + stall_us,
        tpot_us,
        tpot_p90_us: tpot_us * view.pace_p90_factor,
        work_us: own_us,
        further_tokens_us,
        uncached_tokens,
        stall_us,
        tokens_ahead: view.in_batch.tokens + view.queued.tokens,
        slowdown_us: output_tokens * added_tpot_us,
        added_tpot_us: added_tpot_us * view.stretch(),
        output_tokens,
        stream_count,
        request_count: stream_count + view.waiting_count,
    }
}

/// Returns the kind of wait of a request.
fn regime(view: &EngineView<'_>, request: &RequestShape, waits_for_slot: bool) -> Regime {
    match (request.is_whole, waits_for_slot) {
        (true, _) => Regime::Whole,
        (false, true) => Regime::Slot,
        (false, false) if view.stream_count < 1.0 && view.waiting_count < 1.0 => Regime::Idle,
        (false, false) => Regime::Prefill,
    }
}

/// Returns the remaining time of the step that runs when the request arrives at the engine.
fn current_step_us(
    view: &EngineView<'_>,
    step_us: f64,
    budget_tokens: f64,
    arrives_at_us: f64,
) -> f64 {
    if view.stream_count < 1.0 && view.waiting_count < 1.0 {
        return 0.0;
    }
    let step_count = (view.in_batch.tokens / budget_tokens).max(1.0);
    let ends_at_us = view.step_ended_at_us + step_count * step_us + view.in_batch.time_us;
    (ends_at_us - arrives_at_us).max(0.0)
}

/// Returns the time until enough streams have ended for the request, and all that wait before it,
/// to be in the batch.
fn slot_wait_us(view: &EngineView<'_>, request: &RequestShape, now_us: f64) -> f64 {
    let EngineView { coefficients, limits, waiting_count, stream_count, context_tokens, .. } =
        *view;
    if stream_count < 1.0 {
        return 0.0;
    }
    // Room is counted in streams of mean context; a longer prompt takes the room of several.
    let mean_context_tokens = (context_tokens / stream_count).max(1.0);
    let max_streams = limits.slots.min(limits.kv_tokens / mean_context_tokens);
    let own_streams = if limits.kv_tokens.is_finite() {
        (request.prompt_tokens / mean_context_tokens).max(1.0)
    } else {
        1.0
    };
    let needed_streams = (stream_count + waiting_count + 1.0 - limits.slots)
        .max(stream_count + waiting_count + own_streams - limits.kv_tokens / mean_context_tokens)
        .min(stream_count + waiting_count);
    if needed_streams <= 0.0 {
        return 0.0;
    }
    let waiting_tokens = (view.in_batch.tokens + view.queued.tokens) / waiting_count.max(1.0);
    // Waiting requests join until the batch is full; their prompts lengthen the steps of the
    // others.
    let joining_streams = (max_streams - stream_count).clamp(0.0, waiting_count);
    let step_us = coefficients
        .step_us(stream_count + joining_streams, context_tokens + joining_streams * waiting_tokens);
    let tokens = match view.own_stream_count < stream_count {
        true => tokens_until_ended(view, needed_streams, step_us, now_us),
        false => view.wait_curve.tokens_until(needed_streams, step_us, now_us),
    };
    let tokens = tokens.unwrap_or(view.mean_output_tokens * needed_streams / stream_count);
    tokens * step_us
        + (joining_streams + needed_streams).min(waiting_count)
            * waiting_tokens
            * coefficients.token_us
}

/// Returns the tokens until `needed_streams` streams have ended if some belong to peers, which are
/// taken to end as the own ones do. A few own streams say little of many others: the result is
/// bounded by the length of usual outputs.
fn tokens_until_ended(
    view: &EngineView<'_>,
    needed_streams: f64,
    step_us: f64,
    now_us: f64,
) -> Option<f64> {
    if view.own_stream_count < 1.0 {
        return None;
    }
    let share = view.own_stream_count / view.stream_count;
    let max_tokens =
        MAX_OUTPUTS * view.mean_output_tokens * (1.0 + needed_streams / view.stream_count);
    Some(view.wait_curve.tokens_until(needed_streams * share, step_us, now_us)?.min(max_tokens))
}
