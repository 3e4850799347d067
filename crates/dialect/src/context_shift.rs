//! Context shift: selects the oldest messages of a conversation to drop, so that the remainder fits
//! a shorter context. `refusal` reads the tokens that an engine counted and its limit, `items` and
//! `messages` read the conversation, and [`ShiftConversation::shift`] chooses the cuts. The cuts
//! are ranges of the body: everything else keeps its bytes.

mod items;
mod messages;
mod refusal;

pub use messages::ShiftConversation;
pub(super) use messages::{TOOL_MEMBERS, range_in};
pub(super) use refusal::recognized_words;
pub use refusal::{ContextRefusal, read_refusal};

use std::ops::Range;

/// The divisor of the context that a shift leaves free, for the response and later messages: a
/// quarter. A shift to the last token would have to be repeated with every message.
const FREE_SHARE: u32 = 4;

/// Returns the tokens that a shifted prompt may have in a context of `limit` tokens, with `output`
/// tokens reserved for the response; 0 if there is no room for a prompt.
pub fn room_in(limit: u32, output: u32) -> u32 {
    limit.saturating_sub(output.max(limit / FREE_SHARE))
}

/// The cuts of a shift.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shift {
    /// The ranges to cut: ascending, disjoint, and within the body.
    cuts: Vec<Range<usize>>,
    /// The number of dropped messages.
    dropped: u32,
}

impl Shift {
    /// Returns the number of dropped messages.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    /// Returns the body without the cut ranges.
    pub fn apply(&self, body: &[u8]) -> Vec<u8> {
        let cut: usize = self.cuts.iter().map(Range::len).sum();
        let mut out = Vec::with_capacity(body.len().saturating_sub(cut));
        let mut at = 0;
        for range in &self.cuts {
            out.extend_from_slice(body.get(at..range.start).unwrap_or_default());
            at = range.end;
        }
        out.extend_from_slice(body.get(at..).unwrap_or_default());
        out
    }
}

/// Returns the ranges that remove items from a list or an object, including separators. `items` are
/// in order; `is_dropped` selects the items to remove.
pub(super) fn cut_items(
    items: &[Range<usize>],
    is_dropped: impl Fn(usize) -> bool,
) -> Vec<Range<usize>> {
    let mut cuts: Vec<Range<usize>> = Vec::new();
    let mut last_kept: Option<&Range<usize>> = None;
    let mut run: Option<Range<usize>> = None;
    for (index, item) in items.iter().enumerate() {
        if is_dropped(index) {
            let start = run.map_or(item.start, |run| run.start);
            run = Some(start..item.end);
            continue;
        }
        // The separator after the run is removed with it.
        cuts.extend(run.take().map(|run| run.start..item.start));
        last_kept = Some(item);
    }
    // At the end of the list, the separator before the run is removed.
    cuts.extend(run.map(|run| last_kept.map_or(run.start, |kept| kept.end)..run.end));
    cuts
}

#[cfg(test)]
mod tests;
