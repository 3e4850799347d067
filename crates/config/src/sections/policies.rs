//! `policies:` where the requests of a model and a key may go, and how good the backends must be.

use std::net::IpAddr;
use std::time::Duration;

use penstock_api::{Tier, choice};

use super::Config;
use super::backends::BackendConfig;
use super::model::TierNumber;
use crate::syntax::collections::{List, Maybe};
use crate::syntax::glob::ModelGlob;
use crate::syntax::setting::{choice_setting, section};
use crate::syntax::values::{AtLeastOne, Name, Positive, Share};

/// The zone of backends whose address is loopback or private.
pub const LOCAL_ZONE: &str = "local";
/// The zone of the other backends that name none.
pub const CLOUD_ZONE: &str = "cloud";

/// The maximum number of policies: sets of them are bit masks of this size.
pub const MAX_POLICIES: usize = 64;

choice! {
    /// The treatment of backends below `min_tier`.
    pub enum TierMode {
        /// They get no request.
        Strict = "strict",
        /// They get requests while no backend of the tier can take one.
        Flexible = "flexible",
    }
}
choice_setting!(TierMode);

section! {
    /// The places that requests may go to. The first policy that matches a request applies.
    pub struct PolicyConfig requires ["name"] {
        /// The name, in explanations, logs and `x-penstock-policy`.
        pub name: String ["name" as Name] = String::new(),
        /// The models it applies to, with the wildcards * and ?: by the requested name or by the
        /// one that this leads to, in any case. Default: all.
        pub models: Vec<ModelGlob> ["models" as List<ModelGlob>] = Vec::new(),
        /// The names of the client keys it applies to, with the wildcards * and ?. Without keys and
        /// teams it applies to all, and to requests without a key.
        pub keys: Vec<ModelGlob> ["keys" as List<ModelGlob>] = Vec::new(),
        /// The teams whose keys it applies to, with the same wildcards.
        pub teams: Vec<ModelGlob> ["teams" as List<ModelGlob>] = Vec::new(),
        /// The zones that requests may reach. Default: all.
        pub zones: Vec<String> ["zones" as List<Name>] = Vec::new(),
        /// The lowest tier of backends that requests may reach.
        pub min_tier: Option<Tier> ["min_tier" as Maybe<TierNumber>] = None,
        /// The treatment of backends below `min_tier`: strict or flexible.
        pub tier_mode: TierMode = TierMode::Strict,
        /// Bounds for what is measured of a backend. Default: none.
        pub quality: Option<QualityConfig> ["quality" as Maybe<QualityConfig>] = None,
    }
}

section! {
    /// Bounds for what is measured of a model on a backend. While it is beyond one of them, it
    /// gets no request that another backend can take, except one at a time that tries it.
    pub struct QualityConfig {
        /// The highest share of requests that fail, by the backend's fault.
        pub max_error_share: Option<f64> ["max_error_share" as Maybe<Share>] = None,
        /// The highest 90th percentile of the time to the first token.
        pub max_ttft: Option<Duration> ["max_ttft" as Maybe<Positive>] = None,
        /// The highest 90th percentile of the time per further token.
        pub max_tpot: Option<Duration> ["max_tpot" as Maybe<Positive>] = None,
        /// The number of requests in the window below which nothing is judged.
        pub min_requests: u32 ["min_requests" as AtLeastOne<u32>] = 20,
        /// The time over which figures are measured.
        pub window: Duration ["window" as Positive] = Duration::from_secs(600),
    }
}

impl Config {
    /// Returns the zones of its backends, and those that its policies and keys name; some more
    /// than once.
    pub fn zone_names(&self) -> impl Iterator<Item = &str> {
        let backends = self.backends.iter().filter_map(BackendConfig::zone_name);
        let policies = self.policies.iter().flat_map(|policy| &policy.zones);
        let keys = self.auth.keys.iter().flat_map(|key| &key.zones);
        backends.chain(policies.chain(keys).map(String::as_str))
    }
}

impl BackendConfig {
    /// Returns the zone of the backend: the configured one, else by its address. `None` if unknown:
    /// the members of a group are found by DNS, which must not say how much a backend is trusted.
    pub fn zone_name(&self) -> Option<&str> {
        if let Some(zone) = &self.zone {
            return Some(zone);
        }
        if self.is_group() || self.address.is_some() {
            return None;
        }
        Some(if is_near(&self.url.host) { LOCAL_ZONE } else { CLOUD_ZONE })
    }
}

/// Returns whether a host is this machine or has a private address. Other names are not looked up:
/// the owner of a DNS server could decide where data goes.
fn is_near(host: &str) -> bool {
    if host == "localhost" {
        return true;
    }
    // Canonical: `::ffff:10.0.0.1` is the address `10.0.0.1`.
    match host.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => {
            address.is_loopback() || address.is_private() || address.is_link_local()
        }
        Ok(IpAddr::V6(address)) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::url::BackendUrl;

    fn zone_of(host: &str) -> Option<String> {
        let url = BackendUrl { host: host.to_owned(), ..BackendUrl::default() };
        BackendConfig { url, ..BackendConfig::default() }.zone_name().map(str::to_owned)
    }

    #[test]
    fn only_loopback_and_private_addresses_are_local() {
        let local = ["localhost", "127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "172.16.0.1"];
        let more = ["192.168.0.1", "169.254.1.1", "fd00::1", "fe80::1", "::ffff:10.0.0.1"];
        for host in local.into_iter().chain(more) {
            assert_eq!(zone_of(host).as_deref(), Some(LOCAL_ZONE), "{host}");
        }
        let cloud = ["api.openai.com", "gpu-a", "8.8.8.8", "172.32.0.1", "100.64.0.1", "0.0.0.0"];
        let odd = [
            "127.1",
            "2130706433",
            "0x7f000001",
            "127.0.0.1.nip.io",
            "localhost.",
            "::ffff:8.8.8.8",
        ];
        let more = ["2001:db8::1", "localhost.example.com", "10.0.0.1.example.com", "::"];
        for host in cloud.into_iter().chain(odd).chain(more) {
            assert_eq!(zone_of(host).as_deref(), Some(CLOUD_ZONE), "{host}");
        }
    }

    #[test]
    fn zone_of_a_member_comes_from_its_group_alone() {
        let address = Some("10.0.0.7:8000".parse().unwrap());
        let member = BackendConfig { address, ..BackendConfig::default() };
        assert_eq!(member.zone_name(), None, "DNS found it");
        let zone = Some("eu".to_owned());
        assert_eq!(BackendConfig { zone, ..member }.zone_name(), Some("eu"));
    }
}
