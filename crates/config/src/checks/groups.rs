//! Rules about groups: backends that stand for every address of a name.

use std::net::IpAddr;

use crate::sections::Config;
use crate::sections::backends::{BackendConfig, Resolve};
use crate::syntax::document::Node;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::warnings::Warning;

/// Checks a backend, which was read from `item`.
pub(super) fn check(config: &Config, backend: &BackendConfig, item: &Node, reader: &mut Reader) {
    let name = || backend.name.clone();
    // An underscore starts the names of SRV records, not those of hosts.
    if backend.url.host.starts_with('_') && backend.srv.is_none() {
        let host = backend.url.host.clone();
        reader.warn(&item.at("url").place, Warning::ServiceHost { backend: name(), host });
    }
    if !backend.is_group() {
        return;
    }
    let is_each = backend.resolve == Resolve::Each;
    if backend.srv.is_none() && backend.url.host.parse::<IpAddr>().is_ok() {
        reader.fault(item.key_place("resolve"), Problem::NothingToResolve { name: name() });
    }
    if !is_each && item.entry("resolve").is_some() {
        reader.fault(item.key_place("resolve"), Problem::SrvTogether { name: name() });
    }
    let start = format!("{}@", backend.name);
    for twin in config.backends.iter().filter(|other| other.name.starts_with(&start)) {
        let problem = Problem::NamedLikeAddress { name: twin.name.clone(), group: name() };
        reader.fault(item.key_place("name"), problem);
    }
}
