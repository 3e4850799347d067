//! What a request's path stands for, and which methods it takes.

use http::Method;

use crate::api::Operation;
use crate::routing::{Passthrough, Way};

/// What is requested of a stored response.
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

/// What a path stands for.
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
    /// A path that `routing.passthrough` forwards.
    Passthrough(&'a Way),
    /// `/`: what this is.
    Root,
    Unknown,
}

impl<'a> Target<'a> {
    pub(crate) fn of(path: &'a str, passthrough: &'a Passthrough) -> Self {
        match Self::own(path) {
            Self::Unknown => passthrough.find(path).map_or(Self::Unknown, Self::Passthrough),
            own => own,
        }
    }

    fn own(path: &'a str) -> Self {
        if let Some(operation) = Operation::from_path(path) {
            return Self::Operation(operation);
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
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        (is_plain && !id.is_empty()).then_some(Self::StoredResponse { id, part })
    }

    /// The methods it takes, as an `Allow` field lists them; `OPTIONS` only where CORS is on.
    pub(crate) fn methods(self, has_cors: bool) -> &'static str {
        match (self, has_cors) {
            (Self::Operation(_), true) => "POST, OPTIONS",
            (Self::Operation(_), false) => "POST",
            (Self::Models | Self::Model(_) | Self::Health | Self::Root, true) => {
                "GET, HEAD, OPTIONS"
            }
            (Self::Models | Self::Model(_) | Self::Health | Self::Root, false) => "GET, HEAD",
            (Self::StoredResponse { part, .. }, _) => part.methods(has_cors),
            (Self::Passthrough(_), _) => "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
            (Self::Unknown, _) => "",
        }
    }

    /// Whether it is served without a key.
    pub(crate) fn is_public(self) -> bool {
        matches!(self, Self::Health | Self::Root)
    }

    /// Whether it takes a method; `OPTIONS` is decided by CORS.
    pub(crate) fn takes(self, method: &Method) -> bool {
        match self {
            Self::Operation(_) => *method == Method::POST,
            Self::Models | Self::Model(_) | Self::Health | Self::Root => {
                *method == Method::GET || *method == Method::HEAD
            }
            Self::StoredResponse { part, .. } => part.takes(method),
            Self::Passthrough(_) => true,
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
