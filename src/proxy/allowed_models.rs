//! The models that a client may use, by the list of its key.

use penstock_api::{ErrorCode, default_tag_forms};
use penstock_core::fleet::{Model, Topology};
use penstock_core::routing::SplitPoint;
use penstock_scan::{RequestProfile, find_further_model};

use crate::proxy::failure::OwnError;
use crate::proxy::flow::RequestContext;

/// Returns whether the client may use the model that its request names. If no alias has that name,
/// the engine's spelling counts, with or without the default tag: a list of models has one
/// spelling, requests may have any.
pub(crate) fn may_request(ctx: &RequestContext, fleet: &Topology, name: &str) -> bool {
    // Most keys may use all models, and the forms of a name take an allocation.
    if !ctx.is_limited_to_models() {
        return true;
    }
    let is_alias = ctx.generation.router.names.has(name);
    let known = fleet.model_id(name).filter(|_| !is_alias).and_then(|id| fleet.model(id));
    let Some(model) = known else { return ctx.may_use(name) };
    default_tag_forms(&model.name).any(|form| ctx.may_use(&form))
}

/// Checks that the client may use the model of its request, and the further models in the body: a
/// backend may be an aggregator, which tries them.
///
/// # Errors
/// When its key is limited to models, and one of them is outside its list.
pub(crate) fn check(
    ctx: &RequestContext,
    fleet: &Topology,
    profile: &RequestProfile,
    model: &str,
    body: &[u8],
) -> Result<(), OwnError> {
    if !may_request(ctx, fleet, model) {
        let message = format!("This key may not use model '{model}'");
        return Err(OwnError::new(ErrorCode::ModelNotAllowed, message).about(Some("model")));
    }
    if !profile.names_further_models {
        return Ok(());
    }
    let further = find_further_model(body, |name| !may_request(ctx, fleet, name));
    further.map_or(Ok(()), |further| {
        let message =
            format!("This key may not use model '{further}' of 'models' or the fallbacks");
        Err(OwnError::new(ErrorCode::ModelNotAllowed, message))
    })
}

/// The models and aliases that the client may use, sorted by name.
pub(crate) fn visible_models<'a>(
    ctx: &'a RequestContext,
    topology: &'a Topology,
) -> Vec<(&'a str, &'a Model)> {
    let own = topology.models().iter().map(|model| (&*model.name, model));
    let names = &ctx.generation.router.names;
    // A pattern may cover the name that an alias leads to.
    let model_of =
        |target| topology.model_id(names.resolve(target, topology, SplitPoint::default()));
    let splits = names.splits().filter_map(|(alias, split)| {
        let mut targets = split.branches().map(|(target, _)| target);
        Some((alias, targets.find(|target| model_of(target).is_some())?))
    });
    let aliases = names.aliases().chain(splits).filter_map(|(alias, target)| {
        let model = model_of(target).and_then(|id| topology.model(id))?;
        // A name that is a model, too, is listed as one.
        topology.model_id(alias).is_none().then_some((alias, model))
    });
    let mut all: Vec<_> =
        own.chain(aliases).filter(|(name, _)| may_request(ctx, topology, name)).collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    all
}
