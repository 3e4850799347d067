//! A backend at run time: its identity and everything learned about it. All of it is atomics, read by
//! decisions and written by attempts and checks.

mod learning;
mod liveness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use super::addresses::Addresses;
use super::backend_id::BackendId;
use super::backend_memory::BackendMemory;
use super::capacity::CapacityWatch;
use super::catalogue_request::{CatalogueRequest, OutdatedCatalogue};
use super::check_request::CheckRequest;
use super::circuit_breaker::{BreakerTransition, CircuitBreaker};
use super::cooldown::Cooldowns;
use super::drain_estimate::DrainEstimate;
use super::engine_pages::EnginePages;
use super::health::{Health, HealthTracker};
use super::load::{Load, TokensInFlight};
use super::model_listing::ModelListing;
use super::operation_lessons::OperationLessons;
use super::paused_backend::FaultyModels;
use super::progress::Progress;
use super::slow_start::SlowStart;
use super::telemetry::Telemetry;
use crate::config::{BackendConfig, Engine};
use crate::prefix::EngineCache;
use crate::units::{Timestamp, to_micros};

static SERIALS: AtomicU64 = AtomicU64::new(0);

/// What is learned about one backend. Shared by every generation that names the same backend.
// What each decision reads of each candidate comes first and shares one cache line; the assertion below
// fails when a new field pushes the breaker's state out of it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct BackendState {
    /// Requests in flight.
    pub load: Load,
    /// The verdict of the health checks.
    pub health: HealthTracker,
    check_micros: AtomicU32,
    /// The pauses it requested with a 429 or 503.
    pub cooldowns: Cooldowns,
    /// Until when faults may matter to decisions; spares them a look at the evidence.
    faults_until: AtomicU64,
    /// The circuit breaker, fed by traffic.
    pub breaker: CircuitBreaker,
    /// The models that fail here and not elsewhere.
    pub faulty_models: FaultyModels,
    /// Its number.
    pub id: BackendId,
    /// A number that is never reused, unlike `id`.
    pub serial: u64,
    /// Its name in configuration, metrics and messages.
    pub name: Box<str>,
    /// Where it listens, resolved in the background.
    pub addresses: Addresses,
    /// Tokens of the requests in flight.
    pub work: TokensInFlight,
    dispatched: AtomicU64,
    /// Who waits for capacity here.
    pub capacity: CapacityWatch,
    /// When the requests in flight will have ended.
    pub drain_estimate: DrainEstimate,
    /// What its engine reports.
    pub telemetry: Telemetry,
    /// What its models are believed to hold of its engine's prefix cache.
    pub cache: Arc<EngineCache>,
    /// What its information pages contain.
    pub pages: EnginePages,
    /// What its last model list contained that is not used.
    pub listing: ModelListing,
    /// Which operations it has served, and lacks.
    pub lessons: OperationLessons,
    /// What it has in memory.
    pub memory: BackendMemory,
    catalogue_request: CatalogueRequest,
    slow_start: SlowStart,
    /// Whether its first passed check begins a slow start.
    starts_slowly: AtomicBool,
    checked_at: AtomicU64,
    check_request: CheckRequest,
    /// 0 is unknown.
    slots: AtomicU32,
    /// The progress of its responses.
    pub(super) progress: Progress,
    /// The status of its last check that passed without a 2xx, or 0.
    check_status: AtomicU16,
    /// The position in [`Engine::ALL`] of the engine that was detected; zero before that.
    detected_engine: AtomicU8,
    /// Whether it is llama.cpp's router, which loads and unloads models on request.
    is_router: AtomicBool,
    /// Since when its models are waited for, in microseconds; zero before discovery has started.
    awaited_since: AtomicU64,
}

// Before it detects an engine, a backend's is unknown.
const _: () = assert!(matches!(Engine::ALL.first(), Some(Engine::Auto)));
const _: () = assert!(std::mem::offset_of!(BackendState, breaker) + size_of::<u64>() <= 64);

