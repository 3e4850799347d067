//! The latency objectives of a request, and the headroom of a prediction below them.

use serde::{Deserialize, Serialize};

use super::prediction::PredictedLatency;

/// The largest valid objective, in milliseconds: a day.
const MAX_MS: f64 = 86_400_000.0;

/// The objectives of a request.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Objectives {
    /// Milliseconds to the first token; to the end of a response that is not streamed.
    pub ttft_ms: Option<f64>,
    /// Milliseconds per token after the first.
    pub tpot_ms: Option<f64>,
    /// Higher is more important; below 0 the request may be refused so that others meet theirs.
    pub priority: i32,
}

impl Objectives {
    /// The valid values of an objective, for error messages.
    pub const EXPECTED: &str = "a number of milliseconds above 0 and at most 86400000";

    /// Returns whether `ms` is a valid objective.
    pub fn is_objective(ms: f64) -> bool {
        ms > 0.0 && ms <= MAX_MS
    }

    /// Returns whether the request may be refused so that others meet their objectives.
    pub fn is_sheddable(&self) -> bool {
        self.priority < 0
    }

    /// Returns whether there is an objective for a latency.
    pub fn has_latency(&self) -> bool {
        self.ttft_ms.is_some() || self.tpot_ms.is_some()
    }

    /// The objectives that remain after `waited_ms` milliseconds of waiting.
    pub fn after(self, waited_ms: f64) -> Self {
        Self { ttft_ms: self.ttft_ms.map(|limit| (limit - waited_ms).max(0.0)), ..self }
    }

    /// The headroom of a prediction below the objectives, in milliseconds and as a share: the least
    /// over the request's own objectives and those of the streams there. Negative if one is missed;
    /// `None` without any.
    ///
    /// Source: headroom as the SLO-aware routing proposal of the Gateway API Inference Extension
    /// defines it. The time to the first token counts by its 90th percentile, the time per token by
    /// its mean.
    pub fn headroom(&self, prediction: &PredictedLatency) -> Option<Headroom> {
        let tightest = f64::from(prediction.tightest_tpot);
        let tpot = self.tpot_ms.unwrap_or(f64::INFINITY).min(tightest);
        let first = self.ttft_ms.map(|limit| Headroom::of(limit, prediction.ttft_p90.into()));
        let next = tpot.is_finite().then(|| Headroom::of(tpot, prediction.tpot.into()));
        match (first, next) {
            (Some(first), Some(next)) => Some(if next.share < first.share { next } else { first }),
            (one, other) => one.or(other),
        }
    }

    /// A prediction with the objectives, for people: `backlog 310 + prefill 42 + phase 6 + front
    /// end 2 ms, mean 360 ms, p90 480 ms (objective 500 ms), 21.0 ms per token, headroom 20 ms`.
    pub fn compare_text(&self, prediction: &PredictedLatency) -> String {
        let beside = |limit: Option<f64>, of: &str| {
            limit.map_or_else(String::new, |ms| format!(" ({of} {ms:.0} ms)"))
        };
        let own = self.tpot_ms.unwrap_or(f64::INFINITY);
        let tightest = Some(f64::from(prediction.tightest_tpot)).filter(|least| *least < own);
        let per_token = match tightest {
            Some(_) => beside(tightest, "a stream there can bear"),
            None => beside(self.tpot_ms, "objective"),
        };
        let headroom = self.headroom(prediction);
        format!(
            "{}, p90 {:.0} ms{}, {:.1} ms per token{per_token}{}",
            prediction.terms_text(),
            prediction.ttft_p90,
            beside(self.ttft_ms, "objective"),
            prediction.tpot,
            headroom.map_or_else(String::new, |one| format!(", headroom {:.0} ms", one.ms)),
        )
    }
}

/// The distance of a prediction below an objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Headroom {
    /// The distance in milliseconds.
    pub ms: f64,
    /// The distance as a share of the objective.
    pub share: f64,
}

impl Headroom {
    fn of(limit: f64, predicted: f64) -> Self {
        let ms = limit - predicted;
        // A long wait leaves an objective of 0.
        Self { ms, share: ms / limit.max(1e-9) }
    }

    /// Returns whether the objective is met; at exactly 0 it is.
    pub fn is_met(&self) -> bool {
        self.ms >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the proposal: an objective of 80 ms, a running stream with 50 ms, and a
    /// prediction of 60 ms.
    #[test]
    fn tightest_objective_of_running_streams_counts() {
        let objectives = Objectives { tpot_ms: Some(80.0), ..Objectives::default() };
        let beside = PredictedLatency { tpot: 60.0, tightest_tpot: 50.0, ..Default::default() };
        assert_eq!(objectives.headroom(&beside).unwrap().ms, -10.0);
        let alone = PredictedLatency { tightest_tpot: f32::INFINITY, ..beside };
        assert_eq!(objectives.headroom(&alone).unwrap().ms, 20.0);
        assert_eq!(Objectives::default().headroom(&alone), None);
        assert_eq!(Objectives::default().headroom(&beside).unwrap().ms, -10.0);
    }

    #[test]
    fn prediction_is_shown_beside_the_objectives() {
        let prediction = PredictedLatency {
            ttft: 360.0,
            ttft_p90: 480.0,
            tpot: 21.0,
            tightest_tpot: f32::INFINITY,
            backlog: 310.0,
            prefill: 42.0,
            phase: 6.0,
            front_end: 2.0,
            ..Default::default()
        };
        let terms = "backlog 310 + prefill 42 + phase 6 + front end 2 ms, mean 360 ms, p90 480 ms";
        let none = Objectives::default();
        assert_eq!(none.compare_text(&prediction), format!("{terms}, 21.0 ms per token"));
        let both = Objectives { ttft_ms: Some(500.0), tpot_ms: Some(50.0), priority: 0 };
        assert_eq!(
            both.compare_text(&prediction),
            format!(
                "{terms} (objective 500 ms), 21.0 ms per token (objective 50 ms), headroom 20 ms"
            )
        );
        let whole = PredictedLatency { ttft: 4132.0, decode: 3772.0, ..prediction };
        let terms_of_whole = "front end 2 + decode 3772 ms, mean 4132 ms, p90";
        assert!(none.compare_text(&whole).contains(terms_of_whole));
        let behind =
            PredictedLatency { ttft: 860.0, backlog: 810.0, ttft_p90: 980.0, ..prediction };
        assert!(both.compare_text(&behind).ends_with("headroom -480 ms"));
        let beside = PredictedLatency { tightest_tpot: 20.0, ..prediction };
        assert_eq!(
            both.compare_text(&beside),
            format!(
                "{terms} (objective 500 ms), 21.0 ms per token (a stream there can bear 20 ms), headroom -1 ms"
            )
        );
    }

    #[test]
    fn both_objectives_are_to_be_met() {
        let objectives =
            Objectives { ttft_ms: Some(500.0), tpot_ms: Some(50.0), ..Objectives::default() };
        let prediction = PredictedLatency {
            ttft: 400.0,
            ttft_p90: 500.0,
            tpot: 20.0,
            tightest_tpot: f32::INFINITY,
            ..Default::default()
        };
        assert!(objectives.headroom(&prediction).unwrap().is_met(), "at exactly 0");
        let slower = PredictedLatency { ttft_p90: 501.0, ..prediction };
        assert_eq!(objectives.headroom(&slower).unwrap().ms, -1.0);
    }
}
