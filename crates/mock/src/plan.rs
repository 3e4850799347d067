//! The effect of a fault on the delivery of a response, as data: its framing, where it halts, what
//! is added.

use std::time::Duration;

use super::fault::{Cut, Fault};
use super::responses::StreamEvent;

/// The delivery of a response. The default has no fault.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) early_hints: u32,
    pub(super) padding: Vec<(String, String)>,
    pub(super) framing: BodyFraming,
    pub(super) halt: Option<(HaltAt, Halt)>,
    pub(super) is_queued: bool,
    pub(super) closes: bool,
}

/// The framing of the body's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum BodyFraming {
    /// `Content-Length` for whole responses, chunks for streams.
    #[default]
    Natural,
    /// A `Content-Length` that is never reached.
    Short,
    Chunked,
    /// Both chunks and a `Content-Length`.
    Both,
    /// The close of the connection.
    Delimited,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HaltAt {
    /// Halts after the head.
    Head,
    /// Halts after this many events, or half of a plain body.
    Events(u32),
    /// Halts before the first token, or after half of a plain body.
    FirstToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Halt {
    Hang,
    Cut(Cut),
    Pings(Duration),
    Error,
}

impl Plan {
    pub(super) fn of(fault: &Fault) -> Self {
        let halt = |at, halt| Self { halt: Some((at, halt)), ..Self::default() };
        match fault {
            Fault::HangAfterHead => halt(HaltAt::Head, Halt::Hang),
            Fault::CutStream { after_events, how } => Self::cut(*after_events, *how),
            Fault::CutResponse { how } => Self::cut(1, *how),
            Fault::HangMidStream { after_events } => {
                halt(HaltAt::Events(*after_events), Halt::Hang)
            }
            Fault::PingsOnly { every, after_events } => {
                halt(HaltAt::Events(*after_events), Halt::Pings(*every))
            }
            Fault::RoleOnlyThenHang => halt(HaltAt::FirstToken, Halt::Hang),
            Fault::ErrorEventMidStream { after_events } => {
                halt(HaltAt::Events(*after_events), Halt::Error)
            }
            Fault::TwoLengths => Self { framing: BodyFraming::Both, ..Self::default() },
            Fault::QueuedSecondResponse => Self { is_queued: true, ..Self::default() },
            Fault::Informational { count } => Self { early_hints: *count, ..Self::default() },
            Fault::BigHead { bytes } => Self { padding: padding(*bytes), ..Self::default() },
            Fault::CloseAfterResponse => Self { closes: true, ..Self::default() },
            Fault::CloseDelimited => Self { framing: BodyFraming::Delimited, ..Self::default() },
            // These faults act before a response is delivered.
            Fault::CloseOnAccept
            | Fault::ResetOnAccept
            | Fault::CloseUnread
            | Fault::CloseAfterRequest
            | Fault::ResetAfterRequest
            | Fault::Status { .. }
            | Fault::EarlyStatus(_)
            | Fault::HangBeforeHead
            | Fault::Garbage
            | Fault::Http09
            | Fault::Switching101
            | Fault::SlowHead(_)
            | Fault::Gate(_)
            | Fault::Pass => Self::default(),
        }
    }

    fn cut(after_events: u32, how: Cut) -> Self {
        let framing = match how {
            Cut::Fin | Cut::Reset => BodyFraming::Natural,
            Cut::BadChunk => BodyFraming::Chunked,
            Cut::ShortLength => BodyFraming::Short,
        };
        let halt = Some((HaltAt::Events(after_events), Halt::Cut(how)));
        Self { framing, halt, ..Self::default() }
    }

    /// Returns whether a stream halts after `events` events with `next` to come.
    pub(super) fn halts_at(&self, events: u32, next: Option<&StreamEvent>) -> bool {
        match self.halt {
            Some((HaltAt::Head, _)) => true,
            Some((HaltAt::Events(after), _)) => after == events,
            // The events before it pass: a role is no token, and must end no wait for one.
            Some((HaltAt::FirstToken, _)) => next.is_some_and(|event| event.is_token),
            None => false,
        }
    }
}

impl BodyFraming {
    /// Returns the bytes that end a body.
    pub(super) fn end(self) -> &'static [u8] {
        match self {
            Self::Chunked | Self::Both => b"0\r\n\r\n",
            Self::Natural | Self::Short | Self::Delimited => b"",
        }
    }
}

fn padding(bytes: usize) -> Vec<(String, String)> {
    // Parsers limit a line, too: many fields test the limit of the whole head alone.
    const MAX_LENGTH: usize = 4000;
    (0..bytes.div_ceil(MAX_LENGTH))
        .map(|index| {
            let length = MAX_LENGTH.min(bytes - index * MAX_LENGTH);
            (format!("X-Padding-{index}"), "p".repeat(length))
        })
        .collect()
}
