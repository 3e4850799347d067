//! Dry runs: what a request needs, who could take it, and who would. Calls the same scan and the
//! same router as the proxy; `penstock explain` and the admin port's `/explain` both print this.

mod question;
mod replay;
mod text;

pub use question::{DEFAULT_PATH, Question, QuestionError};
pub use replay::{render_replay, replay};
pub use text::render_text;

use serde_json::{Map, Value, json};

use crate::api::{ErrorCode, Operation};
use crate::fleet::{BackendSet, Topology};
use crate::prefix::{Chain, prompt_chain};
use crate::routing::Generation;
use crate::routing::{CandidateReport, Chance, RouteInput, RoutingDecision};
use crate::scan::{ScanOptions, scan};
use crate::units::Timestamp;

/// Decides about a request as the proxy would and says why: `{"requirements", "decision"}`, or
/// `{"requirements"?, "error", "candidates"?}`. Client keys are not asked for.
pub fn explain(
    generation: &Generation,
    fleet: &Topology,
    question: &Question,
    chance: &mut impl Chance,
    now: Timestamp,
) -> Value {
    let operation = match judge_head(generation, question) {
        Ok(operation) => operation,
        Err(error) => return json!({ "error": error }),
    };
    let routing = &generation.config.routing;
    let options = ScanOptions { estimate: routing.token_estimate, arrived_at: now };
    let body = &*question.body;
    let profile = match scan(operation, question.header("content-type"), body, options) {
        Ok(profile) => profile,
        Err(error) => return json!({ "error": error_value(error.code(), &error.to_string()) }),
    };
    let model = profile.model_name(body);
    let mut prompt = Chain::default();
    if let Some(weighted) = generation.router.weighted() {
        let name = generation.router.names.resolve(&model);
        let terms = weighted.prefix_params(fleet, name);
        prompt_chain(&profile, body, name, terms, &mut prompt);
    }
    let input = RouteInput {
        request: &profile,
        model: &model,
        tokens: generation.router.tokens_to_fit(&profile),
        fleet,
        tried: &BackendSet::default(),
        now,
        prompt: Some(&prompt),
        session: session(generation, question),
    };
    let explanation = generation.router.explain(&input, chance);
    if let (Ok(decision), Some(weighted), true) =
        (&explanation.result, generation.router.weighted(), chance.is_acted_on())
    {
        weighted.record(fleet, decision, &prompt);
    }
    let requirements = profile.to_requirements(body);
    let candidates = explanation.candidates;
    match explanation.result {
        Ok(decision) => json!({
            "requirements": requirements,
            "decision": with_candidates(
                with_weights(decision_value(fleet, &decision), generation),
                &candidates,
            ),
        }),
        Err(error) => json!({
            "requirements": requirements,
            "error": error_value(error.code(), &error.to_string()),
            "candidates": candidates,
        }),
    }
}

/// The session the question's headers name, where that counts.
fn session(generation: &Generation, question: &Question) -> Option<u64> {
    let field = generation.router.weighted()?.session_field()?;
    field.read(|name| question.header(name).map(str::as_bytes).into_iter())
}

/// An error as `explain` shows it; also for questions that cannot be read.
pub fn error_value(code: ErrorCode, message: &str) -> Value {
    let row = code.row();
    json!({ "status": row.status, "code": row.name, "message": message })
}

fn judge_head(generation: &Generation, question: &Question) -> Result<Operation, Value> {
    let path = question.path.split('?').next().unwrap_or_default();
    let Some(operation) = Operation::from_path(path) else {
        let message = format!("Unknown path: {}", path.escape_default());
        return Err(error_value(ErrorCode::UnknownPath, &message));
    };
    let encoding = question.header("content-encoding").unwrap_or("identity");
    if !encoding.eq_ignore_ascii_case("identity") {
        let message = "Compressed request bodies are not supported: send the body as it is";
        return Err(error_value(ErrorCode::UnsupportedEncoding, message));
    }
    let limit = generation.config.limits.max_body_size;
    if question.body.len() > limit.to_usize() {
        let message = format!("The body is larger than {limit} (limits.max_body_size)");
        return Err(error_value(ErrorCode::BodyTooLarge, &message));
    }
    Ok(operation)
}

fn decision_value(fleet: &Topology, decision: &RoutingDecision) -> Value {
    let model = fleet.model(decision.model).map(|model| &*model.name);
    let serving = decision.serving(fleet);
    debug_assert!(serving.is_some(), "a decision names a row of its own fleet");
    json!({
        "backend": serving.map(|serving| &*serving.state.name),
        "model": model,
        "upstream_model": serving.and_then(|serving| serving.upstream_id.as_deref()).or(model),
        "fallback": decision.is_fallback,
        "assumed": decision.is_assumed,
        "strategy": decision.strategy.name(),
    })
}

/// Adds how much each scorer counts, where scorers decide.
fn with_weights(mut decision: Value, generation: &Generation) -> Value {
    if let (Some(fields), Some(weighted)) = (decision.as_object_mut(), generation.router.weighted())
    {
        let weights: Map<String, Value> = weighted
            .profile()
            .weights()
            .map(|(name, part)| (name.to_owned(), json!(part)))
            .collect();
        fields.insert("weights".to_owned(), weights.into());
        fields.insert("picker".to_owned(), json!(weighted.profile().picker().name()));
    }
    decision
}

/// Adds the candidates, and whether all of them rest, so that the one that is due first is asked.
fn with_candidates(mut decision: Value, candidates: &[CandidateReport]) -> Value {
    if let Some(fields) = decision.as_object_mut() {
        let says = |key: &str, name: &str| fields.get(key).and_then(Value::as_str) == Some(name);
        let is_first_due = candidates.iter().any(|one| {
            let is_picked = says("backend", &one.backend) && says("model", &one.model);
            is_picked && one.excluded == Some("cooldown")
        });
        fields.insert("first_due".to_owned(), is_first_due.into());
        fields.insert("candidates".to_owned(), json!(candidates));
    }
    decision
}

#[cfg(test)]
mod tests;
