//! A backend at run time: its identity and everything learned about it. Decisions read atomics of
//! it; attempts and checks write them.

mod learning;
mod liveness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use penstock_api::Engine;
use penstock_api::units::{Timestamp, to_micros};
use penstock_config::BackendConfig;

use super::addresses::Addresses;
use super::backend_id::BackendId;
use super::backend_memory::BackendMemory;
use super::capacity::CapacityWatch;
use super::catalogue_request::{CatalogueRequest, OutdatedCatalogue};
use super::check_request::CheckRequest;
use super::circuit_breaker::{BreakerTransition, CircuitBreaker};
use super::cooldown::Cooldowns;
use super::drain_estimate::DrainEstimate;
use super::durations::Durations;
use super::engine_pages::EnginePages;
use super::health::{Health, HealthTracker};
use super::load::{Load, TokensInFlight};
use super::model_listing::ModelListing;
use super::operation_lessons::OperationLessons;
use super::paused_backend::FaultyModels;
use super::progress::ResponseProgress;
use super::slow_start::SlowStart;
use super::telemetry::Telemetry;
use crate::prefix::EngineCache;

static SERIALS: AtomicU64 = AtomicU64::new(0);

/// The state learned about one backend. Shared by every generation that names the same backend.
// Fields that each decision reads of each candidate come first and share one cache line. The
// assertion below fails when a new field pushes the breaker's state out of it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct BackendState {
    pub load: Load,
    /// The verdict of the health checks.
    pub health: HealthTracker,
    check_micros: AtomicU32,
    /// Its cooldowns after a 429, a 503 or a refusal.
    pub cooldowns: Cooldowns,
    /// The time after which no fault affects decisions; spares them a look at the evidence.
    faults_until: AtomicU64,
    /// The circuit breaker, fed by traffic.
    pub breaker: CircuitBreaker,
    /// The models that fail here and not elsewhere.
    pub faulty_models: FaultyModels,
    pub id: BackendId,
    /// A number that is never reused, unlike `id`.
    pub serial: u64,
    /// Its name in configuration, metrics and messages.
    pub name: Box<str>,
    /// Its network addresses, resolved in the background.
    pub addresses: Addresses,
    /// Tokens of the requests in flight.
    pub work: TokensInFlight,
    dispatched: AtomicU64,
    /// The queues that wait for capacity here.
    pub capacity: CapacityWatch,
    /// The estimated end of the requests in flight.
    pub drain_estimate: DrainEstimate,
    /// The durations of requests that were forwarded unread, whatever their model.
    pub unread_durations: Durations,
    /// The metrics that its engine reports.
    pub telemetry: Telemetry,
    /// The predicted contents of its engine's prefix cache, over all models.
    pub cache: Arc<EngineCache>,
    /// The contents of its information pages.
    pub pages: EnginePages,
    /// The entries of its last model list that were dropped.
    pub listing: ModelListing,
    /// The operations it has served, and those it lacks.
    pub lessons: OperationLessons,
    /// The models in its memory.
    pub memory: BackendMemory,
    catalogue_request: CatalogueRequest,
    slow_start: SlowStart,
    /// If set, its first passed check starts a slow start.
    starts_slowly: AtomicBool,
    checked_at: AtomicU64,
    check_request: CheckRequest,
    /// The number of requests its engine runs at a time; 0 if unknown.
    slots: AtomicU32,
    /// The progress of its responses.
    pub(super) progress: ResponseProgress,
    /// The status of its last check that passed without a 2xx, or 0.
    check_status: AtomicU16,
    /// The position of the detected engine in [`Engine::ALL`]; zero before detection.
    detected_engine: AtomicU8,
    /// True if it is llama.cpp's router, which loads and unloads models on request.
    is_router: AtomicBool,
    /// The start of the wait for its models, in microseconds; zero before discovery has started.
    awaited_since: AtomicU64,
}

// A backend's engine is unknown until it is detected.
const _: () = assert!(matches!(Engine::ALL.first(), Some(Engine::Auto)));
const _: () = assert!(std::mem::offset_of!(BackendState, breaker) + size_of::<u64>() <= 64);

impl BackendState {
    /// Returns a backend about which nothing is known yet.
    pub fn new(id: BackendId, config: &BackendConfig) -> Self {
        Self::named(id, SERIALS.fetch_add(1, Ordering::Relaxed), &config.name)
    }

