//! A connection to a backend, in use by one attempt, and the kernel's state of it.

use bytes::BytesMut;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use pingora::protocols::Stream;
use pingora::protocols::l4::ext::{TCP_INFO, get_tcp_info};

/// The size of the first read of a response; later reads grow with what the engine sends.
pub(crate) const READ_CHUNK: usize = 4 * 1024;

/// A connection to a backend, in use by one attempt.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Response bytes that are read and not yet relayed.
    pub(crate) read: BytesMut,
    /// True if the connection has carried a request before.
    pub(crate) is_reused: bool,
    pub(crate) is_tls: bool,
    /// The epoch of the backend's addresses when the connection was opened.
    pub(super) epoch: u32,
    /// The end of the last request, in the kernel's count of acknowledged bytes. While the count is
    /// smaller, the end of the request is not acknowledged.
    ///
    /// The kernel counts the SYN as a byte, this field does not. At worst, a request without its
    /// last byte counts as acknowledged.
    pub(super) request_end: u64,
}

impl Connection {
    /// Records that a request of `length` bytes is written next.
    pub(super) fn begin_request(&mut self, length: usize) {
        if self.is_tls {
            // TLS adds bytes of its overhead. From the bytes acknowledged now, the request takes at
            // least `length` more.
            self.request_end = self.tcp_info().map_or(0, |info| info.tcpi_bytes_acked);
        }
        self.request_end = self.request_end.saturating_add(length as u64);
    }

    /// Returns whether the connection is open and nothing has arrived on it, by a system call at
    /// this moment.
    pub(super) fn is_silent(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        // Anything else is no silence: zero bytes are a FIN, and a byte belongs to no response.
        matches!(recv(self.stream.id(), &mut [0_u8; 1], flags), Err(Errno::EAGAIN))
    }

    /// Returns whether bytes of the last request have never left this machine.
    pub(super) fn has_unsent_bytes(&self) -> bool {
        self.tcp_info().is_some_and(|info| info.tcpi_notsent_bytes > 0)
    }

    /// Returns whether the backend's system has not acknowledged the end of the last request.
    pub(super) fn has_unacknowledged_bytes(&self) -> bool {
        // Without the kernel's figures, the request may have been read and is not repeated.
        self.tcp_info().is_some_and(|info| info.tcpi_bytes_acked < self.request_end)
    }

    fn tcp_info(&self) -> Option<TCP_INFO> {
        get_tcp_info(self.stream.id()).ok()
    }
}
