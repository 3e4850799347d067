//! `budgets:` the money that teams and keys may spend.

use std::time::Duration;

use jiff::tz::TimeZone;
use penstock_api::choice;
use serde_json::json;

use super::price::Amount;
use crate::syntax::checked_text::{Checked, TextRule};
use crate::syntax::collections::{List, Maybe};
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::glob::ModelGlob;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, choice_setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::Name;

/// The maximum number of budgets: a request looks at all of them.
pub const MAX_BUDGETS: usize = 64;
/// The shortest and the longest rolling period.
const ROLLING: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(366 * 24 * 3600);

choice! {
    /// The clients that share the amount of a budget.
    pub enum BudgetScope {
        /// All of them.
        Everything = "everything",
        /// The keys of one team; each team has the amount.
        Team = "team",
        /// Each key.
        Key = "key",
    }
}
choice_setting!(BudgetScope);

/// The time for which the amount of a budget lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetPeriod {
    /// A day, from midnight on.
    Day,
    /// A week, from Monday on.
    Week,
    /// A month, from its first day on.
    Month,
    /// The last time of this length.
    Rolling(Duration),
}

impl Setting for BudgetPeriod {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        reader.parse(node, "day, week, month, or a duration from 1m to 366d", |text| match text {
            "day" => Some(Self::Day),
            "week" => Some(Self::Week),
            "month" => Some(Self::Month),
            other => {
                let days = other.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
                let of_days = days.and_then(|days| days.checked_mul(24 * 3600));
                let of_units = || penstock_api::units::parse_duration(other).ok();
                let duration = of_days.map(Duration::from_secs).or_else(of_units);
                duration.filter(|duration| ROLLING.contains(duration)).map(Self::Rolling)
            }
        })
    }

    fn dump(value: &Self) -> Dump {
        Dump::Text(match value {
            Self::Day => "day".to_owned(),
            Self::Week => "week".to_owned(),
            Self::Month => "month".to_owned(),
            Self::Rolling(duration) => penstock_api::units::show_duration(*duration),
        })
    }
}

/// The name of a time zone.
struct ZoneName;

impl TextRule for ZoneName {
    const EXPECTED: &'static str = "a time zone such as UTC or Europe/Berlin";

    fn accepts(text: &str) -> bool {
        TimeZone::get(text).is_ok()
    }
}

/// A share, as `75%` or 0.75.
struct Percentage;

impl Setting for Percentage {
    type Value = f64;

    fn read(node: &Node, reader: &mut Reader) -> Option<f64> {
        reader.parse(node, "a share such as 75% or 0.75", |text| {
            let (number, of) = match text.strip_suffix('%') {
                Some(number) => (number, 100.0),
                None => (text, 1.0),
            };
            let share = number.trim().parse::<f64>().ok()? / of;
            (0.0..=1.0).contains(&share).then_some(share)
        })
    }

    fn dump(value: &f64) -> Dump {
        Dump::Float(*value)
    }

    fn shape() -> Shape {
        let number = json!({"type": "number", "minimum": 0, "maximum": 1});
        Shape::Either(vec![Shape::Scalar(number), Shape::text()])
    }
}

section! {
    /// The money that may be spent in a period, by the prices of models. Needs a `ledger.path`.
    pub struct BudgetConfig requires ["name", "amount"] {
        /// The name, in errors, logs and metrics.
        pub name: String ["name" as Name] = String::new(),
        /// The amount, in the currency of the prices.
        pub amount: f64 ["amount" as Amount] = 0.0,
        /// The period: day, week or month, or a duration, which is counted back from now.
        pub every: BudgetPeriod = BudgetPeriod::Month,
        /// The time zone in which days, weeks and months begin.
        pub time_zone: String ["time_zone" as Checked<ZoneName>] = "UTC".to_owned(),
        /// The clients that share the amount: everything, the keys of each team, or each key.
        pub per: BudgetScope = BudgetScope::Everything,
        /// The teams it is for, with the wildcards * and ?. Without teams and keys it is for all.
        pub teams: Vec<ModelGlob> ["teams" as List<ModelGlob>] = Vec::new(),
        /// The names of the client keys it is for, with the same wildcards.
        pub keys: Vec<ModelGlob> ["keys" as List<ModelGlob>] = Vec::new(),
        /// The share of the amount from which on a warning is logged.
        pub soft: Option<f64> ["soft" as Maybe<Percentage>] = None,
        /// The zones that requests may reach once the amount is spent, as far as they cost nothing
        /// there. Default: requests are refused.
        pub zones: Vec<String> ["zones" as List<Name>] = Vec::new(),
        /// The model that requests get once the amount does not suffice for theirs, as far as it
        /// suffices for that model. Default: requests are refused.
        pub model: Option<String> ["model" as Maybe<String>] = None,
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::sections::budgets::BudgetPeriod;
    use std::time::Duration;

    fn every(text: &str) -> Option<BudgetPeriod> {
        let yaml = format!(
            "backends: [http://h:1]\nledger: {{ path: /l.db }}\nbudgets: [{{ name: b, amount: 1, every: {text} }}]"
        );
        let environment = crate::Environment::default();
        let config = Config::parse(&yaml, "test.yaml", std::path::Path::new(""), &environment);
        config.ok().map(|config| config.budgets[0].every)
    }

    #[test]
    fn periods_are_names_or_durations() {
        assert_eq!(every("week"), Some(BudgetPeriod::Week));
        let rolling = |hours: u64| Some(BudgetPeriod::Rolling(Duration::from_secs(hours * 3600)));
        assert_eq!((every("30d"), every("720h")), (rolling(720), rolling(720)));
        for wrong in ["30", "1s", "367d", "-1d", "year", "99999999999999999999d"] {
            assert_eq!(every(wrong), None, "{wrong}");
        }
    }
}
