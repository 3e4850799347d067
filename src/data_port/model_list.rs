//! `/v1/models` in two shapes: OpenAI's, and Anthropic's with its pages for requests in that
//! dialect.

use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use penstock_api::units::TokenCount;
use penstock_api::{Capabilities, ErrorCode, percent_decode};
use penstock_clock::now;
use penstock_core::fleet::{Model, Topology};
use penstock_core::routing::{Names, RouteError, SplitPoint};
use serde_json::{Value, json};

use crate::proxy::allowed_models::{self, visible_models};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::RequestContext;
use crate::proxy::similar_model::with_similar_model;

/// The number of models on a page of Anthropic's list, unless the client requests another.
const DEFAULT_PAGE: usize = 20;
/// The most models on a page.
const MAX_PAGE: usize = 1000;

/// The models and aliases that the client may use, sorted by name. `created`: seconds since 1970.
///
/// # Errors
/// When the query requests an impossible page.
pub(crate) fn list_models(
    ctx: &RequestContext,
    query: Option<&str>,
    created: u64,
) -> Result<Value, OwnError> {
    let snapshot = ctx.generation.fleet.topology();
    let visible = visible_models(ctx, &snapshot);
    let names = &ctx.generation.router.names;
    let window = |id: &str, model: &Model| window_of(names, &snapshot, id, model);
    if !ctx.dialect.row().pages_models {
        let all =
            visible.iter().map(|(id, model)| openai_model(id, model, window(id, model), created));
        return Ok(json!({"object": "list", "data": all.collect::<Vec<_>>()}));
    }
    let ids: Vec<&str> = visible.iter().map(|(id, _)| *id).collect();
    let (range, has_more) = ListPage::read(query)?.of(&ids)?;
    let shown = visible.get(range).unwrap_or_default();
    let data = shown.iter().map(|(id, model)| anthropic_model(id, window(id, model), created));
    Ok(json!({
        "data": data.collect::<Vec<_>>(),
        "has_more": has_more,
        "first_id": shown.first().map(|(id, _)| id),
        "last_id": shown.last().map(|(id, _)| id),
    }))
}

/// One model or alias; `id` as it stands in the path.
///
/// # Errors
/// When it is unknown, or the client may not use it.
pub(crate) fn one_model(ctx: &RequestContext, id: &str, created: u64) -> Result<Value, OwnError> {
    let name = percent_decode(id);
    let snapshot = ctx.generation.fleet.topology();
    let topology: &Topology = &snapshot;
    let names = &ctx.generation.router.names;
    let target = names.resolve(&name, topology, SplitPoint::default());
    let mut targets = names.split(&name, topology).into_iter().flat_map(|split| split.branches());
    let known = topology
        .model_id(target)
        .or_else(|| targets.find_map(|(target, _)| topology.model_id(target)))
        .or_else(|| topology.model_id(&name));
    let allowed = allowed_models::may_request(ctx, topology, &name);
    match known.and_then(|id| topology.model(id)).filter(|_| allowed) {
        Some(model) => {
            let window = window_of(names, topology, &name, model);
            Ok(match ctx.dialect.row().pages_models {
                true => anthropic_model(&name, window, created),
                false => openai_model(&name, model, window, created),
            })
        }
        // As for an unknown model, without a suggestion: a limited key learns no names.
        None if !allowed => {
            let message = format!("Model '{name}' not found");
            Err(OwnError::new(ErrorCode::ModelNotFound, message).about(Some("model")))
        }
        None => {
            let error = RouteError::unknown_model(&name, target, topology, now());
            Err(with_similar_model(ctx, &name, OwnError::from_route(&error)))
        }
    }
}

/// The longest prompt that a client can rely on under a name: the longest of the model's backends,
/// and for an alias that splits its requests, the shortest of its branches.
fn window_of(names: &Names, topology: &Topology, id: &str, model: &Model) -> Option<TokenCount> {
    let longest = |model: &Model| model.serving.iter().filter_map(|row| row.context_length).max();
    let split = names.split(id, topology).filter(|_| topology.model_id(id).is_none());
    let Some(split) = split else { return longest(model) };
    let targets = split.branches().filter_map(|(target, _)| topology.model_id(target));
    targets.filter_map(|id| topology.model(id)).filter_map(longest).min()
}

