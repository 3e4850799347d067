//! A command as the client sent it, and as each backend gets it.

use bytes::Bytes;
use penstock_api::{ErrorCode, ModelCommand};
use penstock_core::fleet::{Backend, Topology};
use serde_json::Value;

use crate::direct::ambiguous_fields;
use crate::proxy::allowed_models;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::RequestContext;

pub(crate) struct BroadcastCommand {
    pub(crate) kind: ModelCommand,
    /// The model that the command makes or changes, by the client's name.
    pub(crate) model: String,
    /// True if the client reads progress as it comes.
    pub(crate) is_streaming: bool,
    original: Bytes,
    body: Value,
}

impl BroadcastCommand {
    /// Reads the body of a command.
    ///
    /// # Errors
    /// When it is no JSON object, names no model, or names one that the client's key may not use.
    pub(crate) fn read(
        ctx: &RequestContext,
        kind: ModelCommand,
        original: Bytes,
    ) -> Result<Self, OwnError> {
        let body = ambiguous_fields::read_json(&original)?;
        ambiguous_fields::model_of(&body)?;
        let has_progress =
            matches!(kind, ModelCommand::Pull | ModelCommand::Push | ModelCommand::Create);
        let is_streaming =
            has_progress && body.get("stream").and_then(Value::as_bool).unwrap_or(true);
        let fields = names(kind, &body);
        let Some(model) = fields.first().and_then(|field| body.get(*field)?.as_str()) else {
            let message = "The body names no model";
            return Err(OwnError::new(ErrorCode::MissingModel, message).about(Some("model")));
        };
        if kind == ModelCommand::Create && ctx.is_limited_to_models() {
            check_origin(&body)?;
        }
        let fleet = ctx.generation.fleet.topology();
        for name in fields.iter().filter_map(|field| body.get(*field)?.as_str()) {
            if !allowed_models::may_request(ctx, &fleet, name) {
                let message = format!("This key may not use model '{name}'");
                return Err(OwnError::new(ErrorCode::ModelNotAllowed, message));
            }
        }
        let model = model.to_owned();
        Ok(Self { kind, model, is_streaming, original, body })
    }

    /// Returns whether engines report the command's progress.
    pub(crate) fn has_progress(&self) -> bool {
        matches!(self.kind, ModelCommand::Pull | ModelCommand::Push | ModelCommand::Create)
    }

    /// Returns whether only the backends that have the model must succeed.
    pub(crate) fn may_miss(&self) -> bool {
        matches!(self.kind, ModelCommand::Copy | ModelCommand::Delete)
    }

    /// The model that the lists show, or no longer show, after the command.
    pub(crate) fn result(&self) -> Option<&str> {
        match self.kind {
            ModelCommand::Copy => self.body.get("destination")?.as_str(),
            _ => Some(&self.model),
        }
    }

    /// The body for a backend: the client's bytes, unless the backend has another name for a model,
    /// or the client wants no progress. Progress is always requested, because a backend that
    /// reports nothing has failed.
    pub(crate) fn body_for(&self, fleet: &Topology, backend: &Backend) -> Bytes {
        let mut body = self.body.clone();
        let Some(fields) = body.as_object_mut() else { return self.original.clone() };
        let mut is_changed = false;
        for field in existing(self.kind) {
            let name = fields.get(*field).and_then(Value::as_str);
            if let Some(own) = name.and_then(|name| own_name(fleet, backend, name)) {
                fields.insert((*field).to_owned(), own.into());
                is_changed = true;
            }
        }
        if self.has_progress() && !self.is_streaming {
            fields.insert("stream".to_owned(), true.into());
            is_changed = true;
        }
        if is_changed { Bytes::from(body.to_string()) } else { self.original.clone() }
    }
}

/// Checks that a limited key makes a model from `from`, or from uploaded files.
///
/// # Errors
/// When an older engine would read another model, or one of its files, from a field that is not
/// read here.
fn check_origin(body: &Value) -> Result<(), OwnError> {
    let unread = ["modelfile", "path"].into_iter().find(|field| body.get(field).is_some());
    let Some(field) = unread else { return Ok(()) };
    let message =
        format!("This key is limited to models, and '{field}' may name others: use 'from'");
    Err(OwnError::new(ErrorCode::ModelNotAllowed, message).about(Some(field)))
}

/// The fields that name models. The first one is required.
fn names(kind: ModelCommand, body: &Value) -> Vec<&'static str> {
    match kind {
        ModelCommand::Copy => vec!["source", "destination"],
        _ => {
            // `name` is the field's name in older clients.
            let field = if body.get("model").is_some() { "model" } else { "name" };
            vec![field, "from"]
        }
    }
}

/// The fields that name models already on the backends.
fn existing(kind: ModelCommand) -> &'static [&'static str] {
    match kind {
        ModelCommand::Pull => &[],
        ModelCommand::Create => &["from"],
        ModelCommand::Copy => &["source"],
        ModelCommand::Push | ModelCommand::Delete => &["model", "name"],
    }
}

/// The backend's name for a model, if the configuration gives it another one.
fn own_name<'a>(fleet: &'a Topology, backend: &Backend, name: &str) -> Option<&'a str> {
    let model = fleet.model(fleet.model_id(name)?)?;
    let row = model.serving.iter().find(|row| row.id == backend.state.id)?;
    row.upstream_id.as_deref()
}
