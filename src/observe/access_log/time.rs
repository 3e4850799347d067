//! Points in time as RFC 3339 writes them: `2026-11-20T19:53:26.123Z`.

use std::time::Duration;

/// Writes a time since 1970 in UTC, to the millisecond.
pub(super) fn to_rfc3339(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = to_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_1970.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day counted from 1970-01-01: Howard Hinnant, "chrono-compatible low-level date
/// algorithms", `civil_from_days`, for days that are not negative.
fn to_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leap_days = day_of_era / 1460;
    let year_of_era = (day_of_era - leap_days + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Years begin in March here, so that the leap day is their last.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year_of_era + era * 400 + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_800, "2000-03-01T00:00:00.007Z"),
            (1_795_204_406, "2026-11-20T19:53:26.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
            (253_402_300_799, "9999-12-31T23:59:59.007Z"),
        ] {
            let time = Duration::new(seconds, 7_999_999);
            assert_eq!(to_rfc3339(time), expected);
        }
    }

    #[test]
    fn every_day_has_the_next_one_behind_it() {
        let mut last = String::new();
        for day in 0..60_000 {
            let date = to_rfc3339(Duration::from_secs(day * 86_400));
            assert!(date > last, "{date} behind {last}");
            let agrees =
                httpdate::fmt_http_date(std::time::UNIX_EPOCH + Duration::from_secs(day * 86_400));
            assert_eq!(&agrees[5..7], &date[8..10], "{agrees}");
            assert_eq!(&agrees[12..16], &date[..4], "{agrees}");
            last = date;
        }
    }
}
