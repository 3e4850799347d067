//! Resolves backend names in the background, so that the hot path finds addresses ready.

use std::net::{IpAddr, SocketAddr};

use crate::fleet::Backend;

/// Resolves a backend's name; returns whether any address was found. A name that stops resolving keeps
/// its last addresses.
pub(super) async fn resolve(backend: &Backend) -> bool {
    let url = &backend.config.url;
    if let Ok(address) = url.host.parse::<IpAddr>() {
        backend.state.addresses.publish(vec![SocketAddr::new(address, url.port)]);
        return true;
    }
    match tokio::net::lookup_host((url.host.as_str(), url.port)).await {
        Ok(found) => {
            let mut found: Vec<SocketAddr> = found.collect();
            found.sort_unstable();
            found.dedup();
            let is_found = !found.is_empty();
            if is_found {
                backend.state.addresses.publish(found);
            }
            is_found
        }
        Err(error) => {
            tracing::warn!(backend = %backend.state.name, %error, "name resolution failed");
            false
        }
    }
}
