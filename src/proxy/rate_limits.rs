//! Limits per client on the way of a request: taken once its body has been scanned, settled when
//! its response has been read, shown in the fields of the response.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use penstock_api::units::whole_seconds;
use penstock_api::{ErrorCode, Work};
use penstock_clock::{now, unix_seconds};
use penstock_core::admission::rate_limits::{
    AddressKey, Caller, LimitKind, LimitTime, Quota, RatePermit, RateStatus, Refusal,
};
use penstock_core::admission::returns::Fingerprint;
use penstock_core::fleet::{Outcome, Serving};
use penstock_core::routing::{EnsemblePlan, SplitPoint};
use penstock_scan::{RequestProfile, Usage};
use pingora::http::ResponseHeader;

use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::limit_holds::{RateHold, UsedTokens};
use crate::proxy::{Proxy, budgets};
use crate::shared_state::{SharedAccount, SharedEnd, SharedState};

const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// The inputs of a token estimate.
pub(crate) struct EstimateInputs<'a> {
    profile: &'a RequestProfile,
    model: &'a str,
    /// The number of calls that the request becomes.
    calls: u64,
    body: &'a [u8],
}

impl<'a> EstimateInputs<'a> {
    /// The estimate of a request, which may be an ensemble.
    pub(crate) fn of(
        profile: &'a RequestProfile,
        model: &'a str,
        plan: Option<&'a EnsemblePlan>,
        body: &'a [u8],
    ) -> Self {
        Self {
            profile,
            model: plan.map_or(model, |plan| plan.model.as_str()),
            calls: plan.map_or(1, |_| EnsemblePlan::calls().map(|_| 1).sum()),
            body,
        }
    }
}

/// Takes what a request needs from the limits of its client, if it [has some]. `estimate`: none for
/// a body that is not read.
///
/// [has some]: RequestContext::has_rate_limits
///
/// # Errors
/// When a limit has no room for it.
pub(crate) async fn limit_rate(
    flow: &mut Flow<'_>,
    estimate: Option<&EstimateInputs<'_>>,
) -> Result<(), OwnError> {
    let config = &flow.ctx.generation.config;
    let client = flow.ctx.identity.as_ref();
    let key = client.map(|client| (&*client.id, client.limits(&config.auth)));
    let key = key.filter(|(_, limits)| !limits.is_unlimited());
    let per_client = &config.limits.per_client;
    let address = flow.ctx.client_address.filter(|_| !per_client.is_unlimited());
    let caller =
        Caller { key, address: address.map(|address| (AddressKey::from(address), per_client)) };
    let tokens = estimate.map_or(0, |estimate| expected_tokens(flow.ctx, estimate));
    let admitted = flow.proxy.rates.admit(&caller, tokens, moment());
    let admitted = match (admitted, flow.proxy.shared.as_ref()) {
        (Ok(permit), Some(shared)) => {
            let accounts = shared_accounts(&caller);
            // Boxed: no other request should carry room for it.
            Box::pin(limit_shared(flow.proxy, shared, permit, &accounts, tokens)).await
        }
        (admitted, _) => admitted.map(|permit| RateHold {
            status: *permit.status(),
            permit: Some(permit),
            shared: None,
        }),
    };
    let (hold, limited) = match admitted {
        Ok(hold) => (hold, Ok(())),
        Err(refusal) => {
            let usual = estimate.and_then(|estimate| usual_duration(flow.ctx, estimate));
            let client = flow.ctx.requester.client;
            let request = estimate.map(|estimate| Fingerprint::of(client, estimate.body));
            let wait = time_to_return(flow.proxy, &caller, &refusal, request, usual);
            let hold = RateHold { status: refusal.status, permit: None, shared: None };
            (hold, Err(to_error(&refusal, wait)))
        }
    };
    flow.ctx.rate = Some(Box::new(hold));
    limited
}

