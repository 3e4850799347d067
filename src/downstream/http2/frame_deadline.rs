//! A deadline for unfinished HTTP/2 frames: the defence against a client that starts a frame, or a
//! head over several frames, and then sends a byte at a time (slow loris).
//!
//! **Why here.** `h2` waits for the rest of a frame without a timeout, and reports a request only
//! when its head is complete. Nothing above it can see that a head has started, and a connection
//! with one unfinished head is not idle either, so no other timeout ends it. (A body has
//! `BodyReader`'s timeout as well; a head has only this one.)
//!
//! **How.** [`WatchedStream`] follows the framing of the bytes that `h2` reads: the nine bytes of a
//! frame head hold the length and the type (RFC 9113 §4.1). It parses nothing else and changes
//! nothing. When a read newly leaves a frame or head unfinished, a deadline is stored in
//! [`FrameDeadline`]; when everything is finished, it is cleared. The connection's task waits for
//! [`FrameDeadline::passed`].
//!
//! **Invariants**, and what breaks without them:
//! * More bytes of the same unfinished frame never move its deadline (except once, when its type
//!   arrives and shows a body): otherwise one byte per timeout keeps a connection forever.
//! * A head lasts from HEADERS to the frame with END_HEADERS. Complete CONTINUATION frames without
//!   it do not end the head, however many there are.
//! * The watcher sees every byte exactly once and in order, from the first of the connection: after
//!   one missed byte, payload is taken for frame heads. So it sits below `h2` and above TLS.
//! * The deadline may be read late, but never early: `passed` sleeps at most the shorter timeout,
//!   and no deadline that is set meanwhile can pass sooner.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use penstock_api::slices::split_at;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::{HTTP2_PREFACE, forward_writes};

/// The head of a frame (RFC 9113 §4.1): 24 bits of length, a type, flags, 32 bits of stream.
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The time limits for a client to finish a frame or head that it has started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameTimeouts {
    /// For a head, and for every frame that is not part of a body.
    pub(crate) head: Duration,
    /// For a frame of a body.
    pub(crate) body: Duration,
}

/// The time by which the unfinished frame or head must be finished; shared by a connection and its
/// stream.
#[derive(Debug)]
pub(crate) struct FrameDeadline {
    /// In microseconds; 0 while nothing is unfinished.
    at: AtomicU64,
    timeouts: FrameTimeouts,
}

impl FrameDeadline {
    pub(crate) fn new(timeouts: FrameTimeouts) -> Arc<Self> {
        Arc::new(Self { at: AtomicU64::new(0), timeouts })
    }

