//! Finds the end of a JSON value that arrives in pieces.

/// The state of an object or a list that arrives in pieces.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonEnd {
    depth: u32,
    has_started: bool,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonEnd {
    /// Processes the next piece.
    pub(super) fn feed(&mut self, piece: &str) {
        self.feed_bytes(piece.as_bytes());
    }

    /// Processes the next bytes, which may end within a character.
    pub fn feed_bytes(&mut self, piece: &[u8]) {
        for &byte in piece {
            self.has_started |= !byte.is_ascii_whitespace();
            if self.is_in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.is_in_string = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Returns whether any part of it has arrived.
    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Returns whether all of it has arrived.
    pub fn is_whole(&self) -> bool {
        self.has_started && self.depth == 0 && !self.is_in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_end_with_their_last_brace() {
        let text = r#" {"a": "}\"{\\", "b": [{}]}"#;
        for (end, _) in text.char_indices() {
            let mut json = JsonEnd::default();
            text[..end].split_inclusive(['"', '\\']).for_each(|piece| json.feed(piece));
            assert!(!json.is_whole(), "{}", &text[..end]);
        }
        let mut json = JsonEnd::default();
        json.feed(text);
        assert!(json.is_whole() && json.has_started());
    }
}
