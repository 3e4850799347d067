//! The weights of characters by script, in the unit of `TokenEstimate::Auto`: how many tokens a
//! tokenizer makes of a character, times four. The first byte of a character in UTF-8 decides for
//! most, the first two for the rest.

use penstock_api::slices::after;

use super::bytes::widest;

/// The first byte of U+3000; below it, that of the first four-byte character.
const FIRST_OF_WIDE: u8 = 0xe3;
const FIRST_OF_FOUR: u8 = 0xf0;

/// The bytes that are weighed at once: their weights by first bytes fit a byte.
const BLOCK: usize = 192;
/// The same for the weights of [`SCRIPTS`]: 22 characters of three bytes, the last of which ends in
/// the next block, weigh no more than 242.
const SCRIPT_BLOCK: usize = 64;

/// Characters that vocabularies split more often than letters of an alphabet.
struct Script {
    /// The first byte of the characters in UTF-8, and the bits of it that they share.
    lead: u8,
    shared: u8,
    /// The second byte of the script's first character.
    from: u8,
    /// The second byte of its last character.
    to: u8,
    /// The weight besides that of the first byte.
    further: u8,
}

impl Script {
    /// A script of two bytes, which its first bytes decide.
    const fn of_two(lead: u8, shared: u8, further: u8) -> Self {
        Self { lead, shared, from: 0x80, to: 0xbf, further }
    }

    const fn of(lead: u8, from: u8, to: u8, further: u8) -> Self {
        Self { lead, shared: 0xff, from, to, further }
    }

    /// The further weight of a character with these first bytes.
    #[inline(always)]
    fn weigh(&self, lead: u8, second: u8) -> u8 {
        let is_lead = lead & self.shared == self.lead;
        let is_of = is_lead & (second >= self.from) & (second <= self.to);
        u8::from(is_of) * self.further
    }
}

/// Fitted to texts of each script, counted with `o200k_base`: no other vocabulary in wide use makes
/// fewer tokens of them.
const SCRIPTS: [Script; 16] = [
    // Greek.
    Script::of_two(0xce, 0xfe, 1),
    // Hebrew.
    Script::of_two(0xd7, 0xff, 1),
    // Syriac, Thaana and N'Ko.
    Script::of_two(0xdc, 0xfc, 7),
    // The scripts of India from Devanagari to Malayalam, and Sinhala.
    Script::of(0xe0, 0xa4, 0xb7, 2),
    // Odia, which is one of them.
    Script::of(0xe0, 0xac, 0xad, 1),
    // Thai.
    Script::of(0xe0, 0xb8, 0xb9, 1),
    // Lao and Tibetan.
    Script::of(0xe0, 0xba, 0xbf, 6),
    // Burmese.
    Script::of(0xe1, 0x80, 0x81, 2),
    // Ethiopic, as of Amharic.
    Script::of(0xe1, 0x88, 0x8d, 7),
    // Cherokee, Canadian syllables, runes and others.
    Script::of(0xe1, 0x8e, 0x9d, 11),
    // Khmer.
    Script::of(0xe1, 0x9e, 0x9f, 2),
    // Mongolian, Balinese and others.
    Script::of(0xe1, 0xa0, 0xb1, 11),
    // Greek with the accents of antiquity.
    Script::of(0xe1, 0xbc, 0xbf, 5),
    // Symbols, many of them emoji.
    Script::of(0xe2, 0x98, 0x9e, 5),
    Script::of(0xe2, 0xac, 0xaf, 5),
    // Emoji, and other characters of four bytes that are not Chinese.
    Script::of(0xf0, 0x90, 0x9f, 4),
];

/// Returns the length of a text: 3 for a character of U+3000 and above (Chinese, Japanese and
/// Korean), 4 for one beyond the basic plane, 1 for any other, and the weights of [`SCRIPTS`]. A
/// tokenizer needs nearly one token for each of the first, and one for about four letters of an
/// alphabet.
pub(super) fn weigh(bytes: &[u8]) -> u64 {
    widest(|| {
        let weigh = |start: usize| {
            let rest = after(bytes, start);
            let block = rest.get(..BLOCK).unwrap_or(rest);
            let basic = u64::from(block.iter().fold(0, add_basic_weight));
            if has_script(block, after(rest, 1)) { basic + weigh_scripts(rest) } else { basic }
        };
        (0..bytes.len()).step_by(BLOCK).map(weigh).sum()
    })
}

