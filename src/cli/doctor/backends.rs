//! Findings on a backend, from its examination.

use std::time::Duration;

use penstock_api::units::{show_duration, to_millis};
use penstock_api::{Engine, show_names};
use penstock_clock::unix_seconds;
use penstock_config::BackendConfig;
use penstock_core::fleet::{Backend, Group};

use super::finding::Finding;
use crate::discovery::{DiscoveryError, Examination, IdleHandling, ListedModels, MetricsPage};

/// Tolerated clock skew in seconds: the Date header has whole seconds.
const SKEW: u64 = 5;
/// A slower health check of an idle engine indicates a slow network or a busy host.
const SLOW: Duration = Duration::from_millis(500);

/// The maximum number of models in a finding.
const MAX_SHOWN_MODELS: usize = 5;

/// Global settings that findings depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct DoctorSettings {
    /// `limits.idle_timeout`.
    pub(super) idle: Duration,
    /// True if engines are scraped.
    pub(super) wants_telemetry: bool,
}

pub(super) fn judge(backend: &Backend, found: &Examination, terms: DoctorSettings) -> Vec<Finding> {
    let config = &*backend.config;
    let name = &config.name;
    if !found.resolves {
        let message = format!("{} does not resolve", config.url.host);
        return vec![Finding::fail(name, message, "correct its url, or fix DNS")];
    }
    let mut findings = vec![reachable(config, found)];
    // What follows would fail for the same reason, and hide it.
    if found.check.is_err() || is_key_refused(config, found) {
        return findings;
    }
    findings.push(models(config, &found.models));
    findings.extend(keep_alive(config, found, terms.idle));
    findings.extend(slots(backend));
    findings.extend(found.metrics.as_ref().map(|page| metrics(name, page, terms)));
    findings.extend(found.clock.and_then(|clock| skew(name, clock)));
    findings
}

/// A backend that stands for every address of a name.
pub(super) fn judge_group(group: &Group) -> Finding {
    let (name, target, count) = (&group.name, &group.target, group.addresses.len());
    match group.unused {
        _ if count == 0 => Finding::warn(
            name,
            format!("{target} has no addresses: there is no backend yet"),
            "start its engines, correct its url or srv, or fix DNS",
        ),
        0 => Finding::ok(name, format!("{target} has {count} addresses, each is a backend")),
        unused => Finding::warn(
            name,
            format!("{target} has {unused} addresses more than the {count} that are used"),
            "raise discovery.max_addresses",
        ),
    }
}

fn reachable(config: &BackendConfig, found: &Examination) -> Finding {
    let (name, url) = (&config.name, &config.url);
    let took = match &found.check {
        Ok(took) => *took,
        Err(error) => {
            let remedy = match error {
                DiscoveryError::Status { status: 401 | 403, .. } => "set the correct api_key",
                DiscoveryError::Status { status: 404, .. } => "set its engine, or its health.path",
                DiscoveryError::Status { .. } => "the server runs but is not ready: see its log",
                DiscoveryError::OutOf(_) => "free or add what this machine has run out of",
                DiscoveryError::NoAddress
                | DiscoveryError::TimedOut
                | DiscoveryError::NotConnected
                | DiscoveryError::Refused
                | DiscoveryError::Connection(_)
                | DiscoveryError::TooLarge
                | DiscoveryError::NotJson { .. } => {
                    "start it, correct its url, or fix the network path"
                }
            };
            return Finding::fail(name, format!("{url}: {error}"), remedy);
        }
    };
    if let Some((status, meaning)) = found.remark {
        let message = format!("{url}: the health check returned {status}: {meaning}");
        let remedy = match status {
            401 | 403 => "set the correct api_key, unless clients send their own",
            404 | 405 => "set its engine, or its health.path",
            _ => "none, or set its health.path",
        };
        if is_key_refused(config, found) {
            return Finding::fail(name, message, "set the correct api_key");
        }
        return Finding::warn(name, message, remedy);
    }
    let engine = match (found.engine, &found.version) {
        (Engine::Auto, _) => "unknown engine".to_owned(),
        (engine, None) => engine.name().to_owned(),
        (engine, Some(version)) => format!("{} {version}", engine.name()),
    };
    let message = format!("{url} responds in {:.1} ms: {engine}", to_millis(took));
    match config.engine {
        _ if took > SLOW => Finding::warn(name, message, "check the network and the host"),
        Engine::Auto if found.engine != Engine::Auto => {
            let remedy = format!("set engine: {} to skip detection", found.engine.name());
            Finding { remedy: Some(remedy), ..Finding::ok(name, message) }
        }
        _ => Finding::ok(name, message),
    }
}

/// Returns whether the backend refuses the key that requests are sent with.
fn is_key_refused(config: &BackendConfig, found: &Examination) -> bool {
    config.api_key.is_some() && found.remark.is_some_and(|(status, _)| matches!(status, 401 | 403))
}

