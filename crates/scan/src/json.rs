//! Extracts the facts from a JSON body: model, tools, response formats and limits; `prompt_field`
//! reads the prompt. The last of repeated members counts, as it does for the backends.

use penstock_api::units::{ByteSpan, TokenCount};
use penstock_api::{Capabilities, Dialect, MAX_PROMPT_FIELDS, Operation, PromptField, PromptPlace};

use super::bytes::HIGH;
use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::definitions::{Definition, Definitions, read_format, read_text_format};
use super::further_models::names_further_models;
use super::ids::{StoredIds, read_id};
use super::limits::{LimitMember, LimitValues};
use super::ollama::{self, OllamaFacts, OllamaMember};
use super::profile::{ModelForm, ResidencyChange};
use super::prompt::PromptContents;
use super::prompt_field::{is_wrong_type, read_prompt};
use super::prompt_limit::{LimitFacts, PromptLimit};
use super::stream_options::StreamOptions;
use super::text::BodyString;
use super::truncation::{Truncation, TruncationMember};
use super::twin::twin_of;
use super::weight::weigh_blobs;
use super::{BYTE_ORDER_MARK, PromptPlaces, RequestProfile, ScanError, ScanOptions, to_offset};

/// The members of most bodies, in their most frequent order.
const LIKELY_MEMBERS: [(&[u8], Member); 5] = [
    (b"model\":", Member::Model),
    (b"messages\":", Member::Messages),
    (b"stream\":", Member::Stream),
    (b"max_tokens\":", Member::Limit(LimitMember::MaxTokens)),
    (b"temperature\":", Member::Other),
];

/// The last value of the member `model`.
#[derive(Debug, Clone, Copy, Default)]
enum ModelValue {
    #[default]
    Missing,
    Null(ByteSpan),
    Named(BodyString),
    WrongType,
}

/// The values of the body's members. A repeated member replaces the earlier value.
#[derive(Default)]
struct Facts {
    model: ModelValue,
    names_further_models: bool,
    /// The offset at which a member can be inserted.
    insertion: u32,
    stored: StoredIds,
    /// `prompt_cache_key`.
    cache_key: ByteSpan,
    /// The field that a member is a twin of.
    twin: Option<&'static str>,
    streaming: bool,
    streams_by_default: bool,
    tools: bool,
    functions: bool,
    response_format: bool,
    text_format: bool,
    limits: LimitValues,
    definitions: Definitions,
    prompts: [PromptContents; MAX_PROMPT_FIELDS],
    messages_are_wrong: bool,
    ollama: OllamaFacts,
    truncation: Truncation,
    stream_options: StreamOptions,
    places: PromptPlaces,
}

/// Scans `body` as one JSON object.
pub(super) fn scan(
    operation: Operation,
    body: &[u8],
    options: ScanOptions,
) -> Result<RequestProfile, ScanError> {
    let mut cursor = Cursor::new(body, options.estimate);
    // Some editors and shells write a byte order mark; engines skip it (RFC 8259 §8.1).
    if body.starts_with(BYTE_ORDER_MARK) {
        cursor.at = BYTE_ORDER_MARK.len();
    }
    let streams_by_default = operation.row().streams_by_default;
    let mut facts = Facts { streaming: streams_by_default, streams_by_default, ..Facts::default() };
    let walked = walk(&mut cursor, operation, &mut facts);
    walked.map_err(|expected| ScanError::at(cursor.at, expected, body))?;
    // Outside strings a non-ASCII byte is a syntax error, so the strings alone decide.
    if cursor.all_high & HIGH != 0 {
        simdutf8::compat::from_utf8(body)
            .map_err(|error| ScanError::InvalidUtf8 { offset: error.valid_up_to() })?;
    }
    facts.into_profile(operation, &cursor, options)
}

