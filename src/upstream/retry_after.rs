//! The wait that an engine requests before a retry.

use std::time::Duration;

use pingora::http::ResponseHeader;

/// The wait that a response requests: `retry-after-ms`, or `Retry-After` in seconds or as a date.
pub(crate) fn retry_after(header: &ResponseHeader) -> Option<Duration> {
    let text = |name: &str| header.headers.get(name)?.to_str().ok();
    // The finer of two fields that may both be there.
    if let Some(millis) = text("retry-after-ms").and_then(|value| value.parse().ok()) {
        return Some(Duration::from_millis(millis));
    }
    let value = text("retry-after")?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    let since_1970 = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since_1970.saturating_sub(Duration::from_secs(penstock_clock::unix_seconds())))
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
    }
}
