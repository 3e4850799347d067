//! The target that a request's path names, and the methods it takes.

use http::Method;
use penstock_api::{OllamaRoute, Operation, UsageCall};
use penstock_config::Compat;
use penstock_core::routing::{Passthrough, Way};

/// The part of a stored response that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredPart {
    Whole,
    Cancel,
    InputItems,
}

impl StoredPart {
    fn methods(self, has_cors: bool) -> &'static str {
        match (self, has_cors) {
            (Self::Whole, true) => "GET, DELETE, OPTIONS",
            (Self::Whole, false) => "GET, DELETE",
            (Self::Cancel, true) => "POST, OPTIONS",
            (Self::Cancel, false) => "POST",
            (Self::InputItems, true) => "GET, OPTIONS",
            (Self::InputItems, false) => "GET",
        }
    }

    fn takes(self, method: &Method) -> bool {
        match self {
            Self::Whole => *method == Method::GET || *method == Method::DELETE,
            Self::Cancel => *method == Method::POST,
            Self::InputItems => *method == Method::GET,
        }
    }
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    Operation(Operation),
    Models,
    Model(&'a str),
    Health,
    /// A stored response, or a part of it.
    StoredResponse {
        id: &'a str,
        part: StoredPart,
    },
    /// Live usage, if `server.compat` enables it.
    Usage(UsageCall),
    /// One of Ollama's routes beside its operations.
    Ollama(OllamaRoute<'a>),
    /// A path that `routing.passthrough` forwards.
    Passthrough(&'a Way),
    /// `/`: the description of penstock.
    Root,
    Unknown,
}

impl<'a> Target<'a> {
    /// The target of a request. `routing.passthrough` forwards what penstock does not serve itself:
    /// other paths, and other methods on its own.
    pub(crate) fn of(
        method: &Method,
        path: &'a str,
        passthrough: &'a Passthrough,
        compat: Compat,
    ) -> Self {
        let own = match compat {
            Compat::Nomyo => UsageCall::of_path(path).map_or_else(|| Self::own(path), Self::Usage),
            Compat::Off => Self::own(path),
        };
        let is_own = own != Self::Unknown && (own.takes(method) || *method == Method::OPTIONS);
        if is_own {
            return own;
        }
        passthrough.find(path).map_or(own, Self::Passthrough)
    }

    fn own(path: &'a str) -> Self {
        if let Some(operation) = Operation::from_path(path) {
            return Self::Operation(operation);
        }
        if let Some(route) = OllamaRoute::of(path) {
            return Self::Ollama(route);
        }
        match path {
            "/v1/models" | "/models" => Self::Models,
            "/health" => Self::Health,
            "/" => Self::Root,
            _ => match path.strip_prefix("/v1/models/") {
                Some(id) if !id.is_empty() => Self::Model(id),
                Some(_) => Self::Unknown,
                None => Self::stored_response(path).unwrap_or(Self::Unknown),
            },
        }
    }

    fn stored_response(path: &'a str) -> Option<Self> {
        let below = path.strip_prefix("/v1/responses/").or(path.strip_prefix("/responses/"))?;
        let (id, part) = match below.split_once('/') {
            None => (below, StoredPart::Whole),
            Some((id, "cancel")) => (id, StoredPart::Cancel),
            Some((id, "input_items")) => (id, StoredPart::InputItems),
            Some(_) => return None,
        };
        // The id becomes a part of a backend's path, which no dot or slash may leave.
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        (is_plain && !id.is_empty()).then_some(Self::StoredResponse { id, part })
    }

    /// The methods the target takes, as an `Allow` field lists them; `OPTIONS` only if CORS is on.
    pub(crate) fn methods(self, has_cors: bool) -> &'static str {
        match (self, has_cors) {
            (Self::Operation(_), true) => "POST, OPTIONS",
            (Self::Operation(_), false) => "POST",
            (Self::Models | Self::Model(_) | Self::Health | Self::Root, true) => {
                "GET, HEAD, OPTIONS"
            }
            (Self::Models | Self::Model(_) | Self::Health | Self::Root, false) => "GET, HEAD",
            (Self::Usage(call), true) if call.is_post() => "POST, OPTIONS",
            (Self::Usage(call), false) if call.is_post() => "POST",
            (Self::Usage(_), true) => "GET, OPTIONS",
            (Self::Usage(_), false) => "GET",
            (Self::StoredResponse { part, .. }, _) => part.methods(has_cors),
            (Self::Ollama(route), _) => route.methods(has_cors),
            (Self::Passthrough(_), _) => "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
            (Self::Unknown, _) => "",
        }
    }

    /// Returns whether the target is served without a key.
    pub(crate) fn is_public(self) -> bool {
        matches!(self, Self::Health | Self::Root)
    }

    /// Returns whether the target takes a method; `OPTIONS` is decided by CORS.
    pub(crate) fn takes(self, method: &Method) -> bool {
        match self {
            Self::Operation(_) => *method == Method::POST,
            Self::Models | Self::Model(_) | Self::Health | Self::Root => {
                *method == Method::GET || *method == Method::HEAD
            }
            Self::Usage(call) => *method == if call.is_post() { Method::POST } else { Method::GET },
            Self::StoredResponse { part, .. } => part.takes(method),
            Self::Ollama(route) => route.takes(method.as_str()),
            // A server that takes TRACE returns the head that it got, with penstock's own key.
            Self::Passthrough(_) => *method != Method::TRACE,
            Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_exactly() {
        assert_eq!(Target::own("/v1/chat/completions"), Target::Operation(Operation::Chat));
        assert_eq!(
            Target::own("/v1/models/meta-llama/Llama-3:8b"),
            Target::Model("meta-llama/Llama-3:8b")
        );
        assert_eq!(Target::own("/"), Target::Root);
        for unknown in
            ["/v1", "/v1/models/", "/v1/chat/completions/", "/v1/chat/../models", "//v1/models"]
        {
            assert_eq!(Target::own(unknown), Target::Unknown, "{unknown}");
        }
    }
}
