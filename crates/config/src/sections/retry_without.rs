//! The parts that a request may lose when an engine refuses it for them (`routing.retry_without`).

use penstock_api::Capabilities;

use crate::syntax::collections::List;
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;
use crate::syntax::shape::Shape;

/// The capabilities that can be taken out of a request. The response format is not one of them.
const DROPPABLE: [(Capabilities, &str); 2] =
    [(Capabilities::TOOLS, "tools"), (Capabilities::VISION, "vision")];

/// A list of capabilities that requests may do without.
pub(super) struct RetryWithout;

impl Setting for RetryWithout {
    type Value = Capabilities;

    fn read(node: &Node, reader: &mut Reader) -> Option<Capabilities> {
        let sets = List::<Droppable>::read(node, reader)?;
        Some(sets.into_iter().fold(Capabilities::NONE, Capabilities::union))
    }

    fn dump(value: &Capabilities) -> Dump {
        Dump::List(value.names().map(Dump::text).collect())
    }

    fn shape() -> Shape {
        List::<Droppable>::shape()
    }
}

struct Droppable;

impl Setting for Droppable {
    type Value = Capabilities;

    fn read(node: &Node, reader: &mut Reader) -> Option<Capabilities> {
        let name = reader.scalar(node, "tools or vision")?;
        match DROPPABLE.iter().find(|(_, known)| *known == name) {
            Some((capability, _)) => Some(*capability),
            None => reader.refuse_name(node, name, names()),
        }
    }

    fn dump(value: &Capabilities) -> Dump {
        Dump::text(&value.to_string())
    }

    fn shape() -> Shape {
        Shape::names(names())
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    DROPPABLE.iter().map(|(_, name)| *name)
}
