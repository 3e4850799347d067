//! What clients may call: the tables of operations, dialects and capabilities. A new operation is a
//! row here and its prompt fields in `scan`.

mod credentials;
mod dialect;
mod errors;
pub(crate) mod hex;
mod offer;
mod printable;
mod trace;

pub(crate) use credentials::bearer_token;
pub use dialect::{DIALECTS, Dialect, DialectRow, ErrorReport, error_body, error_event};
pub use errors::{ERROR_CODES, ErrorCode, ErrorRow};
pub use offer::Offer;
pub use printable::{MAX_NAME, escape, is_unprintable, show_names};
pub use trace::{TRACEPARENT, TRACESTATE, TraceContext};

use std::fmt;

/// What a path asks an engine to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
    /// `POST /v1/moderations`
    Moderations,
    /// `POST /v1/audio/speech`
    Speech,
    /// `POST /v1/audio/transcriptions`
    Transcriptions,
    /// `POST /v1/audio/translations`
    Translations,
    /// `POST /v1/images/generations`
    ImageGenerations,
    /// `POST /v1/images/edits`
    ImageEdits,
}

/// How an operation's request body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    /// One JSON object.
    Json,
    /// `multipart/form-data` with a `model` field.
    Multipart,
}

/// One row of the operation table.
#[derive(Debug)]
pub struct OperationRow {
    /// The operation.
    pub operation: Operation,
    /// Its name in configuration, metrics and messages.
    pub name: &'static str,
    /// Its path, always with POST.
    pub path: &'static str,
    /// Its dialect: the format of errors and keys.
    pub dialect: Dialect,
    /// How its body is framed.
    pub body: BodyFormat,
    /// The event that reports a broken stream, where it is not that of the dialect.
    pub stream_error: Option<fn(ErrorCode, &str) -> Vec<u8>>,
    /// `gen_ai.operation.name` of the OpenTelemetry conventions.
    pub gen_ai_name: &'static str,
}

const fn row(
    operation: Operation,
    name: &'static str,
    path: &'static str,
    gen_ai_name: &'static str,
) -> OperationRow {
    OperationRow {
        operation,
        name,
        path,
        dialect: Dialect::OpenAi,
        body: BodyFormat::Json,
        stream_error: None,
        gen_ai_name,
    }
}

/// Every operation, in the order of [`Operation`].
pub const OPERATIONS: &[OperationRow] = &[
    row(Operation::Chat, "chat", "/v1/chat/completions", "chat"),
    row(Operation::Completions, "completions", "/v1/completions", "text_completion"),
    row(Operation::Embeddings, "embeddings", "/v1/embeddings", "embeddings"),
    OperationRow {
        stream_error: Some(dialect::response_failed),
        ..row(Operation::Responses, "responses", "/v1/responses", "chat")
    },
    OperationRow {
        dialect: Dialect::Anthropic,
        ..row(Operation::Messages, "messages", "/v1/messages", "chat")
    },
    row(Operation::Rerank, "rerank", "/v1/rerank", "rerank"),
    row(Operation::Score, "score", "/v1/score", "score"),
    row(Operation::Moderations, "moderations", "/v1/moderations", "moderation"),
    row(Operation::Speech, "speech", "/v1/audio/speech", "generate_content"),
    OperationRow {
        body: BodyFormat::Multipart,
        ..row(
            Operation::Transcriptions,
            "transcriptions",
            "/v1/audio/transcriptions",
            "generate_content",
        )
    },
    OperationRow {
        body: BodyFormat::Multipart,
        ..row(Operation::Translations, "translations", "/v1/audio/translations", "generate_content")
    },
    row(
        Operation::ImageGenerations,
        "image_generations",
        "/v1/images/generations",
        "generate_content",
    ),
    OperationRow {
        body: BodyFormat::Multipart,
        ..row(Operation::ImageEdits, "image_edits", "/v1/images/edits", "generate_content")
    },
];

impl Operation {
    /// This operation's row of [`OPERATIONS`].
    #[expect(
        clippy::indexing_slicing,
        reason = "the table has a row per variant; a test checks the order"
    )]
    pub fn row(self) -> &'static OperationRow {
        &OPERATIONS[self as usize]
    }

    /// The operation called by `path`.
    pub fn from_path(path: &str) -> Option<Self> {
        OPERATIONS.iter().find(|row| row.path == path).map(|row| row.operation)
    }

    /// The name used in configuration, metrics and messages.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// A set of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operations(u16);

impl Operations {
    /// Every operation.
    pub const ALL: Self = Self((1 << OPERATIONS.len()) - 1);

    /// The set `name` stands for in configuration: one operation, or the groups `audio` and
    /// `images`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "audio" => Some(
                Self::default()
                    .with(Operation::Speech)
                    .with(Operation::Transcriptions)
                    .with(Operation::Translations),
            ),
            "images" => {
                Some(Self::default().with(Operation::ImageGenerations).with(Operation::ImageEdits))
            }
            _ => OPERATIONS
                .iter()
                .find(|row| row.name == name)
                .map(|row| Self::default().with(row.operation)),
        }
    }

    /// The set with `operation` in it.
    #[must_use]
    pub const fn with(self, operation: Operation) -> Self {
        Self(self.0 | 1 << operation as u16)
    }

    /// The set with all of `other` in it.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `operation` is in the set.
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u16) != 0
    }

    /// The operations in the set, in table order.
    pub fn iter(self) -> impl Iterator<Item = Operation> {
        OPERATIONS
            .iter()
            .map(|row| row.operation)
            .filter(move |operation| self.contains(*operation))
    }
}

/// A set of what a model can do beyond plain text: vision, tools, JSON mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u8);

impl Capabilities {
    /// Nothing beyond plain text.
    pub const NONE: Self = Self(0);
    /// Images in the prompt.
    pub const VISION: Self = Self(1);
    /// Tool (function) calls.
    pub const TOOLS: Self = Self(2);
    /// Output constrained to JSON or a JSON schema.
    pub const JSON_MODE: Self = Self(4);
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Every capability with its name, in the order messages list them.
    pub const NAMED: [(Self, &'static str); 3] =
        [(Self::VISION, "vision"), (Self::TOOLS, "tools"), (Self::JSON_MODE, "json_mode")];

    /// The capability called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(_, known)| *known == name).map(|(capability, _)| *capability)
    }

    /// What is in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in this set and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of what is in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.iter().filter(move |(one, _)| self.contains(*one)).map(|(_, name)| *name)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        write!(out, "[{}]", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_row_per_operation_in_order() {
        for (index, row) in OPERATIONS.iter().enumerate() {
            assert_eq!(row.operation as usize, index, "{}", row.name);
            assert_eq!(Operation::from_path(row.path), Some(row.operation));
            assert_eq!(
                Operations::from_name(row.name),
                Some(Operations::default().with(row.operation))
            );
        }
        assert_eq!(Operations::ALL.iter().count(), OPERATIONS.len());
    }

    #[test]
    fn capability_sets_print_their_names() {
        let needs = Capabilities::VISION.union(Capabilities::JSON_MODE);
        assert_eq!(needs.to_string(), "[vision, json_mode]");
        assert_eq!(needs.without(Capabilities::VISION), Capabilities::JSON_MODE);
        assert!(Capabilities::ALL.contains(needs));
    }
}
