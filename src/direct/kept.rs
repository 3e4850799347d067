//! The conversations and responses that an engine keeps for a client, on paths that are forwarded
//! unread. They are named in the path or in the body. Those of another key are not found, as on
//! penstock's own paths.

use http::Method;
use penstock_api::percent_decode;
use penstock_scan::StoredIds;

use crate::auth::KeyOwner;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::request::scan_error;

/// The kept items that a request names or makes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The conversation that the request belongs to.
    pub(crate) conversation: Option<Box<[u8]>>,
    /// True if the engine keeps what the request makes.
    pub(crate) is_made: bool,
}

impl Kept {
    /// Reads the kept items of a request. Without client keys every client may use all of them.
    ///
    /// # Errors
    /// When the request names another client's item, or its body could name two.
    pub(crate) fn of(flow: &Flow<'_>, body: &[u8]) -> Result<Self, OwnError> {
        let owner = flow.ctx.key_owner();
        // Nothing to protect: every client may read what any of them has made.
        if owner == KeyOwner::ANYONE {
            return Ok(Self::default());
        }
        let in_body = StoredIds::of(body).map_err(|error| scan_error(&error))?;
        let head = flow.client.head();
        let in_path = PathIds::of(head.uri.path());
        let ids = &flow.proxy.response_ids;
        for response in [in_body.previous_response.of(body), in_path.response.as_bytes()] {
            // The backend does not matter here: only that the client may use what it names.
            ids.backend_of(response, owner)?;
        }
        let named = [in_body.conversation.of(body), in_path.conversation.as_bytes()];
        for conversation in named {
            ids.backend_of_conversation(conversation, owner)?;
        }
        let conversation = named.into_iter().find(|id| !id.is_empty()).map(Box::from);
        Ok(Self { conversation, is_made: head.method == Method::POST && in_path.makes })
    }
}

/// The ids in a path, decoded; empty if it has none.
#[derive(Debug, Default, PartialEq, Eq)]
struct PathIds {
    response: String,
    conversation: String,
    /// True if a POST to the path makes what it lists.
    makes: bool,
}

impl PathIds {
    fn of(path: &str) -> Self {
        let mut parts = path.split('/').map(percent_decode);
        let mut found = Self::default();
        while let Some(part) = parts.next() {
            let is_response = part.eq_ignore_ascii_case("responses");
            if !is_response && !part.eq_ignore_ascii_case("conversations") {
                continue;
            }
            // Decoded above: an engine would take `r%65sponses` for the same path.
            let next = parts.next().unwrap_or_default();
            // `compact` and its like are no ids.
            let is_id = next.bytes().any(|byte| !byte.is_ascii_alphabetic());
            match (is_response, is_id) {
                (true, true) => found.response = next,
                (false, true) => found.conversation = next,
                (_, false) => found.makes = true,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_conversations_and_responses() {
        for (path, response, conversation, makes) in [
            ("/v1/conversations", "", "", true),
            ("/v1/conversations/conv_1", "", "conv_1", false),
            ("/v1/conversations/conv%5F1/items", "", "conv_1", false),
            ("/v1/Conversations/conv_1/items/msg_1", "", "conv_1", false),
            ("/v1/responses/compact", "", "", true),
            ("/v1/responses/resp_1/more/x", "resp_1", "", false),
            ("/v1/files/file-1", "", "", false),
        ] {
            let expected =
                PathIds { response: response.into(), conversation: conversation.into(), makes };
            assert_eq!(PathIds::of(path), expected, "{path}");
        }
    }
}
