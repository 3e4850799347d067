//! The data plane: Pingora's `ProxyHttp`, with requests answered in `request_filter`.
//!
//! Life of a request: `guard` hands Pingora its head once `strict` has passed it (else 400, 408, 414,
//! 431, and the connection ends); `request` judges what it asks (401, 404, 405, 413, 415)
//! and answers what needs no backend; `body` reads it whole, under a clock and a bound; `scan` finds
//! what it needs; `attempts` decides and repeats; `forward` makes one attempt (connect, send,
//! receive); `relay` passes the answer on; the end is told to the observers.

mod answer;
mod attempts;
mod auth;
mod body;
mod budget;
mod chunked;
mod client;
mod clocks;
mod closings;
mod context;
mod exchange;
mod failure;
mod forward;
mod guard;
pub mod headers;
mod http2;
mod local;
mod relay;
mod request;
mod response;
mod settle;
pub mod splice;
pub mod strict;
mod trace;
mod upstream;

pub use closings::{ClosedFor, Closings};
pub use context::RequestContext;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::HeaderMap;
use http::header::{self, HeaderValue};
use pingora::apps::ServerApp;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use pingora_proxy::{FailToProxy, HttpProxy, ProxyHttp, Session};

use crate::api::{Dialect, ErrorCode, Operation};
use crate::clock::now;
use crate::config::Config;
use crate::generation::Generation;
use crate::registry::{BackendId, BackendSet, Outcome};
use crate::routing::{About, RequestObserver, RequestOutcome};
use crate::scan::{ScanOptions, scan};
use crate::tls::{Refreshed, TlsError};
use attempts::client_gone;
use body::{BodyError, BodyLength, BodyReader};
use budget::Budget;
use client::Client;
use context::{BodyBudget, Call, Counted, Ending, HeldBody};
use failure::OwnError;
use guard::{ConnectionLimits, Guarded, Ports, Refusals};
use upstream::Upstreams;

/// How long connections stay open without a request once the listeners are closed.
pub const LINGER: Duration = Duration::from_millis(500);

/// The balancer's data plane, shared by all its connections.
pub struct Proxy {
    generation: ArcSwap<Generation>,
    started_with: Config,
    upstreams: Upstreams,
    observers: Vec<Box<dyn RequestObserver>>,
    bodies: Arc<BodyBudget>,
    in_flight: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
    closings: Closings,
    ports: Ports,
    certificate_failures: AtomicU64,
    retries: Budget,
    hashes: ahash::RandomState,
    seeds: AtomicU64,
}

impl Proxy {
    /// A data plane for a configuration. `seed` starts everything random in it.
    ///
    /// # Errors
    /// [`TlsError`] when a listener's certificate cannot be used.
    pub fn new(
        generation: Arc<Generation>,
        observers: Vec<Box<dyn RequestObserver>>,
        seed: u64,
    ) -> Result<Self, TlsError> {
        let limits = &generation.config.limits;
        Ok(Self {
            ports: Ports::open(&generation.config.server.listen)?,
            closings: Closings::default(),
            certificate_failures: AtomicU64::new(0),
            upstreams: Upstreams::new(limits),
            retries: Budget::new(&generation.config.routing.retry_budget),
            started_with: generation.config.clone(),
            generation: ArcSwap::new(generation),
            observers,
            bodies: Arc::default(),
            in_flight: Arc::default(),
            connections: Arc::default(),
            stopping: Arc::default(),
            hashes: ahash::RandomState::new(),
            seeds: AtomicU64::new(seed),
        })
    }

    /// The configuration in force.
    pub fn generation(&self) -> Arc<Generation> {
        self.generation.load_full()
    }

    /// Lets new requests follow this configuration; those under way keep theirs.
    pub fn adopt(&self, generation: Arc<Generation>) {
        self.upstreams.follow(&generation.config.limits);
        self.generation.store(generation);
    }

