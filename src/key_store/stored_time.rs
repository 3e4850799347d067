//! Points in time as SQLite holds them.

use penstock_config::UnixTime;

/// Returns a time that was read.
pub(super) fn to_time(seconds: i64) -> UnixTime {
    UnixTime(u64::try_from(seconds).unwrap_or_default())
}

/// Returns a time to write.
pub(super) fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}
