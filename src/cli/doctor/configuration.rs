//! Findings in the configuration: valid settings that are often mistakes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use penstock_config::{BackendConfig, Config, ListenAddress, Listener, LogTarget};

use super::finding::Finding;

/// The default keep-alive of uvicorn, which most engines use.
const UVICORN_KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(super) fn look(config: &Config, path: &Path) -> Vec<Finding> {
    let file = path.display().to_string();
    let mut findings = vec![Finding::ok("config", format!("{file} is valid"))];
    findings.extend(
        config
            .warnings
            .iter()
            .map(|warning| Finding::warn("config", warning.to_string(), "see `penstock check`")),
    );
    findings.extend(readable_secrets(config, path));
    findings.extend(missing_client_auth(config));
    if config.limits.idle_timeout >= UVICORN_KEEP_ALIVE {
        findings.push(Finding::warn(
            "config",
            "limits.idle_timeout is not below 5 s, after which many engines close idle connections",
            "set it to 4s, unless every engine keeps connections longer",
        ));
    }
    findings.extend(config.backends.iter().filter_map(unencrypted_key));
    findings.extend(models_without_failover(config));
    findings.extend(log_folder(config));
    findings
}

fn readable_secrets(config: &Config, path: &Path) -> Option<Finding> {
    let inline = |secret: &penstock_config::Secret| secret.file().is_none();
    let has_secrets = config.auth.keys.iter().any(|key| key.hash.is_none() && inline(&key.key))
        || config.backends.iter().filter_map(|one| one.api_key.as_ref()).any(inline);
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let text = std::fs::read_to_string(path).ok()?;
    // Keys from the environment are not in the file.
    let is_written =
        has_secrets && text.lines().any(|line| line.contains("key:") && !line.contains("${"));
    // The group may be that of the service: only a file for everyone is a finding.
    (is_written && mode & 0o004 != 0).then(|| {
        Finding::warn(
            "config",
            "the file seems to contain keys and is readable by every user of this host",
            "chmod 640, or move the keys to key_file or ${VARIABLES}",
        )
    })
}

/// Returns whether anyone on the network can connect.
fn is_open(listener: &Listener) -> bool {
    match &listener.address {
        // The permissions of the file decide about its clients.
        ListenAddress::Unix(_) => false,
        // Client certificates authenticate clients.
        ListenAddress::Tcp(address) => !address.ip().is_loopback() && !listener.knows_clients(),
    }
}

fn missing_client_auth(config: &Config) -> Option<Finding> {
    let reachable = config.server.listen.iter().any(is_open);
    (config.auth.is_open() && reachable).then(|| {
        Finding::warn(
            "config",
            "no auth.keys: everyone who can connect to the data port can use the backends",
            "set auth.keys, or listen on a private network",
        )
    })
}

fn unencrypted_key(backend: &BackendConfig) -> Option<Finding> {
    let url = &backend.url;
    let is_here =
        url.host == "localhost" || url.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    (backend.api_key.is_some() && !url.https && !is_here).then(|| {
        Finding::warn(
            &backend.name,
            "its api_key is sent without encryption",
            "use an https:// URL, or a trusted network",
        )
    })
}

/// Models with a single backend and no fallback: no failover is possible.
fn models_without_failover(config: &Config) -> Option<Finding> {
    let mut served: BTreeMap<&str, usize> = BTreeMap::new();
    for model in config.backends.iter().filter_map(|one| one.models.as_ref()).flatten() {
        *served.entry(model.id.as_str()).or_default() += 1;
    }
    let single: Vec<&str> = served
        .into_iter()
        .filter(|(name, count)| *count == 1 && !config.routing.fallbacks.contains(name))
        .map(|(name, _)| name)
        .collect();
    // One backend alone is meant to be: there is nothing to fail over to.
    (config.backends.len() > 1 && !single.is_empty()).then(|| {
        let names = single.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        let message = format!(
            "{} model(s) without failover (one backend, no fallback): {names}",
            single.len()
        );
        Finding::warn("config", message, "add a second backend, or routing.fallbacks")
    })
}

fn log_folder(config: &Config) -> Option<Finding> {
    let LogTarget::File(path) = &config.access_log.path else { return None };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let shown = path.display();
    Some(match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Finding::ok("access log", format!("is written to {shown}")),
        Ok(_) | Err(_) => Finding::fail(
            "access log",
            format!("the directory of {shown} does not exist"),
            "create it, writable for the user that runs penstock",
        ),
    })
}
