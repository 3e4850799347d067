//! Single values: numbers, durations, sizes, addresses, names.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use penstock_api::units::{ByteSize, UnitError, parse_duration, show_duration};
use serde_json::json;

use super::document::Node;
use super::dump::Dump;
use super::errors::Problem;
use super::reader::Reader;
use super::setting::Setting;
use super::shape::Shape;

const DURATION_PATTERN: &str = r"^\s*[0-9]*\.?[0-9]+\s*(us|ms|s|m|h)\s*$";
/// The longest duration: a year, far below any overflow when durations are added to a point in
/// time.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

const SIZE_PATTERN: &str = r"^\s*[0-9]+\s*(B|KiB|MiB|GiB)\s*$";
const SIZE_PER_SECOND_PATTERN: &str = r"^\s*[0-9]+\s*(B|KiB|MiB|GiB)/s\s*$";

macro_rules! whole_number {
    ($($number:ty),+) => {$(
        impl Setting for $number {
            type Value = Self;

            fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
                read_whole(node, reader, 0)
            }

            fn dump(value: &Self) -> Dump {
                // Only a `usize` can be larger: the dump then shows the largest number that it
                // holds.
                Dump::Integer(i64::try_from(*value).unwrap_or(i64::MAX))
            }

            fn shape() -> Shape {
                Shape::integer(0, Self::MAX_VALUE)
            }
        }

        impl WholeNumber for $number {
            const MAX_VALUE: u64 = <$number>::MAX as u64;
        }
    )+};
}
whole_number!(u16, u32, usize);

/// An unsigned integer type.
pub(crate) trait WholeNumber:
    Setting<Value = Self> + FromStr + PartialOrd + From<u8>
{
    const MAX_VALUE: u64;
}

/// Reads a number of at least `least`. The message names the maximum only if the value exceeds it.
fn read_whole<N: WholeNumber>(node: &Node, reader: &mut Reader, least: u8) -> Option<N> {
    let expected = format!("a whole number, {least} or more");
    let text = reader.scalar(node, &expected)?;
    match text.parse::<N>() {
        Ok(number) if number >= N::from(least) => Some(number),
        // Digits that do not parse are too many for the type.
        Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            let expected = format!("a whole number from {least} to {}", N::MAX_VALUE);
            reader.refuse_value(node, text, &expected)
        }
        Ok(_) | Err(_) => reader.refuse_value(node, text, &expected),
    }
}

/// A number that must not be 0.
pub(crate) struct AtLeastOne<N>(std::marker::PhantomData<N>);

impl<N: WholeNumber> Setting for AtLeastOne<N> {
    type Value = N;

    fn read(node: &Node, reader: &mut Reader) -> Option<N> {
        read_whole(node, reader, 1)
    }

    fn dump(value: &N) -> Dump {
        N::dump(value)
    }

    fn shape() -> Shape {
        Shape::integer(1, N::MAX_VALUE)
    }
}

impl Setting for bool {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        reader.parse(node, "true or false", |text| text.to_ascii_lowercase().parse().ok())
    }

    fn dump(value: &Self) -> Dump {
        Dump::Bool(*value)
    }

    fn shape() -> Shape {
        Shape::Scalar(json!({"type": "boolean"}))
    }
}

/// A share of a whole, 0 to 1.
pub(crate) struct Share;

impl Setting for Share {
    type Value = f64;

    fn read(node: &Node, reader: &mut Reader) -> Option<f64> {
        reader.parse(node, "a number from 0 to 1", |text| {
            text.parse().ok().filter(|share| (0.0..=1.0).contains(share))
        })
    }

    fn dump(value: &f64) -> Dump {
        Dump::Float(*value)
    }

    fn shape() -> Shape {
        Shape::Scalar(json!({"type": "number", "minimum": 0, "maximum": 1}))
    }
}

/// Refuses a value with a missing or unknown unit.
fn refuse_unit<T>(node: &Node, reader: &mut Reader, source: UnitError) -> Option<T> {
    reader.refuse(node, |key| Problem::Unit { key, source })
}

impl Setting for Duration {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, "a duration such as 5s")?;
        match parse_duration(text) {
            Ok(duration) if duration > MAX_DURATION => {
                reader.refuse_value(node, text, "at most 8760h")
            }
            Ok(duration) => Some(duration),
            Err(source) => refuse_unit(node, reader, source),
        }
    }

    fn dump(value: &Self) -> Dump {
        Dump::Text(show_duration(*value))
    }

    fn shape() -> Shape {
        Shape::pattern(DURATION_PATTERN)
    }
}

/// A duration that must not be zero.
pub(crate) struct Positive;

impl Setting for Positive {
    type Value = Duration;

    fn read(node: &Node, reader: &mut Reader) -> Option<Duration> {
        let duration = Duration::read(node, reader)?;
        if duration.is_zero() {
            return reader.refuse_value(node, "0", "a duration longer than 0");
        }
        Some(duration)
    }

    fn dump(value: &Duration) -> Dump {
        Duration::dump(value)
    }

    fn shape() -> Shape {
        Duration::shape()
    }
}

