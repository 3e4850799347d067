//! A parser of Prometheus' text format over bytes that allocates nothing and parses only the lines
//! of wanted families. Malformed lines are skipped: a page may hold anything.

use std::str::FromStr;

use memchr::{memchr, memchr2, memchr3};
use penstock_api::slices::after;

/// Names of this length and more are never wanted.
const MAX_NAME: usize = 128;

/// The families to read, by name. A family is identified by its index in the list.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The families by the length of their name: most lines are rejected as soon as their name
    /// ends.
    by_length: Vec<(&'static [u8], usize)>,
    lengths: u128,
}

impl Wanted {
    /// Lists families by name; names of 128 bytes and more are never found.
    pub(super) fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        let mut by_length: Vec<_> =
            names.into_iter().enumerate().map(|(index, name)| (name.as_bytes(), index)).collect();
        by_length.retain(|(name, _)| name.len() < MAX_NAME);
        by_length.sort_by_key(|(name, _)| name.len());
        // One bit per length: `MAX_NAME` is the width of the mask.
        let lengths = by_length.iter().fold(0, |all, (name, _)| all | 1 << name.len());
        Self { by_length, lengths }
    }

    /// Returns the samples of these families on a page, in its order.
    pub(super) fn samples<'a>(&'a self, page: &'a [u8]) -> impl Iterator<Item = ScrapedSample<'a>> {
        PageLines(page).filter_map(|line| self.sample(line))
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        if name.len() >= MAX_NAME || self.lengths & (1 << name.len()) == 0 {
            return None;
        }
        let from = self.by_length.partition_point(|(other, _)| other.len() < name.len());
        let rest = self.by_length.get(from..)?.iter();
        let mut alike = rest.take_while(|(other, _)| other.len() == name.len());
        alike.find(|(other, _)| *other == name).map(|(_, index)| *index)
    }

    /// Reads a line. Comments start with a name that is never wanted, so they need no rule.
    fn sample<'a>(&self, line: &'a [u8]) -> Option<ScrapedSample<'a>> {
        let (name, rest) = split_name(line)?;
        let family = self.find(name)?;
        let (labels, value) = read_labels_and_value(rest)?;
        Some(ScrapedSample { family, labels, value })
    }
}

/// Returns every sample on a page: its name, labels and value.
pub(crate) fn samples(page: &[u8]) -> impl Iterator<Item = (&[u8], Labels<'_>, f64)> {
    PageLines(page).filter_map(|line| {
        let (name, rest) = split_name(line).filter(|(name, _)| !name.starts_with(b"#"))?;
        let (labels, value) = read_labels_and_value(rest)?;
        Some((name, labels, value))
    })
}

fn split_name(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = skip_blanks(line);
    line.split_at_checked(memchr3(b'{', b' ', b'\t', line)?)
}

fn read_labels_and_value(text: &[u8]) -> Option<(Labels<'_>, f64)> {
    let text = skip_blanks(text);
    let (labels, rest) = match text.split_first() {
        Some((b'{', inside)) => Labels::split(inside)?,
        Some(_) | None => (Labels(&[]), text),
    };
    Some((labels, read_value(rest)?))
}

/// One line of a wanted family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ScrapedSample<'a> {
    /// The index of its family in the list of those wanted.
    pub(super) family: usize,
    pub(super) labels: Labels<'a>,
    /// Its value; may be infinite or not a number.
    pub(super) value: f64,
}

/// The labels of a sample: the text between the braces, well-formed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Labels<'a>(&'a [u8]);

