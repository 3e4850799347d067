//! The messages of routing errors.

use std::fmt;

use super::{MAX_NAMED, RouteError};

impl fmt::Display for RouteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ModelNotFound { alias, target, unreported } => {
                write!(out, "Model '{target}' not found")?;
                if alias != target {
                    write!(out, " ('{alias}' is an alias for it)")?;
                }
                write_unreported(out, unreported)
            }
            Self::NoBackendInZone { model, zones, inside, outside, .. } => {
                write!(out, "Requests for model '{model}' may only reach ")?;
                write_zones(out, zones, inside)?;
                write!(out, " ({outside} in other zones)")
            }
            Self::NoHealthyBackend { model, missing: None } | Self::AllTried { model } => {
                write!(out, "No healthy backend available for model '{model}'")
            }
            Self::NoHealthyBackend { model, missing: Some(missing) } => write!(
                out,
                "No healthy backend available for model '{model}' \
                 (the healthy ones lack {missing})"
            ),
            Self::CapabilityMismatch { model, missing, lacking, overflow } => {
                write!(
                    out,
                    "No backend supports required capabilities for model '{model}': {missing}"
                )?;
                for (index, (name, missing)) in lacking.iter().enumerate() {
                    let start = if index == 0 { " (" } else { "; " };
                    write!(out, "{start}{name} lacks {}", missing.names())?;
                }
                out.write_str(")")?;
                overflow.map_or(Ok(()), |overflow| write!(out, ": {overflow}"))
            }
            Self::FallbackChainExhausted { chain, .. } => {
                let chain = chain.join(", ");
                write!(out, "All backends in fallback chain unavailable: [{chain}]")
            }
            Self::Saturated { model } => write!(
                out,
                "Every backend for model '{model}' is at its limit of requests in flight or of backlog"
            ),
            Self::CoolingDown { model, status, .. } => {
                write!(out, "Every backend for model '{model}' recently responded with {status}")
            }
            Self::ObjectiveMissed { model, predicted_ms, per_token_ms, can_be_met, .. } => write!(
                out,
                "The objectives of the request would be missed on every backend for model '{model}'{} (predicted: \
                 the first token within {predicted_ms} ms, {per_token_ms} ms per further token), and its priority is below 0",
                if *can_be_met { "" } else { ", even an idle one" }
            ),
            Self::DiscoveryPending { model } => write!(
                out,
                "Model '{model}' is not known yet: discovery of some backends is not complete"
            ),
        }
    }
}

/// Writes the zones that are admitted, and the reason against each backend there.
fn write_zones(
    out: &mut fmt::Formatter<'_>,
    zones: &[String],
    inside: &[(String, String)],
) -> fmt::Result {
    match zones {
        [] => out.write_str("no zone at all")?,
        [one] => write!(out, "the zone {one}")?,
        several => write!(out, "the zones {}", several.join(", "))?,
    }
    for (index, (name, reason)) in inside.iter().enumerate() {
        let start = if index == 0 { ": " } else { "; " };
        write!(out, "{start}{name} {reason}")?;
    }
    if inside.is_empty() { out.write_str(", where no backend serves it") } else { Ok(()) }
}

/// Writes the backends that may serve an unknown model, up to the bound of a message.
fn write_unreported(out: &mut fmt::Formatter<'_>, names: &[String]) -> fmt::Result {
    let shown = names.get(..MAX_NAMED).unwrap_or(names);
    if shown.is_empty() {
        return Ok(());
    }
    write!(out, "; backends that have never reported their models: {}", shown.join(", "))?;
    match names.len() - shown.len() {
        0 => Ok(()),
        more => write!(out, " and {more} more"),
    }
}
