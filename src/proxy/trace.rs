//! Where a request stands in a distributed trace: in the one its client is in, else in one that
//! begins here.

use http::HeaderMap;

use super::Proxy;
use crate::api::{TRACEPARENT, TraceContext};
use crate::config::TracingConfig;

impl Proxy {
    /// The trace of a request; `None` when its fields are none of our business.
    pub(crate) fn trace(
        &self,
        headers: &HeaderMap,
        config: &TracingConfig,
    ) -> Option<TraceContext> {
        if !config.propagate {
            return None;
        }
        let span = self.next_seed();
        let mut given = headers.get_all(TRACEPARENT).iter();
        let followed = match (given.next(), given.next()) {
            (Some(only), None) => TraceContext::follow(only.as_bytes(), span),
            (Some(_), Some(_)) | (None, _) => None,
        };
        followed.or_else(|| {
            let trace_id = u128::from(self.next_seed()) << 64 | u128::from(self.next_seed());
            let is_sampled = to_share(self.next_seed()) < config.sample;
            Some(TraceContext::begin(trace_id, span, is_sampled))
        })
    }
}

/// A random number as a share of a whole: 0 is possible, 1 is not.
fn to_share(random: u64) -> f64 {
    // 53 bits are what a float holds exactly.
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_below_one() {
        assert_eq!(to_share(0), 0.0);
        assert!(to_share(u64::MAX) < 1.0);
        assert!(to_share(u64::MAX) > 0.999_999);
    }
}
