//! How many files and sockets this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::Config;

/// Sockets and files beside those of clients and backends.
const OTHERS: u64 = 256;

/// Raises the soft limit to the hard one, and warns when even that is too little.
pub fn raise_limit(config: &Config) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = soft >= hard || setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let limit = if raised { hard } else { soft };
    let wanted = needed(config);
    if limit < wanted {
        tracing::warn!(
            limit,
            wanted,
            "open files: `limits.connections` clients need more than this process may have: raise \
             LimitNOFILE (systemd) or `ulimit -n`, or lower `limits.connections`"
        );
    }
}

/// One socket per connection, and one to a backend for each request in flight.
fn needed(config: &Config) -> u64 {
    let connections = u64::try_from(config.limits.connections).unwrap_or(u64::MAX);
    let admin = u64::try_from(config.admin.connections).unwrap_or(u64::MAX);
    connections.saturating_mul(2).saturating_add(admin).saturating_add(OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_needs_two_sockets() {
        let mut config = Config::default();
        config.limits.connections = 1000;
        config.admin.connections = 100;
        assert_eq!(needed(&config), 2356);
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        raise_limit(&Config::default());
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
    }
}
