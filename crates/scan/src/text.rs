//! Reads strings, where a scan spends most of its time, and records facts about them. Short strings
//! are read word by word, long ones by `memchr` in windows.

use memchr::memchr2;
use penstock_api::slices::{after, before, between};
use penstock_api::units::ByteSpan;

use super::bytes::{
    BLOCK, HIGH, StopByte, WORD, block_at, count_continuations, find_control, is_dense, is_plain,
    is_plain_block, is_stop, word_at,
};
use super::cursor::{Cursor, Parsed, Syntax};
use super::density::{MIN_MEASURED, measured};
use super::marker::STRETCH;
use super::script::{weigh, weigh_character};
use super::unescape::ShortString;
use super::{TokenEstimate, to_span};

/// The number of blocks read one at a time before a string counts as long.
const SHORT_BLOCKS: usize = 12;
/// Long strings are read twice, in windows that fit the first-level cache.
const WINDOW: usize = 8 << 10;
/// The first window of a long string that is skipped at once if it is dense; its size doubles with
/// each dense one.
const FIRST_DENSE_WINDOW: usize = 1 << 10;
/// The largest such window.
const MAX_DENSE_WINDOW: usize = 32 << 10;

/// The bit of a string's excess that shows that it has escapes, whatever they amount to.
const ESCAPED: usize = 1 << (usize::BITS - 1);

/// A string of the body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyString {
    /// The offset after the opening quote.
    pub(super) start: usize,
    /// The offset of the closing quote.
    pub(super) end: usize,
    /// The length by which the escapes exceed the decoded text, in the unit of the token estimate,
    /// and [`ESCAPED`]. It wraps where characters weigh more than their escapes.
    excess: usize,
    /// The highest bit of some byte is set if the string is not ASCII.
    pub(super) high: u64,
}

impl BodyString {
    /// Returns the span between its quotes.
    #[inline(always)]
    pub(super) fn span(self) -> ByteSpan {
        to_span(self.start, self.end)
    }

    /// Returns whether the string contains escapes.
    #[inline(always)]
    pub(super) fn is_escaped(self) -> bool {
        self.excess != 0
    }

    /// The length of the decoded string if it is ASCII, in the unit of the token estimate.
    #[inline(always)]
    pub(super) fn ascii_length(self) -> u64 {
        ((self.end - self.start).wrapping_sub(self.excess) & !ESCAPED) as u64
    }
}

impl<'a> Cursor<'a> {
    /// Consumes the string at the cursor, which is at its opening quote.
    #[inline(always)]
    pub(super) fn string(&mut self) -> Result<BodyString, Syntax> {
        let start = self.at + 1;
        // Most names and many values end in their first word, so this path has no loop.
        if let Some(word) = word_at(self.bytes, start) {
            let found = StopByte::find(word);
            if found.is_quote() {
                let end = start + found.index();
                let high = found.before();
                self.at = end + 1;
                self.all_high |= high;
                return Ok(BodyString { start, end, excess: 0, high });
            }
        }
        self.text()
    }

    /// Consumes the string at the cursor, without the fast path for very short ones.
    #[inline(always)]
    pub(super) fn text(&mut self) -> Result<BodyString, Syntax> {
        let start = self.at + 1;
        self.longer_string(start)?;
        Ok(BodyString { start, end: self.at - 1, excess: self.excess, high: self.high })
    }

    /// Consumes a string block by block, and stores the facts about it in the cursor.
    #[inline(never)]
    fn longer_string(&mut self, start: usize) -> Parsed {
        let mut high = 0;
        self.at = start;
        if let Some(found) = self.find_near_stop(&mut high)
            && found.is_quote()
        {
            high |= found.before();
            self.at += found.index() + 1;
            self.excess = 0;
            self.high = high;
            self.all_high |= high;
            return Ok(());
        }
        self.hard_string(high)
    }

    /// Moves to the word with the next stop; `None` if it is far away or too close to the end of
    /// the body.
    #[inline(always)]
    fn find_near_stop(&mut self, high: &mut u64) -> Option<StopByte> {
        let mut at = self.at;
        let mut found = None;
        'blocks: for _ in 0..SHORT_BLOCKS {
            if block_at(self.bytes, at).is_some_and(is_plain_block) {
                at += BLOCK;
                continue;
            }
            for _ in 0..BLOCK / WORD {
                let Some(word) = word_at(self.bytes, at) else { break 'blocks };
                let stop = StopByte::find(word);
                if !stop.is_none() {
                    found = Some(stop);
                    break 'blocks;
                }
                *high |= word;
                at += WORD;
            }
        }
        self.at = at;
        found
    }

    /// Consumes the rest of a string that is long, contains escapes, or ends with the body.
    #[inline(never)]
    fn hard_string(&mut self, mut high: u64) -> Parsed {
        let mut excess: usize = 0;
        // Files in base64 are read in one pass; the first space shows that the string is no such
        // file.
        let mut len = FIRST_DENSE_WINDOW;
        while let Some(window) = self.bytes.get(self.at..self.at + len)
            && is_dense(window)
        {
            self.at += len;
            len = MAX_DENSE_WINDOW.min(2 * len);
        }
        loop {
            match self.find_stop(&mut high)? {
                b'"' => break,
                b'\\' if self.bytes.len() - self.at >= STRETCH => {
                    excess = ESCAPED | excess.wrapping_add(self.dense_escapes(&mut high)?);
                }
                b'\\' => excess = ESCAPED | excess.wrapping_add(self.escape()?),
                _ => return Err(Syntax::Character),
            }
        }
        self.at += 1;
        self.excess = excess;
        self.high = high;
        self.all_high |= high;
        Ok(())
    }

