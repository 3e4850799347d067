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
    fn methods(self) -> &'static str {
        match self {
            Self::Whole => "GET, DELETE",
            Self::Cancel => "POST",
            Self::InputItems => "GET",
        }
    }
}

/// The meaning of a path of the data port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathTarget<'a> {
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

impl<'a> PathTarget<'a> {
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

    /// The methods of an `Allow` field; `OPTIONS` only if CORS is on.
    pub(crate) fn allowed(self, has_cors: bool) -> String {
        match self.methods() {
            "" => String::new(),
            methods if has_cors && !matches!(self, Self::Passthrough(_)) => {
                format!("{methods}, OPTIONS")
            }
            methods => methods.to_owned(),
        }
    }

    /// The methods the target takes beside those of CORS.
    fn methods(self) -> &'static str {
        match self {
            Self::Operation(_) => "POST",
            Self::Models | Self::Model(_) | Self::Health | Self::Root => "GET, HEAD",
            Self::Usage(call) if call.is_post() => "POST",
            Self::Usage(_) => "GET",
            Self::StoredResponse { part, .. } => part.methods(),
            Self::Ollama(route) => route.methods(),
            Self::Passthrough(_) => "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
            Self::Unknown => "",
        }
    }

    /// Returns whether the target is served without a key.
    pub(crate) fn is_public(self) -> bool {
        matches!(self, Self::Health | Self::Root)
    }

    /// Returns whether the target takes a method; `OPTIONS` is decided by CORS.
    pub(crate) fn takes(self, method: &Method) -> bool {
        if let Self::Passthrough(_) = self {
            // A server that takes TRACE returns the head that it got, with penstock's own key.
            return *method != Method::TRACE;
        }
        let (methods, method) = (self.methods(), method.as_str());
        // Most targets take one alone.
        methods == method || methods.split(", ").any(|taken| taken == method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_exactly() {
        assert_eq!(PathTarget::own("/v1/chat/completions"), PathTarget::Operation(Operation::Chat));
        assert_eq!(
            PathTarget::own("/v1/models/meta-llama/Llama-3:8b"),
            PathTarget::Model("meta-llama/Llama-3:8b")
        );
        assert_eq!(PathTarget::own("/"), PathTarget::Root);
        for unknown in
            ["/v1", "/v1/models/", "/v1/chat/completions/", "/v1/chat/../models", "//v1/models"]
        {
            assert_eq!(PathTarget::own(unknown), PathTarget::Unknown, "{unknown}");
        }
    }
}
