//! The readings of one candidate, as a table. Captures, replay and `penstock score` read and write
//! each reading by its row, so that a new one is a row here and a line in `routing/readings.rs`,
//! which takes it from the fleet.

use penstock_api::units::Micros;
use serde_json::{Value, json};

use super::prediction::PredictedLatency;
use super::reading_values::{Adapter, Eviction, ReadingValue, Residency, Standing};

/// The share of a prompt that must be cached for its backend to be preferred.
pub const WARM: f64 = 0.8;

/// Declares [`Candidate`] and [`READINGS`] as `field: type = "key in captures"`; `score "key":
/// "about"` follows for a reading that lines of `penstock score` give.
macro_rules! readings {
    (@score $type:ty) => { None };
    (@score $type:ty, $key:literal: $about:literal) => {
        Some(ScoreReading { key: $key, about: $about, schema: <$type as ReadingValue>::SCHEMA })
    };
    ($($(#[$doc:meta])* $field:ident: $type:ty = $key:literal $(, score $score:literal: $about:literal)?;)*) => {
        /// The readings of one candidate at one moment, for scorers and strategies. `None` and NaN
        /// are unknown; each [`ScorerRow`](super::ScorerRow) documents the score of an unknown
        /// reading.
        #[derive(Debug, Clone, Copy, PartialEq, Default)]
        pub struct Candidate {
            /// A hash of its name, the same in every process.
            pub key: u64,
            /// Its index among the backends that serve the model.
            pub row: u32,
            /// Full blocks of the prompt.
            pub prompt_blocks: u32,
            $($(#[$doc])* pub $field: $type,)*
        }

        pub const READINGS: &[ReadingRow] = &[$(
            ReadingRow {
                key: $key,
                score: readings!(@score $type $(, $score: $about)?),
                get: |candidate| candidate.$field.to_json(),
                set: |candidate, given| {
                    ReadingValue::from_json(given).map(|value| candidate.$field = value).is_some()
                },
            },
        )*];
    };
}

readings! {
    /// Its priority; lower is better.
    priority: u32 = "priority", score "priority": "0 where it is missing";
    /// Its configured weight; `None` if all backends of the model have the same.
    weight: Option<f64> = "weight";
    /// The largest weight among those backends.
    most_weight: Option<f64> = "most_weight";
    /// Requests this process has in flight there; NaN if `penstock score` is not given them.
    in_flight: f64 = "in_flight", score "in_flight": "requests of ours; pending where it is missing. Not known without both: 0 from the scorers that go by it, but latency takes it for none";
    /// Tokens of those requests: prompts and expected output. NaN as above.
    tokens_in_flight: f64 = "tokens_in_flight", score "tokens_in_flight": "tokens of requests of ours; not known: 0 from token-load and prefill-cost";
    /// Uncached tokens of prompts whose response has not started.
    prefill_tokens: f64 = "prefill_tokens", score "prefill_tokens": "uncached tokens of prompts of ours that have no response yet; 0 where it is missing";
    /// The latency the strategy `smart` scores by.
    latency: Micros = "latency_ms";
    /// The peak-sensitive moving average of the TTFT, in milliseconds.
    first_token_ms: Option<f64> = "first_token_ms", score "latency_ms": "the average time to the first token; not known: that of the fastest";
    /// Requests waiting in the engine's queue.
    waiting: Option<f64> = "waiting", score "waiting": "requests in the engine's queue; not known: 0 from waiting-queue, and the load is not known";
    /// Requests in the engine's batch.
    running: Option<f64> = "running", score "running": "requests in its batch; not known: 0 from running-requests, and the load is not known";
    /// Effective load: waiting, running, and dispatched since they were read.
    load: Option<f64> = "load";
    /// The share of its KV cache in use, 0..=1.
    kv_utilization: Option<f64> = "kv_utilization", score "kv_utilization": "0..1; not known: 0 from kv-utilization";
    /// The reliability of the engine's telemetry.
    telemetry: Standing = "telemetry";
    /// The age of its last sample; `None` before the first.
    telemetry_age: Option<Micros> = "telemetry_age_ms";
    /// The state of the request's adapter there.
    adapter: Adapter = "adapter", score "adapter": "where the adapter of the request stands; not known: 0 from lora-affinity";
    /// Requests for the model that this process has in flight there.
    model_in_flight: Option<f64> = "model_in_flight", score "model_in_flight": "requests of ours for the model; 0 where it is missing";
    /// The number of requests for the model that it runs at a time.
    slots: Option<f64> = "slots", score "slots": "how many requests for the model it runs at a time; not known: 0 from free-slot";
    /// The state of the model in its memory.
    residency: Residency = "residency", score "residency": "where the model stands; not known: 0 from resident";
    /// The models that loading this one would evict.
    eviction: Eviction = "evicts", score "evicts": "what loading the model evicts from its memory; nothing where it is missing";
    /// Leading blocks of the prompt that it is believed to have cached.
    matched_blocks: u32 = "matched_blocks";
    /// The predicted latencies of the request there.
    prediction: Option<PredictedLatency> = "prediction", score "prediction": "predicted latencies in milliseconds: ttft_ms, ttft_p90_ms, tpot_ms, tightest_tpot_ms; not known: 0 from slo-headroom";
}

/// A reading as captures and `penstock score` know it.
#[derive(Debug)]
pub struct ReadingRow {
    /// Its key in captures.
    pub key: &'static str,
    /// The reading in a line of `penstock score`; `None` if it has none.
    pub score: Option<ScoreReading>,
    /// Its value; `None` when unknown.
    pub get: fn(&Candidate) -> Option<Value>,
    /// Sets the value; `false` when it is of the wrong type.
    pub set: fn(&mut Candidate, &Value) -> bool,
}

/// A reading in a line of `penstock score`.
#[derive(Debug, Clone, Copy)]
pub struct ScoreReading {
    pub key: &'static str,
    /// Its meaning, and its effect when it is unknown.
    pub about: &'static str,
    /// The keywords of its JSON Schema.
    pub schema: &'static str,
}

impl ScoreReading {
    /// The member of the JSON Schema that describes it.
    pub fn to_schema(&self) -> String {
        format!("\"{}\": {{ {}, \"description\": {} }}", self.key, self.schema, json!(self.about))
    }
}

impl Candidate {
    /// A candidate of that name, with every reading unknown or 0.
    pub fn new(name: &str) -> Self {
        Self { key: Self::key_of(name), ..Self::default() }
    }

    /// The hash of a backend's name, the same in every process.
    pub fn key_of(name: &str) -> u64 {
        xxhash_rust::xxh3::xxh3_64(name.as_bytes())
    }

    /// The share of the prompt it has cached, 0..=1; 0 without a full block.
    pub fn match_ratio(&self) -> f64 {
        if self.prompt_blocks == 0 {
            return 0.0;
        }
        // A line of `penstock score` may name more matched blocks than the prompt has.
        f64::from(self.matched_blocks.min(self.prompt_blocks)) / f64::from(self.prompt_blocks)
    }

    /// The effective load, or our own requests in flight if it is unknown; by weight.
    pub fn load_or_in_flight(&self) -> f64 {
        self.load.unwrap_or(self.in_flight) * self.load_factor()
    }

    /// The effective load by weight.
    pub fn load_by_weight(&self) -> Option<f64> {
        Some(self.load? * self.load_factor())
    }

    /// Our own requests in flight by weight.
    pub fn in_flight_by_weight(&self) -> f64 {
        self.in_flight * self.load_factor()
    }

    /// Returns whether it can start another request for the model at once; `None` if its slots are
    /// not known.
    pub fn has_free_slot(&self) -> Option<bool> {
        self.slots.map(|slots| self.model_in_flight.unwrap_or(0.0) < slots)
    }

    /// The factor of its load by its weight: double with half the largest weight.
    fn load_factor(&self) -> f64 {
        match (self.weight, self.most_weight) {
            (Some(weight), Some(most)) if weight > 0.0 && most > 0.0 => most / weight,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::reading_values::ADAPTERS;
    use super::*;

    fn through_json(candidate: &Candidate) -> Candidate {
        let mut back = Candidate {
            key: candidate.key,
            row: candidate.row,
            prompt_blocks: candidate.prompt_blocks,
            in_flight: f64::NAN,
            ..Candidate::default()
        };
        for row in READINGS {
            let Some(value) = (row.get)(candidate) else { continue };
            let text = value.to_string();
            assert!((row.set)(&mut back, &serde_json::from_str(&text).unwrap()), "{text}");
        }
        back
    }

    proptest! {
        #[test]
        fn readings_survive_json_bit_by_bit(
            (load, kv, tokens) in (0.0..1e9_f64, 0.0..=1.0_f64, 0..u64::MAX),
            (in_flight, matched, micros) in (0..u32::MAX, any::<u32>(), 0..1_u64 << 50),
            (adapter, standing) in (0..4_usize, 0..4_usize),
            (residency, eviction, slots) in (0..4_usize, 0..3_usize, 1..u32::MAX),
        ) {
            let candidate = Candidate {
                load: Some(load),
                kv_utilization: Some(kv),
                in_flight: in_flight.into(),
                tokens_in_flight: tokens as f64,
                latency: Micros(micros / 2),
                telemetry_age: Some(Micros(micros)),
                telemetry: Standing::ALL[standing],
                adapter: ADAPTERS[adapter].0,
                matched_blocks: matched,
                residency: Residency::ALL[residency],
                eviction: Eviction::ALL[eviction],
                slots: Some(slots.into()),
                model_in_flight: Some(in_flight.into()),
                ..Candidate::new("a")
            };
            prop_assert_eq!(through_json(&candidate), candidate);
        }
    }

    #[test]
    fn values_of_the_wrong_type_are_refused() {
        let mut candidate = Candidate::default();
        for row in READINGS {
            for wrong in [json!([1]), json!({}), json!("x"), json!(true)] {
                assert!(!(row.set)(&mut candidate, &wrong), "{}: {wrong}", row.key);
            }
        }
        assert_eq!(candidate, Candidate::default());
    }
}
