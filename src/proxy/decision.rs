//! Decides where a request goes, takes the in-flight permit that goes with the decision, and
//! reports it.

use std::cell::RefCell;
use std::task::{Context, Waker};

use once_cell::sync::Lazy;
use penstock_api::mix::mix;
use penstock_clock::now;
use penstock_core::fleet::{BackendId, BackendSet};
use penstock_core::prefix::{Chain, FOLDED_TOKENS, MAX_UNFOLDED, fold, prompt_chain};
use penstock_core::routing::{
    CapturedAttempt, Live, NoRecord, ReplayFields, RetrySafety, RouteError, RouteInput, Routed,
    RoutedSession, RoutingDecision, Scratch, ServiceTime, Trace, Waited, Weighted,
};
use penstock_scoring::PrefixParams;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::request::{Decided, RequestView, Reserved, ScannedRequest};

/// The maximum number of times a decision is repeated because another request took the last permit
/// first.
const MAX_RACES: usize = 64;

thread_local! {
    // One per thread: once its buffers have grown, a decision allocates nothing in them.
    static SCRATCH: RefCell<(Scratch, Chain)> = RefCell::default();
}

/// Makes hashes for the access log that match neither those of another process nor of a guessed
/// prompt.
static SALT: Lazy<u64> = Lazy::new(|| ahash::RandomState::new().hash_one(FOLDED_TOKENS));

/// The reason why a decision has no backend.
pub(crate) enum DecisionFailure {
    /// No backend can take the request.
    NoRoute(RouteError),
    /// The client left between two attempts, or while it waited in the queue.
    ClientGone,
}

/// Picks a backend for the next attempt, and reports the decision to the observers. They run before
/// this thread decides about another request, and borrow the prompt's blocks from it.
///
/// # Errors
/// When no backend can take the request, or the client has left since the first attempt.
pub(crate) fn decide(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
) -> Result<Box<Decided>, DecisionFailure> {
    let config = &flow.ctx.generation.config;
    let is_replayed = config.access_log.replay || config.routing.reload_gate.is_some();
    // Before the first attempt: the body is held for certain only then.
    // Once, although a request that waits in the queue is decided about several times.
    let record = &flow.ctx.record;
    if record.routing.attempts == 0 && record.request.replay.is_none() && is_replayed {
        flow.ctx.record.request.replay = Some(Box::new(replay_fields(request.view(flow.ctx))));
    }
    SCRATCH.with_borrow_mut(|(scratch, chain)| {
        let prompt = read_prompt(request.view(flow.ctx), chain);
        let others = all_but_preferred(request);
        // The backend that holds what the request continues is preferred, not required.
        let first = others.and_then(|tried| reserve(flow, request, &tried, prompt, scratch).ok());
        let reserved = match first {
            Some(reserved) => reserved,
            None => reserve(flow, request, &request.tried, prompt, scratch)
                .map_err(DecisionFailure::NoRoute)?,
        };
        // No engine should start on a response that has no reader.
        if flow.ctx.record.routing.attempts > 0 && is_client_gone(flow.ctx) {
            return Err(DecisionFailure::ClientGone);
        }
        Ok(act_on(flow, request, reserved, prompt))
    })
}

/// Acts on a decision: counts the attempt, and reports it to the observers.
fn act_on(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reserved: Reserved,
    prompt: Option<&Chain>,
) -> Box<Decided> {
    flow.ctx.record.routing.attempts += 1;
    let router = &flow.ctx.generation.router;
    let Reserved { mut decided, at, trace, captured } = reserved;
    // The backend may cost money before it responds.
    if let Some(serving) = decided.decision.serving(&request.fleet) {
        flow.ctx.record.routing.price.clone_from(&serving.price);
    }
    visit_home(flow, request, &decided.decision);
    flow.ctx.record.routing.prediction =
        decided.permit.prediction().map(|ticket| *ticket.prediction());
    let trace = trace.map(RefCell::new);
    let routed = Routed {
        at,
        request_id: flow.ctx.request_id(),
        request: &request.profile,
        headers: &flow.client.head().headers,
        key: flow.ctx.client_name(),
        body: request.body.as_ref().map(|held| &held.bytes),
        requested_model: &request.model,
        decision: &decided.decision,
        generation: &flow.ctx.generation,
        fleet: &request.fleet,
        prompt,
        trace: trace.as_ref(),
        attempt: flow.ctx.record.routing.attempts,
        dropped_messages: flow.ctx.record.edits.dropped_messages,
        ensemble: flow.ctx.record.request.ensemble,
        scorer_names: router.weighted().map(Weighted::scorer_names).unwrap_or_default(),
        captured: captured.as_deref(),
    };
    for observer in &flow.proxy.observers {
        observer.routed(&routed);
    }
    decided
}

