//! Recognises files in base64 among the strings of a prompt. An engine reads the text of a text
//! file, and makes tokens of any other one by its content.

use memchr::{memchr, memmem};
use penstock_api::slices::{after, before, split_at};

use super::bytes::is_dense;

/// The length from which a string in JSON is measured, and may be a file in base64: a string
/// without white space, quotes and escapes.
pub(super) const MIN_LONG: usize = 1 << 10;
/// The first bytes of files in base64: data URLs, images, sounds, videos, PDFs and archives, such
/// as those of office software. Other dense text, such as the output of a tool, is text.
const FILES: [&[u8]; 16] = [
    b"data:",
    b"iVBORw0KGgo",
    b"/9j/",
    b"R0lGOD",
    b"UklGR",
    b"SUkq",
    b"TU0A",
    b"JVBERi",
    b"UEsDB",
    b"0M8R4K",
    b"SUQz",
    b"//",
    b"T2dnUw",
    b"ZkxhQ",
    b"GkXfo",
    b"AAAA",
];
/// The last names in `application/…` types that are text, also with something before them, as in
/// `ld+json` and `x-yaml`.
const TEXTS: [&[u8]; 12] = [
    b"csv",
    b"javascript",
    b"json",
    b"jsonl",
    b"ndjson",
    b"sh",
    b"sql",
    b"toml",
    b"typescript",
    b"xml",
    b"yaml",
    b"yml",
];
/// The longest header of a data URL that is read.
const MAX_HEADER: usize = 128;
const BASE64: &[u8] = b";base64";

/// A file in base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum File {
    /// A text of this length, in the unit of the token estimate.
    Text { length: u64 },
    /// An image, a sound, a PDF, or anything else that is not text.
    Other,
}

impl File {
    /// Returns the file that a string of at least [`MIN_LONG`] bytes is; `None` if it is text.
    pub(super) fn of(raw: &[u8]) -> Option<Self> {
        if let Some((header, data)) = split_text_url(raw) {
            let is_base64 = memmem::find(header, BASE64).is_some();
            let is_file = is_base64 && memchr(b' ', up_to(data, MIN_LONG)).is_none();
            return is_file.then_some(Self::Text { length: decoded_length(data.len() as u64) });
        }
        let start = raw.first_chunk::<MIN_LONG>()?;
        let is_file = FILES.iter().any(|file| start.starts_with(file)) && is_dense(start);
        is_file.then_some(Self::Other)
    }
}

/// Returns the length of a text whose base64 has this length.
pub(super) fn decoded_length(base64: u64) -> u64 {
    base64 * 3 / 4
}

/// Splits a data URL with the type of a text into its header and its data.
fn split_text_url(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = raw.strip_prefix(b"data:")?;
    let (header, data) = split_at(rest, memchr(b',', up_to(rest, MAX_HEADER))?);
    is_text(header).then(|| (header, after(data, 1)))
}

fn up_to(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(..length).unwrap_or(bytes)
}

/// Returns whether a media type as written in JSON, with or without parameters, is that of a text.
pub(super) fn is_text(media_type: &[u8]) -> bool {
    let end = memchr(b';', media_type).unwrap_or(media_type.len());
    let media_type = before(media_type, end).trim_ascii();
    let Some(slash) = memchr(b'/', media_type) else { return false };
    let (kind, name) = split_at(media_type, slash);
    // Some clients escape slashes.
    let kind = kind.strip_suffix(b"\\").unwrap_or(kind);
    let mut names = after(name, 1).rsplit(|byte| matches!(byte, b'+' | b'-' | b'.'));
    let last = names.next().unwrap_or_default();
    kind.eq_ignore_ascii_case(b"text")
        || kind.eq_ignore_ascii_case(b"application")
            && TEXTS.iter().any(|text| last.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_texts_are_known() {
        for text in [
            "text/plain",
            "text/csv",
            "Text/Markdown; charset=utf-8",
            r"text\/html",
            "application/json",
            "application/ld+json",
            "application/atom+xml",
            "application/x-yaml",
            "application/yaml",
        ] {
            assert!(is_text(text.as_bytes()), "{text}");
        }
        for other in [
            "",
            "text",
            "image/png",
            "image/svg+xml",
            "audio/wav",
            "application/pdf",
            "application/zip",
            "application/octet-stream",
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ] {
            assert!(!is_text(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn only_data_urls_with_base64_are_text_files() {
        let data = "QUJD".repeat(400);
        let of = |header: &str| File::of(format!("{header}{data}").as_bytes());
        let text = Some(File::Text { length: 1200 });
        assert_eq!(of("data:text/plain;base64,"), text);
        assert_eq!(of("data:text/csv;charset=utf-8;base64,"), text);
        assert_eq!(of("data:application/json;base64,"), text);
        assert_eq!(of("data:image/png;base64,"), Some(File::Other));
        assert_eq!(of("data:application/pdf;base64,"), Some(File::Other));
        assert_eq!(of("JVBERi0x"), Some(File::Other));
        assert_eq!(of("data:text/plain,"), None);
        assert_eq!(of("data:text/plain;base64, the header of such a URL "), None);
        assert_eq!(of(""), None);
    }
}
