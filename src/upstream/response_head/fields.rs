//! The fields of a response's head that describe its body and its connection.

use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use memchr::memmem;
use penstock_api::StreamFraming;
use smallvec::SmallVec;

use crate::upstream::headers::is_hop_by_hop;

/// The end of the body of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// There is no body.
    Empty,
    /// After this number of bytes.
    Length(u64),
    /// With the last chunk.
    Chunked,
    UntilClose,
}

/// The reason why a response cannot be relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResponse {
    /// Not an HTTP/1 head.
    #[error("The backend's response is not HTTP")]
    NotHttp,
    /// More than 64 KiB or 128 fields.
    #[error("The head of the backend's response is too large")]
    HeadTooLarge,
    /// A 101 that the client did not request.
    #[error("The backend switched protocols without a request to do so")]
    Switching,
    /// Two lengths, or a length and chunks.
    #[error("The backend's response has contradictory framing")]
    Framing,
    /// Interim responses without an end.
    #[error("The backend sent too many interim responses")]
    Interim,
    #[error("The chunks of the backend's response are malformed")]
    Chunks,
    /// An encoded body that must be read.
    #[error(
        "The backend's response is encoded (content-encoding: {0}), which the request did not accept"
    )]
    Encoded(&'static str),
}

/// The properties of the body and the connection, from the fields of a head.
#[derive(Default)]
pub(super) struct HeadFacts {
    pub(super) keeps_alive: bool,
    pub(super) keep_alive: Option<Duration>,
    pub(super) length: Option<u64>,
    pub(super) is_chunked: bool,
    pub(super) stream: Option<StreamFraming>,
    pub(super) is_json: bool,
    pub(super) is_text: bool,
    pub(super) is_encoded: bool,
    pub(super) nominated: SmallVec<[HeaderName; 2]>,
}

impl HeadFacts {
    /// Reads one field; returns whether the client gets it.
    pub(super) fn read_field(
        &mut self,
        name: &HeaderName,
        value: &HeaderValue,
    ) -> Result<bool, InvalidResponse> {
        if *name == header::CONTENT_LENGTH {
            let digits = value.as_bytes();
            // `parse` alone would accept a sign.
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let length = value.to_str().ok().filter(|_| is_number).and_then(|v| v.parse().ok());
            let length = length.ok_or(InvalidResponse::Framing)?;
            // The same length twice is one length (RFC 9112 §6.3).
            if self.length.is_some_and(|other| other != length) {
                return Err(InvalidResponse::Framing);
            }
            self.length = Some(length);
            return Ok(false);
        }
        if *name == header::TRANSFER_ENCODING {
            if self.is_chunked || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err(InvalidResponse::Framing);
            }
            self.is_chunked = true;
            return Ok(false);
        }
        if *name == header::CONNECTION {
            self.read_connection(value);
            return Ok(false);
        }
        if name.as_str() == "keep-alive" {
            self.keep_alive = value.to_str().ok().and_then(keep_alive_timeout);
            return Ok(false);
        }
        self.is_encoded |= *name == header::CONTENT_ENCODING
            && !value.as_bytes().eq_ignore_ascii_case(b"identity");
        if *name == header::CONTENT_TYPE {
            self.stream = StreamFraming::of_content_type(value.as_bytes());
            self.is_json =
                self.stream.is_none() && memmem::find(value.as_bytes(), b"json").is_some();
            self.is_text = self.stream.is_none() && is_plain(value.as_bytes());
        }
        Ok(!is_hop_by_hop(name))
    }

    fn read_connection(&mut self, value: &HeaderValue) {
        // A value that is not text nominates nothing.
        let Ok(tokens) = value.to_str() else { return };
        for token in tokens.split(',').map(str::trim) {
            if token.eq_ignore_ascii_case("close") {
                self.keeps_alive = false;
            } else if token.eq_ignore_ascii_case("keep-alive") {
                self.keeps_alive = true;
            } else if let Ok(name) = HeaderName::from_bytes(token.as_bytes()) {
                self.nominated.push(name);
            }
        }
    }

    pub(super) fn framing(&self, status: u16) -> Result<BodyEnd, InvalidResponse> {
        match (self.is_chunked, self.length) {
            // Two framings: two parsers would see two different bodies.
            (true, Some(_)) => Err(InvalidResponse::Framing),
            // These have no body, whatever their fields say (RFC 9112 §6.3).
            _ if matches!(status, 204 | 304) => Ok(BodyEnd::Empty),
            (true, None) => Ok(BodyEnd::Chunked),
            (false, Some(length)) => Ok(BodyEnd::Length(length)),
            (false, None) => Ok(BodyEnd::UntilClose),
        }
    }
}

/// Returns whether a type is one of text, or of subtitles.
fn is_plain(value: &[u8]) -> bool {
    let is_text = value.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"text/"));
    is_text || memmem::find(value, b"subrip").is_some()
}

/// The `timeout` parameter of a `Keep-Alive` field, in seconds.
fn keep_alive_timeout(value: &str) -> Option<Duration> {
    let mut parameters = value.split(',').filter_map(|parameter| parameter.split_once('='));
    let (_, timeout) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("timeout"))?;
    timeout.trim().trim_matches('"').parse().ok().map(Duration::from_secs)
}
