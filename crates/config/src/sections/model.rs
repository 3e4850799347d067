//! Settings of models: `models:` for all backends, and the list of each backend.

use penstock_api::{Capabilities, Operations, Tier};
use serde_json::json;

use super::name_sets::{CapabilityNames, NameList, OperationNames};
use super::price::Price;
use super::timeouts::TimeoutOverrides;
use crate::misplaced::other_words;
use crate::syntax::collections::{List, Maybe};
use crate::syntax::document::{Content, Entry, Node};
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Section, Setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::suggest::nearest;
use crate::syntax::values::AtLeastOne;

section! {
    /// Settings of a model.
    pub struct ModelConfig {
        /// Overrides of the global `timeouts` section.
        pub timeouts: TimeoutOverrides = TimeoutOverrides::default(),
        /// The price of its tokens, for the ledger.
        pub price: Option<Price> ["price" as Maybe<Price>] = None,
        /// Drops the oldest messages of a conversation when no backend has room for all.
        pub context_shift: bool = false,
        /// Drops the tools as well, when a conversation is still too long after that.
        pub context_shift_drops_tools: bool = false,
        /// The context that Ollama backends load it with, in tokens. Requests of OpenAI's and
        /// Anthropic's APIs are then converted to Ollama's own, which alone can say it.
        pub num_ctx: Option<u32> ["num_ctx" as Maybe<AtLeastOne<u32>>] = None,
        /// The objective of requests for it, where neither they nor their key name one: a name in
        /// `objectives`.
        pub objective: Option<String> ["objective" as Maybe<String>] = None,
        /// The models that write the drafts and critiques of its ensemble, in turn. Default:
        /// itself.
        pub ensemble: Vec<String> ["ensemble" as List<String>] = Vec::new(),
    }
}

section! {
    /// A model of a backend.
    pub struct ModelEntry requires ["id"] {
        /// The name that clients use.
        pub id: String = String::new(),
        /// The backend's name for the model. Default: `id`.
        pub upstream_id: Option<String> ["upstream_id" as Maybe<String>] = None,
        /// The context length in tokens.
        pub context_length: Option<u32> ["context_length" as Maybe<AtLeastOne<u32>>] = None,
        /// Capabilities beyond text: vision, tools, json_mode; [] for none.
        pub capabilities: Option<Capabilities> ["capabilities" as Maybe<NameList<CapabilityNames>>] =
            None,
        /// Supported operations: chat, completions, embeddings and so on.
        pub operations: Option<Operations> ["operations" as Maybe<NameList<OperationNames>>] = None,
        /// The price of its tokens on this backend. Default: that of `models.<id>.price`.
        pub price: Option<Price> ["price" as Maybe<Price>] = None,
        /// The quality of the model, from 1 to 5. Default: the backend's `tier`.
        pub tier: Option<Tier> ["tier" as Maybe<TierNumber>] = None,
        /// The maximum number of requests for it in flight on the backend. Default: the backend's
        /// `max_in_flight_per_model`.
        pub max_in_flight: Option<u32> ["max_in_flight" as Maybe<AtLeastOne<u32>>] = None,
    }
}

/// Returns whether a mapping is a name such as `llama3: 8b`, whose space makes it a mapping.
fn is_split_name(entries: &[Entry]) -> bool {
    let [entry] = entries else { return false };
    let keys = || ModelEntry::keys().map(|key| key.name);
    entry.is_plain()
        && nearest(&entry.key, keys()).is_none()
        && other_words(&entry.key, "backends[].models[]").is_empty()
}

/// An item of a backend's `models`: a mapping, or just the name.
pub(crate) struct ModelItem;

impl Setting for ModelItem {
    type Value = ModelEntry;

    fn read(node: &Node, reader: &mut Reader) -> Option<ModelEntry> {
        match &node.content {
            Content::Scalar(_) => {
                String::read(node, reader).map(|id| ModelEntry { id, ..Default::default() })
            }
            Content::Map(entries) if is_split_name(entries) => {
                const EXPECTED: &str = "the id of a model, such as llama3:8b, without a space after \
                                        ':' or in quotes; or a mapping with 'id'";
                reader.refuse_kind(node, EXPECTED)
            }
            Content::Null | Content::List(_) | Content::Map(_) => ModelEntry::read(node, reader),
        }
    }

    fn dump(value: &ModelEntry) -> Dump {
        ModelEntry::dump(value)
    }

    fn shape() -> Shape {
        Shape::Either(vec![Shape::text(), ModelEntry::shape()])
    }
}

/// A tier, from 1 to 5: the quality of models by the operator's judgement.
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
