//! Context shift: which of the oldest messages a conversation can lose, so that the rest fits a context
//! that is too short for it. `refusal` reads how many tokens an engine counted and how many it has room
//! for, `items` and `messages` read the conversation, and [`Conversation::shift`] chooses what is cut. The cuts are
//! ranges of the body: what stays keeps its bytes.

mod items;
mod messages;
mod refusal;

pub use messages::Conversation;
pub(super) use messages::{TOOL_MEMBERS, range_in};
pub(super) use refusal::recognized_words;
pub use refusal::{ContextRefusal, read_refusal};

use std::ops::Range;

/// A shift leaves a quarter of the context free, for the response and for the messages to come: a shift
/// to the last token would have to be repeated with every message.
const FREE_SHARE: u32 = 4;

/// The tokens that a shifted prompt may have in a context of `limit` tokens of which the response is to
/// get `output`; 0 where there is no room for a prompt.
pub fn room_in(limit: u32, output: u32) -> u32 {
    limit.saturating_sub(output.max(limit / FREE_SHARE))
}

/// What is cut out of a body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shift {
    /// The ranges that are cut: in order, apart from each other, and within the body.
    cuts: Vec<Range<usize>>,
    /// How many messages are dropped.
    dropped: u32,
}

impl Shift {
    /// How many messages are dropped.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    /// The ranges of the body that are cut.
    pub fn cuts(&self) -> &[Range<usize>] {
        &self.cuts
    }

    /// The body without what is cut.
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

/// The ranges that remove items from a list or an object, separators included. `items` are in order,
/// `is_dropped` says which of them go.
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
        // The separator after the run goes with it.
        cuts.extend(run.take().map(|run| run.start..item.start));
        last_kept = Some(item);
    }
    // At the end it is the separator before the run.
    cuts.extend(run.map(|run| last_kept.map_or(run.start, |kept| kept.end)..run.end));
    cuts
}

#[cfg(test)]
mod tests;
