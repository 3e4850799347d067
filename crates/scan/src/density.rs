//! The density of a text: by how much its tokens exceed a quarter of its characters. Tokenizers
//! make one token of a word or of a long run of one character, and one or more of each change
//! between letters, digits and punctuation: digits in hexadecimal, capitals in base64.
//!
//! Counting every change would take longer than the rest of the scan. So a long text is measured in
//! stretches that are spread over it, with one bit for each byte, and a short one not at all.

use super::marker::{Marker, Marking, STRETCH, escape_starts, widest_marking};

/// The length from which a text is measured; shorter ones have the density of words.
pub(super) const MIN_MEASURED: usize = 256;
/// The bytes of a text for each stretch, up to [`MANY_STRETCHES`].
const BYTES_PER_STRETCH: usize = 1 << 10;
const MANY_STRETCHES: usize = 8;
/// The bytes of a text for each further stretch: of a long text a smaller part says as much.
const BYTES_PER_FURTHER_STRETCH: usize = 8 << 10;
/// The bytes before a stretch that runs may start in.
const BEFORE: usize = 2;
const WINDOW: usize = STRETCH + BEFORE;
/// The bytes at the start of a stretch that show only what comes before the counted ones: an
/// escape has up to six.
const CONTEXT: u32 = 6;
const COUNTED: u64 = u64::MAX << CONTEXT;
/// The divisor of the length up to which the density of a text is that of words: within a quarter,
/// the estimate is that of its characters.
const PLAIN: u64 = 4;
/// The steps of the places of stretches, in parts of 65,536: by the golden ratio, because a text
/// may repeat itself at any distance.
const SPREAD: u16 = 0x9E37;

/// The weights in a unit of the token estimate. A character weighs that unit, and this besides.
/// Fitted by least squares on 43 kinds of text; docs/decisions/token-estimate.md has the errors.
const UNIT: i64 = 16;
/// The first letter of a word: it and the space before it are in one token with the word.
const WORD: i64 = -20;
/// A digit next to a letter, as in identifiers and hexadecimal.
const MIX: i64 = 32;
/// A capital after a small letter, as in names of code and base64.
const HUMP: i64 = 64;
/// A capital after another.
const CAPITAL: i64 = 12;
/// Some vocabularies have a token for three digits, others for one.
const DIGIT: i64 = 8;
const NUMBER: i64 = 32;
/// The first digit after a space: no vocabulary joins the two.
const SPACED_NUMBER: i64 = 72;
/// A repeated space or mark.
const REPEAT: i64 = -15;
/// A repeated line break or other escape.
const ESCAPE_REPEAT: i64 = -12;
/// Punctuation after something else.
const MARK: i64 = 28;
/// A letter after one that is not ASCII, as in most European languages.
const ACCENTED: i64 = 96;
/// A line break or a tab.
const ESCAPE: i64 = 48;

/// Returns `length`, the length of a text in characters by kind, with the density of its bytes in
/// JSON, `raw`.
#[inline(always)]
pub(super) fn measured(length: u64, raw: &[u8]) -> u64 {
    if raw.len() < MIN_MEASURED { length } else { with_density(length, raw) }
}

#[inline(never)]
fn with_density(length: u64, raw: &[u8]) -> u64 {
    let Sum { all, runs, counted } = widest_marking(TextSampling(raw));
    // Only runs make a text less dense than words.
    let sum = all.max(runs);
    // The size of a body is limited, so the product cannot overflow.
    let bytes = i64::try_from(raw.len()).unwrap_or(i64::MAX);
    let added = sum * bytes / (counted * UNIT).max(1);
    let is_plain = added.unsigned_abs() <= length / PLAIN;
    if is_plain { length } else { length.saturating_add_signed(added) }
}

/// The weights of the stretches of a text.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    all: i64,
    /// The part that is of runs of one character.
    runs: i64,
    /// The number of bytes that they are of.
    counted: i64,
}

struct TextSampling<'a>(&'a [u8]);

impl Marking for TextSampling<'_> {
    type Output = Sum;

    #[inline(always)]
    fn run(self, marker: impl Marker) -> Self::Output {
        let Self(raw) = self;
        let further = MANY_STRETCHES + raw.len() / BYTES_PER_FURTHER_STRETCH;
        let stretches = (raw.len() / BYTES_PER_STRETCH).clamp(1, further);
        let distance = raw.len() / stretches;
        let slack = distance.saturating_sub(WINDOW);
        let (mut sum, mut start, mut spread) = (Sum::default(), 0, 0_u16);
        for _ in 0..stretches {
            // A multiplication instead of a remainder, which would take as long as the stretch.
            spread = spread.wrapping_add(SPREAD);
            let place = start + ((slack * usize::from(spread)) >> u16::BITS);
            let window = raw.get(place..).and_then(|rest| rest.first_chunk());
            let (others, runs) = window.map_or((0, 0), |it| Classes::of(it, marker).weights());
            (sum.all, sum.runs) = (sum.all + others + runs, sum.runs + runs);
            sum.counted += i64::from(COUNTED.count_ones());
            start += distance;
        }
        sum
    }
}

/// Bitmaps of a stretch, by class of byte; the first byte is the lowest bit.
struct Classes {
    /// Letters of both cases, also those of escapes.
    capitals: u64,
    small: u64,
    digits: u64,
    spaces: u64,
    backslashes: u64,
    /// The letter `u`, which may start an escape of four digits.
    u: u64,
    zeros: u64,
    high: u64,
    /// Bytes equal to the one before, and to the one before that.
    runs: u64,
    escape_runs: u64,
}

