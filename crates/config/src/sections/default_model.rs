//! `routing.default_model`: the model of requests that name none.

use std::collections::BTreeMap;

use penstock_api::{Operation, Operations};

use super::name_sets::{NamedSet, OperationNames};
use crate::syntax::document::{Content, Node};
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;
use crate::syntax::shape::Shape;

const AUTO: &str = "auto";
const NONE: &str = "none";

/// The model of a request that names none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DefaultModel {
    /// The only model of the fleet, if there is exactly one.
    #[default]
    Auto,
    /// None: such a request is an error.
    None,
    /// One model for all operations.
    One(String),
    /// One model for each of these operations, and `auto` for the others.
    PerOperation(BTreeMap<Operation, String>),
}

impl DefaultModel {
    /// The model configured for `operation`.
    pub fn of(&self, operation: Operation) -> Option<&str> {
        match self {
            Self::Auto | Self::None => None,
            Self::One(model) => Some(model),
            Self::PerOperation(models) => models.get(&operation).map(String::as_str),
        }
    }
}

impl Setting for DefaultModel {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let Content::Map(entries) = &node.content else {
            return Some(
                match reader.scalar(node, "a model, or a mapping of operations to models")? {
                    AUTO => Self::Auto,
                    NONE => Self::None,
                    model => Self::One(model.to_owned()),
                },
            );
        };
        let mut models = BTreeMap::new();
        for entry in entries {
            let key =
                Node { place: entry.place.clone(), content: Content::Scalar(entry.key.clone()) };
            let Some(operations) = Operations::from_name(&entry.key) else {
                let _refused: Option<()> =
                    reader.refuse_name(&key, &entry.key, OperationNames::allowed());
                continue;
            };
            let model = reader
                .within(format!(".{}", entry.key), |reader| String::read(&entry.node, reader));
            for operation in operations.iter() {
                models.extend(model.clone().map(|model| (operation, model)));
            }
        }
        Some(Self::PerOperation(models))
    }

    fn dump(value: &Self) -> Dump {
        match value {
            Self::Auto => Dump::text(AUTO),
            Self::None => Dump::text(NONE),
            Self::One(model) => Dump::text(model),
            Self::PerOperation(models) => {
                let named = |(operation, model): (&Operation, &String)| {
                    (operation.name().to_owned(), Dump::text(model))
                };
                Dump::Map(models.iter().map(named).collect())
            }
        }
    }

    fn shape() -> Shape {
        Shape::Either(vec![Shape::text(), Shape::Table(Box::new(Shape::text()))])
    }
}
