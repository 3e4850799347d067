//! Watches the frames a client sends go by. What has been begun must be ended in time: a frame, and a
//! head that spans several. Bodies have clocks of their own as well, heads have no other.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::now;
use crate::units::Timestamp;

/// What a connection begins with, before its first frame (RFC 9113 §3.4).
const PREFACE: usize = 24;
/// The head of a frame (RFC 9113 §4.1): 24 bits of length, a type, flags, 32 bits of stream.
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// How long a client may take for what it has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For a head, and for every frame that is no part of a body.
    pub(crate) head: Duration,
    /// For a frame of a body.
    pub(crate) body: Duration,
}

/// By when what has been begun must have ended; shared by a connection and its stream.
#[derive(Debug)]
pub(crate) struct Due {
    /// In microseconds; 0 while nothing is begun.
    at: AtomicU64,
    patience: Patience,
}

impl Due {
    /// Nothing is begun yet.
    pub(crate) fn new(patience: Patience) -> Arc<Self> {
        Arc::new(Self { at: AtomicU64::new(0), patience })
    }

    /// Ends once something is overdue. Wakes rarely: no deadline can come sooner than the shortest
    /// patience from now.
    pub(crate) async fn passed(&self) {
        let shortest = self.patience.head.min(self.patience.body);
        loop {
            let at = Timestamp(self.at.load(Ordering::Relaxed));
            let wait = if at.0 == 0 { shortest } else { at.since(now()) };
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }
}

/// A stream on which the frames that are read are watched.
pub(crate) struct Watched<S> {
    stream: S,
    frames: Frames,
    due: Arc<Due>,
}

impl<S> Watched<S> {
    /// Watches `stream` from its first byte on.
    pub(crate) fn new(stream: S, due: Arc<Due>) -> Self {
        Self { stream, frames: Frames::default(), due }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, out);
        let new = out.filled().get(before..).unwrap_or_default();
        if !new.is_empty() {
            let patience = self.due.patience;
            match self.frames.pass(new) {
                Passed::Whole => self.due.at.store(0, Ordering::Relaxed),
                Passed::Begun { is_body } => {
                    let limit = if is_body { patience.body } else { patience.head };
                    self.due.at.store(now().after(limit).0, Ordering::Relaxed);
                }
                Passed::More => {}
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What some more bytes came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// Nothing is left to be ended.
    Whole,
    /// Something new is begun, and not ended.
    Begun { is_body: bool },
    /// What was begun before goes on.
    More,
}

/// Where in the sequence of frames a connection is.
#[derive(Debug)]
struct Frames {
    /// Bytes left of the preface or of a frame behind its head.
    rest: usize,
    head: [u8; FRAME_HEAD],
    /// Bytes there are of `head`.
    has: usize,
    /// Between a HEADERS frame and the end of its fields.
    is_in_fields: bool,
    /// Whether something was begun before the bytes at hand.
    is_begun: bool,
}

impl Default for Frames {
    fn default() -> Self {
        let head = [0; FRAME_HEAD];
        Self { rest: PREFACE, head, has: 0, is_in_fields: false, is_begun: true }
    }
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) -> Passed {
        let mut is_new = !self.is_begun;
        let was_known = self.kind().is_some();
        while !bytes.is_empty() {
            let missing = if self.rest > 0 { self.rest } else { FRAME_HEAD - self.has };
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            bytes = later;
            if self.rest > 0 {
                self.rest -= now.len();
            } else {
                self.take_head(now);
            }
            is_new |= self.is_whole();
        }
        // Only now is it known to be part of a body, which has longer.
        is_new |= !was_known && self.kind() == Some(DATA);
        self.is_begun = !self.is_whole();
        match (self.is_begun, is_new) {
            (false, _) => Passed::Whole,
            (true, true) => Passed::Begun { is_body: self.kind() == Some(DATA) },
            (true, false) => Passed::More,
        }
    }

    fn is_whole(&self) -> bool {
        self.rest == 0 && self.has == 0 && !self.is_in_fields
    }

    /// The type of the frame at hand, once it is known.
    fn kind(&self) -> Option<u8> {
        (self.rest > 0 || self.has > 3).then_some(self.head[3])
    }

    fn take_head(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.head.get_mut(self.has) {
                *place = *byte;
            }
            self.has += 1;
        }
        if self.has < FRAME_HEAD {
            return;
        }
        let [high, middle, low, kind, flags, ..] = self.head;
        self.has = 0;
        self.rest = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if matches!(kind, HEADERS | CONTINUATION) {
            self.is_in_fields = flags & END_HEADERS == 0;
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

    fn begun() -> Frames {
        let mut frames = Frames::default();
        assert_eq!(frames.pass(&[0; PREFACE - 1]), Passed::More, "that has a clock of its own");
        assert_eq!(frames.pass(&[0]), Passed::Whole);
        frames
    }

    #[test]
    fn whole_frames_leave_nothing_to_be_ended() {
        let all = [frame(4, 0, 6), frame(HEADERS, END_HEADERS, 40), frame(DATA, 1, 0)].concat();
        assert_eq!(begun().pass(&all), Passed::Whole);
        let mut frames = begun();
        let last = all.iter().fold(Passed::More, |_before, byte| frames.pass(&[*byte]));
        assert_eq!(last, Passed::Whole, "byte by byte");
        assert_eq!(Frames::default().pass(&[&[0; PREFACE][..], &all].concat()), Passed::Whole);
    }

    #[test]
    fn a_frame_is_begun_once_and_however_slowly_it_goes_on() {
        let mut frames = begun();
        let head = frame(HEADERS, END_HEADERS, 40);
        assert_eq!(frames.pass(&head[..1]), Passed::Begun { is_body: false });
        for byte in &head[1..head.len() - 1] {
            assert_eq!(frames.pass(&[*byte]), Passed::More);
        }
        let next = [&head[head.len() - 1..], &head[..20]].concat();
        assert_eq!(frames.pass(&next), Passed::Begun { is_body: false }, "another one");
    }

    #[test]
    fn a_head_lasts_until_its_last_continuation() {
        let mut frames = begun();
        assert_eq!(frames.pass(&frame(HEADERS, 0, 9)), Passed::Begun { is_body: false });
        for _ in 0..3 {
            assert_eq!(frames.pass(&frame(CONTINUATION, 0, 0)), Passed::More);
        }
        assert_eq!(frames.pass(&frame(CONTINUATION, END_HEADERS, 3)), Passed::Whole);
    }

    #[test]
    fn a_body_is_known_by_the_head_of_its_frame() {
        let mut frames = begun();
        let data = frame(DATA, 0, 100);
        assert_eq!(frames.pass(&data[..2]), Passed::Begun { is_body: false });
        assert_eq!(frames.pass(&data[2..10]), Passed::Begun { is_body: true });
        assert_eq!(frames.pass(&data[10..50]), Passed::More);
        assert_eq!(frames.pass(&data[50..]), Passed::Whole);
    }
}
