//! The token ledger: an observer that counts the tokens of every request by backend, model and
//! client key. Requests write counters without a lock (`cells`). A thread reads them every few
//! seconds into the `books` and adds them to an SQLite database (`database`), whose totals it reads
//! at start. Without a file the database is in memory. No failure of the file makes a request wait
//! or fail.

mod batch;
mod books;
mod cells;
mod counts;
mod database;
mod day;
mod figures;
mod queries;
mod report;
mod writer;

pub use batch::{Pair, TokenSums, TokenTotals};
pub use counts::LedgerCounts;
pub use database::DatabaseError;
pub use day::parse_day;
pub use figures::LedgerReport;
pub use queries::{DailyGroups, Point, TimeSeries};
pub use report::{Dimension, ReportQuery, ReportRow, report, spent};

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use penstock_clock::unix_seconds;
use penstock_config::LedgerConfig;
use penstock_core::admission::budgets::Budgets;
use penstock_core::routing::{Generation, RequestObserver, RequestOutcome};
use tokio::sync::oneshot;

use books::Books;
use cells::{Cells, CountLabels};
use figures::WriterFigures;
use writer::{LedgerWriter, WriterCommand};

/// The maximum number of queries that wait for the thread; further ones are refused.
const MAX_COMMANDS: usize = 16;

/// The reason why a query has no result.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// Too many queries wait.
    #[error("too many queries wait for the ledger")]
    Busy,
    /// The database cannot be read.
    #[error("the ledger cannot be read: {0}")]
    Database(#[from] DatabaseError),
}

/// The state that requests, readers and the thread share.
#[derive(Debug)]
struct LedgerState {
    cells: Cells,
    books: Mutex<Books>,
    settings: ArcSwap<LedgerConfig>,
    budgets: Arc<Budgets>,
    figures: WriterFigures,
    /// The identity of the file that was read at start, if it has one.
    identity: OnceLock<Option<String>>,
}

impl LedgerState {
    /// Reads the cells into the books.
    fn collect(&self) {
        let mut books = self.books.lock();
        books.collect(&self.cells, unix_seconds() / 60);
        books.add_spent(self.budgets.take_unwritten());
    }
}

#[derive(Debug)]
pub struct Ledger {
    shared: Arc<LedgerState>,
    has_file: bool,
    commands: SyncSender<WriterCommand>,
}

