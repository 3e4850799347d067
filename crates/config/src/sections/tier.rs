//! `tier:` the quality of models by the operator's judgement.

use penstock_api::Tier;
use serde_json::json;

use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;
use crate::syntax::shape::Shape;

/// A tier, from 1 to 5.
pub(super) struct TierNumber;

impl Setting for TierNumber {
    type Value = Tier;

    fn read(node: &Node, reader: &mut Reader) -> Option<Tier> {
        reader.parse(node, "a tier from 1 to 5", |text| Tier::new(text.parse().ok()?))
    }

    fn dump(value: &Tier) -> Dump {
        Dump::Integer(value.number().into())
    }

    fn shape() -> Shape {
        Shape::Scalar(json!({"type": "integer", "minimum": 1, "maximum": 5}))
    }
}
