//! `routing.aliases`: another name for a model, or for several that share its requests.

use penstock_api::choice;

use crate::syntax::collections::List;
use crate::syntax::document::{Content, Node};
use crate::syntax::dump::Dump;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, choice_setting, section};
use crate::syntax::shape::Shape;

section! {
    /// One of the models that share the requests for an alias.
    pub struct AliasTarget requires ["to"] {
        /// The model, or another alias.
        pub to: String = String::new(),
        /// Its share of the requests: its weight divided by the sum of all weights.
        pub weight: u32 = 1,
    }
}

/// The target of an alias: one model, or several by weight.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AliasTargets(pub Vec<AliasTarget>);

impl AliasTargets {
    /// Returns whether several models share its requests.
    pub fn is_split(&self) -> bool {
        self.0.len() > 1
    }
}

impl From<&str> for AliasTargets {
    fn from(to: &str) -> Self {
        Self(vec![AliasTarget { to: to.to_owned(), weight: 1 }])
    }
}

impl Setting for AliasTargets {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match &node.content {
            Content::Scalar(_) => Some(Self::from(String::read(node, reader)?.as_str())),
            Content::List(_) => {
                let targets = List::<AliasTarget>::read(node, reader)?;
                if targets.iter().map(|target| u64::from(target.weight)).sum::<u64>() == 0 {
                    return reader.refuse(node, |key| Problem::NoWeight { key });
                }
                Some(Self(targets))
            }
            Content::Null | Content::Map(_) => {
                reader.refuse_kind(node, "a model or a list of models with weights")
            }
        }
    }

    fn dump(value: &Self) -> Dump {
        match value.0.as_slice() {
            [one] => String::dump(&one.to),
            several => Dump::List(several.iter().map(AliasTarget::dump).collect()),
        }
    }

    fn shape() -> Shape {
        Shape::Either(vec![Shape::text(), List::<AliasTarget>::shape()])
    }
}

choice! {
    /// The requests for an alias with several models that go to the same one.
    pub enum SplitBy {
        /// Requests of one session: by the header or cookie of the scorer session-affinity, else by
        /// the headers and members of the body in which agents name their sessions. Requests
        /// without a session are split one by one.
        Session = "session",
        /// Requests of one client key; without a key as `session`.
        Key = "key",
        /// None: each request by itself.
        Request = "request",
    }
}
choice_setting!(SplitBy);
