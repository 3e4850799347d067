//! Decodes JSON string escapes, character by character. Only the rare names and values with escapes
//! need it; the cursor has already validated them.

use penstock_api::slices::before;

/// The characters of a JSON string, from the bytes between its quotes.
pub(super) struct Unescape<'a> {
    rest: std::str::Chars<'a>,
}

impl<'a> Unescape<'a> {
    /// Decodes `raw`; invalid UTF-8 decodes to nothing.
    pub(super) fn new(raw: &'a [u8]) -> Self {
        Self { rest: std::str::from_utf8(raw).unwrap_or("").chars() }
    }

    fn unit(&mut self) -> Option<u32> {
        let mut unit = 0;
        for _ in 0..4 {
            unit = unit << 4 | self.rest.next()?.to_digit(16)?;
        }
        Some(unit)
    }
}

impl Iterator for Unescape<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        match self.rest.next()? {
            '\\' => {}
            plain => return Some(plain),
        }
        Some(match self.rest.next()? {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => match self.unit()? {
                high @ 0xd800..0xdc00 => {
                    self.rest.next()?;
                    self.rest.next()?;
                    let low = self.unit()? & 0x3ff;
                    char::from_u32(0x10000 + ((high & 0x3ff) << 10 | low))?
                }
                unit => char::from_u32(unit)?,
            },
            same => same,
        })
    }
}

/// The longest name or value that the scanner compares; a longer one cannot match.
const MAX_SHORT_STRING: usize = 32;

/// A short decoded string, on the stack.
pub(super) struct ShortString {
    bytes: [u8; MAX_SHORT_STRING],
    len: usize,
}

impl ShortString {
    /// Decodes `raw`; empty if it is longer than [`MAX_SHORT_STRING`].
    #[cold]
    pub(super) fn decode(raw: &[u8]) -> Self {
        let mut short = Self { bytes: [0; MAX_SHORT_STRING], len: 0 };
        for character in Unescape::new(raw) {
            let mut utf8 = [0; 4];
            let piece = character.encode_utf8(&mut utf8).as_bytes();
            let end = short.len + piece.len();
            match short.bytes.get_mut(short.len..end) {
                Some(room) => room.copy_from_slice(piece),
                None => return Self { bytes: [0; MAX_SHORT_STRING], len: 0 },
            }
            short.len = end;
        }
        short
    }

    /// The decoded bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        before(&self.bytes, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_escape_decodes() {
        let raw = br#"a\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00z"#;
        let text: String = Unescape::new(raw).collect();
        assert_eq!(text, "a\"\\/\u{8}\u{c}\n\r\tA\u{e9}\u{20ac}\u{1f600}z");
    }

    #[test]
    fn short_strings_decode_on_the_stack_and_long_ones_to_nothing() {
        assert_eq!(ShortString::decode(br"mod\u0065l").as_bytes(), b"model");
        assert_eq!(ShortString::decode(&[b'x'; 33]).as_bytes(), b"");
        assert_eq!(ShortString::decode(&[b'x'; 32]).as_bytes(), [b'x'; 32]);
    }
}
