//! Requests over HTTP/2: several clients share one connection, opened by the first that needs it.

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::Request;
use penstock_rig::link::Link;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::task::spawn_local;

use crate::exchange::{Plan, Response};
use crate::record::Record;

/// The connection that its clients share; empty until the first request, and after an error.
#[derive(Default)]
pub(crate) struct Shared(Mutex<Option<SendRequest<Bytes>>>);

impl Shared {
    /// Sends the request as one stream of the connection, and reads the response.
    pub(crate) async fn exchange(&self, plan: &Plan, record: &Record) -> Result<(), String> {
        let named = |part: &'static str| move |_: h2::Error| format!("http2-{part}");
        let sender = self.sender(plan).await?;
        let mut sender = sender.ready().await.map_err(named("full"))?;
        let sent = sender.send_request(plan.head.clone(), false);
        let (response, mut body) = sent.map_err(named("send"))?;
        // Held back by h2 where the window is smaller than the body.
        body.send_data(plan.body.clone(), true).map_err(named("write"))?;
        let response = response.await.map_err(named("head"))?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let mut read = Response::new(plan.is_stream);
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(named("body"))?;
            body.flow_control().release_capacity(piece.len()).map_err(named("window"))?;
            read.take(&piece, record);
        }
        read.judge(status)
    }

    /// The next request opens a new connection; the streams of this one may end.
    pub(crate) async fn forget(&self) {
        *self.0.lock().await = None;
    }

    async fn sender(&self, plan: &Plan) -> Result<SendRequest<Bytes>, String> {
        let mut kept = self.0.lock().await;
        if let Some(sender) = &*kept {
            return Ok(sender.clone());
        }
        let sender = match plan.connect().await? {
            Link::Plain(stream) => open(stream).await,
            Link::Tls(stream) => open(*stream).await,
        };
        let sender = sender.map_err(|_| "http2-open".to_owned())?;
        *kept = Some(sender.clone());
        Ok(sender)
    }
}

async fn open<T>(stream: T) -> Result<SendRequest<Bytes>, h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (sender, connection) = Builder::new().enable_push(false).handshake(stream).await?;
    // Its streams report how it ends.
    spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

/// The head of every request.
pub(crate) fn head(scheme: &str, to: &str, length: usize) -> Request<()> {
    let head = Request::post(format!("{scheme}://{to}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("accept", "*/*")
        .header("user-agent", "loadgen")
        .header("content-length", length);
    head.body(()).expect("a good request")
}
