//! The attributes of a key of the store, as JSON: in the file, on the admin port and on the command
//! line.

use penstock_config::{MAX_PRIORITY, ModelGlob, RateLimits, UnixTime, is_plain_name};
use penstock_core::clients::{ClientIdentity, Validity};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::names::UnknownName;

/// The longest text of an attribute, in bytes.
const MAX_TEXT: usize = 256;
/// The most entries of a list.
const MAX_ENTRIES: usize = 256;

/// The reason why a key cannot be made as it is described.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKey {
    /// The description is not a JSON object.
    #[error("a key is described by a JSON object")]
    NotAnObject,
    /// The name is missing or has letters that names may not have.
    #[error("'name' is a text without spaces or any of / ? # % \", of at most 256 bytes")]
    Name,
    /// The name is given for a key that has one.
    #[error("the name of a key cannot change: make another key")]
    NameIsFixed,
    /// An attribute is unknown or has the wrong type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// An attribute names what the configuration does not have.
    #[error("{0}")]
    UnknownName(#[from] UnknownName),
    /// An attribute has a value that it cannot have.
    #[error("'{attribute}' is {expected}")]
    Value { attribute: &'static str, expected: &'static str },
}

/// The attributes of a key. An unknown one is an error, in the file, too: an older penstock must
/// not overlook a restriction of a newer one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyAttributes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "some_or_all")]
    pub models: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "some_or_all")]
    pub zones: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "some_or_none")]
    pub policies: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<KeyLimits>,
    /// The name of its budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ensembles: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_shift: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manage_models: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sees_budget: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixTime>,
}

/// The limits of a key; one that is left out is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
}

/// Reads a list without which everything is allowed; null is none. An empty list would allow
/// nothing by its words, and everything by its effect.
fn some_or_all<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<String>, D::Error> {
    match Option::<Vec<String>>::deserialize(reader)? {
        Some(list) if list.is_empty() => Err(serde::de::Error::custom(
            "'models' and 'zones' need at least one entry: to allow all, leave the list out or set it \
             to null",
        )),
        list => Ok(list.unwrap_or_default()),
    }
}

/// Reads a list; null is an empty one.
fn some_or_none<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(reader)?.unwrap_or_default())
}

/// Reads the name and the attributes of a new key.
pub(super) fn read_new(given: Value, now: UnixTime) -> Result<(String, KeyAttributes), InvalidKey> {
    let Value::Object(mut fields) = given else { return Err(InvalidKey::NotAnObject) };
    let name = match fields.remove("name") {
        Some(Value::String(name)) if is_plain_name(&name) && name.len() <= MAX_TEXT => name,
        _ => return Err(InvalidKey::Name),
    };
    let attributes = KeyAttributes::read(fields)?;
    if attributes.expires_at.is_some_and(|at| at <= now) {
        let expected = "a time in the future: no request could use the key";
        return Err(InvalidKey::Value { attribute: "expires_at", expected });
    }
    Ok((name, attributes))
}

impl KeyAttributes {
    fn read(fields: Map<String, Value>) -> Result<Self, InvalidKey> {
        serde_json::from_value::<Self>(Value::Object(fields))?.checked()
    }

    /// Reads attributes as the file has them.
    pub(super) fn stored(text: &str) -> Result<Self, InvalidKey> {
        serde_json::from_str::<Self>(text)?.checked()
    }

    /// Returns the attributes if a key can have them.
    pub(super) fn checked(self) -> Result<Self, InvalidKey> {
        self.check()?;
        Ok(self)
    }

    /// Returns the attributes with the changes of a JSON object: null removes one.
    pub(super) fn changed(&self, changes: &Value) -> Result<Self, InvalidKey> {
        let Value::Object(changes) = changes else { return Err(InvalidKey::NotAnObject) };
        if changes.contains_key("name") {
            // The ledger, budgets and logs know the client by it.
            return Err(InvalidKey::NameIsFixed);
        }
        let Value::Object(mut fields) = serde_json::to_value(self)? else {
            return Err(InvalidKey::NotAnObject);
        };
        for (name, value) in changes {
            // A null that stays would hide a misspelled attribute.
            if value.is_null() && fields.remove(name).is_some() {
                continue;
            }
            fields.insert(name.clone(), value.clone());
        }
        // As a whole: two changes that are right by themselves may not fit together.
        Self::read(fields)
    }

    fn check(&self) -> Result<(), InvalidKey> {
        let refuse = |attribute, expected| Err(InvalidKey::Value { attribute, expected });
        let texts = [&self.team, &self.budget, &self.objective, &self.note];
        if texts.into_iter().flatten().any(|text| text.is_empty() || text.len() > MAX_TEXT) {
            return refuse("team, budget, objective, note", "a text of 1 to 256 bytes");
        }
        for (attribute, list) in
            [("models", &self.models), ("zones", &self.zones), ("policies", &self.policies)]
        {
            let is_fit = |text: &String| !text.is_empty() && text.len() <= MAX_TEXT;
            if list.len() > MAX_ENTRIES || !list.iter().all(is_fit) {
                return refuse(attribute, "a list of at most 256 texts of 1 to 256 bytes");
            }
        }
        if self.max_priority.is_some_and(|most| !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&most)) {
            return refuse("max_priority", "a whole number from -100 to 100");
        }
        let limits = self.limits.clone().unwrap_or_default();
        let counts = [limits.requests_per_minute, limits.tokens_per_minute, limits.in_flight];
        if counts.contains(&Some(0)) || limits.tokens_per_day == Some(0) {
            return refuse("limits", "an object of numbers of at least 1");
        }
        if self.weight == Some(0) {
            return refuse("weight", "a whole number of at least 1");
        }
        match (self.not_before, self.expires_at) {
            (Some(from), Some(until)) if from >= until => {
                refuse("expires_at", "a time after 'not_before'")
            }
            _ => Ok(()),
        }
    }

    /// Returns the client that a key with these attributes names.
    pub(super) fn to_client(&self, id: &str, name: &str) -> ClientIdentity {
        let boxed = |text: &Option<String>| text.as_deref().map(Box::from);
        let all = |texts: &[String]| texts.iter().map(|text| Box::from(&**text)).collect();
        let limits = self.limits.as_ref();
        ClientIdentity {
            team: boxed(&self.team),
            models: self.models.iter().map(|text| ModelGlob::new(text)).collect(),
            zones: all(&self.zones),
            policies: all(&self.policies),
            budget: boxed(&self.budget),
            manage_models: self.manage_models.unwrap_or_default(),
            sees_budget: self.sees_budget.unwrap_or_default(),
            context_shift: self.context_shift,
            objective: boxed(&self.objective),
            max_priority: self.max_priority,
            weight: self.weight.unwrap_or(1),
            ensembles: self.ensembles,
            limits: limits.map(|limits| RateLimits {
                requests_per_minute: limits.requests_per_minute,
                tokens_per_minute: limits.tokens_per_minute,
                tokens_per_day: limits.tokens_per_day,
                in_flight: limits.in_flight,
            }),
            ..ClientIdentity::new(id, name)
        }
    }

    /// Returns the time in which a key with these attributes is valid.
    pub(super) fn validity(&self, is_revoked: bool) -> Validity {
        Validity { not_before: self.not_before, expires_at: self.expires_at, is_revoked }
    }
}
