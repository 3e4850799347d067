//! The clients that may send requests, by the hashes of their keys. A request carries one
//! [`ClientIdentity`] from its admission on, whatever its key came from; a change of the key
//! changes the requests that come later.

mod key_table;

pub use key_table::{KeyRefusal, KeyTable, KnownKey, Validity};

use std::sync::Arc;

use penstock_config::{AuthConfig, ClientKey, ModelGlob, RateLimits};

/// Separates the issuer from the rest in the id of a token's client. Neither an issuer nor the id
/// of a key has it.
const TOKEN_MARK: char = '#';

/// Returns whether an id is that of a token's client.
pub fn is_token_client(id: &str) -> bool {
    id.contains(TOKEN_MARK)
}

/// Returns the id of a token's client by its name in the ledger: `issuer/name/id`. `None` for other
/// clients.
pub fn token_client_of(account: &str) -> Option<&str> {
    // Neither part of the name has a /.
    let id = account.splitn(3, '/').nth(2)?;
    is_token_client(id).then_some(id)
}

/// A client with what its key allows.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientIdentity {
    /// Owns the client's limits, usage, sessions and stored responses. A key of the file has its
    /// name as its id; other keys have one that no other key ever has, tokens their issuer and
    /// subject.
    pub id: Arc<str>,
    /// The name in logs and metrics.
    pub name: Arc<str>,
    /// The name in the ledger. That of a key of the store includes the id: a later key with the
    /// same name starts at 0.
    pub account: Arc<str>,
    pub team: Option<Box<str>>,
    /// The models it may use; empty for all.
    pub models: Vec<ModelGlob>,
    /// The zones its requests may go to; empty for all.
    pub zones: Vec<Box<str>>,
    /// The policies that its requests may name.
    pub policies: Vec<Box<str>>,
    /// The name of its budget.
    pub budget: Option<Box<str>>,
    /// True if it may manage the models of Ollama backends.
    pub manage_models: bool,
    /// True if its responses show the budget with the least left.
    pub sees_budget: bool,
    /// True if its conversations are shortened; `None` as their model says.
    pub context_shift: Option<bool>,
    pub objective: Option<Box<str>>,
    /// The highest priority of its requests; `None` for that of its objective.
    pub max_priority: Option<i32>,
    /// Its share of what waits in a queue.
    pub weight: u32,
    /// The maximum number of its ensembles at one time.
    pub ensembles: Option<usize>,
    /// Its own limits; `None` for `auth.limits`.
    pub limits: Option<RateLimits>,
}

impl ClientIdentity {
    /// Returns a client without a restriction.
    pub fn new(id: &str, name: &str) -> Self {
        Self {
            id: Arc::from(id),
            name: Arc::from(name),
            account: match id == name {
                true => Arc::from(name),
                false => format!("{name}/{id}").into(),
            },
            team: None,
            models: Vec::new(),
            zones: Vec::new(),
            policies: Vec::new(),
            budget: None,
            manage_models: false,
            sees_budget: false,
            context_shift: None,
            objective: None,
            max_priority: None,
            weight: 1,
            ensembles: None,
            limits: None,
        }
    }

    /// Returns the client of a token. Its id has the issuer, so that two issuers never share a
    /// client, and a # that no name of a key has; its name has the issuer's name.
    pub fn of_token(issuer: &str, id: &str, issuer_name: &str, name: &str) -> Self {
        Self::new(&format!("{issuer}{TOKEN_MARK}{id}"), &format!("{issuer_name}/{name}"))
    }

    /// Returns the client of a key in the configuration.
    pub fn of_key(key: &ClientKey) -> Self {
        let boxed = |names: &[String]| names.iter().map(|name| Box::from(&**name)).collect();
        Self {
            team: key.team.as_deref().map(Box::from),
            models: key.models.clone(),
            zones: boxed(&key.zones),
            policies: boxed(&key.policies),
            manage_models: key.manage_models,
            sees_budget: key.sees_budget,
            budget: key.budget.as_deref().map(Box::from),
            context_shift: key.context_shift,
            objective: key.objective.as_deref().map(Box::from),
            max_priority: key.max_priority,
            weight: key.weight,
            ensembles: key.ensembles,
            limits: key.limits.clone(),
            ..Self::new(&key.name, &key.name)
        }
    }

    /// Returns whether the client may use a model by that name, an alias or an engine's spelling.
    pub fn may_use(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|glob| glob.matches(model))
    }

    /// Returns the limits that apply to the client.
    pub fn limits<'a>(&'a self, auth: &'a AuthConfig) -> &'a RateLimits {
        self.limits.as_ref().unwrap_or(&auth.limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_tokens_share_no_id_with_others() {
        let client = |issuer, id| ClientIdentity::of_token(issuer, id, "corp", "alice");
        let (one, other) = (client("https://a/x", "u#1"), client("https://a/y", "u#1"));
        assert_ne!(one.id, other.id);
        assert_eq!((&*one.name, &*one.id), ("corp/alice", "https://a/x#u#1"));
        assert!(is_token_client(&one.id) && !is_token_client("key_0123"));
        assert_eq!(token_client_of(&one.account), Some(&*one.id));
        let of_key = ClientIdentity::new("key_0123", "alice");
        assert_eq!((token_client_of(&of_key.account), token_client_of("alice")), (None, None));
    }
}
