//! A connection, plain or over TLS, as the messages of `wire.rs` and HTTP/2 travel on it.

use std::io::{ErrorKind, Result};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const READ_AHEAD: usize = 64 * 1024;

/// A connection.
#[derive(Debug)]
pub enum Link {
    /// Plain TCP.
    Plain(TcpStream),
    /// A client's end of TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Link {
    /// A connection without TLS; small writes leave at once.
    pub fn plain(stream: TcpStream) -> Self {
        // Fails only on a connection that is gone, which the first read reports.
        drop(stream.set_nodelay(true));
        Self::Plain(stream)
    }

    /// Writes it all.
    ///
    /// # Errors
    /// When the peer takes no more.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Appends what has come to `ahead`, at least a byte unless the peer has left.
    ///
    /// # Errors
    /// When the connection failed.
    pub async fn read(&mut self, ahead: &mut BytesMut) -> Result<usize> {
        match self {
            Self::Plain(stream) => {
                // An idle connection holds no buffer: a thousand open streams are a measurement.
                stream.readable().await?;
                ahead.reserve(READ_AHEAD);
                stream.read_buf(ahead).await
            }
            Self::Tls(stream) => {
                ahead.reserve(READ_AHEAD);
                stream.read_buf(ahead).await
            }
        }
    }

    /// Returns whether nothing was sent or closed while it was idle.
    pub fn is_quiet(&self) -> bool {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Sends TLS close_notify where there is TLS, and closes.
    pub async fn close(self) {
        match self {
            Self::Plain(stream) => drop(stream),
            // Fails only when the peer has left already.
            Self::Tls(mut stream) => drop(stream.shutdown().await),
        }
    }
}
