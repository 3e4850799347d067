//! Rows of cells in columns as wide as their widest cell.

use super::{FrameLine, Tone};

/// A text and its tone.
pub(super) type Cell = (String, Tone);

/// The columns of a table.
pub(super) struct Columns<'a> {
    pub(super) heads: &'a [&'a str],
    /// The columns aligned right.
    pub(super) numbers: std::ops::RangeInclusive<usize>,
    /// The columns shown only if a row has a value for them.
    pub(super) optional: std::ops::Range<usize>,
}

impl Columns<'_> {
    /// Returns the line of heads and a line per row. Each row must have a cell per head.
    pub(super) fn lines(&self, rows: &[Vec<Cell>]) -> Vec<FrameLine> {
        let shown: Vec<(usize, usize)> = (0..self.heads.len())
            .filter(|column| !self.optional.contains(column) || has_any(rows, *column))
            .map(|column| (column, self.width(rows, column)))
            .collect();
        let mut head = FrameLine::default();
        for (column, width) in &shown {
            let name = self.heads.get(*column).copied().unwrap_or_default();
            head.add(self.pad(*column, name, *width), Tone::Dim);
        }
        let mut lines = vec![head];
        lines.extend(rows.iter().map(|row| {
            let mut line = FrameLine::default();
            for (column, width) in &shown {
                let Some((text, tone)) = row.get(*column) else { continue };
                line.add(self.pad(*column, text, *width), *tone);
            }
            line
        }));
        lines
    }

    fn width(&self, rows: &[Vec<Cell>], column: usize) -> usize {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|(text, _)| text.chars().count()).max().unwrap_or(0);
        widest.max(self.heads.get(column).map_or(0, |head| head.len()))
    }

    fn pad(&self, column: usize, text: &str, width: usize) -> String {
        match self.numbers.contains(&column) {
            true => format!("{text:>width$}  "),
            false => format!("{text:width$}  "),
        }
    }
}

fn has_any(rows: &[Vec<Cell>], column: usize) -> bool {
    rows.iter().any(|row| row.get(column).is_some_and(|(text, _)| !text.is_empty()))
}
