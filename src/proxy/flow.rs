//! What every step of a request needs: the data plane, the client's side, and the request's state.

use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

use crate::proxy::Proxy;
use crate::proxy::context::RequestContext;
use crate::upstream::relay::ResponseSink;

/// A request on its way through the data plane.
pub(crate) struct Flow<'a> {
    pub(crate) proxy: &'a Proxy,
    pub(crate) client: ClientSide<'a>,
    pub(crate) ctx: &'a mut RequestContext,
}

impl<'a> Flow<'a> {
    /// The way of a call that an ensemble makes for this request: with its own state, and without a
    /// response to the client.
    pub(crate) fn of_call(&'a self, ctx: &'a mut RequestContext) -> Self {
        Self { proxy: self.proxy, client: ClientSide::Head(self.client.head()), ctx }
    }
}

/// The client's side of a request: its head, and the way of its response. Another front door is
/// another value.
pub(crate) enum ClientSide<'a> {
    /// A session of Pingora: HTTP/1.1, or HTTP/2 through the sessions of `downstream`.
    Session(&'a mut Session),
    /// The head alone: the response of a call of an ensemble does not go to the client.
    Head(&'a RequestHeader),
}

impl ClientSide<'_> {
    /// The head of the client's request.
    pub(crate) fn head(&self) -> &RequestHeader {
        match self {
            Self::Session(session) => session.req_header(),
            Self::Head(head) => head,
        }
    }

    /// The same, for a front door that changes it before it is forwarded.
    pub(crate) fn head_mut(&mut self) -> Option<&mut RequestHeader> {
        match self {
            Self::Session(session) => Some(session.req_header_mut()),
            Self::Head(_) => None,
        }
    }

    /// Lets the client send its body, which waits for that (`Expect: 100-continue`).
    ///
    /// # Errors
    /// When the client is gone.
    pub(crate) async fn write_continue(&mut self) -> pingora::Result<()> {
        match self {
            Self::Session(session) => session.as_downstream_mut().write_continue_response().await,
            Self::Head(_) => Ok(()),
        }
    }

    /// The number of bytes of the body that have been written.
    pub(crate) fn bytes_sent(&self) -> usize {
        match self {
            Self::Session(session) => session.as_downstream().body_bytes_sent(),
            Self::Head(_) => 0,
        }
    }

    /// Returns whether the response goes to the client.
    pub(crate) fn takes_response(&self) -> bool {
        matches!(self, Self::Session(_))
    }

    /// Closes the client's connection after the response.
    pub(crate) fn close_after(&mut self) {
        if let Self::Session(session) = self {
            session.set_keepalive(None);
        }
    }
}

impl ResponseSink for ClientSide<'_> {
    async fn write_head(&mut self, head: Box<ResponseHeader>) -> pingora::Result<()> {
        match self {
            Self::Session(session) => session.as_downstream_mut().write_response_header(head).await,
            Self::Head(_) => no_response(),
        }
    }

    async fn write_body(&mut self, part: Bytes, is_end: bool) -> pingora::Result<()> {
        match self {
            Self::Session(session) => {
                session.as_downstream_mut().write_response_body(part, is_end).await
            }
            Self::Head(_) => no_response(),
        }
    }
}

fn no_response() -> pingora::Result<()> {
    debug_assert!(false, "a call of an ensemble has no response for the client");
    pingora::Error::e_explain(pingora::ErrorType::WriteError, "there is no client to write to")
}
