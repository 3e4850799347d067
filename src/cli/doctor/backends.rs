//! What an examination of a backend means.

use std::time::Duration;

use super::finding::Finding;
use crate::clock::unix_seconds;
use crate::config::{BackendConfig, Engine};
use crate::discovery::{DiscoveryError, Examination, KeepAlive, MetricsPage};
use crate::fleet::Backend;
use crate::units::{show_duration, to_millis};

/// How far a backend's clock may be off: its Date header has whole seconds.
const SKEW: u64 = 5;
/// A check of an idle engine that takes longer shows a slow network or a busy machine.
const SLOW: Duration = Duration::from_millis(500);

/// What counts of the configuration as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// How long idle connections are kept for the next request.
    pub(super) idle: Duration,
    /// Whether engines are asked for their metrics.
    pub(super) wants_telemetry: bool,
}

pub(super) fn judge(backend: &Backend, found: &Examination, terms: Terms) -> Vec<Finding> {
    let config = &*backend.config;
    let name = &config.name;
    if !found.resolves {
        let message = format!("{} does not resolve", config.url.host);
        return vec![Finding::fail(name, message, "correct its url, or the name server")];
    }
    let mut findings = vec![reachable(config, found)];
    if found.check.is_err() {
        return findings;
    }
    findings.push(models(config, &found.models));
    findings.extend(keep_alive(config, found, terms.idle));
    findings.extend(found.metrics.as_ref().map(|page| metrics(name, page, terms)));
    findings.extend(found.clock.and_then(|clock| skew(name, clock)));
    findings
}

fn reachable(config: &BackendConfig, found: &Examination) -> Finding {
    let (name, url) = (&config.name, &config.url);
    let took = match &found.check {
        Ok(took) => *took,
        Err(error) => {
            let remedy = match error {
                DiscoveryError::Status { status: 401 | 403, .. } => "give it the right api_key",
                DiscoveryError::Status { status: 404, .. } => "name its engine, or its health.path",
                DiscoveryError::Status { .. } => "it is there and not ready: see its own log",
                DiscoveryError::NoAddress
                | DiscoveryError::TimedOut
                | DiscoveryError::Connection(_)
                | DiscoveryError::TooLarge
                | DiscoveryError::NotJson { .. } => {
                    "start it, correct its url, or open the way to it"
                }
            };
            return Finding::fail(name, format!("{url}: {error}"), remedy);
        }
    };
    let engine = match (found.engine, &found.version) {
        (Engine::Auto, _) => "an engine that does not say which".to_owned(),
        (engine, None) => engine.name().to_owned(),
        (engine, Some(version)) => format!("{} {version}", engine.name()),
    };
    let engine: String = engine.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let message = format!("{url} answers in {:.1} ms: {engine}", to_millis(took));
    match config.engine {
        _ if took > SLOW => Finding::warn(name, message, "look at the network and the machine"),
        Engine::Auto if found.engine != Engine::Auto => {
            let remedy = format!("engine: {} spares it the guessing", found.engine.name());
            Finding { remedy: Some(remedy), ..Finding::ok(name, message) }
        }
        _ => Finding::ok(name, message),
    }
}

fn models(
    config: &BackendConfig,
    listed: &Result<Vec<crate::config::ModelEntry>, DiscoveryError>,
) -> Finding {
    let name = &config.name;
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) if config.models.is_some() => {
            return Finding::ok(name, format!("its models are declared; it lists none ({error})"));
        }
        Err(error) => {
            let message = format!("it does not list its models: {error}");
            return Finding::fail(name, message, "declare them under its 'models'");
        }
    };
    let ids: Vec<&str> = listed.iter().map(|model| model.id.as_str()).collect();
    let declared = config.models.iter().flatten();
    let missing: Vec<&str> = declared
        .map(|model| model.upstream_id.as_deref().unwrap_or(&model.id))
        .filter(|id| !ids.contains(id))
        .collect();
    if !missing.is_empty() {
        let message = format!("it does not list what is declared: {}", missing.join(", "));
        return Finding::warn(name, message, "correct 'id' or 'upstream_id', or load the model");
    }
    if ids.is_empty() {
        return Finding::warn(name, "it lists no models", "load one, or declare them");
    }
    let shown: Vec<String> = listed
        .iter()
        .take(5)
        .map(|model| match model.context_length {
            Some(tokens) => format!("{} ({tokens} tokens)", model.id),
            None => model.id.clone(),
        })
        .collect();
    let more = if ids.len() > 5 { format!(" and {} more", ids.len() - 5) } else { String::new() };
    let shown: String =
        shown.join(", ").chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Finding::ok(name, format!("serves {shown}{more}"))
}

fn keep_alive(config: &BackendConfig, found: &Examination, idle: Duration) -> Option<Finding> {
    let name = &config.name;
    let show = |time: Duration| show_duration(Duration::from_millis(round_millis(time)));
    Some(match found.keep_alive {
        KeepAlive::Unknown => return None,
        KeepAlive::NotKept => Finding::warn(
            name,
            "it closes the connection behind every answer, so every request has to open one",
            "turn its keep-alive on",
        ),
        KeepAlive::Closes(after) if after < idle => Finding::warn(
            name,
            format!(
                "it closes idle connections after {}, and penstock reuses them for {}: a request \
                 may meet the closing, which costs a second connection",
                show(after),
                show_duration(idle)
            ),
            format!(
                "limits.idle_timeout below {}, or a longer keep-alive there{}",
                show(after),
                if found.engine == Engine::Vllm { " (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)" } else { "" }
            ),
        ),
        KeepAlive::Closes(after) => {
            Finding::ok(name, format!("it keeps idle connections for {}", show(after)))
        }
        KeepAlive::Stays(watched) if watched < idle => return None,
        KeepAlive::Stays(watched) => {
            Finding::ok(name, format!("it keeps idle connections for more than {}", show(watched)))
        }
    })
}

/// To a tenth of a second.
fn round_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(50) / 100 * 100
}

fn metrics(name: &str, page: &MetricsPage, terms: Terms) -> Finding {
    let message = match (&page.missing, page.stand_in) {
        (Ok(missing), _) if missing.is_empty() => {
            return Finding::ok(name, "its metrics tell how busy it is");
        }
        (Ok(missing), _) => format!("its metrics do not tell {}", missing.join(", ")),
        (Err(error), Some(path)) => format!(
            "its metrics cannot be read ({error}): {path} is read instead, which does not tell how \
             many wait while no slot is free, nor the use of the KV cache"
        ),
        (Err(error), None) => format!("its metrics cannot be read: {error}"),
    };
    if terms.wants_telemetry {
        return Finding::warn(name, message, page.remedy);
    }
    let remedy = format!("{}, should a strategy ever read them", page.remedy);
    Finding { remedy: Some(remedy), ..Finding::ok(name, format!("{message}; nobody reads them")) }
}

fn skew(name: &str, clock: u64) -> Option<Finding> {
    let off = clock.abs_diff(unix_seconds());
    (off > SKEW).then(|| {
        let message = format!("its clock and ours are {off} s apart");
        Finding::warn(name, message, "set both by NTP: logs and traces tell a wrong order")
    })
}

#[cfg(test)]
mod tests;