impl BackendState {
    /// A backend that nothing is known about yet.
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
            progress: Progress::default(),
            check_status: AtomicU16::new(0),
            detected_engine: AtomicU8::new(0),
            is_router: AtomicBool::new(false),
            awaited_since: AtomicU64::new(0),
        }
    }

    /// The state to show: draining wins over the verdict of the health checks.
    pub fn status(&self) -> Health {
        if self.is_draining() { Health::Draining } else { self.health.status() }
    }

    /// Whether it receives no new requests, by the admin API or the configuration.
    pub fn is_draining(&self) -> bool {
        self.health.is_draining()
    }

    /// Starts or ends a drain. Returns whether it drained before.
    pub fn set_draining(&self, draining: bool) -> bool {
        let was_draining = self.health.set_draining(draining);
        self.capacity.wake();
        was_draining
    }

    /// Whether nothing but its load may keep a request away: of most backends in most decisions. Where
    /// it is false, each of the states below has its own test.
    #[inline(always)]
    pub fn is_unimpaired(&self, now: Timestamp) -> bool {
        self.health.is_unimpaired()
            && self.breaker.is_closed()
            && !self.cooldowns.is_active(now)
            && !self.has_recent_faults(now)
    }

    /// Begins a slow start: the backend's share of the requests grows for `duration`.
    pub fn begin_slow_start(&self, now: Timestamp, duration: Duration) {
        if !duration.is_zero() {
            self.slow_start.start(now, duration);
            self.health.set_slow_start(true);
        }
    }

    /// Has its first passed check begin a slow start, because it joined a running fleet.
    pub fn expect_slow_start(&self) {
        self.starts_slowly.store(true, Ordering::Relaxed);
    }

    /// Whether its first passed check begins a slow start; no later one does.
    pub fn takes_slow_start(&self) -> bool {
        self.starts_slowly.swap(false, Ordering::Relaxed)
    }

    /// Whether a slow start may be going on; [`BackendState::share`] knows.
    pub fn is_in_slow_start(&self) -> bool {
        self.health.is_in_slow_start()
    }

    /// The part of its usual share that it may receive now: 1 outside a slow start.
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

    /// How long the last successful health check took; zero before the first.
    pub fn check_latency(&self) -> Duration {
        Duration::from_micros(self.check_micros.load(Ordering::Relaxed).into())
    }

    /// Sets a latency: for `explain` on a saved fleet and for tests.
    pub fn set_check_latency(&self, took: Duration) {
        let micros = u32::try_from(to_micros(took)).unwrap_or(u32::MAX);
        self.check_micros.store(micros, Ordering::Relaxed);
    }

    /// The same in microseconds.
    pub fn check_micros(&self) -> u32 {
        self.check_micros.load(Ordering::Relaxed)
    }

    /// When the last health check ended; `None` before the first.
    pub fn checked_at(&self) -> Option<Timestamp> {
        match self.checked_at.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Timestamp(micros)),
        }
    }

    /// Attempts dispatched since the backend was first seen.
    pub fn dispatched(&self) -> u64 {
        self.dispatched.load(Ordering::Relaxed)
    }

    pub(super) fn count_dispatched(&self) {
        self.dispatched.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets how many requests an engine with slots runs at a time.
    pub fn set_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// How many idle connections its engine can afford. One with slots (llama.cpp) has few threads, and
    /// every connection occupies one, idle or not: what idle connections take, requests wait for.
    pub fn affordable_connections(&self) -> Option<u32> {
        match self.slots.load(Ordering::Relaxed) {
            0 => None,
            slots => Some(slots.saturating_sub(self.load.in_flight())),
        }
    }

    /// Requests a health check as soon as `health.fast_interval` has passed since the last one: a
    /// request met a failure that a check can confirm or disprove.
    pub fn request_check(&self) {
        self.check_request.set();
    }

    /// Ready once a check has been requested, which takes the request. Only the backend's health
    /// checks poll it.
    pub fn poll_check_requested(&self, cx: &Context<'_>) -> Poll<()> {
        self.check_request.poll_take(cx)
    }

    /// How many requests an engine with slots runs at a time; `None` where it has not reported that.
    pub fn slots(&self) -> Option<u32> {
        Some(self.slots.load(Ordering::Relaxed)).filter(|slots| *slots > 0)
    }

    /// What is known of its models is outdated: its list and what it has in memory are read again at once.
    /// Until then, what was known stays in use.
    pub fn invalidate_models(&self) {
        self.catalogue_request.set_all();
    }

    /// The same for what it has in memory alone: a response showed that it changed.
    pub fn invalidate_loaded(&self) {
        self.catalogue_request.set_loaded();
    }

    /// Ready once something is outdated, which takes the request. Only the backend's discovery polls it.
    pub fn poll_outdated(&self, cx: &Context<'_>) -> Poll<OutdatedCatalogue> {
        self.catalogue_request.poll_take(cx)
    }

    /// Records which engine its responses come from.
    pub fn detect_engine(&self, engine: Engine) {
        let position = Engine::ALL.iter().position(|one| *one == engine);
        let position = position.and_then(|position| u8::try_from(position).ok()).unwrap_or(0);
        self.detected_engine.store(position, Ordering::Relaxed);
    }

    /// Whether it is llama.cpp's router, which loads and unloads models on request.
    pub fn is_router(&self) -> bool {
        self.is_router.load(Ordering::Relaxed)
    }

    /// Sets what its list of models shows.
    pub fn set_router(&self, is_router: bool) {
        self.is_router.store(is_router, Ordering::Relaxed);
    }

    /// Its engine: the configured one, else the one that was detected.
    pub fn engine(&self, configured: Engine) -> Engine {
        let position = usize::from(self.detected_engine.load(Ordering::Relaxed));
        let detected = Engine::ALL.get(position).copied().unwrap_or(Engine::Auto);
        if configured == Engine::Auto { detected } else { configured }
    }

    /// Starts the wait for its models, unless it has started before.
    pub fn await_models(&self, now: Timestamp) {
        if self.awaited_since.load(Ordering::Relaxed) == 0 {
            self.awaited_since.store(now.0.max(1), Ordering::Relaxed);
        }
    }

    /// Whether its models, none of which are known, may still be reported within `give_up`.
    pub fn awaits_models(&self, now: Timestamp, give_up: Duration) -> bool {
        match self.awaited_since.load(Ordering::Relaxed) {
            0 => true,
            since => now.since(Timestamp(since)) < give_up,
        }
    }
}

/// What a health check changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckVerdict {
    /// The new verdict of the health checks.
    pub health: Option<Health>,
    /// The breaker opened.
    pub breaker: Option<BreakerTransition>,
}

/// A backend's state, shared by everything that holds it.
pub type SharedBackend = Arc<BackendState>;
