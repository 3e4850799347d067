//! Decides about a stream by its beginning.

use memchr::memrchr2;
use penstock_api::StreamFraming;
use penstock_scan::FirstEvent;

use super::{Disposition, MAX_HELD, ResponseTerms, no_result, refusal_of};
use crate::upstream::failure::HoldReason;

/// The maximum number of bytes in the whole lines of a converted stream before its first output,
/// which are read again with each part.
const MAX_LEADING: usize = 16 * 1024;

/// Decides about a stream whose head said success; `None` while more of it has to be read.
pub(super) fn of_stream(
    terms: &ResponseTerms<'_>,
    framing: StreamFraming,
    body: &[u8],
    is_whole: bool,
) -> Option<Disposition> {
    // The client of a conversion gets nothing before the first output.
    let read = if terms.is_converted { FirstEvent::read_to_output } else { FirstEvent::read };
    let longest = if terms.is_converted { MAX_LEADING } else { MAX_HELD };
    // The lines that have ended: one that has not may still be an error.
    let lines = memrchr2(b'\n', b'\r', body).map_or(0, |end| end + 1);
    let is_short = lines < longest && body.len() < MAX_HELD;
    Some(match read(terms.sent, framing, body, is_whole) {
        FirstEvent::Incomplete if is_short => return None,
        FirstEvent::Missing if terms.is_load && !body.trim_ascii().is_empty() => Disposition::Relay,
        FirstEvent::Missing => Disposition::Hold(HoldReason::NoWork),
        FirstEvent::Failed(place) => {
            Disposition::Hold(refusal_of(terms, body.get(place).unwrap_or(body)))
        }
        FirstEvent::Foreign(place) => {
            Disposition::Hold(no_result(terms, body.get(place).unwrap_or(body)))
        }
        // A report of an error is short: a longer event is output.
        FirstEvent::Incomplete | FirstEvent::Good => Disposition::Relay,
    })
}
