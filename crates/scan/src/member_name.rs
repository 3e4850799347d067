//! Searches JSON for the members of a name, without a walk over the rest: in generated text, each
//! quote of the name would have a backslash.

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

/// The occurrences of `key` in `data` with a colon after them; each cursor is after the colon.
pub(super) fn members_called<'a>(
    key: &Finder<'_>,
    data: &'a [u8],
) -> impl Iterator<Item = Cursor<'a>> {
    key.find_iter(data).filter_map(|at| {
        let mut cursor = Cursor::of_response(data);
        cursor.at = at + key.needle().len();
        if cursor.peek() != b':' {
            return None;
        }
        cursor.at += 1;
        Some(cursor)
    })
}