fn walk(cursor: &mut Cursor<'_>, operation: Operation, facts: &mut Facts) -> Parsed {
    if cursor.peek() != b'{' {
        return Err(Syntax::Body);
    }
    let fields = operation.row().prompt;
    let of = |name: &[u8]| Member::of(operation, fields, name);
    let messages = Member::prompt(fields, b"messages").unwrap_or(Member::Other);
    facts.insertion = to_offset(cursor.at + 1);
    cursor.members(Members::with_likely(&LIKELY_MEMBERS, of), |cursor, member, kind| {
        let member = if matches!(member, Member::Messages) { messages } else { member };
        member.take(cursor, kind, facts)
    })?;
    cursor.end()
}

/// A member of the body.
#[derive(Debug, Clone, Copy)]
enum Member {
    Model,
    Stream,
    Tools,
    Functions,
    ResponseFormat,
    TextFormat,
    /// A member that counts only by its length.
    Counted(Definition),
    Limit(LimitMember),
    Salt,
    PreviousResponse,
    Conversation,
    CacheKey,
    StreamOptions,
    /// A member that only Ollama's own API has.
    Ollama(OllamaMember),
    Truncation(TruncationMember),
    FurtherModels,
    Prompt(usize, PromptField),
    /// `messages`: the prompt of operations that have this field, ignored in others.
    Messages,
    /// A name that an engine may read as this field.
    Twin(&'static str),
    Other,
}

impl Member {
    #[inline(always)]
    fn of(operation: Operation, fields: &[PromptField], name: &[u8]) -> Self {
        if let Some(prompt) = Self::prompt(fields, name) {
            return prompt;
        }
        match name {
            b"model" => Self::Model,
            b"stream" => Self::Stream,
            b"tools" => Self::Tools,
            b"functions" => Self::Functions,
            b"response_format" => Self::ResponseFormat,
            b"text" if operation == Operation::Responses => Self::TextFormat,
            b"cache_salt" => Self::Salt,
            b"previous_response_id" => Self::PreviousResponse,
            b"conversation" => Self::Conversation,
            b"prompt_cache_key" => Self::CacheKey,
            b"stream_options" => Self::StreamOptions,
            _ => Self::further(operation, name),
        }
    }

    #[inline(always)]
    fn further(operation: Operation, name: &[u8]) -> Self {
        if let Some(limit) = LimitMember::of(name) {
            return Self::Limit(limit);
        }
        if let Some(definition) = Definition::of(operation, name) {
            return Self::Counted(definition);
        }
        let is_ollama = operation.row().dialect == Dialect::Ollama;
        match OllamaMember::of(name).filter(|_| is_ollama) {
            Some(member) => Self::Ollama(member),
            None => match TruncationMember::of(operation, name) {
                Some(member) => Self::Truncation(member),
                None if names_further_models(name) => Self::FurtherModels,
                None => twin_of(name).map_or(Self::Other, Self::Twin),
            },
        }
    }

    #[inline(always)]
    fn prompt(fields: &[PromptField], name: &[u8]) -> Option<Self> {
        for (index, field) in fields.iter().enumerate() {
            if field.name.as_bytes() == name {
                return Some(Self::Prompt(index, *field));
            }
        }
        None
    }

    /// Consumes the value and records its span if it is a part of the prompt.
    #[inline(always)]
    fn take(self, cursor: &mut Cursor<'_>, kind: u8, facts: &mut Facts) -> Parsed {
        let start = to_offset(cursor.at);
        self.read(cursor, kind, facts)?;
        let place = match self {
            Self::Prompt(_, PromptField { place: PromptPlace::Main, .. }) => &mut facts.places.main,
            Self::Prompt(_, PromptField { place: PromptPlace::System, .. }) => {
                &mut facts.places.system
            }
            Self::Tools => &mut facts.places.tools,
            Self::Functions => &mut facts.places.functions,
            Self::Salt => &mut facts.places.salt,
            _ => return Ok(()),
        };
        *place = ByteSpan { start, end: to_offset(cursor.at) };
        Ok(())
    }