/// The accounts of a client as other replicas name them: the key's, then the address's.
fn shared_accounts(caller: &Caller<'_>) -> Vec<SharedAccount> {
    let key = caller.key.map(|(id, limits)| (format!("key:{id}"), limits));
    let address = caller.address.map(|(address, limits)| (format!("address:{address:x}"), limits));
    let all = [key, address].into_iter().flatten();
    all.map(|(name, limits)| SharedAccount { name, limits: limits.clone() }).collect()
}

/// Takes the tokens from the limits that all replicas share. The count of this process alone is
/// never higher, so it was worth checking first, and it is all that holds while the server is not
/// reached.
async fn limit_shared(
    proxy: &Proxy,
    shared: &Arc<SharedState>,
    permit: RatePermit,
    accounts: &[SharedAccount],
    tokens: u64,
) -> Result<RateHold, Refusal> {
    let (status, held) = match shared.admit(accounts, tokens).await {
        SharedEnd::Admitted(held, status) => (status, Some(Box::new(held))),
        SharedEnd::Unknown => (*permit.status(), None),
        SharedEnd::Refused { account, kind, wait, status } => {
            let account = accounts.get(account);
            let limits = account.map(|account| &account.limits);
            let refusal = Refusal {
                kind,
                limit: limits.and_then(|limits| kind.value(limits)).unwrap_or(0),
                is_address: account.is_some_and(|one| one.name.starts_with("address:")),
                wait: Some(wait),
                tokens,
                status,
            };
            proxy.rates.refuse(permit, &refusal, moment());
            return Err(refusal);
        }
    };
    Ok(RateHold { status, permit: Some(permit), shared: held })
}

fn moment() -> LimitTime {
    LimitTime { at: now(), unix: unix_seconds() }
}

/// The tokens of the prompt, and those that the response may have: `max_tokens`, else the average
/// of the model's responses.
fn expected_tokens(ctx: &RequestContext, estimate: &EstimateInputs<'_>) -> u64 {
    let profile = estimate.profile;
    let output = match (profile.operation.row().work, profile.output_limit) {
        (Work::Text | Work::Inference, _) => 0,
        (Work::Generation, Some(most)) => most.0,
        (Work::Generation, None) => {
            let expected = |serving: &Serving| serving.latency.expect(true, None).tokens.0;
            let usual = of_first_backend(ctx, estimate, expected).unwrap_or(0);
            usual.saturating_mul(profile.choices)
        }
    };
    let each = u64::from(profile.prefill_tokens().0) + u64::from(output);
    each.saturating_mul(estimate.calls)
}

/// Reads what is known of a request's model on the first of its backends.
fn of_first_backend<T>(
    ctx: &RequestContext,
    estimate: &EstimateInputs<'_>,
    read: impl FnOnce(&Serving) -> T,
) -> Option<T> {
    let fleet = ctx.generation.fleet.topology();
    let names = &ctx.generation.router.names;
    let name = names.resolve(estimate.model, &fleet, SplitPoint::default());
    let model = fleet.model_named(name);
    model.and_then(|model| model.serving.first()).map(read)
}

/// The usual duration of the model's requests.
fn usual_duration(ctx: &RequestContext, estimate: &EstimateInputs<'_>) -> Option<Duration> {
    of_first_backend(ctx, estimate, |serving| serving.latency.durations.usual()).flatten()
}

/// The wait after which a refused client should return; `None` if no wait helps.
fn time_to_return(
    proxy: &Proxy,
    caller: &Caller<'_>,
    refusal: &Refusal,
    request: Option<Fingerprint>,
    usual: Option<Duration>,
) -> Option<Duration> {
    let LimitTime { at, .. } = moment();
    let wait = refusal.wait?.max(Duration::from_secs(1));
    let Some(openings) = proxy.rates.openings(caller, refusal, usual, at) else {
        return Some(wait);
    };
    let key = caller.key.filter(|_| !refusal.is_address).map(|(id, _)| id);
    let address = caller.address.filter(|_| refusal.is_address).map(|(address, _)| address);
    let line = ("limit", refusal.kind.name(), key, address);
    Some(proxy.returns.after(line, request, &openings, at))
}

