//! Sends the usage stream.

use http::Version;
use http::header::{self, HeaderValue};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;

use crate::observe::usage::UsageStream;

/// Sends events until the process shuts down or the client leaves.
pub(super) async fn send(
    mut stream: UsageStream,
    session: &mut ServerSession,
    is_head: bool,
) -> pingora::Result<()> {
    let mut head = ResponseHeader::build(200, Some(8))?;
    head.insert_header(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))?;
    head.insert_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
    head.insert_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))?;
    // nginx buffers responses without this header, and events would come late.
    head.insert_header("x-accel-buffering", HeaderValue::from_static("no"))?;
    if session.req_header().version == Version::HTTP_11 {
        let chunked = HeaderValue::from_static("chunked");
        head.insert_header(header::TRANSFER_ENCODING, chunked)?;
    }
    // Nothing follows on the connection: HTTP/1.0 knows no other end of a stream.
    session.set_keepalive(None);
    session.write_response_header(Box::new(head)).await?;
    if is_head {
        return Ok(());
    }
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            // Only ends when the client closes its connection or sends something.
            gone = session.read_body_or_idle(true) => return gone.map(drop),
        };
        let is_last = event.is_none();
        session.write_response_body(event.unwrap_or_default(), is_last).await?;
        if is_last {
            return Ok(());
        }
    }
}
