//! The response between two dialects: its events, and the totals at its end. Readers of responses
//! report events, writers print them. A complete response is the same events at once.

use std::time::Duration;

/// An event of a response.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event<'a> {
    /// A piece of the text.
    Text {
        /// The piece.
        text: &'a str,
        /// The probabilities of its tokens: the text of a JSON list in the form of OpenAI's chat.
        logprobs: Option<&'a str>,
    },
    /// A piece of the text in which the model refuses to respond.
    Refusal(&'a str),
    /// A piece of the model's thinking.
    Thinking(&'a str),
    /// Anthropic's proof that its model wrote the thinking.
    Signature(&'a str),
    /// A tool call starts.
    Call {
        /// The index of the call within the response, from 0.
        place: usize,
        /// Its id; empty if the backend gave none.
        id: &'a str,
        /// The name of the tool.
        name: &'a str,
    },
    /// A further piece of the name of a call, before its arguments.
    CallName {
        /// The index of the call.
        place: usize,
        /// The piece.
        piece: &'a str,
    },
    /// A piece of the arguments of a call.
    Arguments {
        /// The index of the call.
        place: usize,
        /// The piece.
        piece: &'a str,
    },
    /// The reason why the generation ended.
    Finish(FinishReason),
    /// The stop text that ended the generation.
    StopText(&'a str),
    /// The token counts. A later report replaces the values it has.
    Usage(TokenUsage),
    /// The engine's working times. A later report replaces the values it has.
    Timings(Timings),
    /// The engine failed.
    Error(&'a str),
    /// The last event.
    Done,
}

/// The start of a tool call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallStart<'a> {
    /// The index of the call within the response.
    pub(super) place: usize,
    /// Its id; empty if the backend gave none.
    pub(super) id: &'a str,
    /// The name of the tool.
    pub(super) name: &'a str,
}

/// The reason why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinishReason {
    /// The model stopped by itself, or at a stop text.
    Stop,
    /// The token limit was reached.
    Length,
    /// The model calls tools.
    ToolCalls,
    /// The output was withheld.
    ContentFilter,
}

/// Returns whether a `finish_reason` reports a failure: OpenRouter, vLLM and SGLang have such
/// reasons besides those of OpenAI.
pub(super) fn is_failure(name: &str) -> bool {
    matches!(name, "error" | "abort")
}

/// The token counts of a response, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TokenUsage {
    /// The tokens of the prompt, including cached ones.
    pub(super) prompt: Option<u64>,
    /// The prompt tokens read from the cache.
    pub(super) cached: Option<u64>,
    /// The tokens of the output.
    pub(super) output: Option<u64>,
    /// The output tokens spent on thinking.
    pub(super) thinking: Option<u64>,
}

impl TokenUsage {
    /// Returns these counts, with missing ones taken from `earlier`.
    pub(super) fn or(self, earlier: Self) -> Self {
        Self {
            prompt: self.prompt.or(earlier.prompt),
            cached: self.cached.or(earlier.cached),
            output: self.output.or(earlier.output),
            thinking: self.thinking.or(earlier.thinking),
        }
    }
}

/// The engine's working times for a response, as far as it reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Timings {
    /// The time to load the model.
    pub(super) load: Option<Duration>,
    /// The time to process the prompt.
    pub(super) prompt: Option<Duration>,
    /// The time to generate the output.
    pub(super) output: Option<Duration>,
}

/// The totals of a response at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// The reason why it ended.
    pub(super) finish: Option<FinishReason>,
    /// The stop text that ended it.
    pub(super) stop_text: Option<String>,
    /// The reported token counts.
    pub(super) usage: TokenUsage,
    /// The reported working times.
    pub(super) timings: Timings,
    /// The number of events with text, thinking or arguments.
    pub(super) pieces: u64,
    /// The number of tool calls.
    pub(super) calls: usize,
    /// The arrival of the first of these events.
    pub(super) first_piece: Option<Duration>,
}

impl Totals {
    /// Records an event that arrived `elapsed` after the request.
    pub(super) fn record(&mut self, event: &Event<'_>, elapsed: Duration) {
        match *event {
            Event::Text { .. }
            | Event::Refusal(_)
            | Event::Thinking(_)
            | Event::Arguments { .. } => {
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

    /// Returns the output tokens: as reported, else one per piece.
    pub(super) fn output_tokens(&self) -> u64 {
        self.usage.output.unwrap_or(self.pieces)
    }
}
