//! `backends:` the engines to send requests to.

use std::path::PathBuf;
use std::sync::Arc;

use super::health::HealthConfig;
use super::model::{ModelEntry, ModelItem};
use super::telemetry::BackendTelemetry;
use super::timeouts::TimeoutOverrides;
use crate::config::syntax::collections::{List, Maybe};
use crate::config::syntax::document::{Content, Node};
use crate::config::syntax::dump::Dump;
use crate::config::syntax::reader::Reader;
use crate::config::syntax::secret::{InlineSecret, Secret, SecretFile};
use crate::config::syntax::setting::{Setting, choice, section};
use crate::config::syntax::shape::Shape;
use crate::config::syntax::url::BackendUrl;
use crate::config::syntax::values::{AtLeastOne, FilePath, Name};
use crate::tls::{ClientTls, ClientTlsFiles, TlsError};

choice! {
    /// The software a backend runs.
    pub enum Engine {
        /// Found out by asking it.
        Auto = "auto",
        /// vLLM
        Vllm = "vllm",
        /// SGLang
        Sglang = "sglang",
        /// llama.cpp's server
        LlamaCpp = "llamacpp",
        /// Ollama
        Ollama = "ollama",
        /// OpenAI's own API, or a service that is like it
        OpenAi = "openai",
        /// Text Generation Inference
        Tgi = "tgi",
        /// TensorRT-LLM
        TrtLlm = "trtllm",
        /// Anything else that speaks OpenAI's dialect
        Other = "other",
    }
}
choice!(@setting Engine);

impl Engine {
    /// The name in `gen_ai_provider_name` and the like.
    pub fn provider(self) -> &'static str {
        match self {
            Self::Auto => "unknown",
            engine => engine.name(),
        }
    }
}

choice! {
    /// What becomes of the client's Authorization header.
    pub enum AuthorizationPolicy {
        /// It is taken off.
        Strip = "strip",
        /// It is sent on.
        Pass = "pass",
        /// The backend's own key takes its place.
        Replace = "replace",
    }
}
choice!(@setting AuthorizationPolicy);

section! {
    /// How TLS is spoken to a backend.
    pub struct BackendTls {
        /// A PEM file: whom to trust; without one, whom this machine trusts.
        pub ca: Option<PathBuf> ["ca" as Maybe<FilePath>] = None,
        /// A PEM file: the certificate shown to the backend.
        pub cert: Option<PathBuf> ["cert" as Maybe<FilePath>] = None,
        /// A PEM file: its private key.
        pub key: Option<PathBuf> ["key" as Maybe<FilePath>] = None,
        /// The name asked for (SNI) and expected in the backend's certificate; the URL's host
        /// unless given.
        pub server_name: Option<String> ["server_name" as Maybe<String>] = None,
        /// Whether the backend's certificate is verified. false trusts whoever answers.
        pub verify: bool = true,
    }
}

impl BackendConfig {
    /// Loads what connections over TLS to it need.
    ///
    /// # Errors
    /// [`TlsError`] when its files cannot be used.
    pub(crate) fn load_tls(&mut self) -> Result<(), TlsError> {
        let loaded = ClientTls::load(ClientTlsFiles {
            ca: self.tls.ca.as_ref(),
            identity: self.tls.cert.as_ref().zip(self.tls.key.as_ref()),
            server_name: self.tls.server_name.as_deref().unwrap_or(&self.url.host),
            verify: self.tls.verify,
            http2: self.http2,
        })?;
        self.client_tls = LoadedTls(Some(Arc::new(loaded)));
        Ok(())
    }
}

/// The TLS settings of a backend with their files read; empty where its URL is not https.
#[derive(Debug, Clone, Default)]
pub struct LoadedTls(pub Option<Arc<ClientTls>>);

/// Configurations are compared by their settings: the same files with other contents are no change of
/// the configuration, although the next load uses them.
impl PartialEq for LoadedTls {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

section! {
    /// An engine to send requests to.
    pub struct BackendConfig requires ["url"] {
        /// What it is called in metrics, logs and paths; host and port unless given.
        pub name: String ["name" as Name] = String::new(),
        /// Where it is; a base path or a trailing /v1 is fine.
        pub url: BackendUrl = BackendUrl::default(),
        /// auto, vllm, sglang, llamacpp, ollama, openai, tgi, trtllm or other.
        pub engine: Engine = Engine::Auto,
        /// Lower is better.
        pub priority: u32 = 50,
        /// The most requests in flight; without one there is no limit.
        pub max_in_flight: Option<u32> ["max_in_flight" as Maybe<AtLeastOne<u32>>] = None,
        /// Whether it gets no new requests. A reload follows a change of this; in between the admin
        /// port's drain and resume have the last word.
        pub drain: bool = false,
        /// The key it wants; or `api_key_file`, the file it is in.
        pub api_key: Option<Secret> ["api_key" as InlineSecret, "api_key_file" as SecretFile] =
            None,
        /// What becomes of the client's Authorization header: strip, pass or replace. Unless set:
        /// replace with an api_key, else strip when there are client keys, else pass.
        pub authorization: AuthorizationPolicy = AuthorizationPolicy::Pass,
        /// How TLS is spoken to it, where its URL is https.
        pub tls: BackendTls = BackendTls::default(),
        /// `tls` with its files read.
        pub client_tls: LoadedTls [] = LoadedTls::default(),
        /// Whether it is spoken to in HTTP/2: many requests on one connection.
        pub http2: bool = false,
        /// The models it serves; asked for when left out.
        pub models: Option<Vec<ModelEntry>> ["models" as Maybe<List<ModelItem>>] = None,
        /// What differs from the global `health`.
        pub health: HealthConfig = HealthConfig::default(),
        /// What differs from the global `timeouts`.
        pub timeouts: TimeoutOverrides = TimeoutOverrides::default(),
        /// Where its metrics are, for the global `telemetry`.
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
            Content::Scalar(_) => backend.url = BackendUrl::read(node, reader)?,
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

/// Settles what depends on the rest of the file: names, and what to do with Authorization.
/// `items` are the nodes the backends were read from.
pub(crate) fn settle_backends(backends: &mut [BackendConfig], items: &[Node], has_keys: bool) {
    let mut taken: Vec<String> = backends.iter().map(|backend| backend.name.clone()).collect();
    for (backend, item) in backends.iter_mut().zip(items) {
        if backend.name.is_empty() {
            backend.name = free_name(&backend.url.authority(), &taken);
            taken.push(backend.name.clone());
        }
        if item.entry("authorization").is_none() {
            backend.authorization = match (&backend.api_key, has_keys) {
                (Some(_), _) => AuthorizationPolicy::Replace,
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
    (2_u32..)
        .map(|number| format!("{wanted}-{number}"))
        .find(|name| !taken.contains(name))
        .unwrap_or_default()
}
