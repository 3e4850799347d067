//! A model and its backends.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use penstock_api::units::TokenCount;
use penstock_api::{Operation, Operations};
use penstock_scan::RequestProfile;

use crate::fleet::backend_id::{BackendId, BackendSet};
use crate::fleet::serving::Serving;
use crate::prefix::ModelIndex;

/// A model and every backend that serves it, in the order of the configuration.
#[derive(Debug)]
pub struct Model {
    /// The name clients use.
    pub name: Box<str>,
    /// The backends that serve it.
    pub serving: Box<[Serving]>,
    /// The model's rotation, shared by every topology that knows the model.
    pub turn: Arc<AtomicU64>,
    /// The prefixes of the model on its backends, shared in the same way.
    pub prefixes: Arc<ModelIndex>,
    /// The policies for the model by its names, as a bit mask of positions.
    pub policies: u64,
}

impl Model {
    /// Returns its name and those that its backends list and know it by.
    pub fn listed_names(&self) -> impl Iterator<Item = &str> + Clone {
        let rows = self.serving.iter();
        let rows = rows.flat_map(|row| [Some(&*row.model), row.upstream_id.as_deref()]);
        std::iter::once(&*self.name).chain(rows.flatten())
    }

    /// Returns whether a backend serves it.
    pub(super) fn is_on(&self, backend: BackendId) -> bool {
        self.serving.iter().any(|row| row.id == backend)
    }

    /// Returns whether a backend other than the one with this serial number could serve it now.
    pub(super) fn has_other_than(&self, serial: u64) -> bool {
        let usable = self.serving.first().map(|row| row.evidence.usable_backends(serial));
        usable.is_some_and(|usable| usable.iter().any(|one| *one != serial))
    }

    /// Returns whether a request for `operation` can be served without sending `sent` to `serving`.
    /// Otherwise the lesson that the operation is lacking gains nothing, and an engine's own error
    /// says more than that no backend is left.
    pub fn can_do_without(&self, sent: Operation, serving: &Serving, operation: Operation) -> bool {
        let without = serving.native_operations.without(Operations::of(&[sent]));
        let mut others = self.serving.iter().filter(|row| row.id != serving.id);
        without.target_of(operation).is_some()
            || others.any(|row| row.usable_operations.contains(operation))
    }

    /// Returns whether a backend other than `serving`, and none of those `tried`, may have the
    /// capabilities that a request needs.
    pub fn may_serve_elsewhere(
        &self,
        request: &RequestProfile,
        serving: &Serving,
        tried: &BackendSet,
    ) -> bool {
        let mut others = self.serving.iter().filter(|row| row.id != serving.id);
        !request.needs.is_empty()
            && others.any(|row| {
                !tried.contains(row.id)
                    && row.usable_operations.contains(request.operation)
                    && row.usable.without(row.model_state.lessons.missing()).contains(request.needs)
            })
    }

    /// Returns the longest known context of the backends other than `serving`, and none of those
    /// `tried`, that may serve the request; `None` if none is known.
    pub fn longest_context_elsewhere(
        &self,
        request: &RequestProfile,
        serving: &Serving,
        tried: &BackendSet,
    ) -> Option<TokenCount> {
        let others = self.serving.iter().filter(|row| {
            row.id != serving.id
                && !tried.contains(row.id)
                && row.usable_operations.contains(request.operation)
                && row.usable.contains(request.needs)
        });
        others.filter_map(|row| row.context_for(request.context_length)).max()
    }

    /// Returns the backends whose context is not known to be longer than `context`.
    pub fn without_longer_context(
        &self,
        request: &RequestProfile,
        context: TokenCount,
    ) -> BackendSet {
        let mut found = BackendSet::default();
        for row in &self.serving {
            if row.context_for(request.context_length).is_none_or(|length| length <= context) {
                found.insert(row.id);
            }
        }
        found
    }

    /// Returns whether its backends differ in weight.
    pub fn has_weights(&self) -> bool {
        self.serving.first().is_some_and(|row| row.most_weight > 0)
    }

    /// Sets the block size of prompts to that of the engines. If they differ, the largest is used:
    /// every engine keeps at least one whole block of its size.
    pub(in crate::fleet) fn follow_blocks(&self) {
        let details = self.serving.iter().filter_map(|row| row.state.telemetry.details());
        self.prefixes.set_block_tokens(details.filter_map(|details| details.block_size).max());
    }
}
