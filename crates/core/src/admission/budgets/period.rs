//! The periods of budgets: days, weeks and months of a time zone, and times counted back from now.

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use penstock_config::{BudgetConfig, BudgetPeriod};

/// The number of parts of a rolling period: what was spent is forgotten by parts.
const PARTS: u64 = 60;

/// The period of a budget.
#[derive(Debug, Clone)]
pub(super) struct Period {
    kind: BudgetPeriod,
    zone: TimeZone,
}

/// The part of time that a cost belongs to, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeriodSpan {
    /// The start of the part that is being filled.
    pub(super) part: u64,
    /// The start of the oldest part that still counts.
    pub(super) since: u64,
    /// The time at which the next part is forgotten, or at which the period ends.
    pub(super) until: u64,
}

impl Period {
    pub(super) fn new(config: &BudgetConfig) -> Self {
        // The configuration is checked; UTC is part of every database of time zones.
        let zone = TimeZone::get(&config.time_zone).unwrap_or(TimeZone::UTC);
        Self { kind: config.every, zone }
    }

    /// Returns the part of time at `unix` seconds since 1970.
    pub(super) fn at(&self, unix: u64) -> PeriodSpan {
        if let BudgetPeriod::Rolling(length) = self.kind {
            let length = length.as_secs().max(PARTS);
            let width = length.div_ceil(PARTS);
            let part = unix / width * width;
            let since = (part + width).saturating_sub(length);
            return PeriodSpan { part, since, until: part + width };
        }
        let bounds = self.bounds(unix);
        let (start, end) = bounds.unwrap_or((unix / 86_400 * 86_400, (unix / 86_400 + 1) * 86_400));
        PeriodSpan { part: start, since: start, until: end }
    }

    /// Returns the time at which what was spent in a part is forgotten.
    pub(super) fn end_of(&self, part: u64) -> u64 {
        let BudgetPeriod::Rolling(length) = self.kind else { return self.at(part).until };
        let length = length.as_secs().max(PARTS);
        let width = length.div_ceil(PARTS);
        ((part + length).saturating_sub(width) / width + 1) * width
    }

    /// Returns the start and the end of the day, week or month.
    fn bounds(&self, unix: u64) -> Option<(u64, u64)> {
        let now = Timestamp::from_second(i64::try_from(unix).ok()?).ok()?;
        let today = now.to_zoned(self.zone.clone()).start_of_day().ok()?;
        let (start, end) = match self.kind {
            BudgetPeriod::Day | BudgetPeriod::Rolling(_) => {
                (today.clone(), today.checked_add(1.day()).ok()?)
            }
            BudgetPeriod::Week => {
                let passed = today.weekday().since(Weekday::Monday);
                let monday = today.checked_sub(i64::from(passed).days()).ok()?;
                (monday.clone(), monday.checked_add(1.week()).ok()?)
            }
            BudgetPeriod::Month => {
                let first = today.first_of_month().ok()?;
                (first.clone(), first.checked_add(1.month()).ok()?)
            }
        };
        // The clocks may have changed at midnight.
        Some((seconds(&start.start_of_day().ok()?)?, seconds(&end.start_of_day().ok()?)?))
    }
}

fn seconds(at: &Zoned) -> Option<u64> {
    u64::try_from(at.timestamp().as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(text: &str) -> u64 {
        u64::try_from(text.parse::<Timestamp>().unwrap().as_second()).unwrap()
    }

    fn span(every: BudgetPeriod, zone: &str, now: &str) -> (String, String) {
        let config = BudgetConfig { every, time_zone: zone.to_owned(), ..BudgetConfig::default() };
        let PeriodSpan { since, until, .. } = Period::new(&config).at(at(now));
        let text =
            |unix: u64| Timestamp::from_second(unix.try_into().unwrap()).unwrap().to_string();
        (text(since), text(until))
    }

    const HOUR: BudgetPeriod = BudgetPeriod::Rolling(Duration::from_secs(3600));

    /// Period, time zone, now, start and end; all in UTC.
    const PERIODS: &[(BudgetPeriod, &str, &str, &str, &str)] = &[
        (
            BudgetPeriod::Day,
            "UTC",
            "2026-11-27T23:59:59",
            "2026-11-27T00:00:00",
            "2026-11-28T00:00:00",
        ),
        (
            BudgetPeriod::Day,
            "Europe/Berlin",
            "2026-11-27T23:30:00",
            "2026-11-27T23:00:00",
            "2026-11-28T23:00:00",
        ),
        // 25 and 23 hours.
        (
            BudgetPeriod::Day,
            "Europe/Berlin",
            "2026-10-25T12:00:00",
            "2026-10-24T22:00:00",
            "2026-10-25T23:00:00",
        ),
        (
            BudgetPeriod::Day,
            "Europe/Berlin",
            "2026-03-29T12:00:00",
            "2026-03-28T23:00:00",
            "2026-03-29T22:00:00",
        ),
        (
            BudgetPeriod::Week,
            "UTC",
            "2026-11-29T23:59:59",
            "2026-11-23T00:00:00",
            "2026-11-30T00:00:00",
        ),
        (
            BudgetPeriod::Week,
            "UTC",
            "2026-11-30T00:00:00",
            "2026-11-30T00:00:00",
            "2026-12-07T00:00:00",
        ),
        (
            BudgetPeriod::Month,
            "UTC",
            "2028-02-29T23:59:59",
            "2028-02-01T00:00:00",
            "2028-03-01T00:00:00",
        ),
        (
            BudgetPeriod::Month,
            "America/New_York",
            "2027-01-01T04:59:59",
            "2026-12-01T05:00:00",
            "2027-01-01T05:00:00",
        ),
        (
            BudgetPeriod::Month,
            "America/New_York",
            "2027-01-01T05:00:00",
            "2027-01-01T05:00:00",
            "2027-02-01T05:00:00",
        ),
        (HOUR, "UTC", "2026-11-27T12:34:56", "2026-11-27T11:35:00", "2026-11-27T12:35:00"),
    ];

    #[test]
    fn periods_begin_at_midnight_of_the_time_zone() {
        for (every, zone, now, since, until) in PERIODS {
            let expected = (format!("{since}Z"), format!("{until}Z"));
            let found = span(*every, zone, &format!("{now}Z"));
            assert_eq!(found, expected, "{every:?} in {zone} at {now}");
        }
    }
}
