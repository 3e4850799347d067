//! `ollama:` the management of models by Ollama clients.

use std::time::Duration;

use penstock_api::units::ByteSize;

use crate::syntax::setting::section;
use crate::syntax::values::{AtLeastOne, Positive};

section! {
    /// Ollama clients that manage models: pull, create, copy, delete and push.
    pub struct OllamaConfig {
        /// Whether every client may manage models; where it is false, those whose key has
        /// `manage_models` may.
        pub manage_models: bool = false,
        /// The time that a backend may send no progress of a pull, create or push, or take no byte
        /// of an upload, before it has failed.
        pub progress_timeout: Duration ["progress_timeout" as Positive] = Duration::from_secs(600),
        /// The maximum number of commands and uploads that run at one time.
        pub commands: usize ["commands" as AtLeastOne<usize>] = 16,
        /// The largest file of a model that may be uploaded.
        pub max_blob_size: ByteSize = ByteSize::mib(256 * 1024),
    }
}