    fn named(id: BackendId, serial: u64, name: &str) -> Self {
        Self {
            id,
            serial,
            name: name.into(),
            load: Load::default(),
            work: TokensInFlight::default(),
            dispatched: AtomicU64::new(0),
            capacity: CapacityWatch::default(),
            health: HealthTracker::default(),
            breaker: CircuitBreaker::default(),
            cooldowns: Cooldowns::default(),
            faults_until: AtomicU64::new(0),
            faulty_models: FaultyModels::default(),
            slow_start: SlowStart::default(),
            starts_slowly: AtomicBool::new(false),
            drain_estimate: DrainEstimate::default(),
            unread_durations: Durations::default(),
            telemetry: Telemetry::default(),
            cache: Arc::default(),
            pages: EnginePages::default(),
            listing: ModelListing::default(),
            lessons: OperationLessons::default(),
            memory: BackendMemory::default(),
            catalogue_request: CatalogueRequest::default(),
            addresses: Addresses::default(),
            check_micros: AtomicU32::new(0),
            checked_at: AtomicU64::new(0),
            check_request: CheckRequest::default(),
            slots: AtomicU32::new(0),
            progress: ResponseProgress::default(),
            check_status: AtomicU16::new(0),
            detected_engine: AtomicU8::new(0),
            is_router: AtomicBool::new(false),
            awaited_since: AtomicU64::new(0),
        }
    }

    /// Returns the state to show. Draining takes precedence over the verdict of the health checks.
    pub fn status(&self) -> Health {
        if self.is_draining() { Health::Draining } else { self.health.status() }
    }

    /// Returns whether it receives no new requests, by the admin API or the configuration.
    pub fn is_draining(&self) -> bool {
        self.health.is_draining()
    }

    /// Starts or ends a drain. Returns whether it drained before.
    pub fn set_draining(&self, draining: bool) -> bool {
        // Woken in both cases: when a drain starts, queues must stop waiting for this backend.
        let was_draining = self.health.set_draining(draining);
        self.capacity.wake();
        was_draining
    }

    /// Returns whether its load alone decides if it takes a request, as for most backends in most
    /// decisions. If false, each of the states below has a separate test.
    #[inline(always)]
    pub fn is_unimpaired(&self, now: Timestamp) -> bool {
        self.health.is_unimpaired()
            && self.breaker.is_closed()
            && !self.cooldowns.is_active(now)
            && !self.has_recent_faults(now)
    }

    /// Starts a slow start: the backend's share of the requests grows for `duration`.
    pub fn begin_slow_start(&self, now: Timestamp, duration: Duration) {
        if !duration.is_zero() {
            // The times before the flag: a decision that sees the flag must find them.
            self.slow_start.start(now, duration);
            self.health.set_slow_start(true);
        }
    }

    /// Requests a slow start at its first passed check, because it joined a running fleet.
    pub fn expect_slow_start(&self) {
        self.starts_slowly.store(true, Ordering::Relaxed);
    }

