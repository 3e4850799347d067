//! The methods of estimating a prompt's length without a tokenizer.

use crate::choice;

choice! {
    /// The method that estimates the number of prompt tokens.
    pub enum TokenEstimate {
        /// By script, a quarter of the sum: most letters count one, Chinese, Japanese and Korean
        /// characters three, emoji and rare scripts up to twelve. In long texts digits, punctuation
        /// and changes of case count more, and runs of one character less.
        Auto = "auto",
        /// Characters / 4: as `auto` for alphabets, several times too low for Chinese, Japanese,
        /// Korean.
        Chars = "chars",
        /// UTF-8 bytes / 4: as `auto` for Chinese, Japanese, Korean, too high for Cyrillic.
        Utf8 = "utf8",
    }
}

#[expect(clippy::derivable_impls, reason = "`choice!` takes no attributes on its values")]
impl Default for TokenEstimate {
    fn default() -> Self {
        Self::Auto
    }
}