impl<'a> Labels<'a> {
    /// Returns every name with its value, in the order of the page.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'a [u8], LabelValue<'a>)> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (name, value, after) = read_label(rest)?;
            rest = skip_comma(after);
            Some((name, value))
        })
    }

    /// Returns the value of the label called `name`.
    pub(super) fn get(&self, name: &str) -> Option<LabelValue<'a>> {
        self.iter().find(|(other, _)| *other == name.as_bytes()).map(|(_, value)| value)
    }

    /// Splits the text after an opening brace into the labels and the text after the closing brace.
    fn split(inside: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut rest = inside;
        loop {
            rest = skip_blanks(rest);
            if let Some((b'}', after)) = rest.split_first() {
                let length = inside.len().checked_sub(rest.len())?;
                return Some((Self(inside.get(..length)?), after));
            }
            let (_, _, after) = read_label(rest)?;
            rest = skip_blanks(after);
            match rest.split_first() {
                Some((b',', after)) => rest = after,
                Some((b'}', _)) => {}
                Some(_) | None => return None,
            }
        }
    }
}

/// A label's value as on the page, with its escapes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LabelValue<'a>(&'a [u8]);

impl<'a> LabelValue<'a> {
    /// Returns the bytes it stands for, one by one.
    pub(crate) fn bytes(self) -> impl Iterator<Item = u8> + use<'a> {
        let mut rest = self.0.iter();
        std::iter::from_fn(move || match rest.next()? {
            b'\\' => Some(match rest.next()? {
                b'n' => b'\n',
                // `read_label` refuses every escape but those of a backslash and a quote.
                byte => *byte,
            }),
            byte => Some(*byte),
        })
    }

    /// Returns whether it stands for `text`.
    pub(super) fn is(self, text: &str) -> bool {
        self.bytes().eq(text.bytes())
    }

    /// Returns the number it stands for, if it is one.
    pub(super) fn to_number<N: FromStr>(self) -> Option<N> {
        // No escape stands for a character of a number.
        std::str::from_utf8(self.0).ok()?.parse().ok()
    }
}

struct PageLines<'a>(&'a [u8]);

impl<'a> Iterator for PageLines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = memchr(b'\n', self.0).unwrap_or(self.0.len());
        let (line, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..).unwrap_or(&[]);
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|byte| is_blank(**byte)).count();
    after(text, blanks)
}

fn is_in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn skip_comma(text: &[u8]) -> &[u8] {
    let text = skip_blanks(text);
    text.strip_prefix(b",").unwrap_or(text)
}

/// Splits off the first word.
fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr2(b' ', b'\t', text).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, &[]))
}

/// Splits off `name="value"`; returns both and the text after them.
fn read_label(text: &[u8]) -> Option<(&[u8], LabelValue<'_>, &[u8])> {
    let text = skip_blanks(text);
    let length = text.iter().take_while(|byte| is_in_name(**byte)).count();
    let (name, rest) = text.split_at_checked(length)?;
    if name.first().is_none_or(u8::is_ascii_digit) {
        return None;
    }
    let rest = skip_blanks(rest).strip_prefix(b"=")?;
    let rest = skip_blanks(rest).strip_prefix(b"\"")?;
    let mut end = 0;
    loop {
        end += memchr2(b'"', b'\\', rest.get(end..)?)?;
        if rest.get(end) == Some(&b'"') {
            let (value, after) = rest.split_at_checked(end)?;
            return Some((name, LabelValue(value), after.get(1..)?));
        }
        if !matches!(rest.get(end + 1)?, b'\\' | b'"' | b'n') {
            return None;
        }
        end += 2;
    }
}

/// Returns whether nothing but an exemplar follows.
fn is_end(rest: &[u8]) -> bool {
    rest.first().is_none_or(|first| *first == b'#')
}

/// Reads the value of a line; a timestamp and an exemplar may follow it.
fn read_value(text: &[u8]) -> Option<f64> {
    let (word, rest) = split_word(skip_blanks(text));
    let value = to_number(word)?;
    let rest = skip_blanks(rest);
    if is_end(rest) {
        return Some(value);
    }
    let (timestamp, rest) = split_word(rest);
    to_number(timestamp)?;
    is_end(skip_blanks(rest)).then_some(value)
}

fn to_number(word: &[u8]) -> Option<f64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
