//! `auth:` who may call the data port.

use crate::config::syntax::collections::List;
use crate::config::syntax::glob::ModelGlob;
use crate::config::syntax::secret::{InlineSecret, Needed, Secret, SecretFile};
use crate::config::syntax::setting::section;
use crate::config::syntax::values::Name;

section! {
    /// Who may call the data port. Without keys it is open.
    pub struct AuthConfig {
        /// The keys clients may use.
        pub keys: Vec<ClientKey> ["keys" as List<ClientKey>] = Vec::new(),
    }
}

section! {
    /// A key clients may use.
    pub struct ClientKey requires ["name"] {
        /// Whose key it is, for logs and metrics. Two keys may share a name, to change one for the other.
        pub name: String ["name" as Name] = String::new(),
        /// The key, sent as `Authorization: Bearer` or `x-api-key`; or `key_file`, the file it is in.
        pub key: Secret ["key" as Needed<InlineSecret>, "key_file" as Needed<SecretFile>] =
            Secret::missing(),
        /// The models it may use, with * and ?; none listed means all.
        pub models: Vec<ModelGlob> ["models" as List<ModelGlob>] = Vec::new(),
    }
}
