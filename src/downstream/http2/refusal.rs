//! A client that speaks HTTP/2 and gets no further than the guard.

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

/// What may be asked before the client has heard that it must go.
const MOST_STREAMS: u32 = 16;
const HEADER_LIST: u32 = 16 * 1024;

/// Answers what a client asks first, and lets it go. Ends when the client does: to be given a limit.
pub(crate) async fn turn_away<S>(stream: S, refusal: Response<Bytes>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(MOST_STREAMS).max_header_list_size(HEADER_LIST);
    let Ok(mut wire) = builder.handshake(stream).await else { return };
    let mut is_first = true;
    while let Some(Ok(accepted)) = wire.accept().await {
        if let Err(error) = answer(accepted, &refusal) {
            tracing::debug!(%error, "a client over the limit left before it was told so");
        }
        if std::mem::take(&mut is_first) {
            wire.graceful_shutdown();
        }
    }
}

fn answer(
    (_request, mut wire): (Request<RecvStream>, SendResponse<Bytes>),
    refusal: &Response<Bytes>,
) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    *head.status_mut() = refusal.status();
    *head.headers_mut() = refusal.headers().clone();
    wire.send_response(head, false)?.send_data(refusal.body().clone(), true)
}
