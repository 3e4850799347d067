//! The limit of open files and sockets of this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::Config;

/// Sockets and files other than those of clients and backends.
const OTHERS: u64 = 256;

/// Raises the soft limit to the hard limit, and warns if that is too low for `limits.connections`.
pub fn raise_limit(config: &Config) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = soft >= hard || setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let limit = if raised { hard } else { soft };
    let wanted = needed(config);
    if limit < wanted {
        tracing::warn!(
            limit,
            wanted,
            "the limit of open files is too low for `limits.connections`: raise LimitNOFILE (systemd) \
             or `ulimit -n`, or lower `limits.connections`"
        );
    }
}

/// Two sockets per client: its connection, and one to a backend.
fn needed(config: &Config) -> u64 {
    let connections = u64::try_from(config.limits.connections).unwrap_or(u64::MAX);
    let admin = u64::try_from(config.admin.connections).unwrap_or(u64::MAX);
    connections.saturating_mul(2).saturating_add(admin).saturating_add(OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_needs_two_sockets() {
        let mut config = Config::default();
        config.limits.connections = 1000;
        config.admin.connections = 100;
        assert_eq!(needed(&config), 2356);
    }

    #[test]
    fn soft_limit_is_raised_to_the_hard_limit() {
        raise_limit(&Config::default());
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
    }
}