impl Ledger {
    /// Opens the database, reads its totals and what was spent of `budgets`, and starts the thread.
    /// A failure of the database is logged, and every write tries to open it again.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(generation: &Generation, budgets: Arc<Budgets>) -> io::Result<Self> {
        let config = &generation.config;
        let (commands, receiver) = sync_channel(MAX_COMMANDS);
        let shared = Arc::new(LedgerState {
            cells: Cells::new(config.ledger.max_rows),
            books: Mutex::new(Books::new(generation)),
            settings: ArcSwap::from_pointee(config.ledger.clone()),
            budgets,
            figures: WriterFigures::default(),
            identity: OnceLock::new(),
        });
        let path = config.ledger.path.clone();
        let has_file = path.is_some();
        let mut writer = LedgerWriter::new(Arc::clone(&shared), path, receiver);
        // Before the thread starts: the first totals already include those of the file.
        writer.flush();
        // Set once: a file that appears later may be another one, whose totals were not read.
        shared.identity.get_or_init(|| None);
        let thread = std::thread::Builder::new().name("token ledger".to_owned());
        thread.spawn(move || writer.run())?;
        Ok(Self { shared, has_file, commands })
    }

    /// Returns the identity of the file as of the start; `None` without a usable one.
    pub fn identity(&self) -> Option<&str> {
        self.shared.identity.get().and_then(Option::as_deref)
    }

    /// Checks that the configured file can be used. Creates none.
    ///
    /// # Errors
    /// [`DatabaseError`] when it cannot.
    pub fn check(config: &LedgerConfig) -> Result<(), DatabaseError> {
        config.path.as_deref().map_or(Ok(()), report::check)
    }

    /// Applies another configuration; `ledger.path` needs a restart.
    pub fn adopt(&self, generation: &Generation) {
        let minute = unix_seconds() / 60;
        self.shared.books.lock().adopt(generation, &self.shared.cells, minute);
        self.shared.settings.store(Arc::new(generation.config.ledger.clone()));
    }

    /// Writes everything counted so far; retries for at most `limit` while the file is locked.
    /// Returns whether everything is written.
    pub fn flush(&self, limit: Duration) -> bool {
        const PAUSE: Duration = Duration::from_millis(20);
        let mut left = limit;
        loop {
            let (done, written) = sync_channel(1);
            // A command for a thread that writes may wait long: that time counts, too.
            let started = penstock_clock::now();
            if self.commands.try_send(WriterCommand::Flush(done)).is_ok()
                && written.recv_timeout(left).unwrap_or(false)
            {
                return true;
            }
            // The queue of commands may be full, or the file locked by another process for a
            // moment.
            std::thread::sleep(PAUSE);
            left = left.saturating_sub(penstock_clock::now().since(started));
            if left.is_zero() {
                tracing::error!("shutdown: not all counts of the token ledger were written");
                return false;
            }
        }
    }

    /// Returns the tokens per backend and model, written or not.
    pub fn totals(&self) -> TokenTotals {
        let minute = unix_seconds() / 60;
        let mut books = self.shared.books.lock();
        books.collect(&self.shared.cells, minute);
        books.totals()
    }

    /// Returns the tokens of a model by minute and backend, newest first.
    ///
    /// # Errors
    /// [`QueryError`] when the database cannot be read now.
    pub async fn time_series(&self, model: String) -> Result<TimeSeries, QueryError> {
        self.query(|response| WriterCommand::TimeSeries { model, response }).await
    }

    /// Returns the number of daily groups before a Unix time; `deletes` removes the rows by minute
    /// before it.
    ///
    /// # Errors
    /// [`QueryError`] when the database cannot be used now.
    pub async fn daily_groups(
        &self,
        before: u64,
        deletes: bool,
    ) -> Result<DailyGroups, QueryError> {
        self.query(|response| WriterCommand::DailyGroups { before, deletes, response }).await
    }

    /// Returns the sums of `query`, the largest first, including counts not yet written.
    ///
    /// # Errors
    /// [`QueryError`] when the database cannot be read now.
    pub async fn report(&self, query: ReportQuery) -> Result<Vec<ReportRow>, QueryError> {
        self.query(|response| WriterCommand::Report { query, response }).await
    }

    /// Returns whether counts are kept in a file; otherwise they are lost when the process ends.
    pub fn has_file(&self) -> bool {
        self.has_file
    }

    async fn query<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, DatabaseError>>) -> WriterCommand,
    ) -> Result<T, QueryError> {
        let (sender, response) = oneshot::channel();
        match self.commands.try_send(command(sender)) {
            Ok(()) => {}
            // The caller is an admin request: it may come again, and must not wait behind a slow
            // disk.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                return Err(QueryError::Busy);
            }
        }
        Ok(response.await.map_err(|_gone| QueryError::Busy)??)
    }

    /// Returns the figures that the metrics show.
    pub fn figures(&self) -> LedgerReport {
        let (pending, shrunk) = {
            let books = self.shared.books.lock();
            (books.unwritten(), books.shrunk())
        };
        self.shared.figures.report(pending, shrunk, self.shared.cells.overflowed())
    }
}

impl RequestObserver for Ledger {
    fn finished(&self, outcome: &RequestOutcome<'_>) {
        let Some(counts) = LedgerCounts::of(outcome) else { return };
        // A request that no backend served has cost nothing.
        let Some((_, backend)) = outcome.backend() else { return };
        let labels = CountLabels { backend, model: outcome.model(), key: outcome.details.account };
        self.shared.cells.add(labels, &counts, unix_seconds() / 60);
    }
}

#[cfg(test)]
mod tests;
