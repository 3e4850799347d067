//! Newtypes with a unit: a bare number never crosses a function. They validate where they are
//! parsed (`32MiB`, `250ms`), so the rest of the crate can trust them. Bottom layer.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// A number of tokens, estimated or counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TokenCount(pub u32);

/// A point in time: microseconds since the process's clock started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub u64);

/// Microseconds as an integer, for paths where [`Duration`] arithmetic is measurable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(pub u64);

impl Micros {
    /// Converts it to a duration.
    pub fn to_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl From<Duration> for Micros {
    fn from(duration: Duration) -> Self {
        Self(to_micros(duration))
    }
}

impl Timestamp {
    /// The time that passed since `earlier`; zero when `earlier` lies in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// This point in time, `wait` earlier; the clock's start when that lies before it.
    pub fn before(self, wait: Duration) -> Self {
        Self(self.0.saturating_sub(to_micros(wait)))
    }

    /// This point in time, `wait` later.
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(to_micros(wait)))
    }
}

/// Returns a duration in whole seconds, rounded up, as in `Retry-After`.
pub fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

/// A duration in whole microseconds, saturating.
pub fn to_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The nearest `f32`, for figures that need few digits.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
pub fn narrow(value: f64) -> f32 {
    value as f32
}

/// The whole part of a number as an index; 0 for a negative one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and negative numbers become 0"
)]
pub fn floor_index(value: f64) -> usize {
    value as usize
}

/// The lower half of a number that packs two.
#[inline(always)]
pub fn lower_half(packed: u64) -> u32 {
    u32::try_from(packed & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// Widens a number to only the digits an `f32` has: 0.6 and not 0.6000000238418579.
pub fn widen(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A duration in milliseconds for people: rounded to whole microseconds.
pub fn to_millis(duration: Duration) -> f64 {
    to_micros(duration) as f64 / 1e3
}

/// A number of bytes, written in YAML as `64KiB`, `32MiB`, `1GiB` or `512B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Returns `count` KiB.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// Returns `count` MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// The size as a length of memory; saturates where `usize` is narrower.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0 => (0, "B"),
            bytes if bytes % (1 << 30) == 0 => (bytes >> 30, "GiB"),
            bytes if bytes % (1 << 20) == 0 => (bytes >> 20, "MiB"),
            bytes if bytes % (1 << 10) == 0 => (bytes >> 10, "KiB"),
            bytes => (bytes, "B"),
        };
        write!(out, "{value}{unit}")
    }
}

/// A value in YAML without a unit, or with an unknown one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A value that is not a size.
    #[error("'{given}' is not a size: write a whole number with B, KiB, MiB or GiB, as in 32MiB")]
    Size {
        /// The value as it was written.
        given: String,
    },
    /// A value that is not a duration.
    #[error("'{given}' is not a duration: write a number with ms, s, m or h, as in 250ms or 5s")]
    Duration {
        /// The value as it was written.
        given: String,
    },
}

impl std::str::FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(given: &str) -> Result<Self, UnitError> {
        let fail = || UnitError::Size { given: given.to_owned() };
        let (number, unit) = split_unit(given);
        let shift = match unit {
            "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return Err(fail()),
        };
        let count: u64 = number.parse().map_err(|_not_a_number| fail())?;
        count.checked_mul(1 << shift).map(Self).ok_or_else(fail)
    }
}

/// Parses `250ms`, `5s`, `1.5m` or `2h`.
///
/// # Errors
/// [`UnitError::Duration`] when the number or the unit is missing or unknown.
pub fn parse_duration(given: &str) -> Result<Duration, UnitError> {
    let fail = || UnitError::Duration { given: given.to_owned() };
    let (number, unit) = split_unit(given);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(fail()),
    };
    let count: f64 = number.parse().map_err(|_not_a_number| fail())?;
    // Parsed with exact milliseconds in mind: 0.1 s must be 100 ms, not 99.999999 ms.
    let micros = (count * seconds * 1e6).round();
    Duration::try_from_secs_f64(micros / 1e6).map_err(|_out_of_range| fail())
}

/// Writes a duration the way [`parse_duration`] reads it.
pub fn show_duration(duration: Duration) -> String {
    let micros = to_micros(duration);
    match micros {
        0 => "0s".to_owned(),
        _ if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        _ if micros.is_multiple_of(1000) => format!("{}ms", micros / 1000),
        _ => format!("{micros}us"),
    }
}

fn split_unit(given: &str) -> (&str, &str) {
    let given = given.trim();
    let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let (number, unit) = given.split_at(end);
    (number, unit.trim_start())
}

/// A range of a body or a head, as offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteSpan {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl ByteSpan {
    /// The span as a range of offsets.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The bytes of `body` the span covers; empty when `body` is too short for it.
    pub fn of(self, body: &[u8]) -> &[u8] {
        body.get(self.range()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_carry_their_unit() {
        assert_eq!("32MiB".parse(), Ok(ByteSize::mib(32)));
        assert_eq!("1 GiB".parse(), Ok(ByteSize(1 << 30)));
        assert!("32".parse::<ByteSize>().is_err(), "a bare number has no unit");
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("0.1s"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("5").is_err(), "a bare number has no unit");
        assert!(parse_duration("-1s").is_err());
    }

    #[test]
    fn displayed_units_parse_back() {
        for micros in [0, 1, 999, 1000, 1_500_000, 300_000_000] {
            let duration = Duration::from_micros(micros);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
        for bytes in [0, 1, 1024, 1025, 32 << 20, 1 << 30] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
    }
}
