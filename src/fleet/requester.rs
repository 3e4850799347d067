//! Who sends a request, as far as failure handling distinguishes senders.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hashes that identify the sender of a request; equal senders have equal hashes within one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requester {
    /// The client: its key, or else its address.
    pub client: u64,
    /// The prompt: its length, and bytes from its start and its end.
    pub prompt: u64,
    /// The credential that backends with `authorization: pass` receive; never 0, also without one.
    pub credential: u64,
}

impl Requester {
    /// Identifies a prompt by the body it came in: by its length, its start and its end. Two bodies that
    /// differ only in the middle count as the same prompt, which errs on the careful side: equal prompts
    /// are less evidence against a backend.
    pub fn prompt_of(body: &[u8]) -> u64 {
        const EDGE: usize = 512;
        let start = body.get(..EDGE).unwrap_or(body);
        let end = body.get(body.len().saturating_sub(EDGE)..).unwrap_or_default();
        let seed = xxh3_64_with_seed(start, body.len() as u64);
        xxh3_64_with_seed(end, seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_by_length_start_and_end() {
        let body = |middle: &str| format!("{{{}{middle}{}}}", "a".repeat(600), "z".repeat(600));
        let of = |middle: &str| Requester::prompt_of(body(middle).as_bytes());
        assert_eq!(of("one"), of("two"));
        assert_ne!(of("one"), of("three"), "length");
        assert_ne!(Requester::prompt_of(b"a"), Requester::prompt_of(b"b"));
        assert_ne!(Requester::prompt_of(b""), Requester::prompt_of(b"b"));
    }
}
