//! Rules for backends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use penstock_api::Engine;

use super::{MAX_BACKENDS, Soundness, check_health, check_spelled_once};
use crate::sections::Config;
use crate::sections::backends::{AuthorizationPolicy, BackendConfig, ConnectionTls, Resolve};
use crate::sections::listener::ListenAddress;
use crate::syntax::document::{Entry, Node};
use crate::syntax::errors::Problem;
use crate::syntax::glob::ModelGlob;
use crate::syntax::reader::Reader;
use crate::syntax::url::BackendUrl;
use crate::syntax::warnings::Warning;

/// Checks the backends: each by itself, and their names and addresses against one another's.
pub(super) fn check_backends(config: &Config, root: &Node, sound: &Soundness, reader: &mut Reader) {
    let Some(Entry { node, .. }) = root.entry("backends") else { return };
    let count = config.backends.len();
    if count == 0 && sound.holds(node) {
        reader.warn(root.key_place("backends"), Warning::NoBackends);
    }
    if count > 0 && config.backends.iter().all(BackendConfig::starts_drained) {
        reader.warn(root.key_place("backends"), Warning::AllDrained);
    }
    if count > MAX_BACKENDS {
        // The checks below are quadratic.
        let problem = Problem::TooManyBackends { count, limit: MAX_BACKENDS };
        reader.fault(root.key_place("backends"), problem);
        return;
    }
    // The other backends are compared with these.
    let sound_items: Vec<(&BackendConfig, &Node)> = config
        .backends
        .iter()
        .zip(node.items())
        .filter(|(_, item)| sound.holds_at(item, "name") && sound.holds(item.at("url")))
        .collect();
    for (index, (backend, item)) in sound_items.iter().enumerate() {
        check_identity_of(config, backend, item, sound_items.get(..index).unwrap_or(&[]), reader);
    }
    for (index, (backend, item)) in config.backends.iter().zip(node.items()).enumerate() {
        if sound.holds(item) {
            check_backend(config, backend, item, index, reader);
        }
    }
}

/// Checks a backend's name and address against earlier backends and against this process.
fn check_identity_of(
    config: &Config,
    backend: &BackendConfig,
    item: &Node,
    earlier: &[(&BackendConfig, &Node)],
    reader: &mut Reader,
) {
    let name = || backend.name.clone();
    if earlier.iter().any(|(other, _)| other.name == backend.name) {
        reader.fault(&item.at("name").place, Problem::BackendTwice { name: name() });
    }
    // A warning: two names may be meant, for two priorities or keys.
    if let Some((twin, _)) = earlier.iter().find(|(other, _)| other.url == backend.url) {
        let warning = Warning::SameUrl { first: twin.name.clone(), second: name() };
        reader.warn(&item.at("url").place, warning);
    }
    if let Some((port, address)) = own_address(config, &backend.url) {
        let warning = Warning::SelfLoop { backend: name(), port, address };
        reader.warn(&item.at("url").place, warning);
    }
}

/// Checks the settings of a backend.
fn check_backend(
    config: &Config,
    backend: &BackendConfig,
    item: &Node,
    index: usize,
    reader: &mut Reader,
) {
    let name = || backend.name.clone();
    if backend.authorization == AuthorizationPolicy::Replace && backend.api_key.is_none() {
        let place = &item.at("authorization").place;
        reader.fault(place, Problem::NothingToReplaceWith { name: name() });
    }
    check_spelled_once(item, format!("backends[{index}]"), "api_key", reader);
    check_backend_tls(backend, item, index, reader);
    check_group(config, backend, item, reader);
    if is_own_api(backend) {
        let base = BackendUrl { base_path: String::new(), ..backend.url.clone() }.to_string();
        let warning = Warning::EndpointUrl { path: "/api/v1".to_owned(), base };
        reader.warn(&item.at("url").place, warning);
    }
    if let Some(Entry { node, .. }) = item.entry("health") {
        check_health(&backend.health, node, reader);
    }
    let models = backend.models.as_deref().unwrap_or(&[]);
    for (index, (model, node)) in models.iter().zip(item.at("models").items()).enumerate() {
        if models.iter().take(index).any(|other| other.id == model.id) {
            let problem = Problem::ModelTwice { id: model.id.clone(), backend: name() };
            reader.fault(&node.at("id").place, problem);
        }
        if ModelGlob::is_pattern(&model.id) {
            let warning = Warning::PatternAsModel { backend: name(), model: model.id.clone() };
            reader.warn(&node.at("id").place, warning);
        }
    }
}

/// Returns whether a URL leads to LM Studio's own API, which is not that of OpenAI. At others, such
/// as OpenRouter, `/api/v1` is a usual base.
fn is_own_api(backend: &BackendConfig) -> bool {
    /// The port of LM Studio, unless another one is set there.
    const LM_STUDIO: u16 = 1234;
    let may_be = match backend.engine {
        Engine::LmStudio => true,
        engine => engine == Engine::Auto && backend.url.port == LM_STUDIO,
    };
    may_be && backend.url.base_path == "/api"
}

/// Returns the listen address of this process that a URL leads to, and the name of its port.
fn own_address(config: &Config, url: &BackendUrl) -> Option<(&'static str, String)> {
    let hosts: Vec<IpAddr> = match url.host.parse() {
        Ok(address) => vec![address],
        Err(_) if url.host.eq_ignore_ascii_case("localhost") => {
            vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
        }
        // Other names are not resolved: a check must not wait for DNS.
        Err(_) => Vec::new(),
    };
    let data = config.server.listen.iter().filter_map(|listener| match &listener.address {
        ListenAddress::Tcp(address) => Some(("data", *address)),
        ListenAddress::Unix(_) => None,
    });
    // Requests to the admin port would loop as well: the fleet would contain penstock itself.
    let mut own = data.chain(config.admin.listen.map(|address| ("admin", address)));
    let leads_to = |own: &SocketAddr| {
        own.port() == url.port
            && hosts
                .iter()
                // A listener on all addresses is on the loopback ones, too.
                .any(|host| *host == own.ip() || (own.ip().is_unspecified() && host.is_loopback()))
    };
    own.find(|(_, address)| leads_to(address)).map(|(port, address)| (port, address.to_string()))
}

fn check_backend_tls(backend: &BackendConfig, item: &Node, index: usize, reader: &mut Reader) {
    if !backend.url.https && backend.tls != ConnectionTls::default() {
        let name = backend.name.clone();
        reader.fault(item.key_place("tls"), Problem::TlsWithoutHttps { name });
    }
    check_identity(&backend.tls, item.at("tls"), format!("backends[{index}].tls"), reader);
}

/// Refuses a certificate without a key, and a key without a certificate.
pub(super) fn check_identity(
    tls: &ConnectionTls,
    item: &Node,
    section: String,
    reader: &mut Reader,
) {
    if tls.cert.is_some() != tls.key.is_some() {
        let key = if tls.cert.is_some() { "key" } else { "cert" };
        reader.fault(&item.place, Problem::MissingKey { key: key.to_owned(), section });
    }
}

/// Checks a backend that stands for every address of a name. It was read from `item`.
fn check_group(config: &Config, backend: &BackendConfig, item: &Node, reader: &mut Reader) {
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
