//! Streams that end with usage because penstock requested it (`ledger.request_usage`): the event is
//! removed for a client that did not. Events pass whole; all other bytes are untouched.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memchr_iter;
use memchr::memmem::Finder;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, Operation, StreamFraming, error_event};
use penstock_scan::find_usage;

use crate::upstream::relay::Transform;

static CHOICES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"choices\""));

/// The longest event that is examined; the usage event is much shorter.
const MAX_EVENT: usize = 16 << 10;

pub(super) struct UsageFilter {
    operation: Operation,
    /// The start of an event whose end has not arrived yet.
    held: BytesMut,
    /// True if the remainder of a long event passes unread.
    in_long_event: bool,
}

impl UsageFilter {
    pub(super) fn new(operation: Operation) -> Self {
        Self { operation, held: BytesMut::new(), in_long_event: false }
    }

    fn filter(&mut self, payload: Bytes, is_last: bool) -> Bytes {
        let payload = match self.held.is_empty() {
            true => payload,
            false => {
                self.held.extend_from_slice(&payload);
                self.held.split().freeze()
            }
        };
        let complete = if is_last { payload.len() } else { last_end(&payload) };
        let mut rest = payload.clone();
        let events = rest.split_to(complete);
        self.in_long_event = rest.len() > MAX_EVENT || (self.in_long_event && complete == 0);
        // The end of a line may be the first half of the end of an event. No more than that is kept
        // of a long event: a backend may send blanks without an end.
        let passed = if self.in_long_event { rest.len() - half_end(&rest) } else { 0 };
        let passes = rest.split_to(passed);
        self.held.extend_from_slice(&rest);
        match find_usage_event(&events) {
            None => payload.slice(..complete + passed),
            Some(_) => without_usage_events(&events, &passes),
        }
    }
}

impl Transform for UsageFilter {
    fn apply(
        &mut self,
        payload: Bytes,
        is_last: bool,
        _now: Timestamp,
    ) -> Result<Bytes, ErrorCode> {
        Ok(self.filter(payload, is_last))
    }

    fn cut(&mut self, code: ErrorCode, message: &str) -> Bytes {
        let framing = StreamFraming::Events;
        let mut end = Vec::new();
        if std::mem::take(&mut self.in_long_event) {
            end.extend_from_slice(framing.event_end());
        }
        // An event that is not whole has not been sent.
        self.held.clear();
        end.extend_from_slice(&error_event(self.operation, framing, code, message));
        end.into()
    }
}

/// The length of what may be the first half of the end of an event.
fn half_end(bytes: &[u8]) -> usize {
    match bytes {
        [.., b'\n', b'\r'] => 2,
        [.., b'\n'] => 1,
        _ => 0,
    }
}

/// The offset after the last whole event.
fn last_end(bytes: &[u8]) -> usize {
    event_ends(bytes).last().unwrap_or(0)
}

/// The offsets after each whole event.
fn event_ends(bytes: &[u8]) -> impl Iterator<Item = usize> {
    memchr_iter(b'\n', bytes).filter_map(|at| match bytes.get(at + 1..) {
        Some([b'\n', ..]) => Some(at + 2),
        Some([b'\r', b'\n', ..]) => Some(at + 3),
        _ => None,
    })
}

/// The span of the first usage event.
fn find_usage_event(events: &[u8]) -> Option<(usize, usize)> {
    // Most payloads have no event with an empty list, and are not split.
    CHOICES.find_iter(events).find(|at| is_empty_list(events, *at))?;
    let mut start = 0;
    for end in event_ends(events).chain([events.len()]) {
        if events.get(start..end).is_some_and(is_usage_event) {
            return Some((start, end));
        }
        start = end;
    }
    None
}

fn is_usage_event(event: &[u8]) -> bool {
    CHOICES.find(event).is_some_and(|at| is_empty_list(event, at)) && find_usage(event).is_some()
}

