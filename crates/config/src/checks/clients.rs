//! The rules for `auth`: each client key is there once, in one spelling.

use std::collections::HashMap;

use super::check_spelled_once;
use crate::sections::Config;
use crate::syntax::document::Node;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;

/// Refuses keys that are missing, spelled twice, or the same as another.
pub(super) fn check_client_keys(config: &Config, root: &Node, reader: &mut Reader) {
    let items = root.at("auth").at("keys").items();
    let mut known = HashMap::new();
    for (index, (key, item)) in config.auth.keys.iter().zip(items).enumerate() {
        let section = format!("auth.keys[{index}]");
        let is_missing = key.key.is_missing();
        match key.hash {
            None if is_missing => {
                let problem =
                    Problem::MissingKey { key: "key".to_owned(), section: section.clone() };
                reader.fault(&item.place, problem);
                continue;
            }
            Some(_) if !is_missing => {
                let problem = Problem::KeyAndHash { section: section.clone() };
                reader.fault(item.key_place("hash"), problem);
            }
            Some(_) | None => {}
        }
        check_spelled_once(item, section.clone(), "key", reader);
        if let (Some(from), Some(until)) = (key.not_before, key.expires_at)
            && from >= until
        {
            reader.fault(item.key_place("expires_at"), Problem::NeverValid { section });
        }
        if let Some(first) = known.insert(key.to_hash(), &key.name) {
            let problem =
                Problem::ClientKeyTwice { first: first.clone(), second: key.name.clone() };
            reader.fault(&item.place, problem);
        }
    }
}
