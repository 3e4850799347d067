//! The thread that owns the database: writes pending rows, deletes old ones, runs queries. No
//! failure of the database reaches a request: rows that cannot be written stay in the books.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_clock::{now, unix_seconds};
use tokio::sync::oneshot;

use super::LedgerState;
use super::database::{Database, DatabaseError, quarantine};
use super::queries::{self, DailyGroups, TimeSeries};
use super::report::{ReportQuery, ReportRow};

/// The interval at which old rows are deleted.
const DELETE_INTERVAL: Duration = Duration::from_secs(3600);
/// The time that rows by minute are kept in memory, if there is no file.
const MEMORY_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// The time that what was spent of budgets is kept: longer than every period.
const SPENT_RETENTION: Duration = Duration::from_secs(400 * 24 * 3600);
/// The maximum interval between two reads of the cells, which distinguish only even and odd
/// minutes.
const MAX_COLLECT_INTERVAL: Duration = Duration::from_secs(30);
/// The minimum interval between writes: bounds the work for a very low setting.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The commands to the thread.
pub(super) enum WriterCommand {
    /// Writes now; reports whether everything is written.
    Flush(SyncSender<bool>),
    /// Returns the tokens of a model over time.
    TimeSeries { model: String, response: oneshot::Sender<Result<TimeSeries, DatabaseError>> },
    /// Returns the number of daily groups older than a time. If requested, deletes their rows by
    /// minute.
    DailyGroups {
        before: u64,
        deletes: bool,
        response: oneshot::Sender<Result<DailyGroups, DatabaseError>>,
    },
    /// Returns sums by day, backend, model or key.
    Report { query: ReportQuery, response: oneshot::Sender<Result<Vec<ReportRow>, DatabaseError>> },
}

pub(super) struct LedgerWriter {
    shared: Arc<LedgerState>,
    /// The path of the file; `None` for a database in memory.
    path: Option<PathBuf>,
    receiver: Receiver<WriterCommand>,
    database: Option<Database>,
    /// The number that changes when another process writes, as of the last write.
    foreign_writes: i64,
    is_failing: bool,
    /// The time since which the budgets know what was spent of them before.
    restored_since: Option<u64>,
    next_delete: Timestamp,
}

impl LedgerWriter {
    pub(super) fn new(
        shared: Arc<LedgerState>,
        path: Option<PathBuf>,
        receiver: Receiver<WriterCommand>,
    ) -> Self {
        let next_delete = now();
        Self {
            shared,
            path,
            receiver,
            database: None,
            foreign_writes: 0,
            is_failing: false,
            restored_since: None,
            next_delete,
        }
    }

