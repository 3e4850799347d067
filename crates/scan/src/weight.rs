//! The length of the JSON that an engine reads: definitions of tools, schemas, arguments of calls.

use super::bytes::{HIGH, count_continuations};
use super::density::measured;
use super::file::{File, MIN_LONG};
use super::script::weigh;
use super::{TEXT_PER_TOKEN, TokenEstimate};

/// The length counted for each name or value in JSON in addition to its characters: one and a half
/// tokens for its quotes, colons, commas and braces. Measured on definitions of tools, for six
/// vocabularies.
const TEXT_PER_VALUE: u64 = 6;
/// The tokens of an image, a sound or a file that is not text. Engines make 64 to 4,096 tokens of
/// an image, by its size and the model; its size is not in the request.
const TOKENS_PER_BLOB: u64 = 768;
/// Four times the length that a character of base64 counts: what [`measured`] finds, without
/// reading a large file for it.
const BASE64: u64 = 11;
/// Returns the length counted for `count` images.
pub(super) fn weigh_blobs(count: u64) -> u64 {
    count * TOKENS_PER_BLOB * TEXT_PER_TOKEN
}

/// The length of JSON values, in the unit of the token estimate.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Weight {
    /// The decoded text of all names and values.
    pub(super) text: u64,
    /// The number of names and values, without arrays and objects.
    pub(super) values: u64,
    /// The part of the text that is in files in base64.
    blob_text: u64,
    /// The length that these files count instead.
    files: u64,
    /// The highest bit of some byte is set if a string is not ASCII.
    high: u64,
}

impl Weight {
    /// Returns the weight of a string of a measured `length`, `raw` as written.
    #[inline(always)]
    pub(super) fn of_string(raw: &[u8], length: u64) -> Self {
        let mut weight = Self { text: length, values: 1, ..Self::default() };
        if raw.len() >= MIN_LONG {
            weight.add_file(File::of(raw), length);
        }
        weight
    }

    /// Adds a string. `raw` are the bytes as written, `length` is the decoded length as if the
    /// string was ASCII; the highest bits of `high` show whether it was.
    #[inline(always)]
    pub(super) fn add_string(&mut self, raw: &[u8], length: u64, high: u64, by: TokenEstimate) {
        self.values += 1;
        self.high |= high;
        self.text += if raw.len() < MIN_LONG { length } else { self.measure(raw, length, by) };
    }

    #[cold]
    fn measure(&mut self, raw: &[u8], length: u64, by: TokenEstimate) -> u64 {
        let file = File::of(raw);
        let length = match by {
            TokenEstimate::Auto if file.is_some() => length * BASE64 / 4,
            TokenEstimate::Auto => measured(length, raw),
            TokenEstimate::Chars | TokenEstimate::Utf8 => length,
        };
        self.add_file(file, length);
        length
    }

    /// Adds the length that a file counts. `length` is that of its string, which is added already.
    fn add_file(&mut self, file: Option<File>, length: u64) {
        let Some(file) = file else { return };
        self.blob_text += length;
        self.files += match file {
            File::Text { length } => length,
            File::Other => weigh_blobs(1),
        };
    }

    /// Adds a number or a literal.
    #[inline(always)]
    pub(super) fn add_scalar(&mut self, length: usize) {
        self.text += length as u64;
        self.values += 1;
    }

    /// Corrects a sum of [`Weight::add_string`] for the characters in `raw` that are not ASCII.
    #[inline(always)]
    pub(super) fn corrected(mut self, raw: &[u8], estimate: TokenEstimate) -> Self {
        if self.high & HIGH != 0 {
            // Saturating, because invalid UTF-8, which is rejected later, may weigh more than it
            // has bytes.
            self.text = match estimate {
                TokenEstimate::Auto => (self.text + weigh(raw)).saturating_sub(raw.len() as u64),
                TokenEstimate::Chars => self.text.saturating_sub(count_continuations(raw)),
                TokenEstimate::Utf8 => self.text,
            };
        }
        self
    }

    /// Adds `other`. The body's length bounds the sum, so it cannot overflow.
    pub(super) fn add(&mut self, other: Self) {
        self.text += other.text;
        self.values += other.values;
        self.blob_text += other.blob_text;
        self.files += other.files;
    }

    /// Returns the length of all values as JSON.
    pub(super) fn as_json(self) -> u64 {
        self.text + self.values * TEXT_PER_VALUE
    }

    /// Returns the same length, but with files in base64 counted as texts or images.
    pub(super) fn with_files(self) -> u64 {
        self.as_json().saturating_sub(self.blob_text) + self.files
    }
}
