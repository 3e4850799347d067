//! `POST /quote`: the backends that would meet the objectives of a request, before it is sent.

use penstock_clock::now;
use penstock_core::routing::{QuotedBackend, quote};
use penstock_predict::RequestShape;
use penstock_scoring::Objectives;
use serde::Deserialize;
use serde_json::{Value, json};

use super::response::{AdminRefusal, AdminResponse};
use super::{Admin, AdminCall};

/// The part of a request that its latencies depend on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quoted {
    /// Optional if there is only one model.
    model: Option<String>,
    /// The tokens of its prompt.
    tokens: u32,
    /// The tokens of its prompt that are cached.
    #[serde(default)]
    cached: u32,
    max_tokens: Option<u32>,
    #[serde(default = "streamed")]
    stream: bool,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
}

fn streamed() -> bool {
    true
}

/// `POST /quote`
pub(super) fn predicted(
    _admin: &Admin,
    call: &AdminCall<'_>,
) -> Result<AdminResponse, AdminRefusal> {
    let generation = &call.generation;
    if !generation.router.predicts() {
        return Err(AdminRefusal::NoPredictions);
    }
    let invalid = |reason: String| AdminRefusal::InvalidQuote { reason };
    let given: Quoted =
        serde_json::from_slice(call.body).map_err(|error| invalid(error.to_string()))?;
    let mut times = [given.ttft_ms, given.tpot_ms].into_iter().flatten();
    if !times.all(Objectives::is_objective) {
        return Err(invalid(format!("ttft_ms and tpot_ms must be {}", Objectives::EXPECTED)));
    }
    let fleet = generation.fleet.topology();
    let only = match fleet.models() {
        [only] => Some(&*only.name),
        _ => None,
    };
    let model = given.model.as_deref().or(only);
    let model = model.ok_or_else(|| invalid("'model' is missing".to_owned()))?;
    let sent = RequestShape {
        // An engine reads at least one token, and generates one.
        prompt_tokens: given.tokens.max(1).into(),
        cached_tokens: given.cached.min(given.tokens).into(),
        max_output_tokens: given.max_tokens.map_or(f64::INFINITY, |most| f64::from(most.max(1))),
        is_whole: !given.stream,
    };
    let objectives =
        Objectives { ttft_ms: given.ttft_ms, tpot_ms: given.tpot_ms, ..Objectives::default() };
    let all = quote(generation, model, &sent, &objectives, now());
    let all = all.ok_or_else(|| invalid(format!("no backend serves the model '{model}'")))?;
    Ok(AdminResponse::json(&to_json(model, &all, &objectives)))
}

fn to_json(model: &str, all: &[QuotedBackend], objectives: &Objectives) -> Value {
    let feasible = all.iter().filter(|one| one.is_feasible()).count();
    // A client waits only if no backend would meet the objectives now.
    let wait = all.iter().filter_map(|one| one.wait).min().filter(|_| feasible == 0);
    let backends = all.iter().map(|one| {
        let predicted = &one.prediction;
        json!({
            "backend": &*one.name, "feasible": one.is_feasible(),
            "feasible_in_s": one.wait.map(|wait| rounded(wait.as_secs_f64())),
            "headroom_ms": one.headroom.map(|headroom| rounded(headroom.ms)),
            "ttft_ms": rounded(predicted.ttft.into()),
            "ttft_p90_ms": rounded(predicted.ttft_p90.into()),
            "tpot_ms": rounded(predicted.tpot.into()),
            "tpot_p90_ms": rounded(predicted.tpot_p90.into()),
            "terms": objectives.compare_text(predicted), "trusted": predicted.is_trusted,
        })
    });
    json!({
        "model": model, "feasible": feasible > 0, "feasible_on": feasible, "of": all.len(),
        "retry_after_s": wait.map(|wait| rounded(wait.as_secs_f64())),
        "backends": backends.collect::<Vec<Value>>(),
    })
}

fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
