//! Refuses HTTP/2 heads that HTTP/1.1 would read differently: engines receive HTTP/1.1, and a head
//! that changes its meaning on the way is request smuggling. The `h2` crate has already refused
//! connection-specific fields, upper-case names, and misplaced pseudo-header fields.

use http::header::{self, HeaderValue};
use http::request::Parts;

/// The reason why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MalformedHead {
    #[error("the path cannot be sent over HTTP/1.1")]
    Path,
    #[error("the authority is missing or ambiguous")]
    Authority,
    #[error("content-length is not one number")]
    Length,
}

/// Checks a head.
///
/// # Errors
/// The first ambiguity in it.
pub(crate) fn check(head: &Parts) -> Result<(), MalformedHead> {
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let is_plain = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain && head.method != http::Method::CONNECT && target != "*" {
        return Err(MalformedHead::Path);
    }
    check_authority(head)?;
    let mut lengths = head.headers.get_all(header::CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(length), None) if is_number(length) => Ok(()),
        (Some(_), _) => Err(MalformedHead::Length),
    }
}

fn is_number(value: &HeaderValue) -> bool {
    // 19 digits fit a u64.
    !value.is_empty() && value.len() < 20 && value.as_bytes().iter().all(u8::is_ascii_digit)
}

fn check_authority(head: &Parts) -> Result<(), MalformedHead> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let authority = head.uri.authority().map(|authority| authority.as_str());
    let is_unambiguous = match (authority, hosts.next(), hosts.next()) {
        // No user information (RFC 9113 §8.3.1).
        (Some(authority), None, _) => !authority.contains('@'),
        (Some(authority), Some(host), None) => {
            host.as_bytes().eq_ignore_ascii_case(authority.as_bytes())
        }
        (None, Some(host), None) => !host.is_empty() && !host.as_bytes().contains(&b'@'),
        (_, _, Some(_)) | (None, None, _) => false,
    };
    if is_unambiguous { Ok(()) } else { Err(MalformedHead::Authority) }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn judge(uri: &str, fields: &[(&str, &str)]) -> Result<(), MalformedHead> {
        let mut request = Request::builder().method("POST").uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn ambiguous_authorities_and_lengths_are_refused() {
        let uri = "https://a.example/v1/models";
        assert_eq!(judge(uri, &[("content-length", "5")]), Ok(()));
        assert_eq!(judge(uri, &[("host", "A.example")]), Ok(()));
        assert_eq!(judge("/v1/models", &[("host", "a.example")]), Ok(()));
        assert_eq!(judge(uri, &[("host", "b.example")]), Err(MalformedHead::Authority));
        let twice = [("host", "a.example"), ("host", "a.example")];
        assert_eq!(judge(uri, &twice), Err(MalformedHead::Authority));
        assert_eq!(judge("/v1/models", &[]), Err(MalformedHead::Authority));
        for lengths in [
            &[("content-length", "5"), ("content-length", "5")][..],
            &[("content-length", "+5")],
            &[("content-length", "5, 5")],
            &[("content-length", "")],
        ] {
            assert_eq!(judge(uri, lengths), Err(MalformedHead::Length), "{lengths:?}");
        }
    }
}
