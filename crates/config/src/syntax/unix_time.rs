//! Points in time as RFC 3339 writes them, with an offset or Z: `2027-01-31T18:00:00+01:00`.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::document::Node;
use super::dump::Dump;
use super::reader::Reader;
use super::setting::Setting;
use super::shape::Shape;

const EXPECTED: &str = "a time such as 2027-01-31T18:00:00Z";
const PATTERN: &str = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})\s*$";

/// Seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// Returns the time written as RFC 3339 says, from 1970 on; `None` for other text.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_uppercase();
        let (local, offset) = match text.strip_suffix('Z') {
            Some(local) => (local, 0),
            None => split_offset(&text)?,
        };
        if local.ends_with('Z') {
            return None;
        }
        let local = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
        let local = i64::try_from(local.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()?;
        // The offset may lead to a time before 1970.
        u64::try_from(local - offset).ok().map(Self)
    }

    /// Returns the time `duration` later, in whole seconds.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_secs()))
    }
}

/// Splits a text at its offset, and returns that in seconds.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let sign = match offset.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let number = |text: &str, limit: i64| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| is_number && *number <= limit)
    };
    Some((local, sign * (number(hours, 23)? * 3600 + number(minutes, 59)? * 60)))
}

impl fmt::Display for UnixTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The last second of the year 9999: what RFC 3339 can write.
        let seconds = self.0.min(253_402_300_799);
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        write!(out, "{}", humantime::format_rfc3339_seconds(time))
    }
}

impl Serialize for UnixTime {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UnixTime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let error = || serde::de::Error::custom(format_args!("'{text}' is not {EXPECTED}"));
        Self::parse(&text).ok_or_else(error)
    }
}

impl Setting for UnixTime {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        reader.parse(node, EXPECTED, Self::parse)
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(&value.to_string())
    }

    fn shape() -> Shape {
        Shape::pattern(PATTERN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_any_offset() {
        let noon = UnixTime(1_800_014_400);
        for text in [
            "2027-01-15T12:00:00Z",
            "2027-01-15t13:00:00+01:00",
            "2027-01-15T06:30:00.5-05:30",
            " 2027-01-15T12:00:00z ",
        ] {
            assert_eq!(UnixTime::parse(text), Some(noon), "{text}");
        }
        assert_eq!(noon.to_string(), "2027-01-15T12:00:00Z");
        assert_eq!(UnixTime(u64::MAX).to_string(), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "tomorrow",
            "2027-01-15",
            "2027-01-15T12:00:00",
            "2027-13-15T12:00:00Z",
            "2027-01-15T12:00:00+1:00",
            "2027-01-15T12:00:00+24:00",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2027-01-15T12:00:00Z+01:00",
            "é+01:00",
        ] {
            assert_eq!(UnixTime::parse(text), None, "{text}");
        }
    }
}
