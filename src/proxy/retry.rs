//! From a scanned request to an answer: decide, attempt, and repeat elsewhere where the rule on
//! repeats allows it.

use std::cell::RefCell;
use std::task::{Context, Waker};

use pingora_proxy::Session;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::Proxy;
use super::attempt::AttemptEnd;
use super::context::{Call, RequestContext};
use super::failure::OwnError;
use super::shadowing::show_shadow;
use crate::clock::now;
use crate::fleet::{InflightGuard, Outcome};
use crate::prefix::{Chain, prompt_chain};
use crate::routing::{
    Capture, Live, Noting, RouteError, RouteInput, Routed, RoutingDecision, Scratch, Weighted,
};
use crate::upstream::failure::Failure;
use crate::upstream::retry_safety::RetrySafety;

/// How often a decision is made anew because another request took the last place first.
const RACES: usize = 64;

thread_local! {
    static SCRATCH: RefCell<(Scratch, Chain)> = RefCell::default();
}

/// Where a request goes, with its place there.
struct Chosen {
    decision: RoutingDecision,
    guard: InflightGuard,
    /// What the decision read, where that is asked for.
    captured: Option<Box<Capture>>,
}

/// How a request ended, for the caller that owns the session.
pub(crate) type Served = pingora::Result<()>;

impl Proxy {
    /// Finds a backend for the request and relays its answer, or answers why there is none.
    pub(crate) async fn serve(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        mut call: Call,
    ) -> Served {
        let mut last = None;
        self.retries.earn(&ctx.generation.config.routing.retry_budget);
        loop {
            let Chosen { decision, guard, captured } = match self.choose(ctx, &call) {
                Ok(chosen) => chosen,
                Err(error) => return self.give_up(session, ctx, (last, Some(error))).await,
            };
            // Nobody is left to answer: no engine is to begin what nobody will read.
            if ctx.ending.attempts > 0 && has_left(ctx) {
                return client_gone(ctx);
            }
            ctx.ending.attempts += 1;
            self.tell_routed(ctx, &call, (&decision, captured.as_deref()));
            let _in_flight = show_shadow(session, ctx, &call, (&decision, &guard));
            call.decision = Some(decision);
            match self.attempt(session, ctx, &mut call, guard).await {
                AttemptEnd::Relayed(served) => {
                    learn_cached(ctx, &call, &decision);
                    return served;
                }
                AttemptEnd::Failed(Failure::ClientGone) => return client_gone(ctx),
                AttemptEnd::Failed(failure) => {
                    call.tried.insert(decision.backend);
                    forget_recorded(ctx, &call, &decision);
                    let may_retry = self.may_retry(ctx, &failure);
                    last = Some(failure);
                    if !may_retry {
                        return self.give_up(session, ctx, (last, None)).await;
                    }
                }
            }
        }
    }

    /// Decides, and takes the place in flight that goes with the decision.
    fn choose(&self, ctx: &RequestContext, call: &Call) -> Result<Chosen, RouteError> {
        SCRATCH.with_borrow_mut(|(scratch, chain)| {
            let weighted = ctx.generation.router.weighted();
            let weighted = weighted.filter(|weighted| weighted.profile().reads_prompts());
            if let Some(weighted) = weighted {
                read_prompt(ctx, call, (weighted, chain));
            }
            let prompt = weighted.map(|_| &*chain);
            let chosen = self.decide(ctx, call, (prompt, scratch))?;
            if let (Some(weighted), Some(chain)) = (weighted, prompt) {
                weighted.record(&call.fleet, &chosen.decision, chain);
            }
            Ok(chosen)
        })
    }

    fn decide(
        &self,
        ctx: &RequestContext,
        call: &Call,
        (prompt, scratch): (Option<&Chain>, &mut Scratch),
    ) -> Result<Chosen, RouteError> {
        let router = &ctx.generation.router;
        let topology = &*call.fleet;
        let mut rng = SmallRng::seed_from_u64(self.next_seed());
        let saturated = || RouteError::Saturated { model: call.model.to_string() };
        for _ in 0..RACES {
            let input = RouteInput {
                request: &call.profile,
                model: &call.model,
                tokens: router.tokens_to_fit(&call.profile),
                fleet: &call.fleet,
                tried: &call.tried,
                now: now(),
                prompt,
                session: call.session,
            };
            let (decision, notes) = if self.captures.lasts(|| input.now) {
                let mut chance = Noting::new(topology, self.next_seed());
                (router.route(&input, &mut chance, scratch)?, Some(chance.into_notes()))
            } else {
                let mut chance = Live { topology, rng: &mut rng };
                (router.route(&input, &mut chance, scratch)?, None)
            };
            let serving = decision.serving(topology).ok_or_else(saturated)?;
            let place =
                InflightGuard::try_reserve(&serving.state, serving.max_in_flight, decision.probe);
            if let Some(mut guard) = place {
                let (streaming, limit) = (call.profile.streaming, call.profile.max_tokens);
                let expected = serving.latency.expect(streaming, limit);
                guard.count_tokens(call.profile.estimated_tokens.0, expected.tokens.0);
                guard.estimate_drain(expected, input.now);
                let captured = notes.map(|notes| {
                    let id = ctx.request_id.to_str().unwrap_or_default();
                    let attempt = ctx.ending.attempts + 1;
                    Box::new(router.capture((id, attempt), (&input, &decision), notes))
                });
                return Ok(Chosen { decision, guard, captured });
            }
        }
        Err(saturated())
    }

