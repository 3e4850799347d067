//! The readings of backends for scorers and strategies: from telemetry, our own counts, and the
//! prefix index.

use penstock_api::units::Micros;
use penstock_scoring::{Adapter, Candidate, Needs, RequestFeatures};

use super::RouteInput;
use super::prediction::PredictedRequest;
use super::scratch::CandidateReadings;
use super::strategies::{Placement, smart};
use crate::fleet::{Model, Serving, Standing};
use crate::prefix::{Chain, ModelIndex, SLOTS, Slot};

/// Reads the candidates in `readings.rows`, as far as `needs` requires. Allocates only if there are
/// more candidates than ever before.
pub(super) fn gather(
    input: &RouteInput<'_>,
    model: &Model,
    needs: Needs,
    readings: &mut CandidateReadings,
) {
    let CandidateReadings { rows, candidates, .. } = readings;
    let prompt_blocks = input.prompt.map_or(0, Chain::blocks);
    // Filled in place: moving a candidate costs more than reading it.
    candidates.resize(rows.len(), Candidate::default());
    for (row, one) in rows.iter().zip(&mut *candidates) {
        *one = Candidate { row: *row, prompt_blocks, ..Candidate::default() };
        if let Some(serving) = model.serving.get(*row as usize) {
            read(serving, input, needs, one);
        }
    }
    if let Some(chain) =
        input.prompt.filter(|chain| needs.contains(Needs::PREFIXES) && chain.blocks() > 0)
    {
        let slot_of = |row: u32| model.serving.get(row as usize).map(|serving| serving.slot);
        find_prefixes(&model.prefixes, chain, rows, candidates, slot_of);
    }
    // After the prefixes: a prediction needs the number of cached blocks.
    if needs.contains(Needs::PREDICTIONS) {
        predict(input, model, candidates);
    }
}

/// Predicts the request on each candidate, with its believed cached blocks.
fn predict(input: &RouteInput<'_>, model: &Model, candidates: &mut [Candidate]) {
    let request = PredictedRequest::of(input);
    for one in candidates {
        if let Some(serving) = model.serving.get(one.row as usize) {
            one.prediction = Some(request.on(serving, one.matched_blocks));
        }
    }
}

/// Returns the row of the home of the request's session.
fn home(input: &RouteInput<'_>, model: Option<&Model>) -> Option<u32> {
    let home = input.session?.home?;
    let mut rows = (0_u32..).zip(&model?.serving);
    rows.find(|(_, serving)| serving.id == home).map(|(row, _)| row)
}

/// Returns the request as scorers read it; without a prompt, blocks have `block_tokens`.
pub(super) fn features(
    input: &RouteInput<'_>,
    model: Option<&Model>,
    block_tokens: u32,
) -> RequestFeatures {
    RequestFeatures {
        home: home(input, model),
        prompt_tokens: input.request.prompt_tokens.0,
        objectives: input.objectives,
        session: input.session.map(|session| session.id),
        ..prompt_features(input.prompt, block_tokens)
    }
}

/// Returns a prompt as scorers read it; without one, blocks have `block_tokens`.
pub(super) fn prompt_features(prompt: Option<&Chain>, block_tokens: u32) -> RequestFeatures {
    RequestFeatures {
        first_block: prompt.map_or(0, Chain::first),
        last_block: prompt.map_or(0, Chain::last),
        prompt_blocks: prompt.map_or(0, Chain::blocks),
        is_cut: prompt.is_some_and(Chain::is_cut),
        in_turn: prompt.is_none_or(Chain::is_empty),
        block_tokens: prompt.map_or(block_tokens, Chain::block_tokens),
        ..RequestFeatures::default()
    }
}

