//! The limit of open files and sockets of this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use penstock_config::Config;

/// The number of sockets and files other than those of clients and backends.
const OTHERS: u64 = 256;

/// The most descriptors that are not for clients and their backends.
const MAX_RESERVE: usize = 256;

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

/// Returns the number of clients that the limit of open files allows, each with one connection to a
/// backend. `in_use` is the number of sockets of clients and backends now. Descriptors for health
/// checks, logs and the refusal of further clients stay in reserve.
pub(super) fn affordable_clients(in_use: usize) -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    affordable(limit, open.saturating_sub(in_use))
}

fn affordable(limit: usize, others: usize) -> usize {
    // A share, because a fixed reserve could take all descriptors of a low limit.
    let reserve = (limit / 8).min(MAX_RESERVE);
    (limit.saturating_sub(others).saturating_sub(reserve) / 2).max(1)
}

/// Returns the number of descriptors needed. A client has two: its connection, and one to a
/// backend.
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
    fn open_files_bound_the_clients() {
        assert_eq!(affordable(64, 36), 10);
        assert_eq!(affordable(1024, 40), 428);
        assert!(affordable(usize::MAX, 40) > 1 << 30);
        assert_eq!(affordable(16, 36), 1, "one at a time, whatever happens");
    }

    #[test]
    fn soft_limit_is_raised_to_the_hard_limit() {
        raise_limit(&Config::default());
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
    }
}