    /// Returns whether the first passed check starts a slow start, and clears that request.
    pub fn takes_slow_start(&self) -> bool {
        self.starts_slowly.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a slow start may be in progress; [`BackendState::share`] is exact.
    pub fn is_in_slow_start(&self) -> bool {
        self.health.is_in_slow_start()
    }

    /// The fraction of its usual share that it may receive now: 1 outside a slow start.
    pub fn share(&self, now: Timestamp) -> f32 {
        if !self.health.is_in_slow_start() {
            return 1.0;
        }
        let share = self.slow_start.share(now);
        if share >= 1.0 {
            self.health.set_slow_start(false);
        }
        share
    }

    /// The duration of the last successful health check; zero before the first.
    pub fn check_latency(&self) -> Duration {
        Duration::from_micros(self.check_micros.load(Ordering::Relaxed).into())
    }

    /// Sets the duration of a check: for `explain` on a saved fleet and for tests.
    pub fn set_check_latency(&self, took: Duration) {
        let micros = u32::try_from(to_micros(took)).unwrap_or(u32::MAX);
        self.check_micros.store(micros, Ordering::Relaxed);
    }

    /// The duration of the last successful health check in microseconds.
    pub fn check_micros(&self) -> u32 {
        self.check_micros.load(Ordering::Relaxed)
    }

    /// The end of the last health check; `None` before the first.
    pub fn checked_at(&self) -> Option<Timestamp> {
        match self.checked_at.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Timestamp(micros)),
        }
    }

    /// The number of attempts dispatched since the backend was first seen.
    pub fn dispatched(&self) -> u64 {
        self.dispatched.load(Ordering::Relaxed)
    }

    pub(super) fn count_dispatched(&self) {
        self.dispatched.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the number of requests that an engine with slots runs at a time.
    pub fn set_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// The number of idle connections its engine can afford. An engine with slots (llama.cpp) has
    /// few threads, and every connection occupies one, idle or not. Idle connections thus make
    /// requests wait.
    pub fn affordable_connections(&self) -> Option<u32> {
        match self.slots.load(Ordering::Relaxed) {
            0 => None,
            slots => Some(slots.saturating_sub(self.load.in_flight())),
        }
    }

    /// Requests a health check as soon as `health.fast_interval` has passed since the last one. A
    /// request met a failure that a check can confirm or disprove.
    pub fn request_check(&self) {
        self.check_request.set();
    }

    /// Returns ready once a check has been requested, and consumes the request. Only the backend's
    /// health checks poll it.
    pub fn poll_check_requested(&self, cx: &Context<'_>) -> Poll<()> {
        self.check_request.poll_take(cx)
    }

    /// The number of requests an engine with slots runs at a time; `None` until reported.
    pub fn slots(&self) -> Option<u32> {
        Some(self.slots.load(Ordering::Relaxed)).filter(|slots| *slots > 0)
    }

    /// Marks the model list and the loaded models as outdated, so that both are read again at once.
    /// The old information stays in use until then.
    pub fn invalidate_models(&self) {
        self.catalogue_request.set_all();
    }

    /// Marks only the loaded models as outdated, after a response showed a change.
    pub fn invalidate_loaded(&self) {
        self.catalogue_request.set_loaded();
    }

    /// Returns ready once something is outdated, and consumes the request. Only the backend's
    /// discovery polls it.
    pub fn poll_outdated(&self, cx: &Context<'_>) -> Poll<OutdatedCatalogue> {
        self.catalogue_request.poll_take(cx)
    }

    /// Records the engine that its responses come from.
    pub fn detect_engine(&self, engine: Engine) {
        let position = Engine::ALL.iter().position(|one| *one == engine);
        // 0 is `Auto`: an engine that is not in the table counts as not detected.
        let position = position.and_then(|position| u8::try_from(position).ok()).unwrap_or(0);
        self.detected_engine.store(position, Ordering::Relaxed);
    }

    /// Returns whether it is llama.cpp's router, which loads and unloads models on request.
    pub fn is_router(&self) -> bool {
        self.is_router.load(Ordering::Relaxed)
    }

    /// Records whether its model list is that of a router.
    pub fn set_router(&self, is_router: bool) {
        self.is_router.store(is_router, Ordering::Relaxed);
    }

    /// Its engine: the configured one, or else the detected one.
    pub fn engine(&self, configured: Engine) -> Engine {
        let position = usize::from(self.detected_engine.load(Ordering::Relaxed));
        let detected = Engine::ALL.get(position).copied().unwrap_or(Engine::Auto);
        if configured == Engine::Auto { detected } else { configured }
    }

    /// Starts the wait for its models, unless it has already started.
    pub fn await_models(&self, now: Timestamp) {
        if self.awaited_since.load(Ordering::Relaxed) == 0 {
            self.awaited_since.store(now.0.max(1), Ordering::Relaxed);
        }
    }

    /// Returns whether its models, none of which are known, may still be reported within `give_up`.
    pub fn awaits_models(&self, now: Timestamp, give_up: Duration) -> bool {
        match self.awaited_since.load(Ordering::Relaxed) {
            0 => true,
            since => now.since(Timestamp(since)) < give_up,
        }
    }
}

/// The changes that a health check caused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckVerdict {
    /// The new verdict of the health checks.
    pub health: Option<Health>,
    /// The transition of the breaker, if it opened.
    pub breaker: Option<BreakerTransition>,
}

/// A backend's state, shared by everything that holds it.
pub type SharedBackend = Arc<BackendState>;