    fn may_retry(&self, ctx: &RequestContext, failure: &Failure) -> bool {
        let routing = &ctx.generation.config.routing;
        let is_allowed = match RetrySafety::of(failure) {
            RetrySafety::Safe => true,
            RetrySafety::IfUnansweredAllowed => routing.retry_unanswered,
            RetrySafety::Unsafe => false,
        };
        is_allowed
            && ctx.ending.attempts <= routing.max_retries
            && self.retries.spend(&routing.retry_budget, now())
    }

    fn tell_routed(
        &self,
        ctx: &RequestContext,
        call: &Call,
        (decision, captured): (&RoutingDecision, Option<&Capture>),
    ) {
        let event = Routed {
            at: now(),
            request_id: ctx.request_id.to_str().unwrap_or_default(),
            request: &call.profile,
            asked: &call.model,
            decision,
            fleet: &call.fleet,
            attempt: ctx.ending.attempts,
            legend: ctx.generation.router.weighted().map(Weighted::legend).unwrap_or_default(),
            captured,
        };
        for observer in &self.observers {
            observer.routed(&event);
        }
    }

    /// Answers with what the last attempt ran into, else with why nothing could be attempted.
    async fn give_up(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        (last, route): (Option<Failure>, Option<RouteError>),
    ) -> Served {
        let error = match (last, route) {
            (Some(Failure::Refused(held) | Failure::ServerError(held)), _) => {
                ctx.ending.outcome = Some(Outcome::Fault);
                return self.answer_held(session, ctx, held).await;
            }
            (Some(failure), _) => OwnError::from_failure(&failure),
            (None, Some(error)) => OwnError::from_route(&error, now()),
            (None, None) => return Ok(()),
        };
        self.answer_error(session, ctx, error).await
    }
}

/// Lets the prefix index learn from what the engine said it had cached.
fn learn_cached(ctx: &mut RequestContext, call: &Call, decision: &RoutingDecision) {
    let cached = ctx.ending.usage.and_then(|usage| usage.cached_tokens);
    if let (Some(cached), Some(weighted)) = (cached, ctx.generation.router.weighted()) {
        weighted.learn(&call.fleet, decision, cached);
        ctx.ending.expected_cached = decision.card.map(|card| card.expected_tokens());
    }
}

/// The backend did not serve the prompt, so it does not have it either.
fn forget_recorded(ctx: &RequestContext, call: &Call, decision: &RoutingDecision) {
    if let Some(weighted) = ctx.generation.router.weighted() {
        weighted.take_back(&call.fleet, decision);
    }
}

/// Cuts the request's prompt into blocks, where its body is still held.
fn read_prompt(ctx: &RequestContext, call: &Call, (weighted, chain): (&Weighted, &mut Chain)) {
    let body = call.body.as_ref().map(|held| &*held.bytes).unwrap_or_default();
    let model = ctx.generation.router.names.resolve(&call.model);
    let terms = weighted.prefix_params(&call.fleet, model);
    // A repeat is no second time that the prompt comes.
    let cache = call.fleet.hash_cache().filter(|_| ctx.ending.attempts == 0);
    prompt_chain(&call.profile, body, (model, terms), (chain, cache));
}

fn has_left(ctx: &RequestContext) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    ctx.client.as_ref().is_some_and(|client| client.poll_gone(&mut cx).is_ready())
}

/// Ends a request whose client has left: there is nobody to answer.
pub(crate) fn client_gone(ctx: &mut RequestContext) -> Served {
    ctx.ending.outcome = Some(Outcome::Cancel);
    if ctx.ending.status == 0 {
        ctx.ending.status = 499;
    }
    pingora::Error::e_explain(pingora::ErrorType::ConnectionClosed, "the client left")
}
