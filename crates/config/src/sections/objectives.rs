//! `objectives:` targets and priorities of requests, by name.

use std::time::Duration;

use penstock_scoring::Objectives;
use serde_json::json;

use crate::syntax::collections::Maybe;
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::Positive;

section! {
    /// The objectives of a request. Clients name them in `x-gateway-inference-objective`; keys and
    /// models in `objective`.
    pub struct ObjectiveConfig {
        /// The time to the first token; to the end of a response that is not streamed.
        pub ttft: Option<Duration> ["ttft" as Maybe<Positive>] = None,
        /// The time per token after the first.
        pub tpot: Option<Duration> ["tpot" as Maybe<Positive>] = None,
        /// From -100 to 100; higher is more important. Below 0 a request may be refused so that
        /// others meet their objectives.
        pub priority: i32 ["priority" as Priority] = 0,
    }
}

impl ObjectiveConfig {
    /// Returns the objectives in the form that decisions read.
    pub fn to_objectives(&self) -> Objectives {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        Objectives {
            ttft_ms: self.ttft.map(millis),
            tpot_ms: self.tpot.map(millis),
            priority: self.priority,
        }
    }
}

/// The highest priority. The lowest is its negative.
pub const MAX_PRIORITY: i32 = 100;

/// A priority.
pub(super) struct Priority;

impl Setting for Priority {
    type Value = i32;

    fn read(node: &Node, reader: &mut Reader) -> Option<i32> {
        reader.parse(node, "a whole number from -100 to 100", |text| {
            text.parse().ok().filter(|one| (-MAX_PRIORITY..=MAX_PRIORITY).contains(one))
        })
    }

    fn dump(value: &i32) -> Dump {
        Dump::Integer((*value).into())
    }

    fn shape() -> Shape {
        let range = json!({"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY});
        Shape::Scalar(range)
    }
}
