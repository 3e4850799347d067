//! The visible end of a response whose backend broke off.

use penstock_api::{ErrorCode, error_event};

use crate::proxy::failure::timeout_message;
use crate::proxy::flow::{Flow, Served};
use crate::upstream::relay::{HeldHead, ResponseSink, Transform};
use crate::upstream::response_monitor::ResponseMonitor;

/// Ends a response that broke off: a stream with an error event in the client's dialect, anything
/// else with framing that no client takes for a whole response.
pub(super) async fn break_off(
    flow: &mut Flow<'_>,
    held: Option<HeldHead>,
    code: ErrorCode,
    monitor: &ResponseMonitor,
    transform: Option<Box<dyn Transform>>,
) -> Served {
    // Without a head the client could not read the error.
    if let Some(mut held) = held {
        held.write(&mut flow.client).await?;
    }
    let message = timeout_message(code);
    let end = match (transform, flow.ctx.operation.zip(monitor.stream())) {
        (Some(mut transform), _) => transform.cut(code, message),
        (None, Some((operation, framing))) => {
            let mut event = Vec::new();
            if !monitor.is_between_events() {
                // A half-sent event must end before the error can be read.
                event.extend_from_slice(framing.event_end());
            }
            event.extend_from_slice(&error_event(operation, framing, code, message));
            event.into()
        }
        (None, None) => {
            let cut = pingora::ErrorType::ConnectionClosed;
            return pingora::Error::e_explain(cut, "the backend's response broke off");
        }
    };
    let client = &mut flow.client;
    client.close_after();
    client.write_body(end, true).await
}
