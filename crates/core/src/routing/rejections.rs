//! The backends that a request could not go to, counted by the reason against each.

use std::fmt;

use super::filters::{self, RejectReason};
use super::{RouteInput, Router};

/// The number of backends rejected for each reason, in the order of [`RejectReason::NAMES`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rejections([u32; RejectReason::NAMES.len()]);

impl Rejections {
    fn add(&mut self, reason: RejectReason) {
        let position = RejectReason::NAMES.iter().position(|name| *name == reason.name());
        debug_assert!(position.is_some(), "each reason has a name in the list");
        if let Some(count) = position.and_then(|position| self.0.get_mut(position)) {
            *count += 1;
        }
    }

    /// Returns the count of each reason, in the order of [`RejectReason::NAMES`].
    pub fn counts(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
}

/// `zone:2,full:1`
impl fmt::Display for Rejections {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = RejectReason::NAMES.iter().zip(&self.0).filter(|(_, count)| **count > 0);
        for (index, (name, count)) in counted.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(out, "{comma}{name}:{count}")?;
        }
        Ok(())
    }
}

impl Router {
    /// Counts the backends of the model of a request and of its fallbacks that it may not go to
    /// now. For requests that are refused: it examines all of them.
    pub fn rejections(&self, input: &RouteInput<'_>) -> Rejections {
        let RouteInput { fleet, split, .. } = *input;
        let own = (self.names.resolve(input.model, fleet, split), *input);
        let chain = self.names.chain(input.model, fleet, split);
        let others = chain.iter().map(|entry| self.fall_back(input, entry));
        let mut found = Rejections::default();
        for (name, input) in std::iter::once(own).chain(others) {
            let Some(model) = fleet.model_named(name) else { continue };
            let verdicts = filters::rejections(&input, model);
            verdicts.filter_map(|(_, verdict)| verdict.err()).for_each(|one| found.add(one));
        }
        found
    }
}
