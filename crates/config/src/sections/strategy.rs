//! `routing.strategy` and `routing.weights`, which `routing.shadow` shares.

use penstock_api::choice;

use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::suggest::nearest;
use crate::syntax::warnings::Warning;

choice! {
    /// The method that chooses one of the candidates.
    pub enum Strategy {
        /// One of the others for each model: smart where its backends differ in priority,
        /// deployment where their engines load models on demand, weighted with the preset balanced
        /// where they keep prefixes of prompts or report their load, else smart.
        Auto = "auto",
        /// The highest score of priority, load and latency.
        Smart = "smart",
        /// Each in turn.
        RoundRobin = "round_robin",
        /// The lowest priority number.
        PriorityOnly = "priority_only",
        /// A random one.
        Random = "random",
        /// A backend with the model in memory and a free slot.
        Deployment = "deployment",
        /// The highest sum of weighted scores.
        Weighted = "weighted",
        /// A backend that is predicted to meet the request's objectives.
        Slo = "slo",
    }
}

impl Strategy {
    /// Returns whether scorers decide.
    pub fn has_scorers(self) -> bool {
        matches!(self, Self::Weighted | Self::Slo)
    }
}

impl Setting for Strategy {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let given = reader.scalar(node, "the name of a strategy")?;
        if let Some(strategy) = Self::from_name(given) {
            return Some(strategy);
        }
        // Only this unknown value is no error, so that a file for a later penstock still works.
        reader.warn(
            &node.place,
            Warning::UnknownStrategy {
                key: reader.path(),
                given: given.to_owned(),
                suggestion: nearest(given, Self::names()).map(str::to_owned),
                known: Self::names().collect::<Vec<_>>().join(", "),
            },
        );
        Some(Self::Smart)
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(value.name())
    }

    fn shape() -> Shape {
        // Like `read`: another name is a warning, in editors too.
        Shape::Either(vec![Shape::names(Self::names()), Shape::text()])
    }
}

section! {
    /// Weights of the smart strategy. They must sum to 100.
    pub struct Weights {
        /// The backend's priority.
        pub priority: u32 = 50,
        /// Its requests in flight.
        pub load: u32 = 30,
        /// Its average latency.
        pub latency: u32 = 20,
    }
}
