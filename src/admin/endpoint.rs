//! The rows of the table of endpoints: their type, and the functions that build them.

use http::Method;
use penstock_api::UsageCall;

use super::access_control::Access;
use super::response::{AdminRefusal, AdminResponse, PendingResponse};
use super::{Admin, AdminCall};

penstock_api::named! {
    /// The method of an endpoint.
    pub(super) enum Verb {
        Get = "GET",
        Post = "POST",
        Patch = "PATCH",
        Delete = "DELETE",
    }
}

impl Verb {
    pub(super) fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Self::Get),
            Method::POST => Some(Self::Post),
            Method::PATCH => Some(Self::Patch),
            Method::DELETE => Some(Self::Delete),
            _ => None,
        }
    }
}

/// One row of the table of endpoints.
pub(super) struct Endpoint {
    pub(super) verb: Verb,
    /// The path of the endpoint, and its aliases.
    pub(super) paths: &'static [&'static str],
    pub(super) access: Access,
    pub(super) about: &'static str,
    pub(super) handle: Handler,
}

#[derive(Clone, Copy)]
pub(super) enum Handler {
    Sync(fn(&Admin, &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal>),
    Async(fn(&Admin, &AdminCall<'_>) -> PendingResponse),
    Usage(UsageCall),
}

pub(super) const fn get(
    paths: &'static [&'static str],
    handle: fn(&Admin, &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal>,
    about: &'static str,
) -> Endpoint {
    let handle = Handler::Sync(handle);
    Endpoint { verb: Verb::Get, paths, access: Access::Token, about, handle }
}

pub(super) const fn post(
    paths: &'static [&'static str],
    handle: fn(&Admin, &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal>,
    about: &'static str,
) -> Endpoint {
    Endpoint { verb: Verb::Post, ..get(paths, handle, about) }
}

pub(super) const fn command(
    paths: &'static [&'static str],
    handle: fn(&Admin, &AdminCall<'_>) -> PendingResponse,
    about: &'static str,
) -> Endpoint {
    Endpoint { verb: Verb::Post, ..query(paths, handle, about) }
}

/// Returns an endpoint with another method.
pub(super) const fn with(verb: Verb, endpoint: Endpoint) -> Endpoint {
    Endpoint { verb, ..endpoint }
}

pub(super) const fn query(
    paths: &'static [&'static str],
    handle: fn(&Admin, &AdminCall<'_>) -> PendingResponse,
    about: &'static str,
) -> Endpoint {
    let handle = Handler::Async(handle);
    Endpoint { verb: Verb::Get, paths, access: Access::Token, about, handle }
}

pub(super) const fn usage(
    call: UsageCall,
    paths: &'static [&'static str],
    about: &'static str,
) -> Endpoint {
    let verb = if call.is_post() { Verb::Post } else { Verb::Get };
    Endpoint { verb, paths, access: Access::Token, about, handle: Handler::Usage(call) }
}

pub(super) const fn open(endpoint: Endpoint) -> Endpoint {
    Endpoint { access: Access::Open, ..endpoint }
}

pub(super) const fn probe(endpoint: Endpoint) -> Endpoint {
    Endpoint { access: Access::Probe, ..endpoint }
}

pub(super) const fn page(endpoint: Endpoint) -> Endpoint {
    Endpoint { access: Access::Page, ..endpoint }
}
