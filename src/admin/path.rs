//! Path patterns of endpoints, in which `{name}` matches one segment.

/// Matches `path` against the pattern `known`; returns the segment that matches `{name}`, or an
/// empty text if the pattern has none.
pub(super) fn capture(known: &str, path: &str) -> Option<String> {
    let mut captured = String::new();
    let (mut wanted, mut given) = (known.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(captured),
            (Some("{name}"), Some(segment)) if !segment.is_empty() => captured = decode(segment)?,
            (Some(wanted), Some(given)) if wanted == given => {}
            _ => return None,
        }
    }
}

/// Decodes `%XX`; `None` if the result is not UTF-8.
fn decode(segment: &str) -> Option<String> {
    let mut parts = segment.split('%');
    let mut bytes = parts.next()?.as_bytes().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_matches_one_segment() {
        let known = "/backends/{name}/drain";
        assert_eq!(
            capture(known, "/backends/10.0.0.5:8000/drain").as_deref(),
            Some("10.0.0.5:8000")
        );
        assert_eq!(capture(known, "/backends/gpu%C3%A4/drain").as_deref(), Some("gpu\u{e4}"));
        for path in ["/backends//drain", "/backends/a/b/drain", "/backends/%f/drain", "/backends/a"]
        {
            assert_eq!(capture(known, path), None, "{path}");
        }
        assert_eq!(capture("/fleet", "/fleet").as_deref(), Some(""));
        assert_eq!(capture("/", "/").as_deref(), Some(""));
    }
}
