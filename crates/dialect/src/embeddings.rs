//! Embeddings: `/v1/embeddings`, `/api/embed` and its older form `/api/embeddings`. Vectors are
//! read as numbers or base64, and written as the client wants them.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_api::Operation;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::conversation::ModelKeepAlive;
use super::error::{BadResponse, ConvertError, Done};
use super::json::{Fields, ListWriter, ObjectWriter, Text, is_string, read_value, text_of};
use super::reply::{EmbeddingTerms, ReplyFacts};
use super::request_readers::read_keep_alive;
use super::response_readers::{Count, OpenAiUsage};
use super::{RequestTerms, engine_error, error_body};

/// Returns whether an operation creates embeddings.
pub(super) fn is_embedding(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Embeddings | Operation::OllamaEmbed | Operation::OllamaEmbeddings
    )
}

/// Converts a request; returns `None` if there is no such conversion.
pub(super) fn convert_request(
    from: Operation,
    to: Operation,
    body: &[u8],
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Option<Result<EmbeddingTerms, ConvertError>> {
    match (from, to) {
        (Operation::OllamaEmbed, Operation::Embeddings) => {
            Some(to_openai("input", body, terms, out))
        }
        (Operation::OllamaEmbeddings, Operation::Embeddings) => {
            Some(to_openai("prompt", body, terms, out))
        }
        (Operation::Embeddings, Operation::OllamaEmbed) => Some(to_ollama(body, terms, out)),
        _ => None,
    }
}

const INPUT: &str = "a string or a list of strings";

/// Reads the texts to embed: one, or several.
fn read_inputs<'a>(
    fields: &mut Fields<'a>,
    field: &'static str,
) -> Result<Vec<Text<'a>>, ConvertError> {
    let inputs: Vec<Text<'_>> = match fields.take(field) {
        None => Vec::new(),
        Some(raw) if is_string(raw) => vec![read_value(raw, field, INPUT)?],
        Some(raw) => read_value(raw, field, INPUT)?,
    };
    let is_empty = match inputs.as_slice() {
        [] => true,
        // In Ollama's API one empty text loads the model.
        [only] => only.is_empty(),
        _ => false,
    };
    if is_empty { Err(ConvertError::Empty { field }) } else { Ok(inputs) }
}

fn to_openai(
    field: &'static str,
    body: &[u8],
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<EmbeddingTerms, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let inputs = read_inputs(&mut fields, field)?;
    let keep_alive = fields.take("keep_alive").map(read_keep_alive).transpose()?;
    // What only Ollama has would be an unknown argument to strict servers.
    fields.discard(&["model", "input", "truncate", "options", "encoding_format"]);
    let mut object = ObjectWriter::new(out);
    object.text("model", terms.model);
    write_inputs(&inputs, &mut object);
    // Ollama's API has no vectors in base64.
    object.text("encoding_format", "float");
    if let (true, Some(ModelKeepAlive::Seconds(seconds))) =
        (terms.engine.row().fields.takes_ttl, keep_alive)
    {
        object.number("ttl", seconds);
    }
    fields.iter().for_each(|(name, value)| object.raw(name, value.get()));
    Ok(EmbeddingTerms { base64: false, inputs: inputs.len() })
}

fn to_ollama(
    body: &[u8],
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<EmbeddingTerms, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let inputs = read_inputs(&mut fields, "input")?;
    let encoding: Option<Text<'_>> = fields.take_as("encoding_format", "float or base64")?;
    let base64 = match encoding.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let expected = "float or base64";
            return Err(ConvertError::Invalid { field: "encoding_format", expected });
        }
    };
    fields.discard(&["model", "user"]);
    let mut object = ObjectWriter::new(out);
    object.text("model", terms.model);
    write_inputs(&inputs, &mut object);
    fields.iter().for_each(|(name, value)| object.raw(name, value.get()));
    Ok(EmbeddingTerms { base64, inputs: inputs.len() })
}

