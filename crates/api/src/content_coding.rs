//! The content codings of request bodies (RFC 9110 §8.4): their names, and the selection by the
//! fields of a request.

crate::named! {
    /// A content coding that bodies are decoded from.
    pub enum ContentCoding {
        /// The gzip format of RFC 1952; `x-gzip` names it, too.
        Gzip = "gzip",
        /// The zlib format of RFC 1950; some clients send it raw.
        Deflate = "deflate",
        /// Brotli's format (RFC 7932).
        Brotli = "br",
        /// Zstandard frames (RFC 8878).
        Zstd = "zstd",
    }
}

/// The reason why the fields of a request name no coding that its body can be decoded from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodingError {
    /// A coding that is not among [`ACCEPTED`], as the request names it.
    #[error("The content coding '{0}' is not supported: send the body as {ACCEPTED}, or as it is")]
    Unknown(String),
    /// More than one coding, one over the other.
    #[error("The body has several content codings: send it with one of {ACCEPTED}, or as it is")]
    Several,
}

/// The codings that are decoded, as `accept-encoding` lists them (RFC 9110 §12.5.3).
pub const ACCEPTED: &str = "gzip, deflate, br, zstd";
/// The most bytes of an unknown coding's name that a message quotes.
const MAX_QUOTED: usize = 64;

impl ContentCoding {
    /// Reads the values of `content-encoding` fields. Returns `None` for a body that is not
    /// encoded: no field, an empty one, or `identity`.
    ///
    /// # Errors
    /// When a coding is unknown, or several are applied.
    pub fn of<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Self>, CodingError> {
        let names = fields.into_iter().flat_map(|field| field.split(|byte| *byte == b','));
        let mut found = None;
        for name in names.map(<[u8]>::trim_ascii) {
            // Empty elements of a list do not count (RFC 9110 §5.6.1.2).
            if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                continue;
            }
            let coding = Self::from_name(name).ok_or_else(|| CodingError::unknown(name))?;
            // Two codings would multiply the size that a small body can grow to.
            if found.replace(coding).is_some() {
                return Err(CodingError::Several);
            }
        }
        Ok(found)
    }

    fn from_name(name: &[u8]) -> Option<Self> {
        // RFC 9110 §8.4.1.3: `x-gzip` is equivalent to `gzip`.
        let name = if name.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { name };
        Self::ALL.into_iter().find(|coding| name.eq_ignore_ascii_case(coding.name().as_bytes()))
    }
}

impl CodingError {
    fn unknown(name: &[u8]) -> Self {
        // A client sent it: it may be long, and hold any byte.
        let shown = name.get(..MAX_QUOTED).unwrap_or(name);
        Self::Unknown(shown.escape_ascii().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_known_coding_is_read_from_any_number_of_fields() {
        for (fields, coding) in [
            (&[][..], None),
            (&[""], None),
            (&["identity"], None),
            (&["Identity, ,"], None),
            (&["gzip"], Some(ContentCoding::Gzip)),
            (&["X-GZIP"], Some(ContentCoding::Gzip)),
            (&["identity, br"], Some(ContentCoding::Brotli)),
            (&["", "\tzstd "], Some(ContentCoding::Zstd)),
            (&["deflate", "identity"], Some(ContentCoding::Deflate)),
        ] {
            let values = fields.iter().map(|field| field.as_bytes());
            assert_eq!(ContentCoding::of(values), Ok(coding), "{fields:?}");
        }
    }

    #[test]
    fn several_and_unknown_codings_are_errors() {
        for fields in [&["gzip, gzip"][..], &["gzip", "zstd"], &["br, identity, br"]] {
            let values = fields.iter().map(|field| field.as_bytes());
            assert_eq!(ContentCoding::of(values), Err(CodingError::Several), "{fields:?}");
        }
        let long = "x".repeat(10_000);
        for (name, shown) in
            [("compress", "compress"), ("g\u{e9}", "g\\xc3\\xa9"), (&long, &long[..64])]
        {
            let unknown = Err(CodingError::Unknown(shown.to_owned()));
            assert_eq!(ContentCoding::of([name.as_bytes()]), unknown);
        }
    }
}
