//! The data plane: what all its requests share, and their way through it.
//!
//! Life of a request: `guard` hands Pingora its head once `strict` has passed it (else 400, 408, 414,
//! 431, and the connection ends); `request` judges what it asks (401, 404, 405, 413, 415)
//! and answers what needs no backend; `body` reads it whole, under a clock and a bound; `scan` finds
//! what it needs; `attempts` decides (and shows it to a shadow) and repeats; `forward` makes one attempt (connect, `ask`,
//! receive); `relay` passes the answer on; the end is told to the `observers`.

mod answer;
pub(crate) mod attempt;
mod auth;
pub(crate) mod context;
pub(crate) mod failure;
mod local;
mod observers;
mod outcome;
mod phases;
mod request;
mod response;
mod retry;
mod retry_budget;
mod shadowing;
pub(crate) mod trace;

pub use context::RequestContext;
pub use phases::DataPlane;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use http::HeaderMap;
use http::header::{self, HeaderValue};
use pingora_proxy::Session;

use crate::api::{ErrorCode, Operation};
use crate::config::Config;
use crate::downstream::body::{BodyBudget, BodyError, BodyLength, HeldBody};
use crate::downstream::body_reader::{self, BodyReader};
use crate::downstream::client::Client;
use crate::downstream::clients::Clients;
use crate::fleet::{BackendId, BackendSet};
use crate::routing::Generation;
use crate::routing::{Lease, RequestObserver};
use crate::scan::{ScanOptions, scan};
use crate::tls::{Look, TlsError};
use crate::upstream::pool::ConnectionPool;
use context::Call;
use failure::OwnError;
use retry::client_gone;
use retry_budget::Budget;

/// The balancer's data plane, shared by all its connections.
pub struct Proxy {
    pub(crate) generation: ArcSwap<Generation>,
    pub(crate) started_with: Config,
    pub(crate) upstreams: ConnectionPool,
    pub(crate) observers: Vec<Box<dyn RequestObserver>>,
    pub(crate) bodies: Arc<BodyBudget>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) retries: Budget,
    pub(crate) hashes: ahash::RandomState,
    pub(crate) seeds: AtomicU64,
    pub(crate) captures: Lease,
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
            clients: Arc::new(Clients::new(&generation.config.server.listen)?),
            upstreams: ConnectionPool::new(limits),
            retries: Budget::new(&generation.config.routing.retry_budget),
            started_with: generation.config.clone(),
            generation: ArcSwap::new(generation),
            observers,
            bodies: Arc::default(),
            stopping: Arc::default(),
            hashes: ahash::RandomState::new(),
            seeds: AtomicU64::new(seed),
            captures: Lease::default(),
        })
    }

    /// The configuration in force.
    pub fn generation(&self) -> Arc<Generation> {
        self.generation.load_full()
    }

    /// Lets new requests follow this configuration; those under way keep theirs.
    pub fn adopt(&self, generation: Arc<Generation>) {
        self.upstreams.set_limits(&generation.config.limits);
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

    /// Until when decisions are captured.
    pub fn captures(&self) -> &Lease {
        &self.captures
    }

    /// Requests under way, local answers included.
    pub fn in_flight(&self) -> usize {
        self.clients.in_flight()
    }

    /// Bytes of request bodies held now.
    pub fn held_bytes(&self) -> usize {
        self.bodies.held()
    }

    /// Idle connections kept to a backend.
    pub fn idle_connections(&self, id: BackendId) -> usize {
        self.upstreams.idle_count(id)
    }

    /// Client connections and their listeners.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Closes idle connections whose time is up or whose backend is gone, and reads certificates
    /// again whose files have changed. To be called about once a second.
    pub fn sweep(&self) {
        let fleet = self.generation.load().fleet.topology();
        self.upstreams.sweep(&fleet.backends);
        self.clients.refresh_certificates(Look::Regular);
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

    async fn handle(&self, session: &mut Session, ctx: &mut RequestContext) -> retry::Served {
        let limits = &ctx.generation.config.limits;
        let keep_alive = ctx.generation.config.server.keep_alive;
        let is_last = self.stopping.load(Ordering::Relaxed);
        session.set_keepalive((!is_last).then(|| keep_alive.as_secs().max(1)));
        session.set_write_timeout(Some(limits.client_write_timeout));
        ctx.client = Client::of(session);
        let Some(client) = ctx.client.clone() else {
            let message = "The connection is not one this proxy reads from";
            return self
                .answer_error(session, ctx, OwnError::new(ErrorCode::InternalError, message))
                .await;
        };
        let trusted = &ctx.generation.config.server.trusted_proxies;
        if let Some(refused) = client.refused() {
            // No field of such a head says who sent it.
            ctx.client_address = client.origin().client(&HeaderMap::new(), trusted);
            return self.answer_refused(session, ctx, refused).await;
        }
        let headers = &session.req_header().headers;
        ctx.client_address = client.origin().client(headers, trusted);
        let length = client.body_length(headers);
        ctx.body_length = length;
        body_reader::take_over(session);
        let Some(operation) = self.read_head(session, ctx).await? else {
            if length == BodyLength::None {
                client.expect_head();
            }
            return Ok(());
        };
        let body = match self.read_body(session, ctx, (&client, length)).await {
            Ok(body) => body,
            Err(error) => match OwnError::from_body(&error) {
                Some(own) => return self.answer_error(session, ctx, own).await,
                None => return client_gone(ctx),
            },
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
        length.check(headers, limits)?;
        if headers.contains_key(header::EXPECT) && length != BodyLength::None {
            let written = session.as_downstream_mut().write_continue_response().await;
            written.map_err(|_gone| BodyError::ClientGone)?;
        }
        BodyReader::new(client, limits, &self.bodies).read(length).await
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
    let fleet = ctx.generation.fleet.topology();
    let target = ctx.generation.router.names.resolve(&model);
    let known = fleet.model_id(target).and_then(|id| fleet.model(id));
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
