//! The encoding of a configuration file: UTF-8. Messages name other encodings, with the line of the
//! first character that differs.

use std::sync::Arc;

use super::errors::{ConfigError, Encoding};
use super::source_place::SourcePlace;

/// Decodes the content of a file.
///
/// # Errors
/// [`ConfigError::NotUtf8`] with the position of the first byte that is not UTF-8.
pub(crate) fn decode(bytes: Vec<u8>, file: &Arc<str>) -> Result<String, ConfigError> {
    let place = |line: u64, column: u64| SourcePlace::File { file: Arc::clone(file), line, column };
    let is_utf16 = bytes.starts_with(&[0xff, 0xfe])
        || bytes.starts_with(&[0xfe, 0xff])
        // Without a byte order mark, the zero byte of an ASCII letter shows it.
        || bytes.get(..2).is_some_and(|start| start.contains(&0));
    if is_utf16 {
        return Err(ConfigError::NotUtf8 { place: place(1, 1), encoding: Encoding::Utf16 });
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let before = String::from_utf8_lossy(bytes.get(..valid).unwrap_or(bytes));
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        let to_u64 = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        ConfigError::NotUtf8 {
            place: place(to_u64(line), to_u64(column)),
            encoding: Encoding::Byte(bytes.get(valid).copied().unwrap_or_default()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &[u8]) -> String {
        decode(bytes.to_vec(), &Arc::from("x.yaml")).unwrap_err().to_string()
    }

    #[test]
    fn other_encodings_are_named_with_their_line() {
        let latin1 = b"backends:\n  # caf\xe9\n  - http://a\n";
        let expected =
            "x.yaml:2:8: byte 0xe9 is not UTF-8; it may be Latin-1: save the file as UTF-8";
        assert_eq!(message(latin1), expected);
        for utf16 in [&b"\xff\xfeb\0a\0"[..], b"\xfe\xff\0b\0a", b"b\0a\0", b"\0b\0a"] {
            assert!(message(utf16).starts_with("x.yaml:1:1: the text is UTF-16"), "{utf16:?}");
        }
        assert_eq!(decode("é".into(), &Arc::from("x")).unwrap(), "é");
    }
}