    /// Runs until the ledger is dropped.
    pub(super) fn run(mut self) {
        let mut next_flush = now().after(self.interval());
        loop {
            let wait = next_flush.since(now()).min(MAX_COLLECT_INTERVAL);
            match self.receiver.recv_timeout(wait) {
                Ok(command) => self.execute(command),
                Err(RecvTimeoutError::Timeout) => self.shared.collect(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if now() >= next_flush {
                self.flush();
                next_flush = now().after(self.interval());
            }
        }
    }

    fn interval(&self) -> Duration {
        self.shared.settings.load().flush_interval.max(MIN_INTERVAL)
    }

    fn execute(&mut self, command: WriterCommand) {
        let is_awaited = match command {
            WriterCommand::Flush(done) => {
                let is_written = self.flush();
                done.try_send(is_written).is_ok()
            }
            WriterCommand::TimeSeries { model, response } => {
                self.flush();
                let books = self.shared.books.lock();
                // Without a usable file, the pending rows are all there is.
                let found = queries::time_series(self.database.as_ref(), books.pending(), &model);
                response.send(found).is_ok()
            }
            WriterCommand::DailyGroups { before, deletes, response } => {
                self.flush();
                let found =
                    self.with_database(|database| queries::daily_groups(database, before, deletes));
                response.send(found).is_ok()
            }
            WriterCommand::Report { query, response } => {
                self.flush();
                // Copied, and almost always empty: live usage must not wait for a long query.
                let pending = self.shared.books.lock().pending().clone();
                let found = queries::report(self.database.as_ref(), &pending, &query);
                response.send(found).is_ok()
            }
        };
        tracing::trace!(is_awaited, "ledger command executed");
    }

    /// Writes the pending rows. Returns whether everything is written.
    pub(super) fn flush(&mut self) -> bool {
        self.shared.collect();
        let written = match self.write() {
            // Once more, into the new file: the rows are still in the books.
            Err(error) if error.is_corrupt() && self.quarantine(&error) => self.write(),
            written => written,
        };
        self.shared.figures.count_flush(written.as_ref().map_err(DatabaseError::kind).err());
        match written {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(file = %self.file(), "token ledger: writing resumed");
                }
                true
            }
            Err(error) => {
                // Logged once, not every few seconds: the metric shows whether the failure
                // continues.
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(
                        file = %self.file(),
                        "token ledger: cannot write, counts stay in memory until it can: {error}"
                    );
                }
                false
            }
        }
    }

    fn write(&mut self) -> Result<(), DatabaseError> {
        self.open()?;
        let Self { shared, database, foreign_writes, .. } = self;
        let Some(database) = database else { return Ok(()) };
        let others = database.foreign_writes()?;
        let is_foreign = *foreign_writes != others;
        // Nothing to write is a usual case, and must not make the disk work.
        if shared.books.lock().pending().is_empty() {
            if is_foreign {
                shared.books.lock().end_write(database.totals()?);
            }
        } else {
            // The lock is free during the write: readers get the batch from the books meanwhile.
            let batch = shared.books.lock().begin_write();
            match database.add(&batch) {
                Ok(totals) => shared.books.lock().end_write(totals),
                Err(error) => {
                    shared.books.lock().abort_write();
                    return Err(error);
                }
            }
        }
        self.restore_budgets(is_foreign)?;
        self.foreign_writes = others;
        self.delete_old()
    }

    /// Reads what was spent of budgets before this process started, or by another one since the
    /// last read. Again after a reload that makes older money count.
    fn restore_budgets(&mut self, is_foreign: bool) -> Result<(), DatabaseError> {
        let budgets = &self.shared.budgets;
        let Some(database) = self.database.as_ref().filter(|_| !budgets.is_empty()) else {
            return Ok(());
        };
        let oldest = budgets.oldest(unix_seconds());
        // Another process may have spent from the same budgets; otherwise all is known already.
        if !is_foreign && self.restored_since.is_some_and(|since| since <= oldest) {
            return Ok(());
        }
        let spent = database.spent_since(oldest)?;
        let books = self.shared.books.lock();
        for stored in &spent {
            budgets.restore(stored, books.pending().spent_of(stored));
        }
        drop(books);
        self.restored_since = Some(oldest);
        Ok(())
    }

    /// Opens the database; opens it again if its file was removed or replaced.
    fn open(&mut self) -> Result<(), DatabaseError> {
        if let (Some(database), Some(path)) = (&self.database, &self.path)
            && !database.is_at(path)
        {
            tracing::warn!(file = %path.display(), "token ledger: the file is gone, a new one is used");
            self.database = None;
        }
        if let Some(database) = &self.database
            && !database.is_intact()?
        {
            return Err(DatabaseError::Overwritten);
        }
        if self.database.is_none() {
            let database = Database::open(self.path.as_deref())?;
            self.foreign_writes = database.foreign_writes()?;
            self.shared.books.lock().end_write(database.totals()?);
            // The first one stays: what this process knows of budgets began with that file.
            self.shared.identity.get_or_init(|| database.identity().ok());
            self.database = Some(database);
        }
        Ok(())
    }

    fn with_database<T>(
        &mut self,
        query: impl FnOnce(&Database) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.open()?;
        let Some(database) = &self.database else {
            return Err(std::io::Error::from(std::io::ErrorKind::NotFound).into());
        };
        query(database)
    }

    fn delete_old(&mut self) -> Result<(), DatabaseError> {
        if now() < self.next_delete {
            return Ok(());
        }
        let mut retention = self.shared.settings.load().retention;
        if self.path.is_none() {
            // In memory, rows by minute would grow without a bound.
            retention = Some(retention.unwrap_or(MEMORY_RETENTION).min(MEMORY_RETENTION));
        }
        if let (Some(retention), Some(database)) = (retention, &self.database) {
            let rows =
                database.delete_before(unix_seconds().saturating_sub(retention.as_secs()))?;
            tracing::debug!(rows, "token ledger: old rows by minute deleted");
        }
        if let Some(database) = &self.database {
            database
                .delete_spent_before(unix_seconds().saturating_sub(SPENT_RETENTION.as_secs()))?;
        }
        self.next_delete = now().after(DELETE_INTERVAL);
        Ok(())
    }

    /// Moves the damaged file aside, so that the next write starts a new one. Returns whether it
    /// did.
    fn quarantine(&mut self, error: &DatabaseError) -> bool {
        let Some(path) = &self.path else { return false };
        let is_replaced = self.database.as_ref().is_some_and(|database| !database.is_at(path));
        // Closed first, so that SQLite writes nothing more to it.
        self.database = None;
        if is_replaced {
            // Another process has already replaced the file.
            return true;
        }
        match quarantine(path, unix_seconds()) {
            Ok(moved) => {
                self.shared.figures.count_quarantine();
                tracing::error!(
                    file = %path.display(),
                    moved_to = %moved.display(),
                    "token ledger: the file is damaged, a new one is started: {error}"
                );
                true
            }
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "token ledger: the damaged file cannot be moved aside");
                false
            }
        }
    }

    fn file(&self) -> String {
        self.path.as_ref().map_or_else(|| "memory".to_owned(), |path| path.display().to_string())
    }
}
