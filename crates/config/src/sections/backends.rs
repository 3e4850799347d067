//! `backends:` the servers that requests are sent to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_api::units::ByteSize;
use penstock_api::{Engine, Operations, Tier, choice};
use penstock_predict::{EngineRow, engine_rows};

use super::health::HealthConfig;
use super::model::{ModelEntry, ModelItem, TierNumber};
use super::name_sets::{NameList, OperationNames};
use super::telemetry::BackendTelemetry;
use super::timeouts::TimeoutOverrides;
use crate::syntax::collections::{List, Maybe};
use crate::syntax::document::{Content, Node};
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::secret::{InlineSecret, Secret, SecretFile};
use crate::syntax::setting::{Setting, choice_setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::url::BackendUrl;
use crate::syntax::values::{AtLeastOne, DnsName, FilePath, Name};
use crate::tls::{ClientTls, ClientTlsFiles, TlsError};

choice_setting!(Engine);

choice! {
    /// The treatment of the client's Authorization header.
    pub enum AuthorizationPolicy {
        /// It is removed.
        Strip = "strip",
        /// It is forwarded.
        Pass = "pass",
        /// It is replaced with the backend's API key.
        Replace = "replace",
    }
}
choice_setting!(AuthorizationPolicy);

impl Setting for EngineRow {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, "a row of `penstock fit --list`")?;
        let rows = engine_rows().unwrap_or_default();
        let names: Vec<String> = rows.iter().map(EngineRow::name).collect();
        match rows.into_iter().find(|row| row.name() == text) {
            Some(row) => Some(row),
            None => reader.refuse_value(node, text, &format!("one of {}", names.join(", "))),
        }
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(&value.name())
    }
}

choice! {
    /// The backends that the addresses of a name make.
    pub enum Resolve {
        /// One backend; its connections use all of them.
        Together = "together",
        /// A backend for each.
        Each = "each",
    }
}
choice_setting!(Resolve);

section! {
    /// TLS settings of connections to a server.
    pub struct ConnectionTls {
        /// A PEM file with the trusted CAs. Default: the system's trust store.
        pub ca: Option<PathBuf> ["ca" as Maybe<FilePath>] = None,
        /// A PEM file with the client certificate (mutual TLS).
        pub cert: Option<PathBuf> ["cert" as Maybe<FilePath>] = None,
        /// A PEM file with the private key of `cert`.
        pub key: Option<PathBuf> ["key" as Maybe<FilePath>] = None,
        /// The server name for SNI and certificate verification. Default: the URL's host.
        pub server_name: Option<String> ["server_name" as Maybe<String>] = None,
        /// Verifies the server's certificate.
        pub verify: bool = true,
    }
}

impl ConnectionTls {
    /// Reads the files, for connections to `host`.
    ///
    /// # Errors
    /// [`TlsError`] when its files cannot be used.
    pub(crate) fn load(&self, host: &str, http2: bool) -> Result<LoadedTls, TlsError> {
        let loaded = ClientTls::load(ClientTlsFiles {
            ca: self.ca.as_ref(),
            identity: self.cert.as_ref().zip(self.key.as_ref()),
            server_name: self.server_name.as_deref().unwrap_or(host),
            verify: self.verify,
            http2,
        })?;
        Ok(LoadedTls(Some(Arc::new(loaded))))
    }
}

impl BackendConfig {
    /// Returns whether it stands for a group of backends: one for each address of a name.
    pub fn is_group(&self) -> bool {
        self.address.is_none() && (self.resolve == Resolve::Each || self.srv.is_some())
    }

    /// Returns whether it gets no new requests until the admin port resumes it.
    pub fn starts_drained(&self) -> bool {
        self.drain || self.weight == 0
    }

    /// Builds the TLS settings of connections to this backend.
    ///
    /// # Errors
    /// [`TlsError`] when its files cannot be used.
    pub(crate) fn load_tls(&mut self) -> Result<(), TlsError> {
        self.client_tls = self.tls.load(&self.url.host, self.http2)?;
        Ok(())
    }
}

/// TLS settings with their files loaded; empty for connections in plain text.
#[derive(Debug, Clone, Default)]
pub struct LoadedTls(pub Option<Arc<ClientTls>>);

