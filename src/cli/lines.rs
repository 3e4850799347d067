//! Reads the lines of an input, without a leading byte order mark and without blank lines.

use std::io::{self, BufRead, Read};

/// The UTF-8 byte order mark, which Windows tools write.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns a text without a byte order mark.
pub(super) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// Reads the lines of an input as bytes: a line that is not UTF-8 must not end the input.
pub(super) struct Lines<R> {
    input: R,
    /// The maximum number of bytes read of a line.
    limit: u64,
    line: Vec<u8>,
    has_started: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R, limit: u64) -> Self {
        Self { input, limit, line: Vec::new(), has_started: false }
    }

    /// Returns the next line that is not blank; `None` at the end of the input.
    pub(super) fn read(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            self.line.clear();
            // A line without an end must not take more memory than the limit.
            let mut part = (&mut self.input).take(self.limit);
            let count = part.read_until(b'\n', &mut self.line)?;
            if count == 0 {
                return Ok(None);
            }
            let is_cut = part.limit() == 0 && self.line.last() != Some(&b'\n');
            if is_cut {
                // The remainder is skipped, so that each input line gives exactly one result.
                self.input.skip_until(b'\n')?;
            }
            if !std::mem::replace(&mut self.has_started, true) && self.line.starts_with(MARK) {
                self.line.drain(..MARK.len());
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        Ok(Some(&self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_mark_and_blank_lines_are_skipped() {
        let mut lines =
            Lines::new(&b"\xef\xbb\xbfone\r\n\n \t\n\xef\xbb\xbftwo\nthree"[..], 1 << 10);
        let mut all = Vec::new();
        while let Some(line) = lines.read().unwrap() {
            all.push(String::from_utf8_lossy(line).trim().to_owned());
        }
        assert_eq!(all, ["one", "\u{feff}two", "three"], "only a leading mark is removed");
        assert_eq!(Lines::new(&b"\xef\xbb\xbf"[..], 1 << 10).read().unwrap(), None);
        assert_eq!(without_mark(b"\xef\xbb\xbf{}"), b"{}");
    }

    #[test]
    fn long_line_is_truncated_to_one_line() {
        let mut lines = Lines::new(&b"one\ntoo long\nfour"[..], 4);
        let mut next = || lines.read().unwrap().map(|line| line.trim_ascii().to_vec());
        assert_eq!(next().as_deref(), Some(&b"one"[..]));
        assert_eq!(next().as_deref(), Some(&b"too"[..]));
        assert_eq!(next().as_deref(), Some(&b"four"[..]));
        assert_eq!(next(), None);
    }
}