/// Returns whether the member whose quoted name is at `at` is an empty array.
fn is_empty_list(bytes: &[u8], at: usize) -> bool {
    let value = bytes.get(at + CHOICES.needle().len()..).unwrap_or_default().trim_ascii_start();
    let list = value.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
    let inner = list.strip_prefix(b"[").unwrap_or_default().trim_ascii_start();
    inner.first() == Some(&b']')
}

fn without_usage_events(events: &[u8], behind: &[u8]) -> Bytes {
    let mut kept = BytesMut::with_capacity(events.len() + behind.len());
    let mut rest = events;
    while let Some((start, end)) = find_usage_event(rest) {
        kept.extend_from_slice(rest.get(..start).unwrap_or_default());
        rest = rest.get(end..).unwrap_or_default();
    }
    kept.extend_from_slice(rest);
    kept.extend_from_slice(behind);
    kept.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n";
    const USAGE: &str = "data: {\"id\":\"x\",\"choices\": [ ],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn filtered(stream: &str, sizes: &[usize]) -> String {
        let mut filter = UsageFilter::new(Operation::Chat);
        let (mut rest, mut out) = (stream.as_bytes(), Vec::new());
        let mut sizes = sizes.iter().copied();
        while !rest.is_empty() {
            let size = sizes.next().unwrap_or(rest.len()).clamp(1, rest.len());
            let (part, more) = rest.split_at(size);
            let is_last = more.is_empty();
            let part = Bytes::copy_from_slice(part);
            out.extend_from_slice(&filter.apply(part, is_last, Timestamp(0)).unwrap());
            rest = more;
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn streams_without_a_usage_event_pass_without_a_copy() {
        let payload = Bytes::from([TOKEN, DONE].concat());
        let mut filter = UsageFilter::new(Operation::Chat);
        let passed = filter.apply(payload.clone(), false, Timestamp(0)).unwrap();
        assert_eq!((passed.as_ptr(), passed.len()), (payload.as_ptr(), payload.len()));
    }

    #[test]
    fn a_cut_stream_ends_in_an_error_event() {
        let mut filter = UsageFilter::new(Operation::Chat);
        let payload = Bytes::from(format!("{TOKEN}data: {{\"cho"));
        assert_eq!(filter.apply(payload, false, Timestamp(0)).unwrap(), TOKEN);
        let end = filter.cut(ErrorCode::UpstreamClosed, "closed");
        assert!(end.starts_with(b"data: {\"error\""), "{end:?}");
        let long = format!("data: {}", "x".repeat(2 * MAX_EVENT));
        assert_eq!(filter.apply(long.clone().into(), false, Timestamp(0)).unwrap(), long);
        assert!(filter.cut(ErrorCode::UpstreamClosed, "closed").starts_with(b"\n\n"));
    }

    #[test]
    fn blanks_without_an_end_are_not_held() {
        for blanks in [" ", "\r", " \n ", "\n\r "] {
            let mut filter = UsageFilter::new(Operation::Chat);
            let part = Bytes::from(blanks.repeat(10_000));
            for _ in 0..10 {
                filter.apply(part.clone(), false, Timestamp(0)).unwrap();
                assert!(filter.held.len() <= MAX_EVENT, "{blanks:?}: {}", filter.held.len());
            }
        }
    }

    proptest! {
        #[test]
        fn usage_is_removed_however_the_stream_is_cut(
            sizes in prop::collection::vec(1_usize..90, 0..20),
            long in prop_oneof![3 => Just(0), 1 => 1_usize..40_000],
        ) {
            let data = format!("data: {}\r\n\r\n", "y".repeat(long));
            let stream = [TOKEN, &data, TOKEN, USAGE, DONE].concat();
            let wanted = [TOKEN, &data, TOKEN, DONE].concat();
            prop_assert_eq!(filtered(&stream, &sizes), wanted);
        }
    }
}