fn models(config: &BackendConfig, listed: &Result<ListedModels, DiscoveryError>) -> Finding {
    let name = &config.name;
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) if config.models.is_some() => {
            return Finding::ok(name, format!("its models are declared; it lists none ({error})"));
        }
        Err(error) => {
            let message = format!("it does not list its models: {error}");
            return Finding::fail(name, message, "list them under its 'models'");
        }
    };
    let ListedModels { models: listed, dropped, .. } = listed;
    let ids: Vec<&str> = listed.iter().map(|model| model.id.as_str()).collect();
    let declared = config.models.iter().flatten();
    let missing: Vec<&str> = declared
        .map(|model| model.upstream_id.as_deref().unwrap_or(&model.id))
        .filter(|id| !ids.contains(id))
        .collect();
    if !missing.is_empty() {
        let missing = show_names(missing.into_iter(), MAX_SHOWN_MODELS);
        let message = format!("it does not serve declared models: {missing}");
        return Finding::warn(name, message, "correct 'id' or 'upstream_id', or load the model");
    }
    if ids.is_empty() {
        return Finding::warn(name, "it lists no models", "load one, or list them under 'models'");
    }
    let shown: Vec<String> = listed
        .iter()
        .take(MAX_SHOWN_MODELS + 1)
        .map(|model| match model.context_length {
            Some(tokens) => format!("{} ({tokens} tokens)", model.id),
            None => model.id.clone(),
        })
        .collect();
    let more = ids.len().saturating_sub(shown.len());
    // The others are only counted, so that they need no text.
    let shown = shown.iter().map(String::as_str).chain(std::iter::repeat_n("", more));
    let message = format!("serves {}", show_names(shown, MAX_SHOWN_MODELS));
    let reasons = dropped.by_reason().into_iter().filter(|(_, count)| *count > 0);
    let reasons: Vec<String> = reasons.map(|(reason, count)| format!("{count} {reason}")).collect();
    if reasons.is_empty() {
        return Finding::ok(name, message);
    }
    let message = format!("{message}; ids that are not used: {}", reasons.join(", "));
    Finding::warn(name, message, "give each model a unique, printable id of at most 256 bytes")
}

/// Reports that an engine with slots gets fewer idle connections than `limits.idle_connections`
/// allows.
fn slots(backend: &Backend) -> Option<Finding> {
    let slots = backend.state.affordable_connections()?;
    let message = format!(
        "it has {slots} slots: with as many requests in flight, penstock closes connections after \
         their responses, so that idle ones do not occupy its HTTP threads"
    );
    Some(Finding::ok(&backend.config.name, message))
}

fn keep_alive(config: &BackendConfig, found: &Examination, idle: Duration) -> Option<Finding> {
    let name = &config.name;
    let show = |time: Duration| show_duration(Duration::from_millis(round_millis(time)));
    Some(match found.keep_alive {
        IdleHandling::Unknown => return None,
        IdleHandling::NotKept => Finding::warn(
            name,
            "it closes the connection after every response, so every request opens a new one",
            "enable keep-alive on the server",
        ),
        IdleHandling::Closes(after) if after < idle => Finding::warn(
            name,
            format!(
                "it closes idle connections after {}, but penstock reuses them for {}: a request can \
                 hit a closing connection and needs a second one",
                show(after),
                show_duration(idle)
            ),
            format!(
                "set limits.idle_timeout below {}, or a longer keep-alive on the server{}",
                show(after),
                keep_alive_setting(found.engine)
            ),
        ),
        IdleHandling::Closes(after) => {
            Finding::ok(name, format!("it keeps idle connections for {}", show(after)))
        }
        // Watched for too short a time to say anything about the setting.
        IdleHandling::Stays(watched) if watched < idle => return None,
        IdleHandling::Stays(watched) => {
            Finding::ok(name, format!("it keeps idle connections for more than {}", show(watched)))
        }
    })
}

/// The engine's own setting of keep-alive, in parentheses; empty if none is known.
fn keep_alive_setting(engine: Engine) -> String {
    let variable = engine.row().keep_alive_variable;
    variable.map_or_else(String::new, |name| format!(" ({name})"))
}

/// Rounds to a tenth of a second.
fn round_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(50) / 100 * 100
}

fn metrics(name: &str, page: &MetricsPage, terms: DoctorSettings) -> Finding {
    let message = match (&page.missing, page.replacement) {
        (Ok(missing), _) if missing.is_empty() => {
            return Finding::ok(name, "its metrics include load and KV cache usage");
        }
        (Ok(missing), _) => format!("its metrics lack {}", missing.join(", ")),
        (Err(error), Some(path)) => format!(
            "cannot read its metrics ({error}): falling back to {path}, which has no queue length and \
             no KV cache usage"
        ),
        (Err(error), None) => format!("cannot read its metrics: {error}"),
    };
    if terms.wants_telemetry {
        return Finding::warn(name, message, page.remedy);
    }
    // No warning: no decision reads them now.
    let remedy = format!("{}, before a strategy uses them", page.remedy);
    Finding {
        remedy: Some(remedy),
        ..Finding::ok(name, format!("{message}; no strategy uses them"))
    }
}

fn skew(name: &str, clock: u64) -> Option<Finding> {
    let off = clock.abs_diff(unix_seconds());
    (off > SKEW).then(|| {
        let message = format!("its clock is off by {off} s");
        Finding::warn(name, message, "synchronize both by NTP: logs and traces are out of order")
    })
}

#[cfg(test)]
mod tests;