/// The error of a refusal. `wait`: the time after which the client should return.
fn to_error(refusal: &Refusal, wait: Option<Duration>) -> OwnError {
    let Refusal { kind, limit, is_address, tokens, .. } = *refusal;
    let whose = if is_address { "client address" } else { "API key" };
    let name = kind.name();
    let Some(wait) = wait else {
        let message = format!(
            "The request needs {tokens} tokens (prompt and max_tokens), and {name} of this {whose} is \
             {limit}: it can never pass. Shorten it or lower max_tokens"
        );
        return OwnError::new(ErrorCode::TokenLimitTooSmall, message);
    };
    let message = match kind {
        LimitKind::InFlight => {
            format!("This {whose} has as many requests in flight as it may have: {limit} ({name})")
        }
        LimitKind::RequestsPerMinute => format!(
            "This {whose} may send {limit} requests per minute ({name}). Try again in {}",
            show(wait)
        ),
        LimitKind::TokensPerMinute | LimitKind::TokensPerDay => format!(
            "This {whose} may use {limit} tokens ({name}), and too few are left for the {tokens} of this \
             request. Try again in {}",
            show(wait)
        ),
    };
    OwnError::new(ErrorCode::RateLimited, message).after(wait)
}

/// The tokens of a stream, as seen here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streamed {
    pub(crate) tokens: u32,
    /// The outcome of the response, if it is known.
    pub(crate) outcome: Option<Outcome>,
}

impl Streamed {
    /// Returns whether the response came to its end: then the engine's count is that of all of it.
    fn is_whole(self) -> bool {
        matches!(self.outcome, None | Some(Outcome::Ok | Outcome::Empty))
    }

    /// The tokens of a response whose engine reported `count`. A stream that broke off may have
    /// reported a part of its output at its start.
    fn or_reported(self, count: Option<u32>) -> u32 {
        match count.unwrap_or(0) {
            0 => self.tokens,
            count if self.is_whole() => count,
            count => count.max(self.tokens),
        }
    }
}

/// Settles a request's part of its client's limits and budgets; only the first call counts.
pub(crate) fn settle_rate(ctx: &RequestContext) {
    let response = &ctx.record.response;
    let streamed = Streamed { tokens: response.token_events, outcome: response.outcome };
    settle_rate_of(ctx, response.usage, streamed);
}

/// Settles limits and budgets as soon as the response of an engine has been read: the client may
/// send its next request at once.
pub(crate) fn settle_rate_of(ctx: &RequestContext, usage: Option<Usage>, streamed: Streamed) {
    let used = used_tokens(ctx, usage, streamed);
    budgets::settle(ctx, used.map(|used| used.last));
    if let Some(rate) = &ctx.rate {
        rate.settle(used.map(|used| used.earlier + used.last.total()), moment());
    }
}

/// Settles limits and budgets for a request whose client has the head of a response that no backend
/// sent.
pub(crate) fn settle_unserved(ctx: &RequestContext) {
    budgets::settle(ctx, Some(UsedTokens::default()));
    if let Some(rate) = &ctx.rate {
        let earlier = ctx.record.edits.ensemble_parts;
        let used = earlier.map_or(0, |parts| parts.input_tokens + parts.output_tokens);
        rate.settle(Some(used), moment());
    }
}

/// The tokens that a request has used, with those of the calls before it if it is an ensemble.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    earlier: u64,
    last: UsedTokens,
}