fn openai_model(id: &str, model: &Model, window: Option<TokenCount>, created: u64) -> Value {
    let usable = model.serving.iter().fold(Capabilities::NONE, |all, row| all.union(row.known));
    json!({
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "penstock",
        "max_model_len": window.map(|tokens| tokens.0),
        "capabilities": usable.names().collect::<Vec<_>>(),
    })
}

fn anthropic_model(id: &str, window: Option<TokenCount>, created: u64) -> Value {
    let created = UNIX_EPOCH + Duration::from_secs(created);
    json!({
        "type": "model",
        "id": id,
        "display_name": id,
        "created_at": humantime::format_rfc3339_seconds(created).to_string(),
        "max_input_tokens": window.map(|tokens| tokens.0),
    })
}

/// The page of Anthropic's list that a query requests.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListPage {
    limit: Option<usize>,
    after: Option<String>,
    before: Option<String>,
}

impl ListPage {
    fn read(query: Option<&str>) -> Result<Self, OwnError> {
        let mut page = Self::default();
        for pair in query.unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                    let message = format!("'limit' must be a number from 1 to {MAX_PAGE}");
                    page.limit = Some(limit.ok_or_else(|| bad_query(message, "limit"))?);
                }
                "after_id" => page.after = Some(percent_decode(value)),
                "before_id" => page.before = Some(percent_decode(value)),
                _ => {}
            }
        }
        Ok(page)
    }

    /// Returns the range of `names` on the page, and whether there are more in its direction.
    fn of(&self, names: &[&str]) -> Result<(Range<usize>, bool), OwnError> {
        let limit = self.limit.unwrap_or(DEFAULT_PAGE);
        let find = |id: &str, param| {
            let message = || format!("'{param}' names no model of this list");
            names.iter().position(|name| *name == id).ok_or_else(|| bad_query(message(), param))
        };
        match (&self.after, &self.before) {
            (Some(_), Some(_)) => {
                let message = "Only one of 'after_id' and 'before_id' may be there".to_owned();
                Err(bad_query(message, "before_id"))
            }
            (None, Some(before)) => {
                let end = find(before, "before_id")?;
                let start = end.saturating_sub(limit);
                Ok((start..end, start > 0))
            }
            (after, None) => {
                let start = match after {
                    Some(after) => find(after, "after_id")? + 1,
                    None => 0,
                };
                let end = start.saturating_add(limit).min(names.len());
                Ok((start..end, end < names.len()))
            }
        }
    }
}

fn bad_query(message: String, param: &'static str) -> OwnError {
    OwnError::new(ErrorCode::InvalidRequest, message).about(Some(param))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<(Range<usize>, bool), OwnError> {
        let names = ["a", "b", "c", "d", "e/f"];
        ListPage::read(Some(query)).and_then(|page| page.of(&names))
    }

    #[test]
    fn pages_follow_their_cursors() {
        for (query, range, has_more) in [
            ("", 0..5, false),
            ("beta=true&limit=2", 0..2, true),
            ("limit=5", 0..5, false),
            ("limit=2&after_id=b", 2..4, true),
            ("after_id=d", 4..5, false),
            ("after_id=e%2Ff", 5..5, false),
            ("before_id=d&limit=2", 1..3, true),
            ("before_id=c&limit=2", 0..2, false),
            ("before_id=a", 0..0, false),
        ] {
            assert_eq!(page(query).unwrap(), (range, has_more), "{query}");
        }
        let many: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(ListPage::default().of(&many).unwrap(), (0..20, true), "Anthropic's default");
    }

    #[test]
    fn impossible_pages_are_refused() {
        for query in [
            "limit=0",
            "limit=1001",
            "limit=x",
            "after_id=z",
            "before_id=",
            "after_id=a&before_id=c",
        ] {
            assert_eq!(page(query).unwrap_err().code, ErrorCode::InvalidRequest, "{query}");
        }
    }
}
