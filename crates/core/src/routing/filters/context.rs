//! The context of a backend: it must hold what an engine computes of the prompt.

use penstock_api::units::TokenCount;
use penstock_api::{Dialect, Operation};

use super::Candidacy;
use crate::fleet::Serving;
use crate::routing::RouteInput;

/// Returns whether the context of a backend is too short for the request. A backend that cuts the
/// prompt is usable, but a prompt that fits elsewhere is not cut.
#[cold]
#[inline(never)]
pub(in crate::routing) fn is_too_short(
    input: &RouteInput<'_>,
    candidate: &Serving,
    candidacy: Candidacy,
) -> bool {
    let needed = match candidacy {
        Candidacy::Known => input.tokens,
        Candidacy::Usable => tokens_after_cut(input, candidate),
    };
    context_of(input, candidate) < needed
}

/// Returns the context of a backend for the request; the largest number if it is unknown.
pub(in crate::routing) fn context_of(input: &RouteInput<'_>, candidate: &Serving) -> TokenCount {
    candidate.context_for(input.request.context_length).unwrap_or(TokenCount(u32::MAX))
}

/// Returns the tokens that a context must hold: less than all if the engine cuts the prompt.
fn tokens_after_cut(input: &RouteInput<'_>, candidate: &Serving) -> TokenCount {
    let request = input.request;
    match request.cut_to.filter(|_| cuts_prompts(candidate, request.operation)) {
        Some(kept) => {
            let cut = request.context_tokens().0.saturating_sub(kept.0);
            TokenCount(input.tokens.0.saturating_sub(cut))
        }
        None => input.tokens,
    }
}

/// Returns whether an engine cuts the prompts of requests that allow it.
fn cuts_prompts(candidate: &Serving, operation: Operation) -> bool {
    // No conversion keeps Ollama's `truncate`.
    match operation.row().dialect == Dialect::Ollama {
        true => candidate.conversion(operation).is_none(),
        false => candidate.engine().row().cuts_prompts,
    }
}
