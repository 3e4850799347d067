//! Orders events for the dialects whose blocks come one after the other. Engines may interleave the
//! pieces of several tool calls, with text between them. The first incomplete call is written as it
//! comes; later blocks wait until its arguments are a complete object. Bounded.

use std::collections::VecDeque;

use super::{Failure, Moment, ResponseWriter};
use crate::error::{BadResponse, Done};
use crate::event::{CallStart, Event, Totals};
use crate::gathered::{add_inside, check_size};
use crate::json_end::JsonEnd;

/// The cost of a waiting block in addition to its text.
const BLOCK_BYTES: usize = 128;

/// A writer that receives its events block by block.
#[derive(Debug, Default)]
pub(crate) struct InOrder<W> {
    inner: W,
    /// The call being written, and the blocks that wait behind it. Empty while no call is
    /// incomplete.
    blocks: VecDeque<Block>,
    /// The number of blocks that have left the queue.
    gone: usize,
    /// The block number of each call, counted from the first block that ever waited.
    places: Vec<usize>,
    /// The number of bytes that wait.
    size: usize,
}

/// A part of the response.
#[derive(Debug)]
enum Block {
    Text { text: String, logprobs: String },
    Refusal(String),
    Thinking(String),
    Signature(String),
    Call(WaitingCall),
}

/// A call of a tool.
#[derive(Debug)]
struct WaitingCall {
    place: usize,
    id: String,
    name: String,
    /// The arguments that have not been written.
    arguments: String,
    end: JsonEnd,
    is_written: bool,
}

impl<W: ResponseWriter> ResponseWriter for InOrder<W> {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        match *event {
            Event::Call { place, id, name } => {
                self.advance(moment, out)?;
                self.hold_call(&CallStart { place, id, name }, moment)
            }
            Event::CallName { place, piece } => self.add_name(place, piece, moment),
            Event::Arguments { place, piece } => self.add_arguments(place, piece, moment, out),
            Event::Text { .. } | Event::Refusal(_) | Event::Thinking(_) | Event::Signature(_) => {
                self.advance(moment, out)?;
                if self.blocks.is_empty() {
                    return self.inner.write(event, moment, out);
                }
                self.hold(event, moment)
            }
            Event::Finish(_)
            | Event::StopText(_)
            | Event::Usage(_)
            | Event::Timings(_)
            | Event::Error(_)
            | Event::Done => self.inner.write(event, moment, out),
        }
    }

    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        while let Some(mut block) = self.blocks.pop_front() {
            write_block(&mut self.inner, &mut block, moment, out)?;
        }
        self.inner.end(totals, moment, out)
    }

    fn held(&self) -> usize {
        self.size + self.inner.held()
    }

    fn fail(&mut self, error: Failure<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> bool {
        self.inner.fail(error, moment, out)
    }
}

impl<W: ResponseWriter> InOrder<W> {
    /// Writes the blocks whose turn has come, up to the first incomplete call.
    fn advance(&mut self, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        while let Some(block) = self.blocks.front_mut() {
            if let Block::Call(call) = &*block
                && !call.end.has_started()
            {
                // Pieces of its name may follow.
                return Ok(());
            }
            self.size = self.size.saturating_sub(block.size());
            write_block(&mut self.inner, block, moment, out)?;
            if !block.is_whole() {
                return Ok(());
            }
            self.blocks.pop_front();
            self.gone += 1;
        }
        Ok(())
    }

    fn hold_call(&mut self, start: &CallStart<'_>, moment: Moment<'_>) -> Done {
        let CallStart { place, id, name } = *start;
        debug_assert_eq!(place, self.places.len(), "calls are numbered in order");
        let (id, name) = (id.to_owned(), name.to_owned());
        let (arguments, end) = (String::new(), JsonEnd::default());
        self.places.push(self.gone + self.blocks.len());
        let call = WaitingCall { place, id, name, arguments, end, is_written: false };
        self.push(Block::Call(call), moment)
    }

    fn add_name(&mut self, place: usize, piece: &str, moment: Moment<'_>) -> Done {
        if let Some(call) = self.call(place)
            && !call.is_written
        {
            call.name.push_str(piece);
            return self.grow(piece.len(), moment);
        }
        Ok(())
    }

