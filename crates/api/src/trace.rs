//! W3C Trace Context (version 00 of the recommendation): reads and writes `traceparent`.

use http::header::HeaderName;

use crate::hex;

/// `traceparent`.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// `tracestate`, which means nothing without a `traceparent`.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// The one flag version 00 has; the others are not passed on.
const SAMPLED: u8 = 0x01;

/// The position of a request in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace that all its spans belong to; never 0.
    pub trace_id: u128,
    /// The span of the caller; `None` for a trace that starts here.
    pub caller: Option<u64>,
    /// The request's own span; never 0.
    pub span: u64,
    flags: u8,
}

impl TraceContext {
    /// Starts a trace with this request. Ids of 0 are not valid and become 1.
    pub fn begin(trace_id: u128, span: u64, is_sampled: bool) -> Self {
        let flags = u8::from(is_sampled);
        Self { trace_id: trace_id.max(1), caller: None, span: span.max(1), flags }
    }

    /// Continues the trace of a `traceparent` with `span`; `None` if it is not valid.
    pub fn follow(traceparent: &[u8], span: u64) -> Option<Self> {
        let (known, rest) = traceparent.split_at_checked(LENGTH)?;
        let known = std::str::from_utf8(known).ok()?;
        let mut parts = known.split('-');
        let mut part = |length| parts.next().filter(|part| is_lower_hex(part, length));
        let (version, trace_id, caller, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // Later versions may append fields after another dash.
        let is_whole = match version {
            "00" => rest.is_empty(),
            // The recommendation forbids it as a version, so that nothing can be read into it.
            "ff" => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let trace_id = u128::from_str_radix(trace_id, 16).ok().filter(|id| *id != 0)?;
        let caller = u64::from_str_radix(caller, 16).ok().filter(|id| *id != 0)?;
        let flags = u8::from_str_radix(flags, 16).ok()? & SAMPLED;
        is_whole.then_some(Self { trace_id, caller: Some(caller), span: span.max(1), flags })
    }

    /// Returns the context of a part of the request, with a separate span below the request's.
    #[must_use]
    pub fn child(self, span: u64) -> Self {
        Self { caller: Some(self.span), span: span.max(1), ..self }
    }

    /// Returns whether the trace is to be recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the `traceparent` that continues the trace below `span`, in ASCII.
    pub fn traceparent(&self, span: u64) -> [u8; LENGTH] {
        let mut out = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let id = &self.trace_id.to_be_bytes();
        for (from, bytes) in [(3, &id[..]), (36, &span.to_be_bytes()), (53, &[self.flags])] {
            if let Some(room) = out.get_mut(from..) {
                hex::write(bytes, room);
            }
        }
        out
    }
}

fn is_lower_hex(part: &str, length: usize) -> bool {
    part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_is_followed_and_handed_on() {
        let trace = TraceContext::follow(GIVEN.as_bytes(), 7).unwrap();
        assert_eq!(trace.caller, Some(0x00f0_67aa_0ba9_02b7));
        assert!(trace.is_sampled());
        assert_eq!(
            trace.traceparent(0xab),
            *b"00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-01"
        );
        let quiet = GIVEN.replace("-01", "-fc");
        let quiet = TraceContext::follow(quiet.as_bytes(), 7).unwrap();
        assert!(!quiet.is_sampled());
        assert!(quiet.traceparent(1).ends_with(b"-00"), "unknown flags are not propagated");
    }

    #[test]
    fn invalid_trace_parents_are_ignored() {
        let later = format!("{}-more", GIVEN.replacen("00", "cc", 1));
        assert!(TraceContext::follow(later.as_bytes(), 1).is_some(), "a later version");
        for given in [
            String::new(),
            GIVEN.to_uppercase(),
            GIVEN.replacen("00", "ff", 1),
            format!("{GIVEN}-more"),
            format!("{GIVEN} "),
            GIVEN.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GIVEN.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GIVEN.replace("-01", "-0g"),
            GIVEN.replace("-01", "001"),
            GIVEN[..54].to_owned(),
            format!("{}more", GIVEN.replacen("00", "cc", 1)),
            "\u{e9}".repeat(55),
        ] {
            assert_eq!(TraceContext::follow(given.as_bytes(), 1), None, "{given}");
        }
    }

    #[test]
    fn a_trace_that_begins_here_is_valid() {
        let trace = TraceContext::begin(0, 0, false);
        let written = trace.traceparent(trace.span);
        assert!(TraceContext::follow(&written, 1).is_some(), "{}", written.escape_ascii());
        assert!(!trace.is_sampled());
        assert!(TraceContext::begin(5, 5, true).is_sampled());
    }
}
