//! `tracing:` distributed tracing.

use crate::syntax::collections::Maybe;
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, section};
use crate::syntax::url::BackendUrl;
use crate::syntax::values::Share;

section! {
    /// Distributed tracing (W3C Trace Context, OpenTelemetry).
    pub struct TracingConfig {
        /// Continues the client's trace, or starts one, and passes it to backends.
        pub propagate: bool = true,
        /// The share of traces started here that are recorded; clients decide about theirs.
        pub sample: f64 ["sample" as Share] = 1.0,
        /// URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318; default: no export.
        pub otlp_endpoint: Option<BackendUrl> ["otlp_endpoint" as Maybe<Collector>] = None,
        /// The service name in traces.
        pub service_name: String = "penstock".to_owned(),
    }
}

/// The URL of a collector.
struct Collector;

impl Setting for Collector {
    type Value = BackendUrl;

    fn read(node: &Node, reader: &mut Reader) -> Option<BackendUrl> {
        const EXPECTED: &str = "a URL such as http://127.0.0.1:4318 or https://otel.example.com";
        let text = reader.scalar(node, EXPECTED)?;
        match text.parse::<BackendUrl>() {
            Ok(_) if cfg!(not(feature = "otlp")) => {
                reader.refuse_value(node, text, "nothing: this build has no feature 'otlp'")
            }
            Ok(url) => Some(url),
            Err(source) => reader.refuse(node, |key| Problem::Url { key, source }),
        }
    }

    fn dump(value: &BackendUrl) -> Dump {
        Dump::text(&value.to_string())
    }
}
