//! The head of the response to a request that penstock itself sends.

use pingora::protocols::http::v1::client::HttpSession;

/// Reads heads up to the first that is no interim one (1xx), which may come before any response
/// (RFC 9110 §15.2). Returns its status.
///
/// # Errors
/// [`pingora::Error`] when the connection breaks, or what comes is not HTTP.
// The caller limits the time, and with it the number of interim responses.
pub(crate) async fn read_final_head(session: &mut HttpSession) -> pingora::Result<u16> {
    loop {
        session.read_response().await?;
        let status = session.get_status().map_or(0, |status| status.as_u16());
        if !(100..200).contains(&status) {
            return Ok(status);
        }
    }
}
