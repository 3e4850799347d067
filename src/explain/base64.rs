//! Base64 (RFC 4648, the standard alphabet) for bodies that are no text. Strict: padding is needed
//! and unused bits are zero, so that a body has one spelling.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text that stands for `bytes`.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = ALPHABET.get((bits >> (18 - 6 * place) & 63) as usize);
            let letter = letter.filter(|_| place <= group.len()).copied();
            text.push(char::from(letter.unwrap_or(b'=')));
        }
    }
    text
}

/// The bytes `text` stands for; none when it is not base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let letters = text.trim_end_matches('=');
    if text.len() - letters.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in letters.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for letter in group {
            let value = ALPHABET.iter().position(|known| known == letter)?;
            bits = bits << 6 | u32::try_from(value).ok()?;
        }
        let [_, three @ ..] = (bits << (6 * (4 - group.len()))).to_be_bytes();
        let (whole, unused) = three.split_at_checked(group.len().checked_sub(1)?)?;
        if unused.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(whole);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_vectors_of_the_rfc_hold() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Z===", "Zm 9", "Zg==Zg==", "Zm-_"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
