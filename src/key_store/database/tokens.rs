//! The table of revoked tokens. What is damaged in a row besides its `jti` counts as missing, so
//! that the token stays revoked.

use penstock_config::UnixTime;
use rusqlite::{OptionalExtension, Row, params};

use super::KeyDatabase;
use super::shared::to_version;
use crate::key_store::database::{seconds, to_time};
use crate::key_store::error::KeyStoreError;
use crate::key_store::revoked_tokens::{LEEWAY, REMEMBERED, RevokedToken, StoredToken};
use crate::key_store::rows::{RowProblem, TableRows, read_all};

pub(super) const SCHEMA: &str = "
    CREATE TABLE revoked_tokens (
        jti TEXT NOT NULL,
        issuer TEXT NOT NULL,
        revoked_at INTEGER NOT NULL,
        expires_at INTEGER,
        PRIMARY KEY (jti, issuer)
    )";
pub(super) const WITH_VERSIONS: &str = "
    ALTER TABLE revoked_tokens ADD COLUMN restored_at INTEGER;
    ALTER TABLE revoked_tokens ADD COLUMN version INTEGER NOT NULL DEFAULT 1";
const SELECT: &str =
    "SELECT jti, issuer, revoked_at, expires_at, restored_at, version FROM revoked_tokens";

impl KeyDatabase {
    /// Returns the revoked tokens, the newest first.
    pub(in crate::key_store) fn revoked_tokens(
        &self,
    ) -> Result<TableRows<StoredToken>, KeyStoreError> {
        let select = format!("{SELECT} ORDER BY revoked_at DESC, jti");
        Ok(read_all(&mut self.connection.prepare(&select)?, read)?)
    }

    /// Returns the revocation of a `jti` for one issuer, or for all.
    pub(in crate::key_store) fn revoked_token(
        &self,
        jti: &str,
        issuer: Option<&str>,
    ) -> Result<Option<StoredToken>, KeyStoreError> {
        let select = format!("{SELECT} WHERE jti = ?1 AND issuer = ?2");
        let row = params![jti, issuer.unwrap_or_default()];
        let found = self.connection.query_row(&select, row, |row| Ok(read(row))).optional()?;
        Ok(found.and_then(Result::ok))
    }

    /// Adds a revoked token, for which there is no row. In a full table it takes the place of the
    /// revocation that was taken back first.
    pub(in crate::key_store) fn add_token(
        &self,
        stored: &StoredToken,
        limit: usize,
    ) -> Result<(), KeyStoreError> {
        let select = "SELECT count(*) FROM revoked_tokens";
        let count: i64 = self.connection.query_row(select, [], |row| row.get(0))?;
        let count = usize::try_from(count).unwrap_or_default();
        let delete = "DELETE FROM revoked_tokens WHERE rowid = (SELECT rowid FROM revoked_tokens
            WHERE restored_at IS NOT NULL ORDER BY restored_at LIMIT 1)";
        if count >= limit && self.connection.execute(delete, [])? == 0 {
            return Err(KeyStoreError::TooManyRevoked { count });
        }
        self.put_token(stored)
    }

    /// Writes a revoked token in place of the row with its name.
    pub(in crate::key_store) fn put_token(
        &self,
        stored: &StoredToken,
    ) -> Result<(), KeyStoreError> {
        let StoredToken { token, version } = stored;
        self.connection.execute(
            "REPLACE INTO revoked_tokens
                (jti, issuer, revoked_at, expires_at, restored_at, version)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                token.jti,
                token.issuer.as_deref().unwrap_or_default(),
                seconds(token.revoked_at),
                token.expires_at.map(seconds),
                token.restored_at.map(seconds),
                i64::try_from(*version).unwrap_or(i64::MAX),
            ],
        )?;
        Ok(())
    }

    /// Removes what need not be remembered.
    pub(in crate::key_store) fn forget_tokens(&self, now: UnixTime) -> Result<(), KeyStoreError> {
        let before = |time: u64| i64::try_from(now.0.saturating_sub(time)).unwrap_or(i64::MAX);
        let delete = "DELETE FROM revoked_tokens WHERE expires_at < ?1 OR restored_at < ?2";
        self.connection.execute(delete, [before(LEEWAY), before(REMEMBERED)])?;
        Ok(())
    }
}

fn read(row: &Row<'_>) -> Result<StoredToken, RowProblem> {
    let time = |column| row.get::<_, Option<i64>>(column).ok().flatten().map(to_time);
    let issuer: String = row.get(1).unwrap_or_default();
    let token = RevokedToken {
        jti: row.get(0)?,
        issuer: Some(issuer).filter(|issuer| !issuer.is_empty()),
        revoked_at: time(2).unwrap_or(UnixTime(0)),
        expires_at: time(3),
        restored_at: time(4),
    };
    Ok(StoredToken { token, version: row.get(5).map_or(1, to_version) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_store::database::FILE;
    use crate::sqlite::FileKind;

    #[test]
    fn tokens_of_an_older_file_stay_revoked() {
        let path = std::env::temp_dir().join(format!("penstock-tokens-{}.db", std::process::id()));
        let _absent = std::fs::remove_file(&path);
        let older = FileKind { migrations: &FILE.migrations[..2], ..FILE };
        let (connection, file) = older.open(&path).unwrap();
        let insert = "INSERT INTO revoked_tokens VALUES ('a', '', 1, NULL), ('b', 'i', 1, 9)";
        connection.execute(insert, []).unwrap();
        drop((connection, file));
        let database = KeyDatabase::open(&path).unwrap();
        let all = database.revoked_tokens().unwrap();
        assert_eq!((all.whole.len(), all.damaged.len()), (2, 0));
        assert!(all.whole.iter().all(|one| one.token.is_revoked() && one.version == 1));
        assert!(database.revoked_token("b", Some("i")).unwrap().is_some());
        database.forget_tokens(UnixTime(9 + LEEWAY + 1)).unwrap();
        let left = database.revoked_tokens().unwrap().whole;
        assert_eq!(left.iter().map(|one| &*one.token.jti).collect::<Vec<_>>(), ["a"]);
        std::fs::remove_file(&path).unwrap();
    }
}