    /// Lets clients hear with every answer that their next request goes elsewhere. The listeners are
    /// closed by Pingora.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the process has been told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The same for those that ask often.
    pub fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopping)
    }

    /// What this process started with: addresses, threads and other things no reload changes.
    pub fn config(&self) -> &Config {
        &self.started_with
    }

    /// Requests under way, local answers included.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Bytes of request bodies held now.
    pub fn held_bytes(&self) -> usize {
        self.bodies.held()
    }

    /// Idle connections kept to a backend.
    pub fn idle_connections(&self, id: BackendId) -> usize {
        self.upstreams.idle_count(id)
    }

    /// Client connections open now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Why client connections were closed without an answer.
    pub fn closings(&self) -> &Closings {
        &self.closings
    }

    /// When the certificate of each listener with TLS expires, in seconds since 1970.
    pub fn certificates(&self) -> impl Iterator<Item = (String, u64)> {
        self.ports.tls().filter_map(|(address, tls)| Some((address.to_string(), tls.expires_at()?)))
    }

    /// How often a changed certificate could not be used.
    pub fn certificate_failures(&self) -> u64 {
        self.certificate_failures.load(Ordering::Relaxed)
    }

    fn refresh_certificates(&self) {
        for (listen, tls) in self.ports.tls() {
            match tls.refresh() {
                Refreshed::Unchanged => {}
                Refreshed::Replaced => tracing::info!(%listen, "read a new certificate"),
                Refreshed::Failed(error) => {
                    self.certificate_failures.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%listen, %error, "the old certificate goes on serving");
                }
            }
        }
    }

    /// Closes idle connections whose time is up or whose backend is gone, and reads certificates
    /// again whose files have changed. To be called about once a second.
    pub fn sweep(&self) {
        let fleet = self.generation.load().registry.snapshot();
        self.upstreams.sweep(&fleet.topology.backends);
        self.refresh_certificates();
    }

    // SplitMix64 (Steele, Lea, Flood 2014): a fresh seed per call from one counter.
    fn next_seed(&self) -> u64 {
        let mut z = self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in 0..=1.
    fn next_share(&self) -> f64 {
        f64::from(u32::try_from(self.next_seed() >> 32).unwrap_or(0)) / f64::from(u32::MAX)
    }

    async fn handle(&self, session: &mut Session, ctx: &mut RequestContext) -> attempts::Served {
        let limits = &ctx.generation.config.limits;
        let keep_alive = ctx.generation.config.server.keep_alive;
        let is_last = self.stopping.load(Ordering::Relaxed);
        session.set_keepalive((!is_last).then(|| keep_alive.as_secs().max(1)));
        session.set_write_timeout(Some(limits.client_write));
        ctx.client = Client::of(session);
        let Some(client) = ctx.client.clone() else {
            let message = "The connection is not one this proxy reads from";
            return self
                .answer_error(session, ctx, OwnError::new(ErrorCode::InternalError, message))
                .await;
        };
        if let Some(refused) = client.refused() {
            return self.answer_refused(session, ctx, refused).await;
        }
        let headers = &session.req_header().headers;
        let trusted = &ctx.generation.config.server.trusted_proxies;
        ctx.client_address = client.origin().client(headers, trusted);
        let length = client.body_length(headers);
        ctx.body_length = length;
        body::take_over(session);
        let Some(operation) = self.read_head(session, ctx).await? else {
            if length == BodyLength::None {
                client.expect_head();
            }
            return Ok(());
        };
        let body = match self.read_body(session, ctx, (&client, length)).await {
            Ok(body) => body,
            Err(BodyError::ClientGone) => return client_gone(ctx),
            Err(BodyError::Answer(error)) => return self.answer_error(session, ctx, error).await,
        };
        ctx.body_is_read = true;
        ctx.ending.bytes_in = body.bytes.len();
        match scan_call(session, ctx, operation, body) {
            Ok(call) => self.serve(session, ctx, call).await,
            Err(error) => self.answer_error(session, ctx, error).await,
        }
    }

    async fn read_body(
        &self,
        session: &mut Session,
        ctx: &RequestContext,
        (client, length): (&Client, BodyLength),
    ) -> Result<HeldBody, BodyError> {
        let limits = &ctx.generation.config.limits;
        let headers = &session.req_header().headers;
        length.check(headers, limits).map_err(|error| BodyError::Answer(error.closing()))?;
        if headers.contains_key(header::EXPECT) && length != BodyLength::None {
            let written = session.as_downstream_mut().write_continue_response().await;
            written.map_err(|_gone| BodyError::ClientGone)?;
        }
        BodyReader::new(client, limits, &self.bodies).read(length).await
    }

    /// A client got no further than the guard.
    fn tell_refused(&self, code: ErrorCode) {
        let told = RequestOutcome {
            operation: None,
            model: None,
            backend: None,
            status: code.row().status,
            code: Some(code),
            outcome: Outcome::Client,
            is_streaming: false,
            is_fallback: false,
            attempts: 0,
            first_token: None,
            took: Duration::ZERO,
            usage: None,
            expected_cached: None,
            token_events: 0,
            about: About::default(),
        };
        for observer in &self.observers {
            observer.finished(&told);
        }
    }

    fn finish(&self, session: &Session, ctx: &RequestContext) {
        let ending = &ctx.ending;
        let outcome = ending.outcome.unwrap_or_else(|| own_outcome(ending));
        let told = RequestOutcome {
            operation: ctx.operation,
            model: ending.model.as_deref(),
            backend: ending.backend.as_ref().map(|(id, name)| (*id, &**name)),
            status: ending.status,
            code: ending.code,
            outcome,
            is_streaming: ending.is_streaming,
            is_fallback: ending.is_fallback,
            attempts: ending.attempts,
            first_token: ending.first_token.map(|at| at.since(ctx.arrived_at)),
            took: now().since(ctx.arrived_at),
            usage: ending.usage,
            expected_cached: ending.expected_cached,
            token_events: ending.token_events,
            about: about(session, ctx),
        };
        for observer in &self.observers {
            observer.finished(&told);
        }
    }
}

