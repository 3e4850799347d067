//! The forms of results, and the members that decide about each.

use penstock_api::Operation;

/// The form of an operation's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultForm {
    /// `choices` of OpenAI's chats and completions.
    Choices,
    /// `content` of llama.cpp's own API.
    Text,
    /// `content` of Anthropic's messages.
    Blocks,
    /// `output` of OpenAI's responses.
    Items,
    /// `message` or `response` of Ollama's own API.
    Ollama,
    /// Embeddings.
    Vectors,
    /// Scores, ranks and classes.
    Rows,
    /// `text` of a sound.
    Transcript,
    /// `data` of pictures.
    Pictures,
}

impl ResultForm {
    pub(super) fn of(operation: Operation) -> Option<Self> {
        Some(match operation {
            Operation::Chat | Operation::Completions | Operation::FillInTheMiddle => Self::Choices,
            Operation::NativeCompletion | Operation::Infill => Self::Text,
            Operation::Messages => Self::Blocks,
            Operation::Responses => Self::Items,
            Operation::OllamaChat | Operation::OllamaGenerate => Self::Ollama,
            Operation::Embeddings | Operation::OllamaEmbed | Operation::OllamaEmbeddings => {
                Self::Vectors
            }
            Operation::Rerank
            | Operation::Score
            | Operation::Moderations
            | Operation::Classify
            | Operation::Pooling => Self::Rows,
            Operation::Transcriptions | Operation::Translations => Self::Transcript,
            Operation::ImageGenerations | Operation::ImageEdits | Operation::ImageVariations => {
                Self::Pictures
            }
            // Audio, text that is only counted or formatted, and what is not known.
            _ => return None,
        })
    }

    /// Returns whether a list at the top may be a result.
    pub(super) fn may_be_list(self) -> bool {
        matches!(self, Self::Text | Self::Vectors | Self::Rows)
    }

    /// Returns whether the state of a result decides, too, so that it is read to its end.
    pub(super) fn has_state(self) -> bool {
        matches!(self, Self::Items | Self::Ollama)
    }

    pub(super) fn member(self, name: &[u8]) -> ResultMember {
        let is_output = match self {
            Self::Choices => name == b"choices",
            Self::Text => matches!(name, b"content" | b"choices" | b"tokens"),
            Self::Blocks => name == b"content",
            Self::Items => matches!(name, b"output" | b"output_text"),
            Self::Ollama => name == b"message",
            Self::Vectors => matches!(name, b"data" | b"embedding" | b"embeddings"),
            Self::Rows => !matches!(name, b"error" | b"errors" | b"detail" | b"warnings"),
            Self::Transcript => matches!(name, b"text" | b"segments" | b"words"),
            Self::Pictures => matches!(name, b"data" | b"images"),
        };
        match (self, name) {
            _ if is_output => ResultMember::Output,
            // A gateway has its text in `message`.
            (Self::Ollama, b"response" | b"thinking" | b"image") => ResultMember::Text,
            (Self::Items, b"status") | (Self::Ollama, b"done" | b"done_reason") => {
                ResultMember::State
            }
            _ => ResultMember::Other,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum ResultMember {
    Output,
    /// Output that is a string.
    Text,
    State,
    Other,
}