/// Records where the session of a request is served, if the strategy keeps sessions at home.
fn visit_home(flow: &Flow<'_>, request: &ScannedRequest, decision: &RoutingDecision) {
    let is_kept = keeps_homes(flow.ctx) && decision.strategy.has_scorers();
    let Some(session) = request.session.filter(|_| is_kept) else { return };
    let fleet = &request.fleet;
    let serves_other_models = |home: BackendId| {
        let model = fleet.model(decision.model);
        let serves = model.is_some_and(|model| model.serving.iter().any(|one| one.id == home));
        !serves && fleet.backends.iter().any(|backend| backend.state.id == home)
    };
    let limit = flow.ctx.generation.config.limits.session_homes;
    flow.proxy.homes.visit(session, decision.backend, serves_other_models, limit, now());
}

/// Returns whether sessions have homes: a strategy without scorers does not read them, and the
/// calls of an ensemble go to several backends by design.
fn keeps_homes(ctx: &RequestContext) -> bool {
    ctx.generation.router.weighted().is_some() && ctx.record.request.ensemble.is_none()
}

/// The session of a request, with its home.
fn routed_session(flow: &Flow<'_>, request: &ScannedRequest) -> Option<RoutedSession> {
    let session = request.session?;
    let home = keeps_homes(flow.ctx).then(|| flow.proxy.homes.find(session, now())).flatten();
    Some(RoutedSession { id: session.root, home })
}

/// Decides again about a request that waits at `from` for another `remaining_us`. Takes a
/// permit if the new backend is better and the retry budget allows it. [`decide_moved`] reports the
/// decision.
pub(super) fn reserve_better(
    flow: &Flow<'_>,
    request: &ScannedRequest,
    from: &RoutingDecision,
    remaining_us: f64,
) -> Option<Reserved> {
    let routing = &flow.ctx.generation.config.routing;
    let attempts = flow.ctx.record.routing.attempts;
    // Before anything is decided: a request that waits for long asks again and again.
    if !flow.proxy.retries.has_retry(attempts, routing, now()) {
        return None;
    }
    let mut tried = request.tried;
    tried.insert(from.backend);
    SCRATCH.with_borrow_mut(|(scratch, chain)| {
        let prompt = read_prompt(request.view(flow.ctx), chain);
        let router = &flow.ctx.generation.router;
        let topology = &*request.fleet;
        let session = routed_session(flow, request);
        let input = RouteInput { session, ..route_input(request.view(flow.ctx), &tried, prompt) };
        let mut rng = SmallRng::seed_from_u64(flow.proxy.seeds.next());
        let mut random = Live { topology, rng: &mut rng };
        let decision = router.route(&input, &mut random, scratch, &mut NoRecord).ok()?;
        let serving = decision.serving(topology)?;
        let estimate = decision.estimate(&request.profile, serving, input.now);
        if !decision.is_better_than(from, remaining_us, &estimate) {
            return None;
        }
        let reserved = reserve(flow, request, &tried, prompt, scratch).ok()?;
        // Another request, or chance, may have changed the decision.
        let decision = &reserved.decided.decision;
        let is_elsewhere = decision.model == from.model && decision.backend != from.backend;
        // Safe: not a byte of a response has come, and the first attempt is dropped.
        let safety = RetrySafety::Safe;
        // The budget is charged last: only a move that happens is paid for.
        let may_move =
            is_elsewhere && flow.proxy.retries.take_retry(safety, attempts, routing, input.now);
        may_move.then_some(reserved)
    })
}

/// Acts on a decision whose permit was taken by [`reserve_better`].
pub(super) fn decide_moved(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reserved: Reserved,
) -> Box<Decided> {
    flow.ctx.record.routing.is_moved = true;
    SCRATCH.with_borrow_mut(|(_, chain)| {
        let prompt = read_prompt(request.view(flow.ctx), chain);
        act_on(flow, request, reserved, prompt)
    })
}

/// Every backend but the one that holds what the request continues, for its first attempt.
fn all_but_preferred(request: &ScannedRequest) -> Option<BackendSet> {
    let preferred = request.preferred.filter(|_| request.tried.is_empty())?;
    let mut others = BackendSet::default();
    for backend in request.fleet.backends.iter().filter(|one| one.state.id != preferred) {
        others.insert(backend.state.id);
    }
    Some(others)
}

fn is_client_gone(ctx: &RequestContext) -> bool {
    // Polled once: no task waits for the result.
    let mut cx = Context::from_waker(Waker::noop());
    ctx.client.as_ref().is_some_and(|client| client.poll_gone(&mut cx).is_ready())
}

