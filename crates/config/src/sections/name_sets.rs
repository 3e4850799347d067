//! Lists of names that stand for a set: of capabilities, or of operations.

use std::marker::PhantomData;

use penstock_api::{Capabilities, OPERATIONS, Operations};

use crate::syntax::collections::List;
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;
use crate::syntax::shape::Shape;

/// A set, and the names that may be given for it.
pub(super) trait NamedSet {
    type Set: Copy + Default;
    /// The description of one name, for errors.
    const NAME: &'static str;
    const FROM_NAME: fn(&str) -> Option<Self::Set>;
    const UNION: fn(Self::Set, Self::Set) -> Self::Set;

    fn allowed() -> impl Iterator<Item = &'static str>;
    fn names(set: Self::Set) -> impl Iterator<Item = &'static str>;
}

/// The capabilities of a model.
pub(super) struct CapabilityNames;

impl NamedSet for CapabilityNames {
    type Set = Capabilities;
    const NAME: &'static str = "the name of a capability";
    const FROM_NAME: fn(&str) -> Option<Capabilities> = Capabilities::from_name;
    const UNION: fn(Capabilities, Capabilities) -> Capabilities = Capabilities::union;

    fn allowed() -> impl Iterator<Item = &'static str> {
        Capabilities::ALL.names()
    }

    fn names(set: Capabilities) -> impl Iterator<Item = &'static str> {
        set.names()
    }
}

/// The parts that a request may lose when an engine refuses it for them (`routing.retry_without`).
/// The response format is not one of them.
pub(super) struct RetryWithout;

impl NamedSet for RetryWithout {
    type Set = Capabilities;
    const NAME: &'static str = "tools or vision";
    const FROM_NAME: fn(&str) -> Option<Capabilities> = Capabilities::from_name;
    const UNION: fn(Capabilities, Capabilities) -> Capabilities = Capabilities::union;

    fn allowed() -> impl Iterator<Item = &'static str> {
        ["tools", "vision"].into_iter()
    }

    fn names(set: Capabilities) -> impl Iterator<Item = &'static str> {
        set.names()
    }
}

/// Operations, and groups of them.
pub(super) struct OperationNames;

impl NamedSet for OperationNames {
    type Set = Operations;
    const NAME: &'static str = "the name of an operation";
    const FROM_NAME: fn(&str) -> Option<Operations> = Operations::from_name;
    const UNION: fn(Operations, Operations) -> Operations = Operations::union;

    fn allowed() -> impl Iterator<Item = &'static str> {
        OPERATIONS.iter().map(|row| row.name).chain(["audio", "images"])
    }

    fn names(set: Operations) -> impl Iterator<Item = &'static str> {
        set.iter().map(|operation| operation.name())
    }
}

/// A list of names.
pub(super) struct NameList<S>(PhantomData<S>);

impl<S: NamedSet> Setting for NameList<S> {
    type Value = S::Set;

    fn read(node: &Node, reader: &mut Reader) -> Option<S::Set> {
        let sets = List::<OneName<S>>::read(node, reader)?;
        Some(sets.into_iter().fold(S::Set::default(), S::UNION))
    }

    fn dump(value: &S::Set) -> Dump {
        Dump::List(S::names(*value).map(Dump::text).collect())
    }

    fn shape() -> Shape {
        List::<OneName<S>>::shape()
    }
}

struct OneName<S>(PhantomData<S>);

impl<S: NamedSet> Setting for OneName<S> {
    type Value = S::Set;

    fn read(node: &Node, reader: &mut Reader) -> Option<S::Set> {
        let name = reader.scalar(node, S::NAME)?;
        let is_allowed = S::allowed().any(|allowed| allowed == name);
        let set = S::FROM_NAME(name).filter(|_| is_allowed);
        set.or_else(|| reader.refuse_name(node, name, S::allowed()))
    }

    fn dump(value: &S::Set) -> Dump {
        NameList::<S>::dump(value)
    }

    fn shape() -> Shape {
        Shape::names(S::allowed())
    }
}
