//! `/decisions` (the decision log) and `/explain` (a dry run of a request).

use std::time::Duration;

use penstock_clock::{now, unix_seconds};
use penstock_core::routing::Peek;
use penstock_core::routing::audit::{DryRun, DryRunReport, DryRunRequest, sorted_json};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::json;

use super::response::{AdminRefusal, AdminResponse};
use super::{Admin, AdminCall};
use crate::observe::decision_log::{DECISIONS_KEPT, MAX_CAPTURES};

/// The time that decisions are captured after the last request for them.
const CAPTURED_FOR: Duration = Duration::from_secs(60);

/// `/decisions`: the latest decisions, newest first; `n` limits their number. `capture=true` starts
/// or extends the capture of whole decisions and returns the captured ones; `capture=false` ends
/// the capture and deletes them.
pub(super) fn latest(admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    let given = |key| call.query.split('&').find_map(|pair| pair.strip_prefix(key));
    let count = match given("n=") {
        None => None,
        Some(given) => Some(given.parse().map_err(|_not_a_number| AdminRefusal::NotACount)?),
    };
    match given("capture=") {
        Some("true") => return Ok(captured(admin, count.unwrap_or(MAX_CAPTURES))),
        Some("false") => {
            admin.proxy.captures.end();
            admin.decisions.forget_captures();
        }
        Some(_) => return Err(AdminRefusal::NotAChoice),
        None => {}
    }
    let decisions = admin.decisions.latest(count.unwrap_or(DECISIONS_KEPT), now());
    let (total, kept) = (admin.decisions.total(), DECISIONS_KEPT);
    Ok(AdminResponse::json(&json!({"total": total, "kept": kept, "decisions": decisions})))
}

/// Writes one decision per line, so that line-based tools can process a saved capture.
fn captured(admin: &Admin, count: usize) -> AdminResponse {
    admin.proxy.captures.extend(now().after(CAPTURED_FOR));
    let (total, decisions) = admin.decisions.captured(count);
    let seconds = CAPTURED_FOR.as_secs();
    let head = format!(
        "{{\"captured\": {total}, \"kept\": {MAX_CAPTURES}, \"captures_for_s\": {seconds}, \
         \"decisions\": ["
    );
    // Serializing fails only for maps whose keys are not strings; a capture has none.
    let line = |one| serde_json::to_string(one).unwrap_or_default();
    let lines: Vec<String> = decisions.iter().map(|one| line(&**one)).collect();
    let end = if lines.is_empty() { "" } else { "\n" };
    AdminResponse::of("application/json", format!("{head}{end}{}{end}]}}\n", lines.join(",\n")))
}

/// `POST /explain`: decides about the request in the body without side effects.
pub(super) fn explain(admin: &Admin, call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    let sample = DryRunRequest::from_line(call.body)?;
    let fleet = call.generation.fleet.topology();
    let at = now();
    // A key or a token that is not valid is that of no client, as without a process.
    let client = sample.key().and_then(|key| admin.proxy.keys.find(call.generation, key).ok());
    let dry_run = DryRun {
        config: &call.generation.config,
        router: &call.generation.router,
        topology: &fleet,
        now: at,
        records_prompts: false,
        homes: Some(&admin.proxy.homes),
        stored: None,
        client: client.as_ref(),
    };
    // A dry run must not change later decisions: the rotation does not advance, and random picks
    // draw from a separate generator.
    let mut random = Peek { topology: &fleet, rng: SmallRng::seed_from_u64(at.0) };
    let budgets = admin.proxy.budgets.verdicts(&dry_run, &sample, unix_seconds());
    let report = dry_run.explain_with_shift(&sample, &mut random);
    let report = DryRunReport { budgets, ..report };
    Ok(AdminResponse::json(&sorted_json(&report)))
}
