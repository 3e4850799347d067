//! The model of a request: the one it names, else the default of its operation, else the only model
//! of the fleet, else, for an operation that needs no name, the first model known to serve it.

use std::borrow::Cow;

use penstock_api::Operation;
use penstock_config::DefaultModel;
use penstock_scan::{RequestProfile, ScanError};

use super::Router;
use crate::fleet::{Model, Topology};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedModel<'a> {
    /// Its name; for a request that names none, the name of the default.
    pub name: Cow<'a, str>,
    /// True if the body needs the name: it has none, and the backend may serve other models.
    pub must_be_inserted: bool,
}

impl Router {
    /// Returns the model of the request in `body`.
    ///
    /// # Errors
    /// When it names none, and none can be assumed.
    pub fn requested_model<'a>(
        &'a self,
        profile: &RequestProfile,
        body: &'a [u8],
        fleet: &'a Topology,
    ) -> Result<RequestedModel<'a>, ScanError> {
        if profile.names_model() {
            return Ok(RequestedModel { name: profile.model_name(body), must_be_inserted: false });
        }
        self.assumed_model(profile.operation, fleet).ok_or(ScanError::MissingModel)
    }

    fn assumed_model<'a>(
        &'a self,
        operation: Operation,
        fleet: &'a Topology,
    ) -> Option<RequestedModel<'a>> {
        let inserted = |name| RequestedModel { name: Cow::Borrowed(name), must_be_inserted: true };
        if let Some(name) = self.default_model.of(operation) {
            return Some(inserted(name));
        }
        if let ([only], true) = (fleet.models(), self.default_model != DefaultModel::None) {
            return Some(inserted(&only.name));
        }
        if !operation.row().model_is_optional {
            return None;
        }
        let knows = |model: &&Model| {
            model.serving.iter().any(|row| row.known_operations.contains(operation))
        };
        if let Some(known) = fleet.models().iter().find(knows) {
            return Some(inserted(&known.name));
        }
        // A backend that may serve it chooses the model itself, so no name is inserted.
        let may_serve = |model: &&Model| {
            model.serving.iter().any(|row| row.usable_operations.contains(operation))
        };
        let assumed = fleet.models().iter().find(may_serve)?;
        Some(RequestedModel { name: Cow::Borrowed(&assumed.name), must_be_inserted: false })
    }
}