/// Compares nothing: configurations are compared by their settings. The same files with other
/// contents are no change of the configuration, although the next load uses them.
impl PartialEq for LoadedTls {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

section! {
    /// A backend.
    pub struct BackendConfig requires ["url"] {
        /// The name in metrics, logs and paths. Default: host and port.
        pub name: String ["name" as Name] = String::new(),
        /// The address. A base path or a trailing /v1 is allowed.
        pub url: BackendUrl = BackendUrl::default(),
        /// The backends that the addresses of the URL's host name make: together one backend, or
        /// each a backend called name@address:port.
        pub resolve: Resolve = Resolve::Together,
        /// A DNS name whose SRV records give the addresses and ports, such as
        /// _http._tcp.engines.example. Each is a separate backend; the Host header and the TLS
        /// server name stay those of the URL.
        pub srv: Option<String> ["srv" as Maybe<DnsName>] = None,
        /// The address, if it is one of a group.
        pub address: Option<SocketAddr> [] = None,
        /// The engine: auto, vllm, sglang, llamacpp, ollama, lmstudio, openai, anthropic, tgi,
        /// trtllm or other.
        pub engine: Engine = Engine::Auto,
        /// The priority. Lower is preferred.
        pub priority: u32 = 50,
        /// Its share of the requests in relation to the other backends of a model; 0 drains it.
        pub weight: u32 = 1,
        /// The zone that `policies` speak of: any word. Default: local for a loopback or private
        /// address, else cloud; unknown for the addresses of a group, which no policy about zones
        /// admits.
        pub zone: Option<String> ["zone" as Maybe<Name>] = None,
        /// The quality of its models, as `policies` compare it: from 1, the lowest, to 5.
        pub tier: Tier ["tier" as TierNumber] = Tier::LOWEST,
        /// The maximum number of requests in flight. Default: no limit.
        pub max_in_flight: Option<u32> ["max_in_flight" as Maybe<AtLeastOne<u32>>] = None,
        /// The maximum number of requests in flight for each of its models. Default: no limit; with
        /// the strategy deployment as many as the engine runs at a time.
        pub max_in_flight_per_model: Option<u32>
            ["max_in_flight_per_model" as Maybe<AtLeastOne<u32>>] = None,
        /// The number of requests of a model that the engine runs at a time (OLLAMA_NUM_PARALLEL).
        /// Default: what llama.cpp reports, 1 for Ollama, else not known.
        pub num_parallel: Option<u32> ["num_parallel" as Maybe<AtLeastOne<u32>>] = None,
        /// The duration of the engine's steps until it is learned: a row of `penstock fit --list`,
        /// such as h100/qwen3-32b/tp2. Default: as another backend of the model, else a guess.
        pub step_times: Option<EngineRow> ["step_times" as Maybe<EngineRow>] = None,
        /// The VRAM that its models share: decides whether another one fits. Default: not known.
        pub vram: Option<ByteSize> ["vram" as Maybe<ByteSize>] = None,
        /// Keeps new requests from the backend. A reload applies a changed value; until then
        /// the admin port's drain and resume override it.
        pub drain: bool = false,
        /// The API key sent to the backend. `api_key_file` names a file with it.
        pub api_key: Option<Secret> ["api_key" as InlineSecret, "api_key_file" as SecretFile] =
            None,
        /// The treatment of the client's Authorization header: strip, pass or replace. Default:
        /// replace with an api_key, else strip when `auth.keys` is set, else pass.
        pub authorization: AuthorizationPolicy = AuthorizationPolicy::Pass,
        /// TLS settings, for https URLs.
        pub tls: ConnectionTls = ConnectionTls::default(),
        /// `tls` with its files loaded.
        pub client_tls: LoadedTls [] = LoadedTls::default(),
        /// Uses HTTP/2: many requests on one connection.
        pub http2: bool = false,
        /// The models it serves. Default: service discovery.
        pub models: Option<Vec<ModelEntry>> ["models" as Maybe<List<ModelItem>>] = None,
        /// The operations that it serves itself: of all models that do not list their own. Default:
        /// those of its engine.
        pub operations: Option<Operations> ["operations" as Maybe<NameList<OperationNames>>] = None,
        /// Overrides of the global `health` section.
        pub health: HealthConfig = HealthConfig::default(),
        /// Overrides of the global `timeouts` section.
        pub timeouts: TimeoutOverrides = TimeoutOverrides::default(),
        /// The location of the engine's metrics.
        pub telemetry: BackendTelemetry = BackendTelemetry::default(),
    }
}

/// An item of `backends`: a mapping, or just a URL.
pub(crate) struct BackendItem;

impl Setting for BackendItem {
    type Value = BackendConfig;

    fn read(node: &Node, reader: &mut Reader) -> Option<BackendConfig> {
        let mut backend = BackendConfig::default();
        match &node.content {
            // An invalid item stays in the list, so that items keep their numbers.
            Content::Scalar(_) => BackendUrl::update(&mut backend.url, node, reader),
            Content::Null | Content::List(_) | Content::Map(_) => {
                BackendConfig::update(&mut backend, node, reader);
            }
        }
        Some(backend)
    }

    fn dump(value: &BackendConfig) -> Dump {
        BackendConfig::dump(value)
    }

    fn shape() -> Shape {
        Shape::Either(vec![BackendUrl::shape(), BackendConfig::shape()])
    }
}

/// Fills in defaults that depend on the rest of the file: names and the Authorization policy.
/// `items` are the nodes from which the backends were read.
pub(crate) fn settle_backends(backends: &mut [BackendConfig], items: &[Node], has_keys: bool) {
    // All configured names first: a default name must not take one that follows.
    let mut taken: Vec<String> = backends.iter().map(|backend| backend.name.clone()).collect();
    for (backend, item) in backends.iter_mut().zip(items) {
        if backend.name.is_empty() {
            // By the address: a position would name another backend after a reload.
            backend.name = free_name(&backend.url.authority(), &taken);
            taken.push(backend.name.clone());
        }
        if item.entry("authorization").is_none() {
            backend.authorization = match (&backend.api_key, has_keys) {
                (Some(_), _) => AuthorizationPolicy::Replace,
                // The client's key is one of penstock: an engine must not learn it.
                (None, true) => AuthorizationPolicy::Strip,
                (None, false) => AuthorizationPolicy::Pass,
            };
        }
    }
}

fn free_name(wanted: &str, taken: &[String]) -> String {
    if !taken.iter().any(|name| name == wanted) {
        return wanted.to_owned();
    }
    let mut numbered = (2_u32..).map(|number| format!("{wanted}-{number}"));
    let free = numbered.find(|name| !taken.contains(name));
    debug_assert!(free.is_some(), "there are more numbers than names");
    free.unwrap_or_else(|| wanted.to_owned())
}