    /// Moves to the next quote, backslash or control character and returns it.
    #[inline(always)]
    fn find_stop(&mut self, high: &mut u64) -> Result<u8, Syntax> {
        let Some(found) = self.find_near_stop(high) else { return self.find_far_stop(high) };
        *high |= found.before();
        self.at += found.index();
        self.bytes.get(self.at).copied().ok_or(Syntax::Character)
    }

    #[inline(never)]
    fn find_far_stop(&mut self, high: &mut u64) -> Result<u8, Syntax> {
        loop {
            let rest = after(self.bytes, self.at);
            if rest.len() < WORD {
                return self.find_last_stop(rest, high);
            }
            let window = rest.get(..WINDOW).unwrap_or(rest);
            let found = memchr2(b'"', b'\\', window);
            let stretch = before(window, found.unwrap_or(window.len()));
            if !is_plain(stretch) {
                if let Some(control) = find_control(stretch) {
                    self.at += control;
                    return Err(Syntax::Character);
                }
                *high |= HIGH;
            }
            self.at += stretch.len();
            if found.is_some() {
                return self.bytes.get(self.at).copied().ok_or(Syntax::Character);
            }
        }
    }

    /// Searches the last bytes of the body, which are fewer than a word.
    fn find_last_stop(&mut self, rest: &[u8], high: &mut u64) -> Result<u8, Syntax> {
        for byte in rest {
            if is_stop(*byte) {
                return Ok(*byte);
            }
            *high |= u64::from(*byte);
            self.at += 1;
        }
        Err(Syntax::Character)
    }

    /// Consumes one escape. Returns the length by which it exceeds the decoded text, which wraps.
    #[inline]
    fn escape(&mut self) -> Result<usize, Syntax> {
        self.at += 1;
        match self.bytes.get(self.at) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(1)
            }
            Some(b'u') => {
                self.at += 1;
                self.unicode_escape()
            }
            _ => Err(Syntax::Escape),
        }
    }

    pub(super) fn unicode_escape(&mut self) -> Result<usize, Syntax> {
        let (written, length, character): (usize, _, _) = match self.unit()? {
            unit @ 0..0x80 => (6, 1, unit),
            unit @ 0x80..0x800 => (6, 2, unit),
            unit @ 0xd800..0xe000 if self.is_lenient => (6, 3, unit),
            unit @ 0xd800..0xdc00 => {
                // A lone surrogate has no UTF-8 form; backends that accept it fail later, in the
                // tokenizer.
                if self.bytes.get(self.at..self.at + 2) != Some(b"\\u") {
                    return Err(Syntax::Surrogate);
                }
                self.at += 2;
                if !(0xdc00..0xe000).contains(&self.unit()?) {
                    return Err(Syntax::Surrogate);
                }
                // The low half does not decide the weight.
                (12, 4, 0x1_0000 + ((unit - 0xd800) << 10))
            }
            0xdc00..0xe000 => return Err(Syntax::Surrogate),
            unit => (6, 3, unit),
        };
        Ok(match self.estimate {
            TokenEstimate::Auto => written.wrapping_sub(weigh_character(character)),
            TokenEstimate::Chars => written - 1,
            TokenEstimate::Utf8 => written - length,
        })
    }

    fn unit(&mut self) -> Result<u32, Syntax> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.bytes.get(self.at).and_then(|byte| char::from(*byte).to_digit(16));
            unit = unit << 4 | digit.ok_or(Syntax::Escape)?;
            self.at += 1;
        }
        Ok(unit)
    }

    /// The bytes of `text` as written.
    #[inline(always)]
    pub(super) fn raw(&self, text: BodyString) -> &'a [u8] {
        between(self.bytes, text.start, text.end)
    }

    /// Calls `compare` with the decoded bytes of a short string.
    #[inline(always)]
    pub(super) fn decoded<T>(&self, text: BodyString, compare: impl Fn(&[u8]) -> T) -> T {
        if text.is_escaped() {
            compare(ShortString::decode(self.raw(text)).as_bytes())
        } else {
            compare(self.raw(text))
        }
    }

    /// The length of the decoded string, in the unit of the token estimate.
    #[inline(always)]
    pub(super) fn measure(&self, text: BodyString) -> u64 {
        let length = text.ascii_length();
        let is_ascii = text.high & HIGH == 0;
        if is_ascii && text.end - text.start < MIN_MEASURED {
            return length;
        }
        let raw = self.raw(text);
        match self.estimate {
            TokenEstimate::Auto if is_ascii => measured(length, raw),
            // Saturating, because invalid UTF-8, which is rejected later, may weigh more than it
            // has bytes.
            TokenEstimate::Auto => {
                measured((length + weigh(raw)).saturating_sub(raw.len() as u64), raw)
            }
            TokenEstimate::Chars | TokenEstimate::Utf8 if is_ascii => length,
            TokenEstimate::Chars => length - count_continuations(raw),
            TokenEstimate::Utf8 => length,
        }
    }
}
