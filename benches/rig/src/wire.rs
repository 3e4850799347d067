//! HTTP/1.1 messages as both ends read them: a head, then a body by length, by chunks or up to the
//! end of the connection.

use bytes::{Buf, BytesMut};

use crate::link::Link;

/// Why a message ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The peer closed in good order, but too early.
    Closed,
    /// The connection failed.
    Failed,
    /// The chunks are not chunks.
    Framing,
}

impl Broken {
    /// The name to count it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Failed => "failed",
            Self::Framing => "framing",
        }
    }
}

/// The relevant parts of a head.
#[derive(Debug)]
pub struct Head {
    /// The request or status line.
    pub line: String,
    /// Content-Length.
    pub length: Option<usize>,
    /// Transfer-Encoding: chunked.
    pub is_chunked: bool,
    /// Connection: close.
    pub closes: bool,
    /// Expect: 100-continue.
    pub expects: bool,
}

impl Head {
    fn parse(bytes: &[u8]) -> Self {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let line = String::from_utf8_lossy(lines.next().unwrap_or_default().trim_ascii());
        let mut head = Self {
            line: line.into_owned(),
            length: None,
            is_chunked: false,
            closes: false,
            expects: false,
        };
        for field in lines {
            let Some(colon) = memchr::memchr(b':', field) else { continue };
            let (name, value) = (&field[..colon], field[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                head.length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                head.is_chunked = value.eq_ignore_ascii_case(b"chunked");
            } else if name.eq_ignore_ascii_case(b"connection") {
                head.closes = value.eq_ignore_ascii_case(b"close");
            } else if name.eq_ignore_ascii_case(b"expect") {
                head.expects = true;
            }
        }
        head
    }

    /// The nth word of the first line.
    pub fn word(&self, index: usize) -> &str {
        self.line.split(' ').nth(index).unwrap_or_default()
    }
}

/// A connection and its read-ahead bytes.
#[derive(Debug)]
pub struct Wire {
    link: Link,
    ahead: BytesMut,
}

impl Wire {
    /// Wraps a connection.
    pub fn new(link: Link) -> Self {
        Self { link, ahead: BytesMut::new() }
    }

    /// Writes it all.
    ///
    /// # Errors
    /// [`Broken::Failed`] when the peer takes no more.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.link.write(bytes).await.map_err(|_| Broken::Failed)
    }

    /// Returns whether nothing was sent or closed on it while it was idle.
    pub fn is_quiet(&self) -> bool {
        self.ahead.is_empty() && self.link.is_quiet()
    }

    /// Takes leave of the peer.
    pub async fn close(self) {
        self.link.close().await;
    }

    /// Returns once the peer has left. Bytes that arrive before are kept for the next message.
    pub async fn wait_for_end(&mut self) -> Broken {
        loop {
            if let Err(broken) = self.fill().await {
                return broken;
            }
        }
    }

    async fn fill(&mut self) -> Result<(), Broken> {
        match self.link.read(&mut self.ahead).await {
            Ok(0) => Err(Broken::Closed),
            Ok(_) => Ok(()),
            Err(_) => Err(Broken::Failed),
        }
    }

    /// The next head, or none if the peer closed between two messages.
    ///
    /// # Errors
    /// What broke the head off.
    pub async fn head(&mut self) -> Result<Option<Head>, Broken> {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.ahead, b"\r\n\r\n") {
                break at + 4;
            }
            match self.fill().await {
                Err(Broken::Closed) if self.ahead.is_empty() => return Ok(None),
                other => other?,
            }
        };
        let head = Head::parse(&self.ahead[..end]);
        self.ahead.advance(end);
        Ok(Some(head))
    }

    /// Passes on the body after a head, piece by piece as it arrives. A body with neither length
    /// nor chunks lasts up to the end of the connection if `until_close`, else it is empty.
    ///
    /// # Errors
    /// What broke the body off.
    pub async fn body(
        &mut self,
        head: &Head,
        until_close: bool,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Broken> {
        if !head.is_chunked {
            let length = head.length.unwrap_or(if until_close { usize::MAX } else { 0 });
            return match self.take(length, &mut each).await {
                Err(Broken::Closed) if length == usize::MAX => Ok(()),
                other => other,
            };
        }
        loop {
            let size = self.chunk_size().await?;
            self.take(size, &mut each).await?;
            while self.ahead.len() < 2 {
                self.fill().await?;
            }
            self.ahead.advance(2);
            if size == 0 {
                return Ok(());
            }
        }
    }

    async fn chunk_size(&mut self) -> Result<usize, Broken> {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.ahead, b"\r\n") {
                break at;
            }
            self.fill().await?;
        };
        let line = std::str::from_utf8(&self.ahead[..end]).map_err(|_| Broken::Framing)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(digits, 16).map_err(|_| Broken::Framing)?;
        self.ahead.advance(end + 2);
        Ok(size)
    }

    async fn take(&mut self, size: usize, each: &mut impl FnMut(&[u8])) -> Result<(), Broken> {
        let mut left = size;
        while left > 0 {
            if self.ahead.is_empty() {
                self.fill().await?;
            }
            let here = left.min(self.ahead.len());
            each(&self.ahead[..here]);
            self.ahead.advance(here);
            left -= here;
        }
        Ok(())
    }
}
