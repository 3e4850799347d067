//! Finds the escapes among the backslashes of a stretch of JSON.

/// The bits with even indexes.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// The backslashes that start an escape: in a row of backslashes the first one and then every other
/// one.
#[inline(always)]
pub(super) fn escape_starts(backslashes: u64) -> u64 {
    let first = backslashes & !(backslashes << 1);
    // Adding its first bit to a row clears the row; here for the rows that start at an even index.
    let even_rows = backslashes & !backslashes.wrapping_add(first & EVEN);
    even_rows & EVEN | backslashes & !even_rows & !EVEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_backslash_of_a_row_starts_an_escape() {
        for pattern in 0..1_u64 << 16 {
            for shift in [0, 1, 23, 48] {
                let backslashes = pattern << shift;
                let mut expected = 0;
                let mut place = 0;
                while place < 64 {
                    if backslashes >> place & 1 == 1 {
                        expected |= 1 << place;
                        place += 1;
                    }
                    place += 1;
                }
                assert_eq!(escape_starts(backslashes), expected, "{backslashes:#b}");
            }
        }
    }
}