    /// Resolves once the deadline has passed.
    pub(crate) async fn passed(&self) {
        let shortest = self.timeouts.head.min(self.timeouts.body);
        loop {
            let at = Timestamp(self.at.load(Ordering::Relaxed));
            // Relaxed: the value stands alone, and the connection's task alone reads and writes it.
            let wait = if at.0 == 0 { shortest } else { at.since(now()) };
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn follow(&self, progress: FrameProgress) {
        match progress {
            FrameProgress::Finished => self.at.store(0, Ordering::Relaxed),
            FrameProgress::Started { is_body } => {
                let limit = if is_body { self.timeouts.body } else { self.timeouts.head };
                self.at.store(now().after(limit).0, Ordering::Relaxed);
            }
            FrameProgress::Continued => {}
        }
    }
}

/// A stream whose incoming frames are watched.
pub(crate) struct WatchedStream<S> {
    stream: S,
    frames: FrameWatcher,
    deadline: Arc<FrameDeadline>,
}

impl<S> WatchedStream<S> {
    /// Watches `stream` from its first byte on.
    pub(crate) fn new(stream: S, deadline: Arc<FrameDeadline>) -> Self {
        Self { stream, frames: FrameWatcher::default(), deadline }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, out);
        let (_before, new) = split_at(out.filled(), before);
        if !new.is_empty() {
            let progress = self.frames.watch(new);
            self.deadline.follow(progress);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    forward_writes!(self mut => self.stream);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The effect of the bytes just watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameProgress {
    Finished,
    /// A frame or head has started and is unfinished.
    Started {
        /// True for a frame of a body, which may take longer.
        is_body: bool,
    },
    /// The same frame or head is still unfinished.
    Continued,
}

/// The position of a connection in its sequence of frames.
#[derive(Debug)]
pub struct FrameWatcher {
    /// The remaining bytes of the preface or of a frame's payload.
    payload_left: usize,
    head: [u8; FRAME_HEAD],
    /// The number of bytes of `head` that have arrived.
    head_len: usize,
    /// True between a HEADERS frame and the frame with END_HEADERS.
    is_in_header_block: bool,
    /// True if a frame or head was unfinished before the current bytes.
    is_unfinished: bool,
}

impl Default for FrameWatcher {
    fn default() -> Self {
        Self {
            payload_left: HTTP2_PREFACE.len(),
            head: [0; FRAME_HEAD],
            head_len: 0,
            is_in_header_block: false,
            // The preface is incomplete; the handshake timeout covers it.
            is_unfinished: true,
        }
    }
}

impl FrameWatcher {
    /// Follows the next bytes of the connection.
    pub fn watch(&mut self, mut bytes: &[u8]) -> FrameProgress {
        let mut has_started = !self.is_unfinished;
        let was_known = self.kind().is_some();
        while !bytes.is_empty() {
            let is_payload = self.payload_left > 0;
            let missing = if is_payload { self.payload_left } else { FRAME_HEAD - self.head_len };
            let (current, later) = bytes.split_at(missing.min(bytes.len()));
            bytes = later;
            if is_payload {
                self.payload_left -= current.len();
            } else {
                self.read_head(current);
            }
            // A frame ends within these bytes: whatever follows it has just started.
            has_started |= self.is_finished();
        }
        // The type has just arrived and shows a body, which may take longer.
        has_started |= !was_known && self.is_body();
        self.is_unfinished = !self.is_finished();
        match (self.is_unfinished, has_started) {
            (false, _) => FrameProgress::Finished,
            (true, true) => FrameProgress::Started { is_body: self.is_body() },
            (true, false) => FrameProgress::Continued,
        }
    }

    fn is_finished(&self) -> bool {
        self.payload_left == 0 && self.head_len == 0 && !self.is_in_header_block
    }

    /// The type of the current frame, once it has arrived.
    fn kind(&self) -> Option<u8> {
        (self.payload_left > 0 || self.head_len > 3).then_some(self.head[3])
    }

    /// Returns whether the current frame is one of a body. DATA within a header block is not: the
    /// block keeps its deadline until it ends.
    fn is_body(&self) -> bool {
        self.kind() == Some(DATA) && !self.is_in_header_block
    }

    fn read_head(&mut self, bytes: &[u8]) {
        for byte in bytes {
            debug_assert!(self.head_len < FRAME_HEAD, "no more bytes than the head lacks");
            if let Some(slot) = self.head.get_mut(self.head_len) {
                *slot = *byte;
            }
            self.head_len += 1;
        }
        if self.head_len < FRAME_HEAD {
            return;
        }
        let [high, middle, low, kind, flags, ..] = self.head;
        self.head_len = 0;
        self.payload_left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if matches!(kind, HEADERS | CONTINUATION) {
            self.is_in_header_block = flags & END_HEADERS == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut bytes = u32::try_from(length).unwrap().to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.resize(FRAME_HEAD + length, b'x');
        bytes
    }

    fn after_preface() -> FrameWatcher {
        let mut frames = FrameWatcher::default();
        let (last, start) = HTTP2_PREFACE.split_last().unwrap();
        let unfinished = frames.watch(start);
        assert_eq!(
            unfinished,
            FrameProgress::Continued,
            "the handshake timeout covers the preface"
        );
        assert_eq!(frames.watch(&[*last]), FrameProgress::Finished);
        frames
    }

    #[test]
    fn whole_frames_leave_nothing_unfinished() {
        let all = [frame(4, 0, 6), frame(HEADERS, END_HEADERS, 40), frame(DATA, 1, 0)].concat();
        assert_eq!(after_preface().watch(&all), FrameProgress::Finished);
        let mut frames = after_preface();
        let last =
            all.iter().fold(FrameProgress::Continued, |_before, byte| frames.watch(&[*byte]));
        assert_eq!(last, FrameProgress::Finished, "byte by byte");
        let whole = [HTTP2_PREFACE, &all].concat();
        assert_eq!(FrameWatcher::default().watch(&whole), FrameProgress::Finished);
    }

    #[test]
    fn slow_bytes_do_not_restart_a_frame() {
        let mut frames = after_preface();
        let head = frame(HEADERS, END_HEADERS, 40);
        assert_eq!(frames.watch(&head[..1]), FrameProgress::Started { is_body: false });
        for byte in &head[1..head.len() - 1] {
            assert_eq!(frames.watch(&[*byte]), FrameProgress::Continued);
        }
        let next = [&head[head.len() - 1..], &head[..20]].concat();
        assert_eq!(
            frames.watch(&next),
            FrameProgress::Started { is_body: false },
            "the next frame"
        );
    }

    #[test]
    fn header_block_lasts_until_its_last_continuation() {
        let mut frames = after_preface();
        assert_eq!(frames.watch(&frame(HEADERS, 0, 9)), FrameProgress::Started { is_body: false });
        for _ in 0..3 {
            assert_eq!(frames.watch(&frame(CONTINUATION, 0, 0)), FrameProgress::Continued);
        }
        assert_eq!(frames.watch(&frame(CONTINUATION, END_HEADERS, 3)), FrameProgress::Finished);
    }

    #[test]
    fn data_within_a_header_block_keeps_the_deadline_of_the_block() {
        let mut frames = after_preface();
        assert_eq!(frames.watch(&frame(HEADERS, 0, 9)), FrameProgress::Started { is_body: false });
        assert_eq!(frames.watch(&frame(DATA, 0, 100)[..50]), FrameProgress::Continued);
    }

    #[test]
    fn data_frame_gets_the_body_timeout_once_its_type_is_known() {
        let mut frames = after_preface();
        let data = frame(DATA, 0, 100);
        assert_eq!(frames.watch(&data[..2]), FrameProgress::Started { is_body: false });
        assert_eq!(frames.watch(&data[2..10]), FrameProgress::Started { is_body: true });
        assert_eq!(frames.watch(&data[10..50]), FrameProgress::Continued);
        assert_eq!(frames.watch(&data[50..]), FrameProgress::Finished);
    }
}