/// Who asked, and for what.
fn about<'a>(session: &'a Session, ctx: &'a RequestContext) -> About<'a> {
    let head = session.req_header();
    let keys = &ctx.generation.config.auth.keys;
    let to_u64 = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
    About {
        request_id: ctx.request_id.to_str().unwrap_or_default(),
        key: ctx.key.and_then(|position| keys.get(position)).map(|key| key.name.as_str()),
        client: ctx.client_address,
        method: head.method.as_str(),
        path: head.uri.path(),
        asked: ctx.ending.asked.as_deref(),
        provider: ctx.ending.provider,
        estimated_tokens: ctx.ending.estimated_tokens,
        bytes_in: to_u64(ctx.ending.bytes_in),
        bytes_out: to_u64(session.as_downstream().body_bytes_sent()),
        trace: ctx.trace,
    }
}

/// The class of an answer penstock gave itself.
fn own_outcome(ending: &Ending) -> Outcome {
    let busy = [
        ErrorCode::AllBackendsBusy,
        ErrorCode::BackendsResting,
        ErrorCode::BodyMemoryFull,
        ErrorCode::DiscoveryPending,
    ];
    match (ending.code, ending.status) {
        (Some(code), status) if busy.contains(&code) => {
            Outcome::Busy { rest: Duration::ZERO, status }
        }
        (_, 500..) => Outcome::Fault,
        (_, 400..=499) => Outcome::Client,
        _ => Outcome::Ok,
    }
}

