//! The load report that this replica publishes, and the merged reports of the other replicas that
//! share its backends.
//!
//! Backends are the same if name and URL are equal: the numbers of one process mean nothing in
//! another. A report comes from a server that may hold anything, so its content is bounded before
//! it counts.

use std::time::Duration;

use ahash::HashMap;
use penstock_predict::{EngineLoad, PromptWork};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::serving::Serving;
use super::{Backend, Fleet, Topology};

/// The interval at which replicas report to each other.
pub const SHARE_INTERVAL: Duration = Duration::from_millis(200);
/// The most backends of a report: those with the most in flight.
const MAX_BACKENDS: usize = 1024;
/// The most models of a report, on all its backends.
const MAX_MODELS: usize = 4096;
/// The upper bounds of the numbers in a report: no engine has more requests, tokens, or
/// microseconds of work.
const MAX_REQUESTS: u64 = 1_000_000;
const MAX_TOKENS: u64 = 1_000_000_000_000;
const MAX_WORK_US: u64 = 86_400_000_000;

/// The load in flight of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Its backends that have anything in flight.
    pub backends: Vec<BackendLoad>,
}

/// The load in flight of a replica on one backend.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendLoad {
    pub name: String,
    /// A hash of its URL, which may contain secrets.
    pub url: u64,
    pub in_flight: u64,
    /// The tokens of the requests.
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// The prefill tokens of prompts without a first token.
    #[serde(skip_serializing_if = "is_zero")]
    pub prefill_tokens: u64,
    pub models: Vec<ModelLoad>,
}

/// The load in flight of one model on a backend. All fields but `in_flight` are set only if it
/// predicts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelLoad {
    pub name: String,
    pub in_flight: u64,
    /// The number of requests without a first token.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: u64,
    /// The uncached tokens of their prompts.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_tokens: u64,
    /// The microseconds that these tokens take.
    #[serde(skip_serializing_if = "is_zero")]
    pub work: u64,
    /// The number of streams.
    #[serde(skip_serializing_if = "is_zero")]
    pub streams: u64,
    /// The tokens of their contexts.
    #[serde(skip_serializing_if = "is_zero")]
    pub context: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ModelLoad {
    fn of(row: &Serving) -> Option<Self> {
        let load = row.model_state.used_predictor().map(|one| one.own_load());
        let load = load.unwrap_or_default();
        let one = Self {
            name: row.model.to_string(),
            in_flight: row.model_state.load.in_flight().into(),
            waiting: whole(load.waiting_count),
            prompt_tokens: whole(load.prompt_work.tokens),
            work: whole(load.prompt_work.time_us),
            streams: whole(load.stream_count),
            context: whole(load.context_tokens),
        };
        let is_idle = one == Self { name: one.name.clone(), ..Self::default() };
        (!is_idle).then_some(one)
    }

    fn load(&self) -> EngineLoad {
        let number = |value: u64, max: u64| value.min(max) as f64;
        EngineLoad {
            waiting_count: number(self.waiting, MAX_REQUESTS),
            prompt_work: PromptWork {
                tokens: number(self.prompt_tokens, MAX_TOKENS),
                time_us: number(self.work, MAX_WORK_US),
            },
            stream_count: number(self.streams, MAX_REQUESTS),
            context_tokens: number(self.context, MAX_TOKENS),
        }
    }
}

/// The total load of the other replicas for one model on one backend.
#[derive(Debug, Default)]
struct ModelSum {
    in_flight: u64,
    load: EngineLoad,
}

/// The total load of the other replicas on one backend.
#[derive(Debug, Default)]
struct BackendSum<'a> {
    in_flight: u64,
    tokens: u64,
    prefill_tokens: u64,
    models: HashMap<&'a str, ModelSum>,
}

impl<'a> BackendSum<'a> {
    fn add(&mut self, load: &'a BackendLoad) {
        self.in_flight = self.in_flight.saturating_add(load.in_flight.min(MAX_REQUESTS));
        self.tokens = self.tokens.saturating_add(load.tokens.min(MAX_TOKENS));
        self.prefill_tokens =
            self.prefill_tokens.saturating_add(load.prefill_tokens.min(MAX_TOKENS));
        for model in load.models.iter().take(MAX_MODELS) {
            let sum = self.models.entry(&model.name).or_default();
            sum.in_flight = sum.in_flight.saturating_add(model.in_flight.min(MAX_REQUESTS));
            sum.load.add(&model.load());
        }
    }
}

