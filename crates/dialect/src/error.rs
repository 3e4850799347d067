//! The errors of converting a request and of converting a response.

/// The reason why a request cannot be expressed in the backend's API. The client gets a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// The body is not a JSON object.
    #[error("the body is not a valid JSON object")]
    NotJson,
    /// A field has the wrong type or an unknown value.
    #[error("{field} must be {expected}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The expected form.
        expected: &'static str,
    },
    /// An item of a list has the wrong type or an unknown value.
    #[error("{field}[{index}] must be {expected}")]
    InvalidItem {
        /// The name of the list.
        field: &'static str,
        /// The index of the item.
        index: usize,
        /// The expected form.
        expected: &'static str,
    },
    /// The backend that serves the model has no form for a field.
    #[error("{field} cannot be served by this model's backend: {reason}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// The feature that the backend's API lacks.
        reason: &'static str,
    },
    /// There is nothing to generate: in Ollama's API such a request loads or unloads a model.
    #[error("{field} is empty")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// No conversion exists between the two operations.
    #[error("no conversion from {from} to {to} exists")]
    NoConversion {
        /// The operation that the client called.
        from: &'static str,
        /// The operation that the backend serves.
        to: &'static str,
    },
}

impl ConvertError {
    /// Returns the field at fault, for `param`.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::NotJson | Self::NoConversion { .. } => None,
            Self::Invalid { field, .. }
            | Self::InvalidItem { field, .. }
            | Self::Unsupported { field, .. }
            | Self::Empty { field } => Some(field),
        }
    }
}

/// The reason why a backend's response cannot be converted. Bytes that the client has received stay
/// valid; [`cut`](super::ResponseConverter::cut) ends them visibly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadResponse {
    /// An event, or the complete response, is not what the API describes.
    #[error("the backend's response is not a valid {expected}")]
    Malformed {
        /// The expected form.
        expected: &'static str,
    },
    /// Something that must be held exceeds its limit.
    #[error("{held} of the backend's response is larger than {limit} bytes")]
    TooLarge {
        /// The thing that is held.
        held: &'static str,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The stream ended before its last event.
    #[error("the backend's response ended before its last event")]
    EndedEarly,
    /// The engine reports in `finish_reason` that the generation failed.
    #[error("the backend reports that the generation failed")]
    GenerationFailed,
    /// More of a tool call came after its arguments were complete and the next block had started.
    #[error("the backend sent more of a tool call whose arguments were complete")]
    MixedCalls,
    /// The arguments of a tool call are not a JSON object.
    #[error("the backend sent a tool call whose arguments are not a JSON object")]
    BadArguments,
}

/// The end of a step of a conversion: it is done, or the response is bad.
pub(crate) type Done = Result<(), BadResponse>;
