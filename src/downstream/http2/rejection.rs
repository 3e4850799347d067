//! Refuses a whole HTTP/2 connection with a response.

use bytes::Bytes;
use h2::server::SendResponse;
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite};

/// The most streams that a client may open before it has received the refusal.
const MAX_STREAMS: u32 = 16;
const MAX_HEADER_LIST: u32 = 16 * 1024;

/// Sends `refusal` to the requests that a client sends first, and GOAWAY. Resolves when the client
/// closes, so the caller sets a timeout.
pub(crate) async fn refuse<S>(stream: S, refusal: Response<Bytes>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEADER_LIST);
    let Ok(mut wire) = builder.handshake(stream).await else { return };
    let mut is_first = true;
    while let Some(Ok((_request, response))) = wire.accept().await {
        if let Err(error) = send(response, &refusal) {
            tracing::debug!(%error, "refused client disconnected before the response");
        }
        if std::mem::take(&mut is_first) {
            wire.graceful_shutdown();
        }
    }
}

fn send(mut response: SendResponse<Bytes>, refusal: &Response<Bytes>) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    *head.status_mut() = refusal.status();
    *head.headers_mut() = refusal.headers().clone();
    response.send_response(head, false)?.send_data(refusal.body().clone(), true)
}
