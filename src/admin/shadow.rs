//! What a strategy that is tried out would have done.

use super::answer::{Answer, Refusal};
use super::{Admin, Call};
use crate::clock::now;

/// `/shadow`
pub(super) fn report(_admin: &Admin, call: &Call<'_>) -> Result<Answer, Refusal> {
    let shadow = call.generation.shadow.as_ref().ok_or(Refusal::NoShadow)?;
    Ok(Answer::json(&shadow.report(now())))
}