fn reserve(
    flow: &Flow<'_>,
    request: &ScannedRequest,
    tried: &BackendSet,
    prompt: Option<&Chain>,
    scratch: &mut Scratch,
) -> Result<Reserved, RouteError> {
    let router = &flow.ctx.generation.router;
    let topology = &*request.fleet;
    let mut rng = SmallRng::seed_from_u64(flow.proxy.seeds.next());
    let session = routed_session(flow, request);
    for _ in 0..MAX_RACES {
        // Read again after a lost race: another request has changed the state of the backends.
        let input = RouteInput { session, ..route_input(request.view(flow.ctx), tried, prompt) };
        let is_captured = flow.proxy.captures.lasts(|| input.now);
        let is_traced = is_captured || flow.ctx.generation.shadow.is_some();
        let mut trace = is_traced.then(Trace::default);
        // A captured decision has its own seed, so that a replay draws the same numbers.
        let seed = is_traced.then(|| flow.proxy.seeds.next());
        if let Some(seed) = seed {
            rng = SmallRng::seed_from_u64(seed);
        }
        let mut random = Live { topology, rng: &mut rng };
        let decision = match &mut trace {
            Some(trace) => router.route(&input, &mut random, scratch, trace),
            // Without a trace, the calls of the recorder compile to nothing.
            None => router.route(&input, &mut random, scratch, &mut NoRecord),
        }?;
        if let Some(permit) = router.reserve(&decision, &input, &request.objectives) {
            let captured = trace.as_ref().zip(seed).filter(|_| is_captured).map(|(trace, seed)| {
                let (request_id, attempt) =
                    (flow.ctx.request_id(), flow.ctx.record.routing.attempts + 1);
                let of = CapturedAttempt { request_id, attempt, seed };
                Box::new(router.capture(of, &input, &decision, trace))
            });
            let decided = Box::new(Decided { decision, permit });
            return Ok(Reserved { decided, at: input.now, trace, captured });
        }
    }
    Err(request.saturated())
}

/// The input of a decision about a request, as of now.
pub(super) fn route_input<'a>(
    RequestView { ctx, request }: RequestView<'a>,
    tried: &'a BackendSet,
    prompt: Option<&'a Chain>,
) -> RouteInput<'a> {
    let router = &ctx.generation.router;
    let waited_ms = ctx.record.queue.wait.map(|waited| waited.as_secs_f64() * 1000.0);
    RouteInput {
        request: &request.profile,
        model: request.wanted_model(),
        split: request.split,
        tokens: router.tokens_to_fit(&request.profile),
        fleet: &request.fleet,
        tried,
        may_probe: request.may_probe,
        waited: waited_ms.map(|_| Waited { ttft_ms: request.objectives.ttft_ms }),
        now: now(),
        prompt,
        session: request.session.map(|session| RoutedSession { id: session.root, home: None }),
        requester: ctx.requester,
        objectives: match waited_ms {
            // The client has waited since its arrival: the queue's time is a part of its objective.
            Some(waited_ms) => request.objectives.after(waited_ms),
            None => request.objectives,
        },
        policy: request.policy,
    }
}

/// Records the reasons against each backend for a request that none can take.
pub(crate) fn record_rejections(ctx: &mut RequestContext, request: &ScannedRequest) {
    // A backend that has the prompt cached has less work before it.
    let found = with_prompt(request.view(ctx), |input| ctx.generation.router.rejections(input));
    ctx.record.routing.rejections = Some(Box::new(found));
}

/// The predicted time to the first token of a request once a backend has room.
pub(super) fn predicted_service(view: RequestView<'_>) -> ServiceTime {
    with_prompt(view, |input| view.ctx.generation.router.service_time(input))
}

/// Calls `read` with a request that includes the hashes of its prompt.
pub(super) fn with_prompt<T>(view: RequestView<'_>, read: impl FnOnce(&RouteInput<'_>) -> T) -> T {
    SCRATCH.with_borrow_mut(|(_, chain)| {
        let prompt = read_prompt(view, chain);
        read(&route_input(view, &view.request.tried, prompt))
    })
}

/// Hashes the prompt's blocks if the strategy reads them and the body is still held.
fn read_prompt<'a>(
    RequestView { ctx, request }: RequestView<'_>,
    chain: &'a mut Chain,
) -> Option<&'a Chain> {
    let router = &ctx.generation.router;
    // Without scorers for any model, names need not be resolved.
    router.weighted()?;
    let model = router.names.resolve(request.wanted_model(), &request.fleet, request.split);
    let weighted = router.weighted_for(&request.fleet, model, now());
    let weighted = weighted.filter(|weighted| weighted.profile().reads_prompts())?;
    let terms = weighted.prefix_params(&request.fleet, model);
    prompt_chain(&request.profile, request.body(), model, terms, chain);
    Some(chain)
}

/// The fields that the access log keeps of a request so that it can be replayed: hashes of its
/// prompt and session, and no text. Its body is still held.
fn replay_fields(RequestView { ctx, request }: RequestView<'_>) -> ReplayFields {
    let terms = PrefixParams {
        block_tokens: FOLDED_TOKENS,
        max_blocks: MAX_UNFOLDED,
        ..PrefixParams::default()
    };
    let names = &ctx.generation.router.names;
    let model = names.resolve(request.wanted_model(), &request.fleet, request.split);
    let mut chain = Chain::default();
    prompt_chain(&request.profile, request.body(), model, terms, &mut chain);
    ReplayFields {
        max_tokens: request.profile.max_tokens,
        session: request.session.map(|session| mix(session.root ^ *SALT)),
        block_tokens: FOLDED_TOKENS,
        blocks: fold(chain.hashes()).map(|hash| mix(hash ^ *SALT)).collect(),
    }
}
