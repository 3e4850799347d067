//! What happened between two readings of the metrics: rates and quantiles.

use std::collections::BTreeMap;
use std::time::Duration;

use super::page::Page;

const REQUESTS: &str = "penstock_requests_total";
const ATTEMPTS: &str = "penstock_attempts_total";
const STREAM_TOKENS: &str = "penstock_stream_tokens_total";
const FIRST_TOKENS: &str = "penstock_ttft_seconds_bucket";

/// Two readings of the page, and the time between them.
pub(super) struct Figures<'a> {
    before: &'a Page,
    after: &'a Page,
    seconds: f64,
}

impl<'a> Figures<'a> {
    pub(super) fn new(before: &'a Page, after: &'a Page, between: Duration) -> Self {
        Self { before, after, seconds: between.as_secs_f64().max(1e-3) }
    }

    /// The value of a gauge now.
    pub(super) fn now(&self, name: &str) -> f64 {
        self.total(name, &[])
    }

    /// What a counter has come to.
    pub(super) fn total(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        self.after.sum(name, wanted)
    }

    /// Whether there is such a metric.
    pub(super) fn has(&self, name: &str) -> bool {
        self.after.has(name)
    }

    /// How much a counter grew per second.
    pub(super) fn rate(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        grown(self.before.sum(name, wanted), self.after.sum(name, wanted)) / self.seconds
    }

    /// Requests per second.
    pub(super) fn requests(&self) -> f64 {
        self.rate(REQUESTS, &[])
    }

    /// Requests per second that ended so.
    pub(super) fn requests_with(&self, outcome: &str) -> f64 {
        self.rate(REQUESTS, &[("outcome", outcome)])
    }

    /// Attempts per second on a backend.
    pub(super) fn attempts(&self, backend: &str) -> f64 {
        self.rate(ATTEMPTS, &[("backend", backend)])
    }

    /// Attempts per second on a backend that did not go well for the backend's own reasons.
    pub(super) fn failures(&self, backend: &str) -> f64 {
        let with = |outcome| self.rate(ATTEMPTS, &[("backend", backend), ("outcome", outcome)]);
        with("fault") + with("busy")
    }

    /// Tokens per second a backend streams.
    pub(super) fn tokens(&self, backend: &str) -> f64 {
        self.rate(STREAM_TOKENS, &[("backend", backend)])
    }

    /// Tokens per second all of them stream.
    pub(super) fn all_tokens(&self) -> f64 {
        self.rate(STREAM_TOKENS, &[])
    }

    /// The time within which so large a share of first tokens came; of one backend or of all.
    pub(super) fn first_token(&self, share: f64, backend: Option<&str>) -> Option<f64> {
        let wanted: Vec<(&str, &str)> = backend.map(|name| ("backend", name)).into_iter().collect();
        let before = self.before.buckets(FIRST_TOKENS, &wanted);
        let after = self.after.buckets(FIRST_TOKENS, &wanted);
        quantile(share, &difference(&before, &after))
    }

    /// Errors of our own by code, per second, the most frequent first.
    pub(super) fn errors(&self) -> Vec<(String, f64)> {
        let name = "penstock_errors_total";
        let before = self.before.by_label(name, "code");
        let rate = |(code, after): (String, f64)| {
            let before = before.get(&code).copied().unwrap_or_default();
            (code, grown(before, after) / self.seconds)
        };
        let after: BTreeMap<String, f64> = self.after.by_label(name, "code");
        let mut rates: Vec<(String, f64)> =
            after.into_iter().map(rate).filter(|(_, rate)| *rate > 0.0).collect();
        rates.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        rates
    }
}

/// A counter that is less than it was began anew: its process was started again.
fn grown(before: f64, after: f64) -> f64 {
    if after >= before { after - before } else { after }
}

fn difference(before: &[(f64, f64)], after: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let earlier = |bound: f64| {
        let found = before.iter().find(|(known, _)| known.total_cmp(&bound).is_eq());
        found.map_or(0.0, |(_, count)| *count)
    };
    let began_anew = after.iter().any(|(bound, count)| earlier(*bound) > *count);
    let since = |bound| if began_anew { 0.0 } else { earlier(bound) };
    after.iter().map(|(bound, count)| (*bound, count - since(*bound))).collect()
}

/// The value below which `share` of what was counted lies: linear within a bucket, and the last
/// finite bound beyond it, as Prometheus' `histogram_quantile` does.
fn quantile(share: f64, buckets: &[(f64, f64)]) -> Option<f64> {
    let total = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let rank = share * total;
    let (mut low, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= rank {
            if bound.is_infinite() {
                return Some(low);
            }
            let within = (count - below).max(f64::MIN_POSITIVE);
            return Some(low + (bound - low) * ((rank - below) / within));
        }
        (low, below) = (*bound, *count);
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let buckets = [(1.0, 10.0), (2.0, 20.0), (f64::INFINITY, 20.0)];
        assert_eq!(quantile(0.5, &buckets), Some(1.0));
        assert_eq!(quantile(0.75, &buckets), Some(1.5));
        assert_eq!(quantile(1.0, &buckets), Some(2.0));
        let beyond = [(1.0, 1.0), (f64::INFINITY, 10.0)];
        assert_eq!(quantile(0.9, &beyond), Some(1.0), "nobody knows how far beyond");
        assert_eq!(quantile(0.5, &[(1.0, 0.0), (f64::INFINITY, 0.0)]), None);
        assert_eq!(quantile(0.5, &[]), None);
    }

    #[test]
    fn rates_are_those_between_two_readings() {
        let page = |ok: u32, hits: u32| {
            Page::parse(&format!(
                "penstock_requests_total{{outcome=\"ok\"}} {ok}\n\
                 penstock_errors_total{{code=\"a\"}} {hits}\npenstock_errors_total{{code=\"b\"}} 9\n\
                 penstock_ttft_seconds_bucket{{backend=\"x\",le=\"1\"}} {hits}\n\
                 penstock_ttft_seconds_bucket{{backend=\"x\",le=\"+Inf\"}} {hits}\n"
            ))
        };
        let (before, after) = (page(10, 2), page(30, 6));
        let figures = Figures::new(&before, &after, Duration::from_secs(2));
        assert_eq!(figures.requests_with("ok"), 10.0);
        assert_eq!(figures.errors(), [("a".to_owned(), 2.0)]);
        assert_eq!(figures.first_token(0.5, Some("x")), Some(0.5));
        assert_eq!(figures.first_token(0.5, Some("y")), None);
        let restarted = Figures::new(&after, &before, Duration::from_secs(2));
        assert_eq!(restarted.requests(), 5.0, "from zero, not downwards");
        assert_eq!(restarted.first_token(0.5, None), Some(0.5));
    }
}
