//! The report of the shadow strategy.

use penstock_clock::now;

use super::response::{AdminResponse, Refusal};
use super::{Admin, Call};

/// `/shadow`
pub(super) fn report(_admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let shadow = call.generation.shadow.as_ref().ok_or(Refusal::NoShadow)?;
    Ok(AdminResponse::json(&shadow.report(now())))
}
