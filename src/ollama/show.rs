//! Ollama's `/api/show`: the response of an Ollama backend that has the model, as it comes. For a
//! model of other engines, it is made of what discovery knows.

use std::sync::Arc;

use bytes::Bytes;
use penstock_api::ErrorCode;
use penstock_clock::now;
use penstock_core::fleet::{Backend, Health, Model, ModelId, Serving, Topology};
use penstock_core::routing::{ModelAsked, Names, RouteError, RoutingDecision, SplitPoint};
use pingora::http::ResponseHeader;
use serde_json::Value;

use crate::direct::{DirectTerms, ambiguous_fields, attempt_directly, end_directly, final_end};
use crate::downstream::body::HeldBody;
use crate::ollama::model_page::{Described, Lists};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext, Served};
use crate::proxy::own_response::{OwnResponse, send, send_error};
use crate::proxy::request::ScannedRequest;
use crate::proxy::{allowed_models, policies};

pub(crate) async fn serve_show(flow: &mut Flow<'_>, body: HeldBody) -> Served {
    let fleet = flow.ctx.generation.fleet.topology();
    let requested = match Requested::read(flow.ctx, &fleet, &body.bytes) {
        Ok(requested) => requested,
        Err(error) => return send_error(flow, error).await,
    };
    let Some(model) = fleet.model(requested.id) else {
        debug_assert!(false, "a model of this topology");
        return send_error(flow, unavailable(&requested.name)).await;
    };
    flow.ctx.record.routing.model = Some(model.name.clone());
    let holders = holders(&fleet, model);
    let original = body.bytes.clone();
    let asked = ModelAsked { name: &requested.name, fleet: &fleet, split: SplitPoint::default() };
    let policy = match policies::admit(flow.ctx, &flow.client.head().headers, &asked) {
        Ok(policy) => policy,
        Err(error) => return send_error(flow, error).await,
    };
    let is_admitted = |(_, row): &(u32, &Serving)| policy.restriction.admits_zone(row.zone);
    if !holders.is_empty() && !holders.iter().any(is_admitted) {
        let what = format!("No backend that shows model '{}' is", requested.name);
        return send_error(flow, policies::outside(&policy, &fleet, &what)).await;
    }
    let at = flow.ctx.arrived_at;
    let mut request = ScannedRequest::direct(at, Arc::clone(&fleet), body, policy);
    let mut last_failure = None;
    for (tried, (number, row)) in holders.iter().enumerate() {
        if let Some(held) = &mut request.body {
            held.bytes = requested.body_for(row).unwrap_or_else(|| original.clone());
        }
        let decision = RoutingDecision::direct(row.id, requested.id, *number);
        let terms = DirectTerms { may_miss: tried + 1 < holders.len(), is_limited: false };
        let end = attempt_directly(flow, &mut request, &decision, terms).await;
        if let Some(end) = final_end(end, &mut last_failure) {
            return end_directly(flow, end).await;
        }
    }
    if let Some(shown) = describe(&fleet, model, &requested.name, flow.proxy.started_at) {
        flow.ctx.record.response.status = 200;
        let head = ResponseHeader::build(200, Some(8))?;
        let response = OwnResponse { head, body: Bytes::from(shown.to_string()), closes: false };
        return send(flow, response).await;
    }
    let error = last_failure.map(|failure| OwnError::from_failure(&failure));
    let error = error.unwrap_or_else(|| unavailable(&requested.name));
    send_error(flow, error).await
}

fn unavailable(name: &str) -> OwnError {
    let message = format!("No healthy backend shows model '{name}'");
    OwnError::new(ErrorCode::NoHealthyBackend, message)
}

/// The model to show.
struct Requested {
    /// The name in the request.
    name: String,
    id: ModelId,
    body: Value,
}

impl Requested {
    fn read(ctx: &RequestContext, fleet: &Topology, body: &[u8]) -> Result<Self, OwnError> {
        let body = ambiguous_fields::read_json(body)?;
        let name = ambiguous_fields::model_of(&body)?.filter(|name| !name.is_empty()).ok_or_else(
            || OwnError::new(ErrorCode::MissingModel, "'model' is missing").about(Some("model")),
        )?;
        if !allowed_models::may_request(ctx, fleet, name) {
            let message = format!("This key may not use model '{name}'");
            return Err(OwnError::new(ErrorCode::ModelNotAllowed, message).about(Some("model")));
        }
        let names = &ctx.generation.router.names;
        let target = names.resolve(name, fleet, SplitPoint::default());
        let id = shortest_branch(names, fleet, name).or_else(|| fleet.model_id(target));
        let id = id.or_else(|| fleet.model_id(name)).ok_or_else(|| {
            OwnError::from_route(&RouteError::unknown_model(name, target, fleet, now()))
        })?;
        Ok(Self { name: name.to_owned(), id, body })
    }

    /// The body with the backend's name for the model, if that differs from the client's.
    fn body_for(&self, row: &Serving) -> Option<Bytes> {
        let field = if self.body.get("model").is_some() { "model" } else { "name" };
        if self.body.get(field).and_then(Value::as_str) == Some(row.adapter_name()) {
            // The client's bytes pass unchanged where the name is already the backend's.
            return None;
        }
        let mut body = self.body.clone();
        body.as_object_mut()?.insert(field.to_owned(), row.adapter_name().into());
        Some(Bytes::from(body.to_string()))
    }
}

/// Returns the model with the shortest context among those that an alias splits its requests to:
/// clients cut their prompts by what is shown. `None` for other names.
fn shortest_branch(names: &Names, fleet: &Topology, name: &str) -> Option<ModelId> {
    let split = names.split(name, fleet).filter(|_| fleet.model_id(name).is_none())?;
    let branches = split.branches().filter_map(|(target, _)| {
        let id = fleet.model_id(target)?;
        let contexts = fleet.model(id)?.serving.iter().filter_map(|row| row.context_length);
        Some((contexts.max()?, id))
    });
    branches.min_by_key(|(context, _)| *context).map(|(_, id)| id)
}

/// The Ollama backends of a model that can be queried, with the numbers of their rows; the least
/// busy first.
fn holders<'a>(fleet: &Topology, model: &'a Model) -> Vec<(u32, &'a Serving)> {
    let is_usable = |row: &Serving| {
        matches!(row.state.status(), Health::Healthy | Health::Unknown | Health::Draining)
            && row.state.breaker.is_closed()
            && backend_of(fleet, row).is_some_and(Backend::is_ollama)
    };
    let rows = (0..).zip(&model.serving);
    let mut holders: Vec<(u32, &Serving)> = rows.filter(|(_, row)| is_usable(row)).collect();
    // The page costs the engine little, and still waits behind its other requests.
    holders.sort_by_key(|(_, row)| row.state.load.in_flight());
    holders
}

/// The description of a model of an engine other than Ollama. It is that of the backend with the
/// longest context: prompts too long for the others go there.
fn describe(fleet: &Topology, model: &Model, name: &str, created: u64) -> Option<Value> {
    let rows = model.serving.iter().filter_map(|row| Some((row, backend_of(fleet, row)?)));
    let others = rows.filter(|(_, backend)| !backend.is_ollama());
    let is_longer = |row: &Serving, other: &Serving| row.context_length > other.context_length;
    let (row, backend) =
        others.reduce(|best, next| if is_longer(next.0, best.0) { next } else { best })?;
    let lists = Lists::of(fleet);
    Some(Described { name, model, lists: &lists, created }.shown(row, backend))
}

fn backend_of<'a>(fleet: &'a Topology, row: &Serving) -> Option<&'a Backend> {
    fleet.backends.get(usize::from(row.backend))
}