fn scan_call(
    session: &Session,
    ctx: &mut RequestContext,
    operation: Operation,
    body: HeldBody,
) -> Result<Call, OwnError> {
    let config = &ctx.generation.config;
    let kind = session.req_header().headers.get(header::CONTENT_TYPE);
    let options =
        ScanOptions { estimate: config.routing.token_estimate, arrived_at: ctx.arrived_at };
    let kind = kind.and_then(|value| value.to_str().ok());
    let profile = scan(operation, kind, &body.bytes, options)
        .map_err(|error| OwnError::new(error.code(), error.to_string()).about(error.param()))?;
    let model: Arc<str> = profile.model_name(&body.bytes).into();
    ctx.ending.asked = Some(Arc::clone(&model));
    ctx.ending.estimated_tokens = Some(profile.estimated_tokens);
    let fleet = ctx.generation.registry.snapshot();
    let target = ctx.generation.router.names.resolve(&model);
    let known = fleet.topology.model_id(target).and_then(|id| fleet.topology.model(id));
    ctx.ending.model = known.map(|model| model.name.clone());
    ctx.ending.is_streaming = profile.streaming;
    if !auth::may_use(&config.auth, ctx.key, &model) {
        let message = format!("This key may not use model '{model}'");
        return Err(OwnError::new(ErrorCode::ModelNotAllowed, message).about(Some("model")));
    }
    Ok(Call {
        profile,
        model,
        body: Some(body),
        fleet,
        session: session_of(ctx, &session.req_header().headers),
        tried: BackendSet::default(),
        decision: None,
    })
}

/// A hash of what names the session of a request, where the strategy asks for one.
fn session_of(ctx: &RequestContext, headers: &HeaderMap) -> Option<u64> {
    let field = ctx.generation.router.weighted()?.session_field()?;
    field.read(|name| headers.get_all(name).iter().map(HeaderValue::as_bytes))
}

/// The data plane as a Pingora service, sharing one [`Proxy`].
#[derive(Clone)]
pub struct DataPlane(pub Arc<Proxy>);

impl DataPlane {
    /// The application behind the data port's listeners.
    pub fn into_app(self, conf: &Arc<ServerConf>) -> impl ServerApp + Send + Sync + 'static {
        let current = Arc::clone(&self.0);
        // Asked for each connection: a reload may have changed them.
        let limits = Box::new(move || ConnectionLimits::of(&current.generation.load().config));
        let plane = Arc::clone(&self.0);
        let guarded = Arc::clone(&plane);
        let tell = Box::new(move |code| plane.tell_refused(code));
        let mut proxy = HttpProxy::new(self, Arc::clone(conf));
        proxy.handle_init_modules();
        Guarded::new(proxy, guarded, limits, Refusals::new(tell))
    }
}

#[async_trait]
impl ProxyHttp for DataPlane {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext {
            generation: self.0.generation(),
            arrived_at: now(),
            request_id: HeaderValue::from_static("-"),
            trace: None,
            dialect: Dialect::OpenAi,
            operation: None,
            key: None,
            client: None,
            client_address: None,
            body_length: BodyLength::None,
            body_is_read: false,
            client_hash: 0,
            cors_origin: None,
            ending: Ending::default(),
            _counted: Counted::new(&self.0.in_flight),
        }
    }

    // No modules: answers are never compressed, buffered or otherwise touched.
    fn init_downstream_modules(&self, _modules: &mut pingora::modules::http::HttpModules) {}

    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> pingora::Result<bool> {
        let handled = self.0.handle(session, ctx).await;
        self.0.finish(session, ctx);
        handled.map(|()| true)
    }

    // Every request is answered in `request_filter`; nothing may slip past it to an address.
    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut RequestContext,
    ) -> pingora::Result<Box<HttpPeer>> {
        let reason = "requests are forwarded by the request filter";
        pingora::Error::e_explain(pingora::ErrorType::HTTPStatus(404), reason)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        _error: &pingora::Error,
        _ctx: &mut RequestContext,
    ) -> FailToProxy {
        let is_answered = session.response_written().is_some();
        tracing::debug!(is_answered, "a request ended without a whole answer");
        FailToProxy { error_code: 0, can_reuse_downstream: false }
    }

    fn suppress_error_log(
        &self,
        _session: &Session,
        _ctx: &RequestContext,
        _error: &pingora::Error,
    ) -> bool {
        true
    }
}
