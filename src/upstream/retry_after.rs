//! The wait that an engine requests before a retry.

use std::time::Duration;

use http::header::RETRY_AFTER;
use pingora::http::ResponseHeader;

/// The largest number that is read, far above every bound of a cooldown.
const MAX_NUMBER: f64 = 1e12;

/// The wait that a response requests: `retry-after-ms`, or `Retry-After` in seconds or as a date.
/// Both numbers may have decimal places.
pub(crate) fn retry_after(header: &ResponseHeader) -> Option<Duration> {
    let millis = header.headers.get("retry-after-ms").and_then(|value| value.to_str().ok());
    // The finer of two fields that may both be there.
    if let Some(millis) = millis.and_then(|value| number(value.trim())) {
        return Some(Duration::from_secs_f64(millis / 1000.0));
    }
    standard_field(header)
}

/// The wait that `Retry-After` requests, which most clients read alone.
pub(crate) fn standard_field(header: &ResponseHeader) -> Option<Duration> {
    let value = header.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Some(seconds) = number(value) {
        return Some(Duration::from_secs_f64(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    let since_1970 = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since_1970.saturating_sub(Duration::from_secs(penstock_clock::unix_seconds())))
}

/// A number that is not negative, cut to what a duration can hold.
fn number(value: &str) -> Option<f64> {
    // Neither `inf` and `NaN`, which parse as well, nor exponents.
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'+'));
    let number: f64 = value.parse().ok().filter(|_| is_plain)?;
    Some(number.min(MAX_NUMBER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_read_in_every_form() {
        let wait = |fields: &[(&'static str, &str)]| {
            let mut header = ResponseHeader::build(429, None).unwrap();
            for (name, value) in fields {
                header.insert_header(*name, *value).unwrap();
            }
            retry_after(&header)
        };
        assert_eq!(wait(&[("retry-after", " 7 ")]), Some(Duration::from_secs(7)));
        let both = [("retry-after", "7"), ("retry-after-ms", "250")];
        assert_eq!(wait(&both), Some(Duration::from_millis(250)));
        let past = [("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")];
        assert_eq!(wait(&past), Some(Duration::ZERO));
        assert_eq!((wait(&[]), wait(&[("retry-after", "soon")])), (None, None));
        let millis = |fields: &[(&'static str, &str)]| wait(fields).map(|wait| wait.as_millis());
        for (text, expected) in [("2.5", 2500), ("2.0", 2000), ("0.5", 500), (".25", 250)] {
            assert_eq!(millis(&[("retry-after", text)]), Some(expected), "{text} seconds");
        }
        assert_eq!(millis(&[("retry-after-ms", " 1500.0 ")]), Some(1500));
        let fallen_back = [("retry-after-ms", "soon"), ("retry-after", "3")];
        assert_eq!(millis(&fallen_back), Some(3000));
        for text in ["-2.5", "inf", "NaN", "1e3", "5,5", "4s", ".", ""] {
            assert_eq!(wait(&[("retry-after", text)]), None, "{text:?} is no number");
        }
        let long = wait(&[("retry-after", "99999999999999999999999")]);
        assert!(long.is_some_and(|wait| wait > Duration::from_secs(1 << 30)), "{long:?}");
    }
}
