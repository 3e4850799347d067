//! The forms in which engines write a text: `content` as a string or as a list of chunks, the
//! arguments of a tool call as a string or as an object.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::is_string;
use crate::piece::Piece;

/// The `content` of a message or a delta. Mistral's API sends a list of chunks if a model thinks.
#[derive(Debug)]
pub(super) enum MessageContent<'a> {
    Text(Piece<'a>),
    Chunks(Vec<ContentChunk<'a>>),
}

impl Default for MessageContent<'_> {
    fn default() -> Self {
        Self::Chunks(Vec::new())
    }
}

impl MessageContent<'_> {
    /// Returns whether it has nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Chunks(chunks) => chunks.is_empty(),
        }
    }
}

/// A chunk of a content. Chunks without text, such as references and images, have no equivalent for
/// a converted client.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ContentChunk<'a> {
    pub(super) text: Option<Piece<'a>>,
    pub(super) refusal: Option<Piece<'a>>,
    /// The model's thinking: a string, or chunks again.
    pub(super) thinking: Option<Box<MessageContent<'a>>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for MessageContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = MessageContent<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string or a list of chunks")
            }

            fn visit_borrowed_bytes<E: Error>(
                self,
                bytes: &'de [u8],
            ) -> Result<MessageContent<'de>, E> {
                Ok(MessageContent::Text(bytes.into()))
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<MessageContent<'de>, E> {
                Ok(MessageContent::Text(bytes.to_vec().into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<MessageContent<'de>, A::Error> {
                let mut chunks = Vec::new();
                // The same deserializer is used, so its nesting limit holds for chunks within
                // chunks.
                while let Some(chunk) = list.next_element()? {
                    chunks.push(chunk);
                }
                Ok(MessageContent::Chunks(chunks))
            }
        }

        // `serde_json` passes a list on as a list and a string as bytes, including halves of
        // surrogate pairs.
        deserializer.deserialize_bytes(ContentVisitor)
    }
}

/// The arguments of a call: the text of a JSON object, or the object itself.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a>(pub(super) Piece<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Arguments<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        if is_string(raw) {
            return serde_json::from_str(raw.get()).map(Self).map_err(D::Error::custom);
        }
        Ok(Self(raw.get().into()))
    }
}