/// Reads one backend. Rarely needed readings lie in memory that few decisions touch, and are read
/// only on demand.
fn read(serving: &Serving, input: &RouteInput<'_>, needs: Needs, one: &mut Candidate) {
    let state = &*serving.state;
    let telemetry = state.telemetry.read(&state.load, input.now);
    one.key = serving.key;
    one.waiting = telemetry.waiting.map(f64::from);
    one.running = telemetry.running.map(f64::from);
    one.load = Some(telemetry.load.into());
    one.kv_utilization = telemetry.kv_utilization.map(f64::from);
    one.telemetry = telemetry.standing;
    one.telemetry_age = telemetry.age;
    one.in_flight = f64::from(state.load.counted());
    one.priority = serving.priority;
    if serving.most_weight > 0 {
        one.weight = Some(serving.weight.into());
        one.most_weight = Some(serving.most_weight.into());
    }
    if needs.contains(Needs::TOKENS) {
        one.tokens_in_flight = state.work.counted_tokens() as f64;
        one.prefill_tokens = state.work.counted_prefill_tokens() as f64;
    }
    if needs.contains(Needs::LATENCIES) {
        one.first_token_ms = serving.latency.peak_micros(input.now).map(|micros| micros / 1000.0);
    }
    if needs.contains(Needs::ADAPTERS) {
        one.adapter = adapter(serving, telemetry.standing);
    }
    if needs.contains(Needs::RESIDENCY) {
        let placement = Placement::of(serving, input.now);
        one.model_in_flight = Some(placement.model_in_flight.into());
        // The largest number stands for an engine whose slots are not known.
        one.slots = Some(placement.slots).filter(|slots| *slots != u32::MAX).map(f64::from);
        one.residency = placement.residency;
        one.eviction = placement.eviction;
    }
    if needs.contains(Needs::RESPONSE_TIMES) {
        let micros = smart::latency_micros(serving, input.request.streaming, input.now);
        one.latency = Micros(micros.into());
    }
}

/// Reads everything of one backend, for people.
pub(super) fn read_all(serving: &Serving, input: &RouteInput<'_>, row: u32) -> Candidate {
    let mut one = Candidate { row, ..Candidate::default() };
    read(serving, input, Needs::RECORDED, &mut one);
    one
}

/// Returns the state of the model's adapter, by fresh telemetry.
fn adapter(serving: &Serving, standing: Standing) -> Adapter {
    // Adapters change within seconds: an old list would send requests to the wrong engine.
    if standing != Standing::Fresh {
        return Adapter::Unknown;
    }
    let Some(details) = serving.state.telemetry.details() else { return Adapter::Unknown };
    let Some(adapters) = &details.adapters else { return Adapter::Unknown };
    let name = serving.adapter_name();
    let used = adapters.running.len() + adapters.waiting.len();
    if adapters.running.iter().any(|one| **one == *name) {
        Adapter::Active
    } else if adapters.max.is_some_and(|max| used < max as usize) {
        Adapter::FreeSlot
    } else if adapters.waiting.iter().any(|one| **one == *name) {
        Adapter::Waiting
    } else {
        Adapter::Absent
    }
}

/// Reads the matched blocks of each candidate, in one walk of the index per 64 backends.
pub(super) fn find_prefixes(
    prefixes: &ModelIndex,
    chain: &Chain,
    rows: &[u32],
    candidates: &mut [Candidate],
    slot_of: impl Fn(u32) -> Option<Slot>,
) {
    prefixes.read(|shards| {
        for (number, shard) in (0_u16..).zip(shards) {
            let (mut mask, mut indexes) = (0_u64, [0_u16; SLOTS]);
            for (index, slot) in (0_u16..).zip(rows.iter().map(|row| slot_of(*row))) {
                if let Some(slot) = slot.filter(|slot| slot.shard == number)
                    && let Some(entry) = indexes.get_mut(usize::from(slot.bit))
                {
                    mask |= 1 << slot.bit;
                    *entry = index;
                }
            }
            shard.longest(chain.hashes(), mask, |slot, length| {
                let index = indexes.get(slot).copied().unwrap_or(u16::MAX);
                if let Some(candidate) = candidates.get_mut(usize::from(index)) {
                    candidate.matched_blocks = length;
                }
            });
        }
    });
}