/// A size that must not be zero.
pub(crate) struct NonZeroSize;

impl Setting for NonZeroSize {
    type Value = ByteSize;

    fn read(node: &Node, reader: &mut Reader) -> Option<ByteSize> {
        let size = ByteSize::read(node, reader)?;
        if size == ByteSize(0) {
            return reader.refuse_value(node, "0B", "more than 0B");
        }
        Some(size)
    }

    fn dump(value: &ByteSize) -> Dump {
        ByteSize::dump(value)
    }

    fn shape() -> Shape {
        ByteSize::shape()
    }
}

impl Setting for ByteSize {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, "a size such as 32MiB")?;
        match text.parse() {
            Ok(size) => Some(size),
            Err(source) => refuse_unit(node, reader, source),
        }
    }

    fn dump(value: &Self) -> Dump {
        Dump::Text(value.to_string())
    }

    fn shape() -> Shape {
        Shape::pattern(SIZE_PATTERN)
    }
}

/// A size per second, as in `1KiB/s`.
pub(crate) struct PerSecond;

impl Setting for PerSecond {
    type Value = ByteSize;

    fn read(node: &Node, reader: &mut Reader) -> Option<ByteSize> {
        reader.parse(node, "a size per second such as 1KiB/s", |text| {
            text.trim().strip_suffix("/s")?.parse().ok()
        })
    }

    fn dump(value: &ByteSize) -> Dump {
        Dump::Text(format!("{value}/s"))
    }

    fn shape() -> Shape {
        Shape::pattern(SIZE_PER_SECOND_PATTERN)
    }
}

impl Setting for SocketAddr {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        reader.parse(node, "an IP address and port such as 0.0.0.0:8080 or [::]:8080", |text| {
            text.trim().parse().ok()
        })
    }

    fn dump(value: &Self) -> Dump {
        Dump::Text(value.to_string())
    }

    fn shape() -> Shape {
        Shape::pattern(r"^.+:[0-9]+$")
    }
}

/// A non-empty string.
impl Setting for String {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, "a text")?;
        if text.trim().is_empty() {
            return reader.refuse_value(node, text, "a text that is not empty");
        }
        Some(text.to_owned())
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(value)
    }
}

/// The path of a file, relative to the configuration's directory.
pub(crate) struct FilePath;

impl Setting for FilePath {
    type Value = PathBuf;

    fn read(node: &Node, reader: &mut Reader) -> Option<PathBuf> {
        let given = reader.scalar(node, "the path of a file")?;
        let path = reader.base_dir().join(given);
        // Absolute, so that a dump names the same file from any directory.
        Some(std::path::absolute(&path).unwrap_or(path))
    }

    fn dump(value: &PathBuf) -> Dump {
        if value.as_os_str().is_empty() { Dump::Null } else { Dump::text(&value.to_string_lossy()) }
    }
}

fn is_plain(letter: char) -> bool {
    !letter.is_control() && !letter.is_whitespace() && !"/?#%\"".contains(letter)
}

/// Returns whether a text can be the name of a client, a backend or the like.
pub fn is_plain_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_plain)
}

/// A name that is shown in metrics and used in paths of the admin port.
pub(crate) struct Name;

impl Setting for Name {
    type Value = String;

    fn read(node: &Node, reader: &mut Reader) -> Option<String> {
        let text = reader.scalar(node, "a name")?;
        if !is_plain_name(text) {
            return reader.refuse_value(node, text, "a name without spaces or any of / ? # % \"");
        }
        Some(text.to_owned())
    }

    fn dump(value: &String) -> Dump {
        Dump::text(value)
    }
}

/// A name that DNS can look up, in lower case and without a dot at its end.
pub(crate) struct DnsName;

impl Setting for DnsName {
    type Value = String;

    fn read(node: &Node, reader: &mut Reader) -> Option<String> {
        reader.parse(node, "a DNS name such as _http._tcp.engines.example", |text| {
            let name = text.trim().trim_end_matches('.').to_ascii_lowercase();
            // 63 and 253 bytes are the limits of DNS (RFC 1035, 2.3.4).
            let is_label = |label: &str| {
                let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
                (1..=63).contains(&label.len()) && label.bytes().all(is_fit)
            };
            (name.len() <= 253 && name.split('.').all(is_label)).then_some(name)
        })
    }

    fn dump(value: &String) -> Dump {
        Dump::text(value)
    }
}

/// The address of a DNS server; port 53 unless given.
pub(crate) struct NameServer;

impl Setting for NameServer {
    type Value = SocketAddr;

    fn read(node: &Node, reader: &mut Reader) -> Option<SocketAddr> {
        const EXPECTED: &str = "an IP address such as 10.0.0.10, or with a port 127.0.0.1:8600";
        let text = reader.scalar(node, EXPECTED)?.trim();
        let with_port = text.parse().ok();
        let address = with_port.or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, 53)));
        address.or_else(|| reader.refuse_value(node, text, EXPECTED))
    }

    fn dump(value: &SocketAddr) -> Dump {
        Dump::Text(value.to_string())
    }
}