impl Fleet {
    /// Returns the load report of this replica.
    pub fn own_load(&self) -> LoadReport {
        let topology = self.topology();
        let mut backends: Vec<BackendLoad> = topology.backends.iter().map(own_backend).collect();
        let mut models = 0;
        for row in topology.models().iter().flat_map(|model| &model.serving) {
            if let Some(backend) = backends.get_mut(usize::from(row.backend))
                && models < MAX_MODELS
                && let Some(one) = ModelLoad::of(row)
            {
                backend.models.push(one);
                models += 1;
            }
        }
        backends.retain(|one| one.in_flight > 0 || !one.models.is_empty());
        if backends.len() > MAX_BACKENDS {
            backends.sort_by_key(|one| std::cmp::Reverse(one.in_flight));
            backends.truncate(MAX_BACKENDS);
        }
        LoadReport { backends }
    }

    /// Applies the last report of each other replica. Must be called once per [`SHARE_INTERVAL`].
    pub fn apply_peer_loads(&self, reports: &[LoadReport]) {
        let topology = self.topology();
        let mut sums: HashMap<(&str, u64), BackendSum<'_>> = HashMap::default();
        for load in reports.iter().flat_map(|one| one.backends.iter().take(MAX_BACKENDS)) {
            sums.entry((&load.name, load.url)).or_default().add(load);
        }
        let peer_count = u8::try_from(reports.len()).unwrap_or(u8::MAX);
        let mut has_room = Vec::with_capacity(topology.backends.len());
        for backend in &topology.backends {
            let (state, sum) = (&backend.state, sums.get(&key_of(backend)));
            // Reports leave idle backends out: one that is missing now has nothing in flight
            // elsewhere.
            let tokens = sum.map_or((0, 0), |sum| (sum.tokens, sum.prefill_tokens));
            state.work.set_peers(tokens.0, tokens.1, peer_count);
            let in_flight = sum.map_or(0, |sum| count(sum.in_flight));
            has_room.push(state.load.set_peers(in_flight, peer_count));
        }
        for row in topology.models().iter().flat_map(|model| &model.serving) {
            let place = usize::from(row.backend);
            let Some(backend) = topology.backends.get(place) else { continue };
            let sum = sums.get(&key_of(backend)).and_then(|sum| sum.models.get(&*row.model));
            let in_flight = sum.map_or(0, |sum| count(sum.in_flight));
            let mut is_new = row.model_state.load.set_peers(in_flight, peer_count);
            is_new |= set_peer_load(row, &sum.map_or_else(EngineLoad::default, |sum| sum.load));
            has_room.iter_mut().skip(place).take(1).for_each(|has_room| *has_room |= is_new);
        }
        wake(&topology, &has_room);
    }
}

/// Wakes the queues that wait for capacity on changed backends.
fn wake(topology: &Topology, has_room: &[bool]) {
    let changed = topology.backends.iter().zip(has_room).filter(|(_, has_room)| **has_room);
    changed.for_each(|(backend, _)| backend.state.capacity.wake());
}

/// Returns whether it changed. A model without predictions gets no predictor for it.
fn set_peer_load(row: &Serving, load: &EngineLoad) -> bool {
    row.model_state.used_predictor().is_some_and(|predictor| predictor.set_peer_load(load))
}

fn own_backend(backend: &Backend) -> BackendLoad {
    let state = &backend.state;
    BackendLoad {
        name: backend.config.name.clone(),
        url: url_hash(backend),
        in_flight: state.load.in_flight().into(),
        tokens: state.work.tokens(),
        prefill_tokens: state.work.prefill_tokens(),
        models: Vec::new(),
    }
}

fn key_of(backend: &Backend) -> (&str, u64) {
    (&backend.config.name, url_hash(backend))
}

fn url_hash(backend: &Backend) -> u64 {
    xxh3_64(backend.config.url.to_string().as_bytes())
}

