//! Looks up the groups of a configuration: backends that stand for every address of a name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use penstock_clock::now;
use penstock_config::{BackendConfig, Config};
use penstock_core::fleet::{Group, GroupAddress, Groups};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::resolver::{LookupError, Resolver, Service, preferred};

/// The number of groups that are looked up at a time.
const AT_A_TIME: usize = 16;

/// Looks up every group of `config`. A group whose name is not found keeps its addresses in
/// `groups`.
pub async fn look_up_groups(config: &Config, groups: &Groups) -> Groups {
    let groups = Groups::of(config, groups);
    let resolver = Resolver::new(&config.discovery);
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    let limit = config.discovery.timeout;
    let mut lookups = JoinSet::new();
    for backend in config.backends.iter().filter(|backend| backend.is_group()).cloned() {
        let (resolver, permits) = (resolver.clone(), Arc::clone(&permits));
        lookups.spawn(async move {
            let _permit = permits.acquire().await;
            let found = tokio::time::timeout(limit, look_up(&resolver, &backend)).await;
            (backend.name, found.unwrap_or(Err(LookupError::TimedOut)))
        });
    }
    let mut found = BTreeMap::new();
    while let Some(ended) = lookups.join_next().await {
        let Ok((name, result)) = ended else { continue };
        if let Some(group) = groups.get(&name)
            && let Some(addresses) = record(group, result)
        {
            found.insert(name, addresses);
        }
    }
    let after = groups.with_addresses(config, |group| found.get(&*group.name).cloned());
    after.iter().for_each(|group| log_change(groups.get(&group.name), group));
    after
}

async fn look_up(
    resolver: &Resolver,
    backend: &BackendConfig,
) -> Result<Vec<GroupAddress>, LookupError> {
    if let Some(name) = &backend.srv {
        return Ok(rank(&resolver.services(name).await?));
    }
    let port = backend.url.port;
    let hosts = preferred(resolver.host(&backend.url.host).await?);
    Ok(hosts.into_iter().map(|ip| GroupAddress::plain(SocketAddr::new(ip, port))).collect())
}

/// Counts a lookup, and logs its failure once.
fn record(
    group: &Group,
    result: Result<Vec<GroupAddress>, LookupError>,
) -> Option<Vec<GroupAddress>> {
    let is_change = group.lookups.record(result.is_ok(), now());
    let (name, target, kept) = (&group.name, &group.target, group.addresses.len());
    match &result {
        Err(error) if is_change => {
            tracing::warn!(backend = %name, %target, %error, kept, "name resolution failed, addresses stay in use");
        }
        Ok(_) if is_change => {
            tracing::info!(backend = %name, %target, "name resolution recovered");
        }
        Ok(_) | Err(_) => {}
    }
    result.ok()
}

fn log_change(before: Option<&Group>, after: &Group) {
    let Some(before) = before else { return };
    let all = |group: &Group| group.addresses.iter().map(|one| one.address).collect::<Vec<_>>();
    let (was, is) = (all(before), all(after));
    let added: Vec<&SocketAddr> = is.iter().filter(|address| !was.contains(address)).collect();
    let removed: Vec<&SocketAddr> = was.iter().filter(|address| !is.contains(address)).collect();
    if !added.is_empty() || !removed.is_empty() {
        let name = &after.name;
        tracing::info!(backend = %name, addresses = is.len(), ?added, ?removed, "addresses changed");
    }
    if after.unused > 0 && after.unused != before.unused {
        tracing::warn!(
            backend = %after.name, unused = after.unused,
            "too many addresses for discovery.max_addresses, or for the number of backends: the rest is unused"
        );
    }
}

/// Returns the addresses of services with relative preferences: priorities from 0 up, and weights
/// divided by their greatest common divisor.
fn rank(services: &[Service]) -> Vec<GroupAddress> {
    let lowest = services.iter().map(|one| one.priority).min().unwrap_or(0);
    // A weight of 0 is a small chance, not none (RFC 2782).
    let weight = |one: &Service| u32::from(one.weight.max(1));
    let divisor = services.iter().map(weight).fold(0, greatest_common_divisor).max(1);
    let ranked = services.iter().map(|one| GroupAddress {
        address: one.address,
        priority: u32::from(one.priority - lowest),
        weight: weight(one) / divisor,
    });
    ranked.collect()
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferences_of_services_are_relative() {
        let service = |last: u8, priority, weight| Service {
            address: SocketAddr::from(([10, 0, 0, last], 80)),
            priority,
            weight,
        };
        let ranks = |services: &[Service]| -> Vec<(u32, u32)> {
            rank(services).iter().map(|one| (one.priority, one.weight)).collect()
        };
        let alike = [service(1, 1, 33), service(2, 1, 33)];
        assert_eq!(ranks(&alike), [(0, 1), (0, 1)], "as Kubernetes and Consul list them");
        let canary = [service(1, 10, 60), service(2, 10, 20), service(3, 20, 0)];
        assert_eq!(ranks(&canary), [(0, 60), (0, 20), (10, 1)]);
        assert_eq!(ranks(&[service(1, 5, 60), service(2, 5, 20)]), [(0, 3), (0, 1)]);
    }
}
