//! The SQLite database of the ledger: schema, additive upserts, quarantine of a corrupt file. Two
//! processes may write the same file, as in a graceful upgrade: every write adds to what it finds.

use std::io;
use std::path::{Path, PathBuf};

use penstock_core::admission::budgets::{Money, Spending};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};

use super::batch::{Batch, Pair, TokenSums, TokenTotals};
use crate::sqlite::{FileKind, OpenFile, foreign_writes};

pub use crate::sqlite::SqliteError as DatabaseError;

/// The file, whose application id is "pens". Not world-readable: it contains the names of client
/// keys.
pub(super) const FILE: FileKind =
    FileKind { application_id: 0x7065_6e73, mode: 0o640, migrations: &MIGRATIONS };

const MIGRATIONS: [&str; 3] = [
    "
    CREATE TABLE token_counts (
        endpoint TEXT NOT NULL,
        model TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        total_tokens INTEGER NOT NULL,
        PRIMARY KEY (endpoint, model)
    );
    CREATE TABLE time_series (
        endpoint TEXT NOT NULL,
        model TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        total_tokens INTEGER NOT NULL,
        timestamp INTEGER NOT NULL,
        PRIMARY KEY (endpoint, model, timestamp)
    );
    CREATE INDEX time_series_by_timestamp ON time_series (timestamp);
    CREATE INDEX time_series_by_model ON time_series (model, timestamp);
    CREATE TABLE usage_by_day (
        day TEXT NOT NULL,
        backend TEXT NOT NULL,
        model TEXT NOT NULL,
        client_key TEXT NOT NULL,
        requests INTEGER NOT NULL,
        estimated_requests INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cost REAL,
        PRIMARY KEY (day, backend, model, client_key)
    );
",
    "
    CREATE TABLE budget_spending (
        budget TEXT NOT NULL,
        subject TEXT NOT NULL,
        part INTEGER NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (budget, subject, part)
    );
    CREATE INDEX budget_spending_by_part ON budget_spending (part);
",
    "
    CREATE TABLE ledger_identity (id TEXT NOT NULL);
    INSERT INTO ledger_identity VALUES (lower(hex(randomblob(16))));
",
];
/// The version of the schema: the number of migrations.
const ADD_TOTAL: &str = "
    INSERT INTO token_counts (endpoint, model, input_tokens, output_tokens, total_tokens)
    VALUES (?1, ?2, ?3, ?4, ?3 + ?4)
    ON CONFLICT (endpoint, model) DO UPDATE SET
        input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        total_tokens = total_tokens + excluded.total_tokens";
const ADD_MINUTE: &str = "
    INSERT INTO time_series (endpoint, model, input_tokens, output_tokens, total_tokens, timestamp)
    VALUES (?1, ?2, ?3, ?4, ?3 + ?4, ?5)
    ON CONFLICT (endpoint, model, timestamp) DO UPDATE SET
        input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        total_tokens = total_tokens + excluded.total_tokens";
const ADD_DAY: &str = "
    INSERT INTO usage_by_day (day, backend, model, client_key, requests, estimated_requests,
        input_tokens, output_tokens, cost)
    VALUES (date(?1 * 86400, 'unixepoch'), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
    ON CONFLICT (day, backend, model, client_key) DO UPDATE SET
        requests = requests + excluded.requests,
        estimated_requests = estimated_requests + excluded.estimated_requests,
        input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        cost = CASE WHEN excluded.cost IS NULL THEN cost
            ELSE coalesce(cost, 0) + excluded.cost END";

const ADD_SPENT: &str = "
    INSERT INTO budget_spending (budget, subject, part, amount) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (budget, subject, part) DO UPDATE SET amount = amount + excluded.amount";

impl DatabaseError {
    /// Returns whether the file is damaged or not an SQLite file.
    pub(super) fn is_corrupt(&self) -> bool {
        match self {
            Self::Sqlite(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
            Self::Overwritten => true,
            Self::File(_) | Self::Foreign | Self::Newer { .. } => false,
        }
    }

    /// Returns a short name for logs and metrics.
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Sqlite(error) => match error.sqlite_error_code() {
                // Another process writes: it passes, unlike a full disk.
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FailureKind::Locked,
                Some(ErrorCode::DiskFull) => FailureKind::Full,
                _ => FailureKind::Unavailable,
            },
            Self::File(error) if error.kind() == io::ErrorKind::StorageFull => FailureKind::Full,
            Self::File(_) | Self::Foreign | Self::Overwritten | Self::Newer { .. } => {
                FailureKind::Unavailable
            }
        }
    }
}

penstock_api::named! {
    /// The kinds of failures that are counted.
    pub(super) enum FailureKind {
        /// Another process holds the lock.
        Locked = "locked",
        /// The disk is full.
        Full = "full",
        /// Anything else: no permission, no folder, an I/O error.
        Unavailable = "unavailable",
    }
}

pub(super) struct Database {
    // Dropped before the file: closing a descriptor releases the locks that the process has on a
    // file.
    connection: Connection,
    /// The file; `None` for a database in memory.
    file: Option<OpenFile>,
}

