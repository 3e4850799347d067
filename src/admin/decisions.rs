//! The latest decisions, and dry runs.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::json;

use super::response::{AdminResponse, Refusal, to_json};
use super::{Admin, Call};
use crate::clock::now;
use crate::explain::{Question, explain as explain_question};
use crate::observe::decision_log::{CAPTURES_KEPT, DECISIONS_KEPT};
use crate::routing::Peek;

/// How long decisions are captured after a request for captures.
const CAPTURED_FOR: Duration = Duration::from_secs(60);

/// `/decisions`: the latest, newest first; `n` limits their number. `capture=true` starts capturing
/// and returns the captured decisions with all their inputs; `capture=false` stops and discards them.
pub(super) fn latest(admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let given = |key| call.query.split('&').find_map(|pair| pair.strip_prefix(key));
    let count = match given("n=") {
        None => None,
        Some(given) => Some(given.parse().map_err(|_not_a_number| Refusal::NotACount)?),
    };
    match given("capture=") {
        Some("true") => return Ok(captured(admin, count.unwrap_or(CAPTURES_KEPT))),
        Some("false") => {
            admin.proxy.captures().end();
            admin.decisions.forget_captures();
        }
        Some(_) => return Err(Refusal::NotAChoice),
        None => {}
    }
    let decisions = admin.decisions.latest(count.unwrap_or(DECISIONS_KEPT), now());
    let (total, kept) = (admin.decisions.total(), DECISIONS_KEPT);
    Ok(AdminResponse::json(&json!({"total": total, "kept": kept, "decisions": decisions})))
}

/// One decision per line, so that line-based tools can split the file.
fn captured(admin: &Admin, count: usize) -> AdminResponse {
    admin.proxy.captures().extend(now().after(CAPTURED_FOR));
    let (total, decisions) = admin.decisions.captured(count);
    let seconds = CAPTURED_FOR.as_secs();
    let head = format!(
        "{{\"captured\": {total}, \"kept\": {CAPTURES_KEPT}, \"captures_for_s\": {seconds}, \
         \"decisions\": ["
    );
    let lines: Vec<String> =
        decisions.iter().map(|one| to_json(serde_json::to_string(&**one))).collect();
    let end = if lines.is_empty() { "" } else { "\n" };
    AdminResponse::of("application/json", format!("{head}{end}{}{end}]}}\n", lines.join(",\n")))
}

/// `POST /explain`: routes the request in the body without side effects.
pub(super) fn explain(_admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let question = Question::from_line(call.body)?;
    let fleet = call.generation.fleet.topology();
    let at = now();
    // Peeks at the rotation without advancing it; random picks use a separate generator.
    let mut chance = Peek { topology: &fleet, rng: SmallRng::seed_from_u64(at.0) };
    Ok(AdminResponse::json(&explain_question(call.generation, &fleet, &question, &mut chance, at)))
}