    #[inline(always)]
    fn read(self, cursor: &mut Cursor<'_>, kind: u8, facts: &mut Facts) -> Parsed {
        match self {
            Self::Model => facts.read_model(cursor, kind),
            Self::Stream => {
                // Ollama decodes with Go, where null leaves the default in place.
                let is_default = kind == b'n' && facts.streams_by_default;
                facts.streaming = kind == b't' || is_default;
                cursor.skip(kind)
            }
            Self::Tools => {
                facts.tools = kind != b'n';
                facts.definitions.read(Definition::Tools, cursor, kind)
            }
            Self::Functions => {
                facts.functions = kind != b'n';
                facts.definitions.read(Definition::Functions, cursor, kind)
            }
            Self::ResponseFormat => facts.read_response_format(cursor, kind),
            Self::TextFormat => facts.read_text_format(cursor, kind),
            Self::Counted(definition) => facts.definitions.read(definition, cursor, kind),
            Self::Limit(limit) => facts.limits.read(limit, cursor, kind),
            Self::Prompt(index, PromptField { layout, .. }) => {
                facts.messages_are_wrong =
                    is_wrong_type(layout, kind).unwrap_or(facts.messages_are_wrong);
                match facts.prompts.get_mut(index) {
                    Some(slot) => read_prompt(cursor, kind, layout, slot),
                    None => cursor.skip(kind),
                }
            }
            Self::PreviousResponse => facts.stored.read_response(cursor, kind, &mut facts.twin),
            Self::Conversation => facts.stored.read_conversation(cursor, kind, &mut facts.twin),
            Self::Twin(field) => {
                facts.twin = Some(field);
                cursor.skip(kind)
            }
            Self::CacheKey => read_id(cursor, kind).map(|id| facts.cache_key = id),
            Self::StreamOptions => StreamOptions::read(cursor, kind, &mut facts.twin)
                .map(|options| facts.stream_options = options),
            Self::Ollama(member) => facts.ollama.read(member, cursor, kind),
            Self::Truncation(member) => facts.truncation.read(member, cursor, kind),
            Self::FurtherModels => {
                facts.names_further_models = true;
                cursor.skip(kind)
            }
            Self::Salt | Self::Messages | Self::Other => cursor.skip(kind),
        }
    }
}

impl Facts {
    #[inline(always)]
    fn read_model(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        if kind == b'"' {
            self.model = ModelValue::Named(cursor.string()?);
            return Ok(());
        }
        let start = to_offset(cursor.at);
        cursor.skip(kind)?;
        let span = ByteSpan { start, end: to_offset(cursor.at) };
        // Go ignores null: it keeps the value before.
        if kind == b'n' && matches!(self.model, ModelValue::Named(_)) {
            self.twin = Some("model");
        }
        self.model = if kind == b'n' { ModelValue::Null(span) } else { ModelValue::WrongType };
        Ok(())
    }

    fn read_response_format(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        let format = read_format(cursor, kind)?;
        self.response_format = format.is_json;
        self.definitions.set(Definition::Format, format.schema);
        Ok(())
    }

    fn read_text_format(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        let format = read_text_format(cursor, kind)?;
        self.text_format = format.is_json;
        self.definitions.set(Definition::TextFormat, format.schema);
        Ok(())
    }

