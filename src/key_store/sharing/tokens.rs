//! Revoked tokens as penstocks share them: the fields of the file. A token that need not be
//! remembered any more is not shared.

use std::sync::atomic::Ordering;

use penstock_clock::unix_seconds;
use penstock_config::UnixTime;

use crate::key_store::KeyStore;
use crate::key_store::attributes::InvalidKey;
use crate::key_store::database::KeyDatabase;
use crate::key_store::error::KeyStoreError;
use crate::key_store::revoked_tokens::{RevokedToken, StoredToken};
use crate::key_store::sharing::newer_than;
use crate::shared_state::SharedRecord;

fn to_shared(stored: &StoredToken) -> Result<SharedRecord, KeyStoreError> {
    let StoredToken { token, version } = stored;
    let name = (&token.jti, token.issuer.as_deref().unwrap_or_default());
    Ok(SharedRecord {
        id: serde_json::to_string(&name).map_err(InvalidKey::Json)?,
        is_final: false,
        // Of a revocation and one that was taken back at the same time, the revocation wins.
        version: version.saturating_mul(2).saturating_add(token.is_revoked().into()),
        ends_at: token.forgotten_at(),
        text: serde_json::to_string(token).map_err(InvalidKey::Json)?,
    })
}

fn to_stored(record: &SharedRecord) -> Result<StoredToken, KeyStoreError> {
    let token: RevokedToken = serde_json::from_str(&record.text).map_err(InvalidKey::Json)?;
    Ok(StoredToken { token: token.checked()?, version: record.version / 2 })
}

fn is_over(token: &RevokedToken, now: UnixTime) -> bool {
    token.forgotten_at().is_some_and(|at| at < now)
}

impl KeyStore {
    /// Returns every revoked token of the file that has to be remembered.
    pub(super) fn shared_tokens(&self) -> Result<Vec<SharedRecord>, KeyStoreError> {
        let now = UnixTime(unix_seconds());
        let all = self.database.lock().revoked_tokens()?.whole;
        all.iter().filter(|stored| !is_over(&stored.token, now)).map(to_shared).collect()
    }

    pub(super) fn adopt_tokens(&self, records: &[SharedRecord]) -> Result<(), KeyStoreError> {
        let new = newer_than(&self.shared_tokens()?, records);
        if new.is_empty() {
            return Ok(());
        }
        let now = UnixTime(unix_seconds());
        self.write(|database| {
            database.forget_tokens(now)?;
            new.iter().try_for_each(|record| self.adopt_token(database, record, now))
        })
    }

    fn adopt_token(
        &self,
        database: &KeyDatabase,
        record: &SharedRecord,
        now: UnixTime,
    ) -> Result<(), KeyStoreError> {
        let id = &record.id;
        let newer = match to_stored(record) {
            Ok(newer) if is_over(&newer.token, now) => return Ok(()),
            Ok(newer) => newer,
            Err(error) => {
                tracing::error!(
                    id, %error,
                    "shared_state: a revoked token is left out, its record is not understood"
                );
                return Ok(());
            }
        };
        let held = database.revoked_token(&newer.token.jti, newer.token.issuer.as_deref())?;
        if let Some(held) = held {
            // Another process may have changed the file since it was compared.
            return match record.is_newer_than(&to_shared(&held)?) {
                true => database.put_token(&held.replaced_by(newer)),
                false => Ok(()),
            };
        }
        match database.add_token(&newer, self.limits.revoked_tokens) {
            Err(error @ KeyStoreError::TooManyRevoked { .. }) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::error!(id, %error, "shared_state: a revoked token is left out");
                Ok(())
            }
            added => added,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_store::sharing::test_store::{NOW, store};
    use penstock_config::KeyHash;
    use serde_json::json;

    /// Sends everything of one store to the other.
    fn send(from: &KeyStore, to: &KeyStore) {
        to.adopt_tokens(&from.shared_tokens().unwrap()).unwrap();
    }

    fn is_revoked(store: &KeyStore, jti: &str) -> bool {
        store.revoked().contains(&KeyHash::of(jti.as_bytes()), "any")
    }

    #[test]
    fn last_change_wins_and_the_longer_revocation_stays() {
        let (one, other) = (store("g.db"), store("h.db"));
        let end = UnixTime(4_000_000_000);
        one.revoke_token(json!({"jti": "a"}), NOW).unwrap();
        send(&one, &other);
        assert!(is_revoked(&other, "a"));
        other.restore_token("a", None, NOW).unwrap();
        assert!(!is_revoked(&other, "a") && other.revoked_tokens().unwrap().is_empty());
        send(&one, &other);
        assert!(!is_revoked(&other, "a"), "an older revocation does not return");
        send(&other, &one);
        assert!(!is_revoked(&one, "a"));
        assert!(matches!(one.restore_token("a", None, NOW), Err(KeyStoreError::NotRevoked { .. })));
        one.revoke_token(json!({"jti": "a"}), NOW).unwrap();
        // At the same time: for good here, until its end there.
        (0..3).for_each(|_| {
            other.revoke_token(json!({"jti": "a", "expires_at": end}), NOW).unwrap();
        });
        send(&other, &one);
        send(&one, &other);
        for store in [&one, &other] {
            assert_eq!(store.revoked_tokens().unwrap()[0].expires_at, None, "for good");
        }
        assert_eq!(one.shared_tokens().unwrap(), other.shared_tokens().unwrap());
    }

    #[test]
    fn revocation_wins_over_what_takes_it_back_at_the_same_time() {
        for number in 0..10 {
            let (one, other) = (store("i.db"), store("j.db"));
            let jti = format!("token {number}");
            one.revoke_token(json!({ "jti": jti }), NOW).unwrap();
            send(&one, &other);
            one.restore_token(&jti, None, NOW).unwrap();
            other.revoke_token(json!({ "jti": jti }), NOW).unwrap();
            send(&one, &other);
            send(&other, &one);
            assert!(is_revoked(&one, &jti) && is_revoked(&other, &jti), "{jti}");
        }
    }

    #[test]
    fn full_store_takes_over_no_more_than_it_holds() {
        let (one, other) = (store("k.db"), store("l.db"));
        for number in 0..3 {
            one.revoke_token(json!({"jti": format!("a{number}")}), NOW).unwrap();
            other.revoke_token(json!({"jti": format!("b{number}")}), NOW).unwrap();
        }
        assert!(one.revoke_token(json!({"jti": "c"}), NOW).is_err());
        send(&one, &other);
        assert_eq!((other.revoked_tokens().unwrap().len(), other.failures()), (3, 3));
        // What was taken back makes room.
        other.restore_token("b0", None, NOW).unwrap();
        other.revoke_token(json!({"jti": "c"}), NOW).unwrap();
        assert!(is_revoked(&other, "c") && !is_revoked(&other, "b0"));
        let unreadable =
            SharedRecord { text: "{}".to_owned(), ..one.shared_tokens().unwrap().remove(0) };
        other.adopt_tokens(&[SharedRecord { id: "x".to_owned(), ..unreadable }]).unwrap();
    }

    #[test]
    fn tokens_that_have_expired_are_not_shared() {
        let one = store("m.db");
        let past = UnixTime(1_700_000_000);
        let end = UnixTime(past.0 + 60);
        one.revoke_token(json!({"jti": "a", "expires_at": end}), past).unwrap();
        assert!(is_revoked(&one, "a"));
        assert_eq!(one.shared_tokens().unwrap(), []);
    }
}