impl Database {
    /// Opens or creates the file; without a path, a database in memory.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, DatabaseError> {
        let Some(path) = path else {
            let mut connection = Connection::open_in_memory()?;
            FILE.prepare(&mut connection)?;
            return Self::tuned(connection, None);
        };
        let (connection, file) = FILE.open(path)?;
        Self::tuned(connection, Some(file))
    }

    fn tuned(connection: Connection, file: Option<OpenFile>) -> Result<Self, DatabaseError> {
        // With WAL a power failure then costs the last commits at most, and damages nothing.
        connection.pragma_update(None, "synchronous", "normal")?;
        // SQLite would otherwise keep the journal at its largest size.
        connection.pragma_update(None, "journal_size_limit", 4 << 20)?;
        Ok(Self { connection, file })
    }

    /// Returns whether the path still leads to the open file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_at(path))
    }

    /// Returns whether the file still starts with the header of this program.
    pub(super) fn is_intact(&self) -> io::Result<bool> {
        self.file.as_ref().map_or(Ok(true), |file| file.is_intact(&FILE))
    }

    /// Returns the identity of the file, which no other one has.
    pub(super) fn identity(&self) -> Result<String, DatabaseError> {
        let select = "SELECT id FROM ledger_identity";
        Ok(self.connection.query_row(select, [], |row| row.get(0))?)
    }

    /// Returns what was spent of budgets since a time.
    pub(super) fn spent_since(&self, oldest: u64) -> Result<Vec<Spending>, DatabaseError> {
        spent_since(&self.connection, oldest)
    }

    /// Adds the rows of a batch. Returns the totals of the database after it.
    pub(super) fn add(&mut self, batch: &Batch) -> Result<TokenTotals, DatabaseError> {
        // Immediate: SQLite cannot wait for a lock that is taken later in the transaction.
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        add_rows(&transaction, batch)?;
        // In the same transaction: another process may write before and after it.
        let totals = totals(&transaction)?;
        transaction.commit()?;
        Ok(totals)
    }

    /// Returns the totals per backend and model.
    pub(super) fn totals(&self) -> Result<TokenTotals, DatabaseError> {
        totals(&self.connection)
    }

    /// Returns a number that changes when another process has written.
    pub(super) fn foreign_writes(&self) -> Result<i64, DatabaseError> {
        foreign_writes(&self.connection)
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Deletes the rows by minute that are older than a Unix time. Returns their number.
    pub(super) fn delete_before(&self, time: u64) -> Result<usize, DatabaseError> {
        let delete = "DELETE FROM time_series WHERE timestamp < ?1";
        Ok(self.connection.execute(delete, [to_i64(time)])?)
    }

    /// Deletes what was spent of budgets before a Unix time.
    pub(super) fn delete_spent_before(&self, time: u64) -> Result<usize, DatabaseError> {
        let delete = "DELETE FROM budget_spending WHERE part < ?1";
        Ok(self.connection.execute(delete, [to_i64(time)])?)
    }
}

/// Returns what was spent of budgets since a time.
pub(super) fn spent_since(
    connection: &Connection,
    oldest: u64,
) -> Result<Vec<Spending>, DatabaseError> {
    let sql = "SELECT budget, subject, part, amount FROM budget_spending WHERE part >= ?1";
    let mut select = connection.prepare(sql)?;
    let rows = select.query_map(params![to_i64(oldest)], |row| {
        Ok(Spending {
            budget: row.get(0)?,
            subject: row.get(1)?,
            part: to_u64(row.get(2)?),
            amount: Money(to_u64(row.get(3)?)),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn add_rows(transaction: &Transaction<'_>, batch: &Batch) -> Result<(), DatabaseError> {
    let mut sums = TokenTotals::new();
    batch.add_to(&mut sums);
    let mut add_total = transaction.prepare(ADD_TOTAL)?;
    for (Pair { endpoint, model }, TokenSums { input, output }) in &sums {
        add_total.execute(params![endpoint, model, to_i64(*input), to_i64(*output)])?;
    }
    let mut add_minute = transaction.prepare(ADD_MINUTE)?;
    for ((minute, Pair { endpoint, model }), TokenSums { input, output }) in &batch.minutes {
        let (input, output) = (to_i64(*input), to_i64(*output));
        add_minute.execute(params![endpoint, model, input, output, to_i64(minute * 60)])?;
    }
    let mut add_day = transaction.prepare(ADD_DAY)?;
    for ((day, account), row) in &batch.days {
        add_day.execute(params![
            to_i64(*day),
            account.backend,
            account.model,
            account.key,
            to_i64(row.counts.requests),
            to_i64(row.counts.estimated_requests),
            to_i64(row.counts.input_tokens),
            to_i64(row.counts.output_tokens),
            row.cost,
        ])?;
    }
    let mut add_spent = transaction.prepare(ADD_SPENT)?;
    for ((part, (budget, subject)), amount) in &batch.spent {
        add_spent.execute(params![budget, subject, to_i64(*part), to_i64(*amount)])?;
    }
    Ok(())
}

fn totals(connection: &Connection) -> Result<TokenTotals, DatabaseError> {
    let mut select = connection
        .prepare("SELECT endpoint, model, input_tokens, output_tokens FROM token_counts")?;
    let rows = select.query_map([], |row| {
        let pair = Pair { endpoint: row.get(0)?, model: row.get(1)? };
        Ok((pair, TokenSums { input: to_u64(row.get(2)?), output: to_u64(row.get(3)?) }))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Moves a damaged file and its journal aside. Returns the new path of the file.
pub(super) fn quarantine(path: &Path, unix_seconds: u64) -> io::Result<PathBuf> {
    let moved = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name
    };
    let target = moved(&format!(".corrupt-{unix_seconds}"));
    std::fs::rename(path, &target)?;
    // Left behind, they would pass for the journal of the new file.
    for journal in ["-wal", "-shm"] {
        let mut to = target.clone();
        to.push(journal);
        match std::fs::rename(moved(journal), to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(target.into())
}

/// Converts a count for SQLite, whose integers are signed.
pub(super) fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a count of the database; negative ones are not ours.
pub(super) fn to_u64(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
