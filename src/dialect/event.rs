//! The response between two dialects: what its events say, and what is known at its end. Readers of
//! responses report events, writers print them. A whole response is the same events at once.

use std::time::Duration;

/// An event of a response.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event<'a> {
    /// A piece of the text.
    Text {
        /// The piece.
        text: &'a str,
        /// Its tokens' probabilities: the text of a JSON list in the form of OpenAI's chat.
        logprobs: Option<&'a str>,
    },
    /// A piece of what the model thinks.
    Thinking(&'a str),
    /// Anthropic's proof that the thinking is the model's own.
    Signature(&'a str),
    /// A tool call starts.
    Call {
        /// Its place among the calls of the response, from 0.
        place: usize,
        /// Its id; empty if the backend gave none.
        id: &'a str,
        /// The tool.
        name: &'a str,
    },
    /// A further piece of the name of a call, before its arguments.
    CallName {
        /// The place of the call.
        place: usize,
        /// The piece.
        piece: &'a str,
    },
    /// A piece of the arguments of a call.
    Arguments {
        /// The place of the call.
        place: usize,
        /// The piece.
        piece: &'a str,
    },
    /// Why the generation ended.
    Finish(FinishReason),
    /// The stop text that ended the generation.
    StopText(&'a str),
    /// Token counts. A later report replaces what it has.
    Usage(TokenUsage),
    /// How long the engine worked. A later report replaces what it has.
    Timings(Timings),
    /// The engine failed.
    Error(&'a str),
    /// The last event.
    Done,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinishReason {
    /// The model stopped by itself, or at a stop text.
    Stop,
    /// It reached the limit of tokens.
    Length,
    /// It calls tools.
    ToolCalls,
    /// Its output was withheld.
    ContentFilter,
}

/// Token counts of a response, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TokenUsage {
    /// Of the prompt, cached ones included.
    pub(super) prompt: Option<u64>,
    /// Of the prompt, read from the cache.
    pub(super) cached: Option<u64>,
    /// Of the output.
    pub(super) output: Option<u64>,
    /// Of the output, spent on thinking.
    pub(super) thinking: Option<u64>,
}

impl TokenUsage {
    /// These counts, and those of `earlier` where these have none.
    pub(super) fn or(self, earlier: Self) -> Self {
        Self {
            prompt: self.prompt.or(earlier.prompt),
            cached: self.cached.or(earlier.cached),
            output: self.output.or(earlier.output),
            thinking: self.thinking.or(earlier.thinking),
        }
    }
}

/// How long an engine worked on a response, as far as it reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Timings {
    /// On loading the model.
    pub(super) load: Option<Duration>,
    /// On the prompt.
    pub(super) prompt: Option<Duration>,
    /// On the output.
    pub(super) output: Option<Duration>,
}

/// What is known of a response at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Why it ended.
    pub(super) finish: Option<FinishReason>,
    /// The stop text that ended it.
    pub(super) stop_text: Option<String>,
    /// Its counts, as reported.
    pub(super) usage: TokenUsage,
    /// The engine's times, as reported.
    pub(super) timings: Timings,
    /// Events with text, thinking or arguments.
    pub(super) pieces: u64,
    /// Tool calls.
    pub(super) calls: usize,
    /// When the first of these pieces arrived.
    pub(super) first_piece: Option<Duration>,
}

impl Totals {
    /// Takes in an event that arrived `elapsed` after the request.
    pub(super) fn record(&mut self, event: &Event<'_>, elapsed: Duration) {
        match *event {
            Event::Text { .. } | Event::Thinking(_) | Event::Arguments { .. } => {
                self.pieces += 1;
                self.first_piece.get_or_insert(elapsed);
            }
            Event::Call { .. } => {
                self.calls += 1;
                self.first_piece.get_or_insert(elapsed);
            }
            Event::Finish(reason) => self.finish = Some(reason),
            Event::StopText(text) => self.stop_text = Some(text.to_owned()),
            Event::Usage(usage) => self.usage = usage.or(self.usage),
            Event::Timings(timings) => {
                self.timings.load = timings.load.or(self.timings.load);
                self.timings.prompt = timings.prompt.or(self.timings.prompt);
                self.timings.output = timings.output.or(self.timings.output);
            }
            Event::CallName { .. } | Event::Signature(_) | Event::Error(_) | Event::Done => {}
        }
    }

    /// The tokens of the output: as reported, else one per piece.
    pub(super) fn output_tokens(&self) -> u64 {
        self.usage.output.unwrap_or(self.pieces)
    }
}
