//! Timestamps by RFC 3339: `2026-11-20T19:53:26.123Z`.

use std::time::{Duration, UNIX_EPOCH};

/// A time since 1970 in UTC, with milliseconds.
pub(super) fn to_rfc3339(since_1970: Duration) -> String {
    // RFC 3339 ends with the year 9999; later times are clamped.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since_1970.min(LAST)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_utc_with_milliseconds() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_795_204_406, "2026-11-20T19:53:26.007Z"),
        ] {
            assert_eq!(to_rfc3339(Duration::new(seconds, 7_999_999)), expected);
        }
        assert_eq!(to_rfc3339(Duration::MAX), "9999-12-31T23:59:59.000Z");
    }
}
