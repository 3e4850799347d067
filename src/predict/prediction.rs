//! From the state of a backend to the latencies of one more request.

use super::backlog::Backlog;
use super::coefficients::Coefficients;
use super::residual::{Regime, Residual};
use super::slot_wait::WaitTable;
use super::streams::Streams;

/// What an engine has room for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineLimits {
    /// Requests in a batch (vLLM: `max_num_seqs`).
    pub slots: f64,
    /// Tokens in the KV cache.
    pub kv_tokens: f64,
    /// Tokens of a step (vLLM: `max_num_batched_tokens`).
    pub step_tokens: f64,
}

/// What is known of a backend when a request arrives.
#[derive(Debug, Clone, Copy)]
pub struct EngineView<'a> {
    /// How long its steps take.
    pub coefficients: &'a Coefficients,
    /// What it has room for.
    pub limits: &'a EngineLimits,
    /// Prefill work that was sent to it.
    pub backlog: &'a Backlog,
    /// Its streams.
    pub streams: &'a Streams,
    /// When streams end.
    pub waits: &'a WaitTable,
    /// What predictions missed lately.
    pub residual: &'a Residual,
    /// What lies before the first step of a request: network, front end, tokenizer.
    pub front_end: f64,
}

/// A request that may be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sent {
    /// Tokens of its prompt.
    pub prompt: f64,
    /// Those of them that the backend has cached.
    pub cached: f64,
    /// The tokens of its output, on average.
    pub output: f64,
}

/// The latencies of a request on a backend, and the terms that they are made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Prompts before it.
    pub backlog: f64,
    /// Until a stream has ended and makes room.
    pub slot_wait: f64,
    /// Its own prompt, with the steps that this takes.
    pub prefill: f64,
    /// Until the current step ends.
    pub phase: f64,
    /// Network and front end.
    pub front_end: f64,
    /// What the terms come to, before it is corrected.
    pub raw: f64,
    /// Which kind of wait it is.
    pub regime: Regime,
    /// Time to the first token, on average.
    pub ttft: f64,
    /// Its 90th percentile.
    pub ttft_p90: f64,
    /// Time per token after the first, on average.
    pub tpot: f64,
    /// The work of its prefill: what it adds to the backlog.
    pub work: f64,
}

/// Predicts at `now`.
pub fn predict(view: &EngineView<'_>, request: &Sent, now: f64) -> Prediction {
    let EngineView { coefficients, limits, backlog, streams, .. } = view;
    let uncached = (request.prompt - request.cached).max(1.0);
    let decodes = streams.count();
    let step = coefficients.step(decodes, streams.context());
    let budget = (limits.step_tokens - decodes).max(1.0);
    let work = coefficients.prefill(request.cached, uncached) + step * uncached / budget;
    let prefill =
        coefficients.prefill(request.cached, uncached) + (uncached / budget).ceil() * step;
    let phase = if decodes > 0.0 { step * 0.5 } else { 0.0 };
    let left = backlog.left_at(now);
    let slot_wait = slot_wait(view, request);
    let front_end = view.front_end;
    let (wait, regime) =
        if slot_wait > left { (slot_wait, Regime::Slot) } else { (left, Regime::Prefill) };
    let raw = front_end + wait + phase + prefill;
    let (mean, percentile) = view.residual.factors(regime);
    let later = streams.context() + request.prompt + request.output * 0.5;
    let share = backlog.prefill_share(now);
    Prediction {
        backlog: left,
        slot_wait,
        prefill,
        phase,
        front_end,
        raw,
        regime,
        ttft: raw * mean,
        ttft_p90: raw * percentile,
        tpot: coefficients.step(decodes + 1.0, later) / (1.0 - share),
        work,
    }
}

/// Until so many streams have ended that the request, and all that wait before it, are in the batch.
fn slot_wait(view: &EngineView<'_>, request: &Sent) -> f64 {
    let EngineView { coefficients, limits, backlog, streams, waits, .. } = view;
    let decodes = streams.count();
    let waiting = backlog.waiting();
    // The KV cache has room for as many as have their mean context.
    let context = if decodes > 0.0 { streams.context() / decodes } else { request.prompt };
    let room = limits.slots.min(limits.kv_tokens / context.max(1.0));
    let needed = decodes + waiting + 1.0 - room;
    if needed <= 0.0 || decodes < 1.0 {
        return 0.0;
    }
    let tokens = waits.tokens_until(needed, streams);
    // Those who wait join the batch until it is full, and lengthen the steps of the others by their prompts.
    let joining = (room - decodes).clamp(0.0, waiting);
    let later = streams.context() + joining * backlog.mean_tokens();
    let step = coefficients.step(decodes + joining, later);
    tokens * step + (joining + needed).min(waiting) * backlog.mean_tokens() * coefficients.token
}
