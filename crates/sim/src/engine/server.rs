//! The server of an engine: one engine for all models or, as in Ollama, one for each model in
//! memory. Ollama loads a model when a request needs it and evicts an idle one.

use std::collections::VecDeque;

use super::{
    BatchingEngine, EngineCounters, EngineEvent, EngineTelemetry, StepModel, SubmittedRequest,
};
use super::{EngineSpec, EventKind, SpecError};

/// A model in memory.
#[derive(Debug, Clone)]
struct Loaded {
    model: Box<str>,
    engine: BatchingEngine,
    /// The time of its last request.
    used_at: u64,
}

/// A request whose model cannot be loaded yet, or that arrived after such a request.
#[derive(Debug, Clone)]
struct Queued {
    model: Box<str>,
    request: SubmittedRequest<'static>,
    prefix: Box<[u64]>,
}

/// A server. A clone continues exactly as the original would.
#[derive(Debug, Clone)]
pub struct EngineServer {
    spec: EngineSpec,
    /// The models in memory; never empty unless models are loaded on demand.
    loaded: Vec<Loaded>,
    /// The waiting requests in the order of arrival; none overtakes the first.
    queue: VecDeque<Queued>,
    loads: u64,
    /// The counters of engines whose models were unloaded.
    unloaded: EngineCounters,
}

impl EngineServer {
    /// Creates a server without requests; a server that loads models on demand starts with none in
    /// memory.
    ///
    /// # Errors
    /// When the engine could not run with this specification.
    pub fn new(spec: EngineSpec) -> Result<Self, SpecError> {
        let engine = BatchingEngine::new(spec.clone())?;
        let always = Loaded { model: Box::default(), engine, used_at: 0 };
        let loaded = if spec.on_demand.is_some() { Vec::new() } else { vec![always] };
        let (queue, unloaded) = (VecDeque::new(), EngineCounters::default());
        Ok(Self { spec, loaded, queue, loads: 0, unloaded })
    }

    /// Takes a request for a model that arrives at `now`; see [`BatchingEngine::submit`].
    pub fn submit(&mut self, now: u64, model: &str, request: &SubmittedRequest<'_>) {
        if self.spec.on_demand.is_none() {
            self.loaded.iter_mut().for_each(|one| one.engine.submit(now, request));
            return;
        }
        self.queue.push_back(Queued {
            model: model.into(),
            prefix: request.prefix.into(),
            // A queued request owns its prefix, since it outlives the borrow.
            request: SubmittedRequest { prefix: &[], ..*request },
        });
        self.dispatch(now);
    }

    /// Ends a request whose client left at `now`.
    pub fn cancel(&mut self, now: u64, id: u32) {
        // Everywhere: the canceller does not know whether the engine has the request already.
        self.queue.retain(|queued| queued.request.id != id);
        self.loaded.iter_mut().for_each(|one| one.engine.cancel(now, id));
        self.dispatch(now);
    }

    /// Returns the time of the next event; `None` while the server is idle.
    pub fn next_event(&self) -> Option<u64> {
        self.loaded.iter().filter_map(|one| one.engine.next_event()).min()
    }

    /// Computes everything up to `until`, and appends the events in order.
    pub fn advance(&mut self, until: u64, events: &mut Vec<EngineEvent>) {
        if self.spec.on_demand.is_none() {
            self.loaded.iter_mut().for_each(|one| one.engine.advance(until, events));
            return;
        }
        while let Some(at) = self.next_event().filter(|at| *at <= until) {
            for one in &mut self.loaded {
                let before = events.len();
                one.engine.advance(at, events);
                let ended =
                    |event: &EngineEvent| !matches!(event.kind, EventKind::FirstToken { .. });
                // Ollama counts the time that a model may stay from the end of its last request.
                if events.iter().skip(before).any(ended) {
                    one.used_at = at;
                }
            }
            self.dispatch(at);
        }
    }