/// Adds the weight by the first byte of a character. It never exceeds the number of bytes, so the
/// sum of a block stays in byte-wide lanes; it could wrap only on invalid UTF-8, which is rejected.
#[inline(always)]
fn add_basic_weight(sum: u8, byte: &u8) -> u8 {
    let is_first = u8::from(byte.cast_signed() >= -0x40);
    let is_wide = u8::from(*byte >= FIRST_OF_WIDE);
    sum.wrapping_add(is_first + 2 * is_wide + u8::from(*byte >= FIRST_OF_FOUR))
}

/// Returns whether a block may have characters of [`SCRIPTS`], which takes a third of the time that
/// weighing them takes. Cyrillic, Arabic and dashes are none. `seconds` are the bytes after each.
#[inline(always)]
fn has_script(block: &[u8], seconds: &[u8]) -> bool {
    let may_start = |lead: u8, second: u8| {
        (lead & 0xfe == 0xce)
            | (lead == 0xd7)
            | (lead & 0xfc == 0xdc)
            | (lead & 0xfe == 0xe0)
            | ((lead == 0xe2) & (second >= 0x98))
            | (lead == FIRST_OF_FOUR)
    };
    // Chinese, Japanese, Korean and most letters with accents are outside the range of all.
    let is_in_range = |lead: &u8| (0xce..=0xe2).contains(lead) | (*lead == FIRST_OF_FOUR);
    if !block.iter().fold(false, |found, lead| found | is_in_range(lead)) {
        return false;
    }
    block.iter().zip(seconds).fold(false, |found, (lead, second)| found | may_start(*lead, *second))
}

/// Returns the further weights of the characters that start in the first block of `bytes`; the
/// last one may end in the next.
#[inline(always)]
fn weigh_scripts(bytes: &[u8]) -> u64 {
    let weigh_one = |sum: u8, (lead, second): (&u8, &u8)| {
        sum.wrapping_add(SCRIPTS.iter().fold(0, |sum, script| sum + script.weigh(*lead, *second)))
    };
    let leads = bytes.get(..BLOCK).unwrap_or(bytes);
    let pieces = leads.chunks(SCRIPT_BLOCK).zip(after(bytes, 1).chunks(SCRIPT_BLOCK));
    let weigh =
        |(leads, seconds): (&[u8], &[u8])| u64::from(leads.iter().zip(seconds).fold(0, weigh_one));
    pieces.map(weigh).sum()
}

/// The weight of one character, as [`weigh`] counts it.
pub(super) fn weigh_character(character: u32) -> usize {
    let six_bits = |shift: u32| 0x80 | (character >> shift & 0x3f);
    let (basic, lead, second) = match character {
        0..0x80 => return 1,
        0x80..0x800 => (1, 0xc0 | character >> 6, six_bits(0)),
        0x800..0x3000 => (1, 0xe0 | character >> 12, six_bits(6)),
        0x3000..0x1_0000 => return 3,
        0x1_0000.. => (4, 0xf0 | character >> 18, six_bits(12)),
    };
    let (Ok(lead), Ok(second)) = (u8::try_from(lead), u8::try_from(second)) else { return basic };
    basic + SCRIPTS.iter().map(|script| usize::from(script.weigh(lead, second))).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_weigh_the_same_in_bytes_and_alone() {
        for character in (0..=0x10_ffff).step_by(7).filter_map(char::from_u32) {
            let text = character.to_string().repeat(70);
            let expected = weigh_character(character.into()) as u64 * 70;
            assert_eq!(weigh(text.as_bytes()), expected, "{character:?}");
        }
    }

    #[test]
    fn letters_and_chinese_characters_have_no_further_weight() {
        for (text, expected) in [
            ("a", 1),
            ("é", 1),
            ("я", 1),
            ("س", 1),
            ("ệ", 1),
            ("გ", 1),
            ("—", 1),
            ("の", 3),
            ("日", 3),
            ("글", 3),
            ("\u{ffff}", 3),
            ("𠮷", 4),
            ("\u{10ffff}", 4),
        ] {
            assert_eq!(weigh(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn weights_do_not_depend_on_the_place() {
        for length in 0..500 {
            let text = format!("{}{}", "a".repeat(length), "ም한𐌲ไ日😀д".repeat(20));
            let characters = text.chars().map(|one| weigh_character(one.into()) as u64);
            assert_eq!(weigh(text.as_bytes()), characters.sum::<u64>(), "{length}");
        }
        for heaviest in ["ᏂᎦ", "ݐܐ", "😀𐌲", "߀ߪ"] {
            let text = heaviest.repeat(300);
            let characters = text.chars().map(|one| weigh_character(one.into()) as u64);
            assert_eq!(weigh(text.as_bytes()), characters.sum::<u64>(), "a sum stays in a byte");
        }
    }
}