    fn into_profile(
        self,
        operation: Operation,
        cursor: &Cursor<'_>,
        options: ScanOptions,
    ) -> Result<RequestProfile, ScanError> {
        if let Some(field) = self.twin.or(self.ollama.twin) {
            return Err(ScanError::Twin { field });
        }
        let (model, model_form) = self.model(cursor)?;
        if self.messages_are_wrong {
            return Err(ScanError::WrongType { field: "messages", expected: "an array" });
        }
        let prompt = PromptContents::sum(&self.prompts);
        let definitions = self.definitions.sum() + self.ollama.schema;
        let besides = prompt.besides + definitions + weigh_blobs(self.ollama.images);
        let wants_json = self.response_format || self.text_format || self.ollama.wants_json;
        let has_image = prompt.has_image || self.ollama.images > 0 || self.definitions.has_image;
        let mut needs = Capabilities::NONE;
        for (needed, capability) in [
            (has_image, Capabilities::VISION),
            (self.has_tools(cursor.bytes) || self.functions, Capabilities::TOOLS),
            (wants_json, Capabilities::JSON_MODE),
        ] {
            if needed {
                needs = needs.union(capability);
            }
        }
        let limit_facts = LimitFacts {
            operation,
            body: cursor.bytes,
            prompt,
            tools: self.places.tools.of(cursor.bytes),
            refers: has_image || self.stored.continues() || self.definitions.refers,
        };
        let prompt_tokens = super::to_tokens(prompt.text + besides);
        let longest = super::to_tokens(prompt.text + besides - prompt.others);
        let max_tokens = self.max_tokens(operation);
        let choices = self.limits.choices(prompt.texts);
        let has_key = !self.cache_key.range().is_empty();
        Ok(RequestProfile {
            arrived_at: options.arrived_at,
            operation,
            dialect: operation.row().dialect,
            model,
            model_form,
            names_further_models: self.names_further_models,
            streaming: self.streaming,
            estimated_tokens: super::to_tokens(prompt.text),
            prompt_tokens,
            outside_context: TokenCount(prompt_tokens.0 - longest.0),
            cut_to: self.truncation.cut_to(operation).map(TokenCount),
            max_tokens: max_tokens.map(TokenCount),
            prompt_limit: PromptLimit::of(&limit_facts),
            output_limit: self.limits.of_output(max_tokens, choices).map(TokenCount),
            choices,
            context_length: self.ollama.num_ctx.map(TokenCount),
            residency_change: self.residency_change(operation, cursor.bytes),
            usage_edit: self.stream_options.usage_edit(self.insertion),
            needs,
            prompt: self.places,
            stored: self.stored,
            session: if has_key { self.cache_key } else { self.stored.conversation },
        })
    }

    /// Returns whether tools are offered. Ollama's clients send an empty list with every chat; in
    /// the other APIs a client that sends one relies on tools.
    fn has_tools(&self, body: &[u8]) -> bool {
        self.tools && !(self.streams_by_default && ollama::is_empty(self.places.tools.of(body)))
    }

    fn max_tokens(&self, operation: Operation) -> Option<u32> {
        if operation.row().dialect == Dialect::Ollama {
            return self.ollama.num_predict;
        }
        self.limits.first()
    }

    /// Returns the purpose of a request of Ollama's API without a prompt; `None` if it has one.
    fn residency_change(&self, operation: Operation, body: &[u8]) -> Option<ResidencyChange> {
        let embeds = matches!(operation, Operation::OllamaEmbed | Operation::OllamaEmbeddings);
        let may_be_one = self.streams_by_default || embeds;
        let is_change = may_be_one && ollama::is_empty(self.places.main.of(body));
        is_change.then_some(match self.ollama.unloads {
            true => ResidencyChange::Unload,
            false => ResidencyChange::Load,
        })
    }

    fn model(&self, cursor: &Cursor<'_>) -> Result<(ByteSpan, ModelForm), ScanError> {
        match self.model {
            ModelValue::Named(name) if super::is_blank(cursor.raw(name), name.is_escaped()) => {
                Err(ScanError::EmptyModel)
            }
            ModelValue::Named(name) => {
                let form = if name.is_escaped() { ModelForm::Escaped } else { ModelForm::Plain };
                Ok((name.span(), form))
            }
            ModelValue::WrongType => {
                Err(ScanError::WrongType { field: "model", expected: "a string" })
            }
            ModelValue::Null(span) => Ok((span, ModelForm::Null)),
            ModelValue::Missing => {
                let span = ByteSpan { start: self.insertion, end: self.insertion };
                Ok((span, ModelForm::Missing))
            }
        }
    }
}