fn count(in_flight: u64) -> u32 {
    u32::try_from(in_flight).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 0")]
fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fleet::{PermitRequest, ReachedLimit, RequestTokens};
    use penstock_api::units::Timestamp;
    use penstock_config::{Config, Environment};
    use penstock_predict::RequestShape;

    const NOW: Timestamp = Timestamp(5_000_000);

    fn fleet(backends: &str) -> Fleet {
        let yaml = format!("backends: [{backends}]");
        let environment = Environment::default();
        Fleet::new(&Config::parse(&yaml, "test.yaml", Path::new(""), &environment).unwrap())
    }

    fn row(fleet: &Fleet) -> Serving {
        fleet.topology().models()[0].serving[0].clone()
    }

    /// A report after its way through the server.
    fn passed(report: &LoadReport) -> LoadReport {
        serde_json::from_str(&serde_json::to_string(report).unwrap()).unwrap()
    }

    const A: &str = "{ name: a, url: \"http://a:1\", max_in_flight: 4, models: [m] }";

    #[test]
    fn requests_of_one_penstock_count_in_the_other() {
        let (one, other) = (fleet(A), fleet(&format!("{{ url: \"http://z\", models: [m] }}, {A}")));
        let from = row(&one);
        let mut permit = from.try_reserve(&PermitRequest::default()).unwrap();
        permit.count_tokens(RequestTokens { prompt: 700, uncached: 700, output: 50 });
        let sent = RequestShape {
            prompt_tokens: 700.0,
            cached_tokens: 0.0,
            max_output_tokens: 50.0,
            is_whole: false,
        };
        let predictor = from.model_state.predictor();
        let prediction = predictor.estimate(&sent, NOW.0 as f64).prediction;
        let ticket = predictor.send(sent, prediction, None, NOW.0 as f64);
        let topology = other.topology();
        let to = &topology.models()[0].serving[1];
        let _predicted = to.estimate(&sent, NOW);
        for _ in 0..100 {
            other.apply_peer_loads(&[passed(&one.own_load()), LoadReport::default()]);
        }
        assert_eq!((to.state.load.in_flight(), to.state.load.peers_in_flight()), (0, 1));
        assert_eq!((to.state.load.of_all(), to.state.load.peer_count()), (1, 2));
        let work = &to.state.work;
        assert_eq!((work.counted_tokens(), work.counted_prefill_tokens()), (250, 233), "its part");
        assert_eq!((to.model_state.load.in_flight(), to.model_state.load.of_all()), (0, 1));
        let estimate = to.estimate(&sent, NOW).prediction;
        assert!((estimate.backlog_us - prediction.work_us * 0.5).abs() < 1.0, "{estimate:?}");
        assert_eq!(
            topology.models()[0].serving[0].state.load.peers_in_flight(),
            0,
            "another backend"
        );
        drop((permit, ticket));
        assert_eq!(one.own_load().backends.iter().map(|one| one.in_flight).sum::<u64>(), 0);
        other.apply_peer_loads(&[passed(&one.own_load())]);
        assert_eq!(to.state.load.of_all(), 0);
        other.apply_peer_loads(&[]);
        assert!(to.estimate(&sent, NOW).prediction.backlog_us < 1.0);
    }

    #[test]
    fn limit_counts_the_requests_of_all() {
        let (one, other) = (fleet(A), fleet(A));
        let (from, to) = (row(&one), row(&other));
        let permits: Vec<_> =
            (0..3).map(|_| from.try_reserve(&PermitRequest::default()).unwrap()).collect();
        other.apply_peer_loads(&[one.own_load()]);
        let first = to.try_reserve(&PermitRequest::default());
        assert_eq!(to.limit_reached(), None, "half of the limit is its own");
        let second = to.try_reserve(&PermitRequest::default());
        assert!(first.is_some() && second.is_some());
        assert_eq!(to.limit_reached(), Some(ReachedLimit::Backend(4)));
        assert!(!to.is_unrestricted() && to.try_reserve(&PermitRequest::default()).is_none());
        one.apply_peer_loads(&[other.own_load()]);
        drop(permits);
        assert!(from.try_reserve(&PermitRequest::default()).is_some());
    }

    #[test]
    fn backends_of_one_name_differ_by_their_url() {
        let (one, other) = (fleet(A), fleet(&A.replace("a:1", "a:2")));
        let _permit = row(&one).try_reserve(&PermitRequest::default()).unwrap();
        other.apply_peer_loads(&[one.own_load()]);
        assert_eq!(row(&other).state.load.peers_in_flight(), 0);
    }

    #[test]
    fn absurd_numbers_are_bounded_and_leave_predictions_finite() {
        let fleet = fleet(A);
        let url = url_hash(&fleet.topology().backends[0]);
        let max = u64::MAX;
        let text = format!(
            r#"{{"backends":[{{"name":"a","url":{url},"in_flight":{max},"tokens":{max},"prefill_tokens":{max},"more":1,
            "models":[{{"name":"m","in_flight":{max},"waiting":{max},"prompt_tokens":{max},"work":{max},
            "streams":{max},"context":{max}}},{{"name":"other"}}]}}]}}"#
        );
        let report: LoadReport = serde_json::from_str(&text).unwrap();
        let row = row(&fleet);
        let _predicted = row.model_state.predictor();
        fleet.apply_peer_loads(&vec![report; 300]);
        assert_eq!(row.state.load.peer_count(), u8::MAX);
        assert!(row.try_reserve(&PermitRequest::default()).is_some(), "one is always its own");
        let sent = RequestShape {
            prompt_tokens: 1e6,
            cached_tokens: 0.0,
            max_output_tokens: 1e6,
            is_whole: true,
        };
        let estimate = row.estimate(&sent, NOW);
        let prediction = estimate.prediction;
        for number in
            [prediction.ttft_us, prediction.ttft_p90_us, prediction.tpot_us, prediction.backlog_us]
        {
            assert!(number.is_finite() && number >= 0.0, "{prediction:?}");
        }
        fleet.apply_peer_loads(&[]);
        assert_eq!((row.state.load.of_all(), row.state.work.counted_tokens()), (0, 0));
        assert!(row.estimate(&sent, NOW).prediction.backlog_us < 1.0);
    }
}
