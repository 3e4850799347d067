//! Writes the responses of `/v1/completions`: whole, and as chunks.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::openai::{self, Head};
use super::{Moment, ResponseWriter};
use crate::error::Done;
use crate::event::{Event, Totals};
use crate::gathered::Gathered;
use crate::json::{ObjectWriter, Text};

const ID: &str = "cmpl-";
const KIND: &str = "text_completion";

/// A token's probability in the form of chat.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Token<'a> {
    token: Text<'a>,
    logprob: &'a RawValue,
    #[serde(default)]
    top_logprobs: Vec<Token<'a>>,
}

/// The chunks of a stream.
#[derive(Debug, Default)]
pub(crate) struct CompletionChunks {
    head: Head,
    /// The number of text characters so far: the offset of the next token.
    offset: u64,
}

impl ResponseWriter for CompletionChunks {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        let Event::Text { text, logprobs } = *event else { return Ok(()) };
        self.start(moment);
        let offset = self.offset;
        self.offset += text.chars().count() as u64;
        self.head.chunk(out, |chunk| {
            let mut choices = chunk.list("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            choice.text("text", text);
            write_logprobs(logprobs, offset, &mut choice);
            choice.raw("finish_reason", "null");
        });
        Ok(())
    }

    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        self.start(moment);
        self.head.chunk(out, |chunk| {
            let mut choices = chunk.list("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            choice.text("text", "");
            choice.raw("logprobs", "null");
            choice.text("finish_reason", openai::finish_reason(totals));
        });
        openai::end_stream(&self.head, totals, moment, out);
        Ok(())
    }
}

impl CompletionChunks {
    fn start(&mut self, moment: Moment<'_>) {
        if self.head.is_empty() {
            self.head = Head::new(ID, KIND, moment.reply);
        }
    }
}

/// Writes a complete response.
pub(crate) fn write_whole(
    gathered: &Gathered,
    totals: &Totals,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) -> Done {
    Head::new(ID, KIND, moment.reply).object(out, |body| {
        {
            let mut choices = body.list("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            choice.text("text", &gathered.text);
            let list = gathered.logprobs().map(|inside| format!("[{inside}]"));
            write_logprobs(list.as_deref(), 0, &mut choice);
            choice.text("finish_reason", openai::finish_reason(totals));
        }
        openai::write_usage(totals, body);
    });
    Ok(())
}

/// Writes probabilities as parallel lists.
fn write_logprobs(list: Option<&str>, offset: u64, choice: &mut ObjectWriter<'_>) {
    let tokens: Option<Vec<Token<'_>>> = list.and_then(|list| serde_json::from_str(list).ok());
    let Some(tokens) = tokens else { return choice.raw("logprobs", "null") };
    let mut object = choice.object("logprobs");
    {
        let mut list = object.list("tokens");
        tokens.iter().for_each(|token| list.text(&token.token));
    }
    {
        let mut list = object.list("token_logprobs");
        tokens.iter().for_each(|token| list.raw(token.logprob.get()));
    }
    {
        let mut list = object.list("top_logprobs");
        for token in &tokens {
            let mut alternatives = list.object();
            for one in &token.top_logprobs {
                alternatives.raw(&one.token, one.logprob.get());
            }
        }
    }
    let mut list = object.list("text_offset");
    let mut at = offset;
    for token in &tokens {
        list.raw(itoa::Buffer::new().format(at));
        at += token.token.chars().count() as u64;
    }
}
