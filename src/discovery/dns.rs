//! Resolves backend names in the background, so that the hot path finds addresses ready.

mod groups;
mod message;
mod resolv_conf;
mod resolver;

pub use groups::look_up_groups;
pub(crate) use resolver::Resolver;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use penstock_core::fleet::{Backend, Health};

/// The longest pause while the name does not resolve or the backend is not healthy: its addresses
/// may have changed.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Resolves a backend's name; returns whether any address was found. A name that stops resolving
/// keeps its last addresses.
pub(super) async fn resolve(backend: &Backend, resolver: &Resolver) -> bool {
    if let Some(address) = literal(backend) {
        backend.state.addresses.publish(vec![address]);
        return true;
    }
    let url = &backend.config.url;
    match resolver.host(&url.host).await {
        Ok(found) => {
            let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, url.port));
            let mut found: Vec<SocketAddr> = addresses.collect();
            // Servers rotate the order of addresses; only another set counts as a change.
            found.sort_unstable();
            found.dedup();
            let shown = format!("{found:?}");
            if backend.state.addresses.publish(found) {
                tracing::info!(backend = %backend.state.name, addresses = shown, "addresses changed");
            }
            true
        }
        Err(error) => {
            tracing::warn!(backend = %backend.state.name, %error, "name resolution failed");
            false
        }
    }
}

/// Resolves the name again and again, at most `interval` apart. Never ends.
pub(super) async fn follow(
    backend: &Backend,
    resolver: &Resolver,
    interval: Duration,
    mut is_resolved: bool,
) {
    if literal(backend).is_some() {
        return std::future::pending().await;
    }
    // In equal steps: a backend that fails during a long pause is resolved soon.
    let steps = interval.as_millis().div_ceil(MAX_PAUSE.as_millis()).max(1);
    let step = interval / u32::try_from(steps).unwrap_or(u32::MAX);
    let mut waited = Duration::ZERO;
    loop {
        tokio::time::sleep(step).await;
        waited += step;
        // Half a step of tolerance: the steps are rounded down and may not add up to the interval.
        if waited + step / 2 >= pause(interval, is_resolved, backend.state.health.status()) {
            is_resolved = resolve(backend, resolver).await;
            waited = Duration::ZERO;
        }
    }
}

fn pause(interval: Duration, is_resolved: bool, health: Health) -> Duration {
    if is_resolved && health == Health::Healthy { interval } else { interval.min(MAX_PAUSE) }
}

/// Returns the address of a backend that has no name, or is one of the addresses of a name.
fn literal(backend: &Backend) -> Option<SocketAddr> {
    let url = &backend.config.url;
    let of_url = || Some(SocketAddr::new(url.host.parse::<IpAddr>().ok()?, url.port));
    backend.config.address.or_else(of_url)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use penstock_config::{Config, Environment};
    use penstock_core::fleet::Fleet;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn names_of_unhealthy_backends_are_resolved_sooner() {
        assert_eq!(pause(SECOND * 10, true, Health::Healthy), SECOND * 10);
        assert_eq!(pause(SECOND * 10, true, Health::Unhealthy), MAX_PAUSE);
        assert_eq!(pause(SECOND * 10, false, Health::Healthy), MAX_PAUSE);
        assert_eq!(pause(SECOND / 2, false, Health::Unhealthy), SECOND / 2);
    }

    #[tokio::test]
    async fn changed_addresses_are_published_within_the_interval() {
        let environment = Environment::default();
        let yaml = "backends: [http://localhost:8000]";
        let config = Config::parse(yaml, "x", Path::new("."), &environment).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        let resolver = Resolver::new(&config.discovery);
        assert!(resolve(&backend, &resolver).await);
        let resolved = backend.state.addresses.first().unwrap();
        assert!(resolved.ip().is_loopback());
        // As if the name had pointed elsewhere before.
        let moved: SocketAddr = "192.0.2.1:8000".parse().unwrap();
        assert!(backend.state.addresses.publish(vec![moved]), "other addresses are a change");
        let following = follow(&backend, &resolver, Duration::from_millis(20), true);
        let followed = tokio::time::timeout(Duration::from_millis(500), following).await;
        assert!(followed.is_err(), "it never ends");
        assert_eq!(backend.state.addresses.first(), Some(resolved));
    }
}
