//! The rules for `auth`: each client key is there once, in one spelling; issuers differ.

use std::collections::HashMap;

use penstock_clock::unix_seconds;

use super::check_spelled_once;
use crate::sections::Config;
use crate::sections::jwt::{CertificateName, JwksSource, MAX_ISSUERS};
use crate::syntax::document::Node;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::unix_time::UnixTime;
use crate::syntax::warnings::Warning;
use crate::tls::read_certificates;

/// Refuses keys that are missing, spelled twice, or the same as another, and warns of expired ones.
pub(super) fn check_client_keys(config: &Config, root: &Node, reader: &mut Reader) {
    let items = root.at("auth").at("keys").items();
    let mut known = HashMap::new();
    let now = UnixTime(unix_seconds());
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
        match (key.not_before, key.expires_at) {
            (Some(from), Some(until)) if from >= until => {
                reader.fault(item.key_place("expires_at"), Problem::NeverValid { section });
            }
            (_, Some(at)) if at <= now => {
                let warning = Warning::ExpiredKey { key: key.name.clone(), at: at.to_string() };
                reader.warn(item.key_place("expires_at"), warning);
            }
            _ => {}
        }
        if let Some(first) = known.insert(key.to_hash(), &key.name) {
            let problem =
                Problem::ClientKeyTwice { first: first.clone(), second: key.name.clone() };
            reader.fault(&item.place, problem);
        }
    }
}

/// Refuses issuers that share a name, and CAs that cannot be read.
pub(super) fn check_issuers(config: &Config, root: &Node, reader: &mut Reader) {
    let auth = root.at("auth");
    let items = auth.at("jwt").items();
    if items.len() > MAX_ISSUERS {
        let problem = Problem::TooManyIssuers { count: items.len(), limit: MAX_ISSUERS };
        reader.fault(auth.key_place("jwt"), problem);
    }
    let mut names = HashMap::new();
    let mut issuers = HashMap::new();
    for (index, (jwt, item)) in config.auth.jwt.iter().zip(items).enumerate() {
        let section = format!("auth.jwt[{index}]");
        if let Some(first) = issuers.insert(&*jwt.issuer, index) {
            let problem = Problem::IssuerTwice { first, second: index };
            reader.fault(item.key_place("issuer"), problem);
        } else if let Some(first) = names.insert(jwt.issuer_name(), index) {
            let name = jwt.issuer_name().to_owned();
            reader.fault(&item.place, Problem::IssuerNameTwice { first, second: index, name });
        }
        let Some(ca) = &jwt.jwks_ca else { continue };
        match (&jwt.jwks, read_certificates(ca)) {
            (JwksSource::File(_), _) => {
                reader.fault(item.key_place("jwks_ca"), Problem::NoJwksUrl { section });
            }
            (JwksSource::Https(_), Err(source)) => {
                let key = format!("{section}.jwks_ca");
                reader.fault(item.key_place("jwks_ca"), Problem::Tls { key, source });
            }
            (JwksSource::Https(_), Ok(_)) => {}
        }
    }
}

/// Refuses names from certificates that no listener verifies.
pub(super) fn check_certificate_names(config: &Config, root: &Node, reader: &mut Reader) {
    let verifies = config
        .server
        .listen
        .iter()
        .any(|listener| listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()));
    if config.auth.client_certificates != CertificateName::Off && !verifies {
        let place = root.at("auth").key_place("client_certificates");
        reader.fault(place, Problem::NoVerifiedClients);
    }
}