/// The tokens that a request has used: the engine's count, else an estimate; `None` for the
/// reserved number. A count of zero is none: the engine did not count.
fn used_tokens(ctx: &RequestContext, usage: Option<Usage>, streamed: Streamed) -> Option<Used> {
    let record = &ctx.record;
    let earlier = record.edits.ensemble_parts.map(|parts| parts.input_tokens + parts.output_tokens);
    let is_cancelled = record.response.outcome == Some(Outcome::Cancel);
    let used = Used { earlier: earlier.unwrap_or(0), last: UsedTokens::default() };
    if record.routing.attempts == 0 {
        // Drafts of an ensemble that its client did not wait for are counted nowhere else.
        let is_unknown = record.request.ensemble.is_some() && earlier.is_none() && is_cancelled;
        return (!is_unknown).then_some(used);
    }
    let prompt = record.request.prompt_tokens.map_or(0, |tokens| tokens.0);
    let estimated =
        |output: u32| UsedTokens { input: prompt.into(), cached: 0, output: output.into() };
    let has_failed = matches!(
        streamed.outcome,
        Some(Outcome::Client | Outcome::Busy { .. } | Outcome::Refused { .. } | Outcome::Fault)
    );
    // The engine reported an error in place of a result, whatever the status. A response that was
    // broken off has a code of penstock.
    let is_error = has_failed && record.response.code.is_none();
    let is_success = matches!(record.response.status, 200..=299);
    let is_whole = !record.request.is_streaming && is_success;
    let generates = ctx.operation.is_some_and(|it| it.row().work == Work::Generation);
    let last = match usage {
        // No output, or a number that is none: the reserved number is the best estimate.
        Some(usage)
            if is_whole
                && !has_failed
                && generates
                && usage.completion_tokens.unwrap_or(0) == 0 =>
        {
            return None;
        }
        Some(usage) => UsedTokens {
            input: usage.prompt_tokens.filter(|tokens| *tokens > 0).unwrap_or(prompt).into(),
            cached: usage.cached_tokens.unwrap_or(0).into(),
            output: streamed.or_reported(usage.completion_tokens).into(),
        },
        None if is_error && streamed.tokens == 0 => UsedTokens::default(),
        None if record.request.is_streaming && (is_cancelled || is_success) => {
            estimated(streamed.tokens)
        }
        // A whole response without usage, or one that its client has not read to the end: the
        // reserved number is the best estimate.
        None if is_whole && !has_failed => return None,
        // The engine may have computed the prompt; no output was seen.
        None if is_cancelled || is_whole => estimated(0),
        None => UsedTokens::default(),
    };
    Some(Used { last, ..used })
}

/// Shows a limited client its remaining limits, in place of those that a hosted backend may have
/// sent.
pub(crate) fn add_rate_fields(
    head: &mut ResponseHeader,
    status: &RateStatus,
) -> pingora::Result<()> {
    for (names, quota) in [(REQUESTS, status.requests), (TOKENS, status.tokens)] {
        let [limit_name, remaining_name, reset_name] = names;
        let Some(Quota { limit, remaining, reset }) = quota else {
            for name in [limit_name, remaining_name, reset_name] {
                head.remove_header(&name);
            }
            continue;
        };
        head.insert_header(limit_name, HeaderValue::from(limit))?;
        head.insert_header(remaining_name, HeaderValue::from(remaining))?;
        head.insert_header(reset_name, show(reset))?;
    }
    Ok(())
}

/// A duration in the form of OpenAI's fields: `20ms`, `1s`, `6m0s`, rounded up.
fn show(wait: Duration) -> String {
    if wait < Duration::from_secs(1) {
        return format!("{}ms", wait.as_micros().div_ceil(1000));
    }
    let seconds = whole_seconds(wait).as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        (_, _) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_form_of_openai() {
        let shown = [0, 20, 999, 1000, 1001, 59_000, 360_000, 3_600_000]
            .map(|millis| show(Duration::from_millis(millis)));
        assert_eq!(shown, ["0ms", "20ms", "999ms", "1s", "2s", "59s", "6m0s", "1h0m0s"]);
    }
}
