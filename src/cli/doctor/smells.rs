//! What a configuration may hold, and what often turns out to be a mistake.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::finding::Finding;
use crate::config::{BackendConfig, Config, ListenAddress, Listener, LogTarget};

/// uvicorn, on which most engines stand, closes idle connections after this.
const UVICORN_KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(super) fn look(config: &Config, path: &Path) -> Vec<Finding> {
    let file = path.display().to_string();
    let mut findings = vec![Finding::ok("config", format!("{file} can be started with"))];
    findings.extend(
        config
            .warnings
            .iter()
            .map(|warning| Finding::warn("config", warning.to_string(), "see `penstock check`")),
    );
    findings.extend(secrets_for_all(config, path));
    findings.extend(open_door(config));
    if config.limits.idle_timeout >= UVICORN_KEEP_ALIVE {
        findings.push(Finding::warn(
            "config",
            "limits.idle_timeout reaches the 5 s after which many engines close idle connections",
            "4s, unless every engine keeps them for longer",
        ));
    }
    findings.extend(config.backends.iter().filter_map(key_in_the_clear));
    findings.extend(lonely_models(config));
    findings.extend(log_folder(config));
    findings
}

fn secrets_for_all(config: &Config, path: &Path) -> Option<Finding> {
    let inline = |secret: &crate::config::Secret| secret.file().is_none();
    let has_secrets = config.auth.keys.iter().any(|key| inline(&key.key))
        || config.backends.iter().filter_map(|one| one.api_key.as_ref()).any(inline);
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let text = std::fs::read_to_string(path).ok()?;
    // Keys that come from the environment are not in the file.
    let is_written =
        has_secrets && text.lines().any(|line| line.contains("key:") && !line.contains("${"));
    (is_written && mode & 0o004 != 0).then(|| {
        Finding::warn(
            "config",
            "it seems to hold keys, and every user of this machine may read it",
            "chmod 640, or key_file and ${VARIABLES} for the keys",
        )
    })
}

fn open_door(config: &Config) -> Option<Finding> {
    let is_open = |listener: &Listener| match &listener.address {
        ListenAddress::Unix(_) => false,
        // Who must show a certificate is known.
        ListenAddress::Tcp(address) => !address.ip().is_loopback() && !listener.knows_clients(),
    };
    let reachable = config.server.listen.iter().any(is_open);
    (config.auth.keys.is_empty() && reachable).then(|| {
        Finding::warn(
            "config",
            "whoever reaches the data port may use the fleet: there are no auth.keys",
            "auth.keys, or a network that only clients are in",
        )
    })
}

fn key_in_the_clear(backend: &BackendConfig) -> Option<Finding> {
    let url = &backend.url;
    let is_here =
        url.host == "localhost" || url.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    (backend.api_key.is_some() && !url.https && !is_here).then(|| {
        Finding::warn(
            &backend.name,
            "its api_key crosses the network in the clear",
            "an https:// address, or a network nobody listens on",
        )
    })
}

/// Declared models with a single backend: when that is down, so is the model.
fn lonely_models(config: &Config) -> Option<Finding> {
    let mut served: BTreeMap<&str, usize> = BTreeMap::new();
    for model in config.backends.iter().filter_map(|one| one.models.as_ref()).flatten() {
        *served.entry(model.id.as_str()).or_default() += 1;
    }
    let lonely: Vec<&str> = served
        .into_iter()
        .filter(|(name, count)| *count == 1 && !config.routing.fallbacks.contains_key(*name))
        .map(|(name, _)| name)
        .collect();
    (config.backends.len() > 1 && !lonely.is_empty()).then(|| {
        let names = lonely.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        let message = format!("one backend and no fallback for {} model(s): {names}", lonely.len());
        Finding::warn("config", message, "a second backend, or routing.fallbacks")
    })
}

fn log_folder(config: &Config) -> Option<Finding> {
    let LogTarget::File(path) = &config.access_log.path else { return None };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let shown = path.display();
    Some(match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Finding::ok("access log", format!("goes to {shown}")),
        Ok(_) | Err(_) => Finding::fail(
            "access log",
            format!("the folder of {shown} is not there"),
            "make it, and give it to the user penstock runs as",
        ),
    })
}