fn write_inputs(inputs: &[Text<'_>], object: &mut ObjectWriter<'_>) {
    match inputs {
        [only] => object.text("input", only),
        several => {
            let mut list = object.list("input");
            several.iter().for_each(|input| list.text(input));
        }
    }
}

/// The vectors of a response, in the order of the texts.
#[derive(Debug, Default)]
struct Vectors {
    list: Vec<Vec<f32>>,
    prompt_tokens: Option<u64>,
    load: Duration,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OpenAiResponse<'a> {
    data: Option<Vec<EmbeddingItem<'a>>>,
    usage: Option<OpenAiUsage>,
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct EmbeddingItem<'a> {
    index: Option<usize>,
    embedding: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OllamaResponse<'a> {
    embeddings: Option<Vec<Vec<f32>>>,
    prompt_eval_count: Option<Count>,
    load_duration: Option<Count>,
    error: Option<&'a RawValue>,
}

/// Converts a whole response.
pub(super) fn convert_response(
    client: Operation,
    reply: &ReplyFacts,
    body: &[u8],
    elapsed: Duration,
    out: &mut Vec<u8>,
) -> Done {
    let vectors = match reply.backend {
        Operation::OllamaEmbed => read_ollama(body)?,
        _ => read_openai(body)?,
    };
    let vectors = match vectors {
        Ok(vectors) => vectors,
        Err(message) => {
            engine_error::write_body(client, &message, out);
            return Ok(());
        }
    };
    // With one vector more or less, texts would get the vectors of others.
    if vectors.list.len() != reply.terms.embedding.inputs {
        return Err(BadResponse::Malformed { expected: "embedding of each text" });
    }
    match client {
        Operation::OllamaEmbed => write_embed(vectors, reply, elapsed, out),
        Operation::OllamaEmbeddings => {
            let first = vectors.list.first().map_or(&[][..], Vec::as_slice);
            write_vector(first, ObjectWriter::new(out).list("embedding"));
        }
        _ => write_openai(&vectors, reply, out),
    }
    Ok(())
}

/// The vectors, or the text of the engine's error.
type VectorsResult = Result<Vectors, String>;

fn read_openai(body: &[u8]) -> Result<VectorsResult, BadResponse> {
    let malformed = BadResponse::Malformed { expected: "list of embeddings" };
    let body = text_of(body);
    let body: OpenAiResponse<'_> = serde_json::from_str(&body).map_err(|_error| malformed)?;
    if let Some(error) = body.error {
        return Ok(Err(error_body::message_of(error).into_owned()));
    }
    let mut data = body.data.ok_or(malformed)?;
    // OpenAI's form numbers the vectors, Ollama's has only their order.
    data.sort_by_key(|item| item.index);
    let list = data.iter().map(|item| read_vector(item.embedding)).collect::<Option<_>>();
    let prompt_tokens = body.usage.and_then(|usage| super::event::TokenUsage::from(usage).prompt);
    Ok(Ok(Vectors { list: list.ok_or(malformed)?, prompt_tokens, load: Duration::ZERO }))
}

/// Reads a vector: numbers, or little-endian 32-bit floats in base64.
fn read_vector(raw: &RawValue) -> Option<Vec<f32>> {
    if !is_string(raw) {
        return serde_json::from_str(raw.get()).ok();
    }
    let base64: Text<'_> = serde_json::from_str(raw.get()).ok()?;
    let bytes = STANDARD.decode(base64.as_bytes()).ok()?;
    let (floats, rest) = bytes.as_chunks::<4>();
    // With bytes left over, the text was cut or is of another type.
    rest.is_empty().then(|| floats.iter().map(|float| f32::from_le_bytes(*float)).collect())
}

fn read_ollama(body: &[u8]) -> Result<VectorsResult, BadResponse> {
    let malformed = BadResponse::Malformed { expected: "list of embeddings" };
    let body = text_of(body);
    let body: OllamaResponse<'_> = serde_json::from_str(&body).map_err(|_error| malformed)?;
    if let Some(error) = body.error {
        return Ok(Err(error_body::message_of(error).into_owned()));
    }
    Ok(Ok(Vectors {
        list: body.embeddings.ok_or(malformed)?,
        prompt_tokens: body.prompt_eval_count.map(|Count(count)| count),
        load: body.load_duration.map_or(Duration::ZERO, |Count(load)| Duration::from_nanos(load)),
    }))
}

fn write_embed(vectors: Vectors, reply: &ReplyFacts, elapsed: Duration, out: &mut Vec<u8>) {
    let mut object = ObjectWriter::new(out);
    object.text("model", &reply.context.model);
    {
        let mut list = object.list("embeddings");
        for mut vector in vectors.list {
            normalise(&mut vector);
            write_vector(&vector, list.list());
        }
    }
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    object.number("total_duration", nanoseconds(elapsed));
    object.number("load_duration", nanoseconds(vectors.load));
    object.number("prompt_eval_count", vectors.prompt_tokens.unwrap_or(0));
}

fn write_openai(vectors: &Vectors, reply: &ReplyFacts, out: &mut Vec<u8>) {
    let mut object = ObjectWriter::new(out);
    object.text("object", "list");
    {
        let mut data = object.list("data");
        for (index, vector) in vectors.list.iter().enumerate() {
            let mut item = data.object();
            item.text("object", "embedding");
            item.number("index", index as u64);
            if reply.terms.embedding.base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|float| float.to_le_bytes()).collect();
                item.text("embedding", &STANDARD.encode(bytes));
            } else {
                write_vector(vector, item.list("embedding"));
            }
        }
    }
    object.text("model", &reply.context.model);
    let tokens = vectors.prompt_tokens.unwrap_or(0);
    let mut usage = object.object("usage");
    usage.number("prompt_tokens", tokens);
    usage.number("total_tokens", tokens);
}

/// Scales a vector to length 1, as `/api/embed` does; a zero vector stays zero.
fn normalise(vector: &mut [f32]) {
    // In f64: the sum of squares may overflow an f32.
    let square: f64 = vector.iter().map(|float| f64::from(*float).powi(2)).sum();
    if square > 0.0 && square.is_finite() {
        let scale = square.sqrt().recip();
        for float in vector {
            *float = narrow(f64::from(*float) * scale);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a number of at most 1 loses precision only")]
fn narrow(number: f64) -> f32 {
    number as f32
}

fn write_vector(vector: &[f32], mut list: ListWriter<'_>) {
    vector.iter().for_each(|float| list.float(*float));
}
