//! What a request's path stands for, and which methods it takes.

use http::Method;

use crate::api::Operation;

/// What a path stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    Operation(Operation),
    Models,
    Model(&'a str),
    Health,
    /// `/`: what this is.
    Root,
    Unknown,
}

impl<'a> Target<'a> {
    pub(crate) fn of(path: &'a str) -> Self {
        if let Some(operation) = Operation::from_path(path) {
            return Self::Operation(operation);
        }
        match path {
            "/v1/models" | "/models" => Self::Models,
            "/health" => Self::Health,
            "/" => Self::Root,
            _ => match path.strip_prefix("/v1/models/") {
                Some(id) if !id.is_empty() => Self::Model(id),
                Some(_) | None => Self::Unknown,
            },
        }
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
            Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_exactly() {
        assert_eq!(Target::of("/v1/chat/completions"), Target::Operation(Operation::Chat));
        assert_eq!(
            Target::of("/v1/models/meta-llama/Llama-3:8b"),
            Target::Model("meta-llama/Llama-3:8b")
        );
        assert_eq!(Target::of("/"), Target::Root);
        for unknown in
            ["/v1", "/v1/models/", "/v1/chat/completions/", "/v1/chat/../models", "//v1/models"]
        {
            assert_eq!(Target::of(unknown), Target::Unknown, "{unknown}");
        }
    }
}