    /// Returns the engines of all models in memory.
    pub(super) fn engines(&self) -> impl Iterator<Item = &BatchingEngine> + '_ {
        self.loaded.iter().map(|one| &one.engine)
    }

    /// Dispatches waiting requests until one needs a model that cannot be loaded yet.
    fn dispatch(&mut self, now: u64) {
        while let Some(first) = self.queue.pop_front() {
            let Some(index) = self.place(&first.model, now) else {
                // It keeps its turn: Ollama serves in order, so that a model in use cannot starve
                // another one.
                self.queue.push_front(first);
                return;
            };
            if let Some(one) = self.loaded.get_mut(index) {
                one.used_at = now;
                one.engine
                    .submit(now, &SubmittedRequest { prefix: &first.prefix, ..first.request });
            }
        }
    }

    /// Returns the position of a model, loading it from `now` on if needed; `None` while every
    /// model that it could evict is in use.
    fn place(&mut self, model: &str, now: u64) -> Option<usize> {
        let on_demand = self.spec.on_demand?;
        if let Some(index) = self.loaded.iter().position(|one| *one.model == *model) {
            return Some(index);
        }
        if self.loaded.len() >= on_demand.most as usize {
            // Only idle ones: Ollama evicts no model that has a request.
            let idle = self.loaded.iter().enumerate().filter(|(_, one)| one.engine.is_idle());
            let (oldest, _) = idle.min_by_key(|(_, one)| one.used_at)?;
            let gone = self.loaded.remove(oldest);
            self.unloaded.add(&gone.engine.counters());
        }
        let engine =
            BatchingEngine::starting_at(self.spec.clone(), now + on_demand.load_time).ok()?;
        self.loads += 1;
        self.loaded.push(Loaded { model: model.into(), engine, used_at: now });
        Some(self.loaded.len() - 1)
    }

    /// Returns the models in memory, including those being loaded.
    pub fn models(&self) -> impl Iterator<Item = &str> + '_ {
        self.loaded.iter().map(|one| &*one.model)
    }

    /// Returns whether the server loads models when requests need them.
    pub fn loads_on_demand(&self) -> bool {
        self.spec.on_demand.is_some()
    }

    /// Returns the telemetry at `at`, not earlier than the time the server was advanced to.
    pub fn telemetry(&self, at: u64) -> EngineTelemetry {
        let mut all = EngineTelemetry { waiting: self.queue.len(), ..EngineTelemetry::default() };
        for one in &self.loaded {
            let found = one.engine.telemetry(at);
            all.running += found.running;
            all.waiting += found.waiting;
            all.used_blocks += found.used_blocks;
            all.total_blocks += found.total_blocks;
        }
        all
    }

    /// Sets the step time that applies after the step being computed at `now`.
    pub fn set_step_time(&mut self, now: u64, step_time: &StepModel) {
        self.spec.step_time = step_time.clone();
        let engines = self.loaded.iter_mut();
        engines.for_each(|one| one.engine.set_step_time(now, step_time.clone()));
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> EngineCounters {
        let mut sum = self.unloaded;
        self.loaded.iter().for_each(|one| sum.add(&one.engine.counters()));
        EngineCounters { loads: self.loads, ..sum }
    }

    /// Restarts the server at `now`: it loses caches, loaded models and all requests. Returns the
    /// ids of the requests.
    pub fn restart(&mut self, now: u64) -> Vec<u32> {
        let mut lost: Vec<u32> = self.queue.drain(..).map(|queued| queued.request.id).collect();
        for one in &mut self.loaded {
            lost.extend(one.engine.restart(now));
        }
        if self.spec.on_demand.is_some() {
            for gone in self.loaded.drain(..) {
                self.unloaded.add(&gone.engine.counters());
            }
        }
        // By id, whichever model or queue held them: the losses come in the order of arrival.
        lost.sort_unstable();
        lost
    }

    /// Returns the numbers of KV-cache blocks: held by requests, free, and total.
    pub fn block_counts(&self) -> (u32, u32, u32) {
        self.loaded
            .iter()
            .map(|one| one.engine.block_counts())
            .fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2))
    }

    /// Returns whether no request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.loaded.iter().all(|one| one.engine.is_idle())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OnDemand, tests::spec};
    use super::*;

    const SECOND: u64 = 1_000_000_000_000;

    fn server(most: u32) -> EngineServer {
        let on_demand = Some(OnDemand { most, load_time: 5 * SECOND });
        EngineServer::new(EngineSpec { on_demand, ..spec() }).unwrap()
    }

    fn request(id: u32) -> SubmittedRequest<'static> {
        SubmittedRequest {
            id,
            input_tokens: 20,
            output_tokens: 10,
            max_tokens: None,
            prefix: &[],
            prefix_tokens: 16,
        }
    }

    fn ends(server: &mut EngineServer) -> Vec<(u32, u64)> {
        let mut events = Vec::new();
        server.advance(u64::MAX / 2, &mut events);
        events.retain(|event| matches!(event.kind, EventKind::Finished { .. }));
        events.iter().map(|event| (event.id, event.at / SECOND)).collect()
    }

    #[test]
    fn model_is_loaded_once_and_the_idle_one_makes_room() {
        let mut server = server(1);
        server.submit(0, "a", &request(1));
        server.submit(0, "a", &request(2));
        server.submit(0, "b", &request(3));
        server.submit(0, "a", &request(4));
        assert_eq!(server.models().collect::<Vec<_>>(), ["a"]);
        assert_eq!(server.telemetry(0).waiting, 4, "one waits for room, one behind it");
        assert_eq!(ends(&mut server), [(1, 5), (2, 5), (3, 10), (4, 15)]);
        assert_eq!(server.counters().loads, 3);
        assert_eq!(server.counters().output_tokens, 40);
        assert!(server.is_idle());
    }

    #[test]
    fn models_beside_each_other_push_nothing_out() {
        let mut server = server(2);
        for (id, model) in ["a", "b", "a", "b"].into_iter().enumerate() {
            server.submit(0, model, &request(u32::try_from(id).unwrap()));
        }
        assert_eq!(ends(&mut server).iter().map(|(_, at)| *at).max(), Some(5));
        server.submit(20 * SECOND, "c", &request(9));
        assert_eq!(server.models().collect::<Vec<_>>(), ["b", "c"], "the one used the longest ago");
        assert_eq!(server.counters().loads, 3);
    }

    #[test]
    fn cancelled_request_frees_its_queue_place() {
        let mut server = server(1);
        server.submit(0, "a", &request(1));
        server.submit(0, "b", &request(2));
        server.submit(0, "a", &request(3));
        server.cancel(SECOND, 2);
        assert_eq!(ends(&mut server), [(1, 5), (3, 5)]);
        server.submit(20 * SECOND, "a", &request(4));
        assert_eq!(server.restart(20 * SECOND), [4]);
        assert_eq!((server.models().count(), server.counters().output_tokens), (0, 20));
    }
}
