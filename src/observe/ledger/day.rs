//! Days of the ledger, in UTC: dates as 2026-11-23.

use std::time::{Duration, UNIX_EPOCH};

use penstock_clock::unix_time;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Parses a day: a date (`2026-11-23`) or a number of days ago (`7d`); `None` if it is neither.
pub fn parse_day(given: &str) -> Option<String> {
    if let Some(days) = given.strip_suffix('d') {
        let days: u32 = days.parse().ok()?;
        return date(unix_time().saturating_sub(DAY.saturating_mul(days)));
    }
    let is_day =
        given.len() == 10 && humantime::parse_rfc3339(&format!("{given}T00:00:00Z")).is_ok();
    is_day.then(|| given.to_owned())
}

/// Returns the date of a day, counted in days since 1970.
pub(super) fn date_of(day: u64) -> String {
    let days = u32::try_from(day).unwrap_or(u32::MAX);
    date(DAY.saturating_mul(days)).unwrap_or_default()
}

/// Returns the date of a time since 1970.
fn date(time: Duration) -> Option<String> {
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + time).to_string();
    text.split('T').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates_or_days_ago() {
        assert_eq!(parse_day("2026-11-23").as_deref(), Some("2026-11-23"));
        assert!(parse_day("0d").is_some_and(|today| today.len() == 10));
        assert!(parse_day("7d").unwrap() < parse_day("0d").unwrap());
        for wrong in ["2026-13-01", "2026-1-1", "yesterday", "d", "-1d", "", "2026-11-23T00", "é9d"]
        {
            assert_eq!(parse_day(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn days_since_1970_have_dates() {
        assert_eq!(
            (date_of(0), date_of(20_780)),
            ("1970-01-01".to_owned(), "2026-11-23".to_owned())
        );
    }
}
