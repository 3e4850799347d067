//! `routing.retry_unanswered`: the reaction to a lost connection. The values `true` and `false` of
//! earlier versions stay valid.

use penstock_api::choice;

use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;
use crate::syntax::shape::Shape;

choice! {
    /// The retry of a request whose connection was lost before a response.
    pub enum RetryUnanswered {
        /// Once, unless it has effects beside its response.
        Lost = "lost",
        /// Never; `false` means the same.
        Never = "never",
        /// As often as other failures, whatever the request is; `true` means the same.
        Always = "always",
    }
}

impl Setting for RetryUnanswered {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, "lost, never or always")?;
        let named = match text.trim() {
            "true" => Some(Self::Always),
            "false" => Some(Self::Never),
            name => Self::from_name(name),
        };
        named.or_else(|| reader.refuse_name(node, text, Self::names()))
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(value.name())
    }

    fn shape() -> Shape {
        Shape::names(Self::names().chain(["true", "false"]))
    }
}
