//! Searches the end of a response for the last member of a name.

use memchr::memmem::{Finder, FinderRev};

use super::TokenEstimate;
use super::cursor::Cursor;

/// The number of members of one name that are tried in one tail. It bounds the work for a hostile
/// response.
const ATTEMPTS: usize = 16;

/// The quoted name of a member, prepared for searches.
pub(super) struct MemberName {
    /// Most texts do not contain it. The forward search is vectorised, so it rules them out faster.
    any: Finder<'static>,
    last: FinderRev<'static>,
}

impl MemberName {
    pub(super) fn new(quoted: &'static str) -> Self {
        Self { any: Finder::new(quoted), last: FinderRev::new(quoted) }
    }

    /// Returns the last value of a member of that name in `tail` that `read` accepts.
    pub(super) fn find_last<T>(
        &self,
        tail: &[u8],
        read: impl Fn(&mut Cursor<'_>, u8) -> Option<T>,
    ) -> Option<T> {
        self.any.find(tail)?;
        let mut before = tail;
        for _ in 0..ATTEMPTS {
            let at = self.last.rfind(before)?;
            let mut cursor = Cursor::new(tail.get(at..)?, TokenEstimate::Chars);
            if cursor.string().is_ok() && cursor.peek() == b':' {
                cursor.at += 1;
                let kind = cursor.peek();
                if let Some(value) = read(&mut cursor, kind) {
                    return Some(value);
                }
            }
            before = tail.get(..at)?;
        }
        None
    }
}