impl Classes {
    #[inline(always)]
    fn of(window: &[u8; WINDOW], marker: impl Marker) -> Self {
        let stretch = at_offset::<BEFORE>(window);
        Self {
            capitals: marker.mark_range(stretch, b'A', 26),
            small: marker.mark_range(stretch, b'a', 26),
            digits: marker.mark_range(stretch, b'0', 10),
            zeros: marker.mark(stretch, b'0'),
            spaces: marker.mark(stretch, b' '),
            backslashes: marker.mark(stretch, b'\\'),
            u: marker.mark(stretch, b'u'),
            high: marker.mark_range(stretch, 0x80, 0x80),
            runs: marker.mark_equal(stretch, at_offset::<1>(window)),
            escape_runs: marker.mark_equal(stretch, at_offset::<0>(window)),
        }
    }

    /// Returns the sums of the weights of the counted bytes: of all others, and of runs.
    #[inline(always)]
    fn weights(&self) -> (i64, i64) {
        let starts = escape_starts(self.backslashes);
        let escaped = starts << 1;
        let long = escaped & self.u;
        // Some clients escape quotes and angle brackets so.
        let ascii = long & self.zeros >> 1 & self.zeros >> 2 & self.digits >> 3;
        let foreign = self.high | spans(long & !ascii);
        let escapes = escaped & !long & self.small;
        let quotes = escaped & !escapes & !long;
        let long = spans(long);
        let plain = !(escaped | long);
        let capitals = self.capitals & plain;
        let small = self.small & plain;
        let letters = capitals | small;
        let digits = self.digits & plain;
        let spaces = self.spaces;
        let known = letters | digits | spaces | escaped | starts | long | self.high;
        let marks = !known | ascii << 4 | quotes | quotes >> 1;
        let runs = self.runs & (spaces | marks) & !quotes;
        let escape_runs = escapes & self.escape_runs & escapes << 2;
        let new_marks = marks & !runs & !quotes;
        // Two capitals beside another letter or a digit: words in capitals are words.
        let mixed = (small | digits) >> 1 | (small | digits) << 2;
        let count = |bits: u64| i64::from((bits & COUNTED).count_ones());
        let others = count(letters & !(letters << 1 | digits << 1 | foreign << 1)) * WORD
            + count(letters & digits << 1 | digits & letters << 1) * MIX
            + count(capitals & small << 1) * HUMP
            + count(capitals & capitals << 1 & mixed) * CAPITAL
            + count(digits & !self.runs) * DIGIT
            + count(digits & !(digits << 1)) * NUMBER
            + count(digits & spaces << 1) * SPACED_NUMBER
            + count(new_marks & !(marks << 1)) * MARK
            + count(letters & foreign << 1) * ACCENTED
            + count(escapes & !escape_runs) * ESCAPE;
        (others, count(runs) * REPEAT + count(escape_runs) * ESCAPE_REPEAT)
    }
}

/// The bytes of escapes of four digits that start with these letters.
#[inline(always)]
fn spans(letters: u64) -> u64 {
    let three = letters | letters << 1 | letters << 2;
    three | three << 2
}

/// The stretch at an offset of a window.
#[inline(always)]
fn at_offset<const OFFSET: usize>(window: &[u8; WINDOW]) -> &[u8; STRETCH] {
    const { assert!(OFFSET <= BEFORE) };
    window.get(OFFSET..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; STRETCH])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the estimated tokens of a text.
    fn tokens(text: &str) -> u64 {
        let raw = serde_json::to_string(text).unwrap();
        let raw = raw.trim_start_matches('"').trim_end_matches('"');
        measured(text.chars().count() as u64, raw.as_bytes()) / 4
    }

    #[test]
    fn plain_text_is_a_quarter_of_its_characters() {
        let prose =
            "In 1984 the quick brown fox jumped over a lazy dog; it didn't mind, they say.\n";
        for unit in ["x", "Q", "7", "a ", "word ", "HELLO WORLD ", "Hello, world! ", prose] {
            for length in [4, 255, 256, 400, 4000, 40_000, 1 << 20] {
                let text = unit.repeat(length);
                assert_eq!(tokens(&text), text.len() as u64 / 4, "{unit}");
            }
        }
    }

    #[test]
    fn runs_of_one_character_are_few_tokens() {
        for (text, most) in [
            (" ".repeat(40_000), 1000),
            ("=".repeat(40_000), 1000),
            ("\n".repeat(40_000), 3000),
            (format!("{}\nx\n", "=".repeat(120)).repeat(280), 3000),
        ] {
            let tokens = tokens(&text);
            assert!(tokens < most, "{tokens} of {}", text.len());
        }
    }

    #[test]
    fn dense_text_has_its_tokens() {
        // As counted with `o200k_base`.
        let bytes = |index: u64| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
        let lines = |line: fn(u32, u32) -> String| -> String {
            (1..800).map(|index| line(bytes(index), bytes(index + 9000))).collect()
        };
        for (text, counted) in [
            (lines(|one, other| format!("{one:08x}{other:08x}")), COUNTS[0]),
            (lines(|one, other| format!("{},{}\n", one % 1000, other)), COUNTS[1]),
            (lines(|one, other| format!("{{\"k{one}\":[{},null,true]}},", other % 99)), COUNTS[2]),
        ] {
            let error = tokens(&text) as f64 / counted - 1.0;
            assert!(error.abs() < 0.3, "{error:+.2}: {}", &text[..40]);
        }
    }

    const COUNTS: [f64; 3] = [7273.0, 5407.0, 8604.0];
}
