//! The operations that are converted, as one table: a row holds the readers and writers of an
//! operation's requests and responses. A new dialect is a row here per operation, and its readers
//! and writers in a separate file.

use penstock_api::{Operation, StreamFraming};

use super::conversation::Conversation;
use super::error::ConvertError;
use super::framing::Framing;
use super::response_readers::{self, ResponseReader};
use super::response_writers::in_order::InOrder;
use super::response_writers::{self, ResponseWriter, WholeWriter, WriteWhole};
use super::{RequestTerms, request_readers, request_writers};

/// Reads the body of a request.
type ReadRequest = fn(&[u8]) -> Result<Conversation<'_>, ConvertError>;

/// Appends the body of a request.
type WriteRequest =
    fn(&Conversation<'_>, &RequestTerms<'_>, &mut Vec<u8>) -> Result<(), ConvertError>;

/// The writers of a response, complete and as a stream.
#[derive(Debug)]
pub(super) struct ResponseWriters {
    pub(super) whole: WriteWhole,
    pub(super) stream: fn() -> Box<dyn ResponseWriter>,
}

/// One row of [`CODECS`]. Clients call the operation if it has `read_request` and
/// `write_response`; backends serve it if it has the other two.
#[derive(Debug)]
pub(super) struct Codec {
    operation: Operation,
    read_request: Option<ReadRequest>,
    write_request: Option<WriteRequest>,
    read_response: Option<fn() -> Box<dyn ResponseReader>>,
    write_response: Option<ResponseWriters>,
    /// The operation that a raw prompt becomes: a chat's template would change the prompt.
    of_raw_prompts: Option<Operation>,
}

const fn codec(operation: Operation) -> Codec {
    Codec {
        operation,
        read_request: None,
        write_request: None,
        read_response: None,
        write_response: None,
        of_raw_prompts: None,
    }
}

/// The readers and writers of the operations that are converted.
const CODECS: &[Codec] = &[
    Codec {
        read_request: Some(request_readers::chat::read),
        write_request: Some(request_writers::chat::write),
        read_response: Some(|| Box::<response_readers::chat::ChatReader>::default()),
        write_response: Some(ResponseWriters {
            whole: response_writers::chat::write_whole,
            stream: || Box::<response_writers::chat::ChatChunks>::default(),
        }),
        of_raw_prompts: Some(Operation::Completions),
        ..codec(Operation::Chat)
    },
    Codec {
        read_request: Some(request_readers::completions::read),
        write_request: Some(request_writers::completions::write),
        read_response: Some(|| Box::<response_readers::completions::CompletionsReader>::default()),
        write_response: Some(ResponseWriters {
            whole: response_writers::completions::write_whole,
            stream: || Box::<response_writers::completions::CompletionChunks>::default(),
        }),
        ..codec(Operation::Completions)
    },
    Codec {
        read_request: Some(request_readers::responses::read_body),
        write_response: Some(ResponseWriters {
            whole: response_writers::responses::write_whole,
            stream: || Box::<InOrder<response_writers::responses::ResponseEvents>>::default(),
        }),
        ..codec(Operation::Responses)
    },
    Codec {
        read_request: Some(request_readers::messages::read_body),
        write_request: Some(request_writers::messages::write),
        read_response: Some(|| Box::<response_readers::messages::MessagesReader>::default()),
        write_response: Some(ResponseWriters {
            whole: response_writers::messages::write_whole,
            stream: || Box::<InOrder<response_writers::messages::MessageEvents>>::default(),
        }),
        ..codec(Operation::Messages)
    },
    Codec {
        read_request: Some(request_readers::messages::read_body),
        ..codec(Operation::CountTokens)
    },
    // Both take the messages of a chat, and the other inputs of a template.
    Codec { write_request: Some(request_writers::chat::write), ..codec(Operation::ApplyTemplate) },
    Codec { write_request: Some(request_writers::chat::write), ..codec(Operation::Tokenize) },
    Codec {
        read_request: Some(request_readers::ollama_chat::read),
        write_request: Some(request_writers::ollama::write_chat),
        read_response: Some(|| Box::<response_readers::ollama::OllamaReader>::default()),
        write_response: Some(ResponseWriters {
            whole: response_writers::ollama::write_chat,
            stream: || Box::<response_writers::ollama::ChatLines>::default(),
        }),
        ..codec(Operation::OllamaChat)
    },
    Codec {
        read_request: Some(request_readers::ollama_generate::read),
        write_request: Some(request_writers::ollama::write_generate),
        read_response: Some(|| Box::<response_readers::ollama::OllamaReader>::default()),
        write_response: Some(ResponseWriters {
            whole: response_writers::ollama::write_generate,
            stream: || Box::<response_writers::ollama::GenerateLines>::default(),
        }),
        ..codec(Operation::OllamaGenerate)
    },
];

fn codec_of(operation: Operation) -> Option<&'static Codec> {
    CODECS.iter().find(|codec| codec.operation == operation)
}

/// Reads the body of a request that generates text; returns `None` if no reader for the operation
/// exists.
pub(super) fn read_request(
    operation: Operation,
    body: &[u8],
) -> Option<Result<Conversation<'_>, ConvertError>> {
    let read = codec_of(operation)?.read_request?;
    let conversation = read(body).map(request_readers::drop_billing_line);
    Some(conversation.map(request_readers::drop_settings_without_tools))
}

/// Writes the body of a request to a backend, and returns the resulting operation: a raw prompt
/// becomes a completion wherever chat was wanted. Returns `None` if no writer for the operation
/// exists.
pub(super) fn write_request(
    operation: Operation,
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Option<Result<Operation, ConvertError>> {
    let of_raw_prompts = codec_of(operation)?.of_raw_prompts;
    let operation = of_raw_prompts.filter(|_| conversation.raw.is_some()).unwrap_or(operation);
    let write = codec_of(operation)?.write_request?;
    Some(write(conversation, terms, out).map(|()| operation))
}

/// Returns the reader of `operation`'s responses and the framing of their stream; `None` if there
/// is none.
pub(super) fn reader_of(operation: Operation) -> Option<(Box<dyn ResponseReader>, Framing)> {
    let create = codec_of(operation)?.read_response?;
    let framing = match operation.row().dialect.row().framing {
        StreamFraming::Events => Framing::Events,
        StreamFraming::Lines => Framing::Lines,
    };
    Some((create(), framing))
}

/// Returns the writer of `operation`'s responses; `None` if there is none.
pub(super) fn writer_of(operation: Operation, is_stream: bool) -> Option<Box<dyn ResponseWriter>> {
    let writers = codec_of(operation)?.write_response.as_ref()?;
    Some(if is_stream { (writers.stream)() } else { Box::new(WholeWriter::new(writers.whole)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_one_row_per_operation() {
        for (index, codec) in CODECS.iter().enumerate() {
            let first = CODECS.iter().position(|row| row.operation == codec.operation);
            assert_eq!(first, Some(index), "{}", codec.operation.name());
        }
    }

    #[test]
    fn operation_has_both_sides_of_a_client_and_of_a_backend() {
        for codec in CODECS.iter().filter(|codec| codec.read_response.is_some()) {
            assert!(codec.write_request.is_some(), "{}", codec.operation.name());
        }
        for codec in CODECS.iter().filter(|codec| codec.write_response.is_some()) {
            assert!(codec.read_request.is_some(), "{}", codec.operation.name());
        }
    }
}
