//! Decisions: those that were made, and what one would be.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::json;

use super::answer::{Answer, Refusal};
use super::{Admin, Call};
use crate::clock::now;
use crate::decisions::DECISIONS_KEPT;
use crate::explain::{Question, explain as explain_question};
use crate::routing::Peek;

/// `/decisions`: the last ones, newest first; `n` says how many.
pub(super) fn latest(admin: &Admin, call: &Call<'_>) -> Result<Answer, Refusal> {
    let given = call.query.split('&').find_map(|pair| pair.strip_prefix("n="));
    let count = match given {
        None => DECISIONS_KEPT,
        Some(given) => given.parse().map_err(|_not_a_number| Refusal::NotACount)?,
    };
    let decisions = admin.decisions.latest(count, now());
    let (total, kept) = (admin.decisions.total(), DECISIONS_KEPT);
    Ok(Answer::json(&json!({"total": total, "kept": kept, "decisions": decisions})))
}

/// `POST /explain`: decides about the request in the body and moves nothing.
pub(super) fn explain(_admin: &Admin, call: &Call<'_>) -> Result<Answer, Refusal> {
    let question = Question::from_line(call.body)?;
    let fleet = call.generation.registry.snapshot();
    let at = now();
    // Rotation stays where it is; random picks draw from their own dice.
    let mut chance = Peek { topology: &fleet.topology, rng: SmallRng::seed_from_u64(at.0) };
    Ok(Answer::json(&explain_question(call.generation, &fleet, &question, &mut chance, at)))
}