    fn add_arguments(
        &mut self,
        place: usize,
        piece: &str,
        moment: Moment<'_>,
        out: &mut Vec<u8>,
    ) -> Done {
        // Blocks leave from the front, so the number of gone ones is the number of the front.
        let is_first = self.places.get(place) == Some(&self.gone);
        let Some(call) = self.call(place) else {
            // The object was complete; only whitespace may follow.
            let is_blank = piece.trim_ascii().is_empty();
            return if is_blank { Ok(()) } else { Err(BadResponse::MixedCalls) };
        };
        call.end.feed(piece);
        if is_first && call.is_written {
            self.inner.write(&Event::Arguments { place, piece }, moment, out)?;
            return if self.blocks.len() > 1 { self.advance(moment, out) } else { Ok(()) };
        }
        call.arguments.push_str(piece);
        // Counted before it is written: the limit holds for what one piece brings, too.
        self.grow(piece.len(), moment)?;
        let is_alone = self.blocks.len() == 1;
        match self.blocks.front_mut() {
            Some(block) if is_first && is_alone => {
                self.size = self.size.saturating_sub(block.size());
                write_block(&mut self.inner, block, moment, out)
            }
            _ => self.advance(moment, out),
        }
    }

    /// Returns the waiting call at an index.
    fn call(&mut self, place: usize) -> Option<&mut WaitingCall> {
        let index = self.places.get(place)?.checked_sub(self.gone)?;
        match self.blocks.get_mut(index)? {
            Block::Call(call) => Some(call),
            Block::Text { .. } | Block::Refusal(_) | Block::Thinking(_) | Block::Signature(_) => {
                None
            }
        }
    }

    /// Holds a piece of text or thinking.
    fn hold(&mut self, event: &Event<'_>, moment: Moment<'_>) -> Done {
        match (event, self.blocks.back_mut()) {
            (Event::Text { text: piece, logprobs: list }, Some(Block::Text { text, logprobs })) => {
                text.push_str(piece);
                add_inside(logprobs, *list);
                self.grow(piece.len() + list.map_or(0, str::len), moment)
            }
            (Event::Text { text, logprobs: list }, _) => {
                let mut logprobs = String::new();
                add_inside(&mut logprobs, *list);
                self.push(Block::Text { text: (*text).to_owned(), logprobs }, moment)
            }
            (Event::Refusal(piece), Some(Block::Refusal(text)))
            | (Event::Thinking(piece), Some(Block::Thinking(text)))
            | (Event::Signature(piece), Some(Block::Signature(text))) => {
                text.push_str(piece);
                self.grow(piece.len(), moment)
            }
            (Event::Refusal(text), _) => self.push(Block::Refusal((*text).to_owned()), moment),
            (Event::Thinking(text), _) => self.push(Block::Thinking((*text).to_owned()), moment),
            (Event::Signature(text), _) => self.push(Block::Signature((*text).to_owned()), moment),
            _ => Ok(()),
        }
    }

    fn push(&mut self, block: Block, moment: Moment<'_>) -> Done {
        let size = block.size();
        self.blocks.push_back(block);
        self.grow(size, moment)
    }

    fn grow(&mut self, bytes: usize, moment: Moment<'_>) -> Done {
        self.size += bytes;
        let limit = moment.reply.context.limits.arguments;
        check_size("what waits for a tool call", self.size, limit)
    }
}

impl Block {
    /// Returns the number of bytes that wait in the block.
    fn size(&self) -> usize {
        let text = match self {
            Self::Text { text, logprobs } => text.len() + logprobs.len(),
            Self::Refusal(text) | Self::Thinking(text) | Self::Signature(text) => text.len(),
            Self::Call(call) if call.is_written => return call.arguments.len(),
            Self::Call(call) => call.id.len() + call.name.len() + call.arguments.len(),
        };
        BLOCK_BYTES + text
    }

    /// Returns whether the block after it may be written.
    fn is_whole(&self) -> bool {
        match self {
            Self::Text { .. } | Self::Refusal(_) | Self::Thinking(_) | Self::Signature(_) => true,
            Self::Call(call) => call.end.is_whole(),
        }
    }
}

/// Writes the waiting content of a block.
fn write_block(
    inner: &mut impl ResponseWriter,
    block: &mut Block,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) -> Done {
    match block {
        Block::Text { text, logprobs } => {
            let list = (!logprobs.is_empty()).then(|| format!("[{logprobs}]"));
            inner.write(&Event::Text { text, logprobs: list.as_deref() }, moment, out)
        }
        Block::Refusal(text) => inner.write(&Event::Refusal(text), moment, out),
        Block::Thinking(text) => inner.write(&Event::Thinking(text), moment, out),
        Block::Signature(text) => inner.write(&Event::Signature(text), moment, out),
        Block::Call(call) => {
            let WaitingCall { place, id, name, arguments, is_written, .. } = call;
            let place = *place;
            if !std::mem::replace(is_written, true) {
                inner.write(&Event::Call { place, id, name }, moment, out)?;
            }
            let piece = std::mem::take(arguments);
            if piece.is_empty() {
                return Ok(());
            }
            inner.write(&Event::Arguments { place, piece: &piece }, moment, out)
        }
    }
}
