//! An SQLite file of this program, which several processes may use: a penstock that serves, its
//! successor, the command line. The file is opened here, and made with its tables; its rows belong
//! to the ledger and to the store of keys.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

/// The time that a write waits for another process that holds the lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// The first bytes of an SQLite file.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The offset of the application id in its header, as four bytes.
const APPLICATION_ID_AT: std::ops::Range<usize> = 68..72;

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file cannot be opened.
    #[error("{0}")]
    File(#[from] io::Error),
    /// The file is a database of another program.
    #[error("it is the database of another program")]
    Foreign,
    /// Another program has truncated the file, or written over it.
    #[error("another program has cut it or written over it")]
    Overwritten,
    /// A newer penstock wrote it.
    #[error("a newer penstock wrote it (version {version} of its tables)")]
    Newer {
        /// The version of its tables.
        version: i64,
    },
}

/// The kind of a file: its owner and its tables.
#[derive(Debug)]
pub(crate) struct FileKind {
    /// The id in SQLite's header that shows the owner.
    pub(crate) application_id: i32,
    /// The permissions of a new file.
    pub(crate) mode: u32,
    /// The steps from one version of the tables to the next. Existing steps never change; a new
    /// version adds one.
    pub(crate) migrations: &'static [&'static str],
}

/// A file that SQLite has opened, opened a second time: SQLite's cache does not show the state of
/// the file. Kept until SQLite is done: closing any descriptor of a file releases the locks that
/// the process has on it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The device and the inode.
    identity: (u64, u64),
    file: File,
}

impl OpenFile {
    /// Returns whether the path leads to this file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }

    /// Returns whether it still starts with the header of its kind. SQLite itself reads the header
    /// only if it is not cached, and would continue to write to a truncated file.
    pub(crate) fn is_intact(&self, kind: &FileKind) -> io::Result<bool> {
        let mut header = [0; APPLICATION_ID_AT.end];
        match self.file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        let id = header.get(APPLICATION_ID_AT);
        Ok(header.starts_with(MAGIC) && id == Some(&kind.application_id.to_be_bytes()))
    }
}

impl FileKind {
    /// Opens or creates a file, with its tables.
    pub(crate) fn open(&self, path: &Path) -> Result<(Connection, OpenFile), SqliteError> {
        // Created here for its permissions, which SQLite gives to its journal, too. Closed before
        // SQLite opens it, because of the locks.
        let mut options = OpenOptions::new();
        drop(options.read(true).append(true).create(true).mode(self.mode).open(path)?);
        let file = File::open(path)?;
        let found = file.metadata()?;
        let file = OpenFile { identity: (found.dev(), found.ino()), file };
        // The owner of a connection uses it alone, so SQLite needs no mutex.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        self.prepare(&mut connection)?;
        Ok((connection, file))
    }

    /// Opens a file to read it.
    pub(crate) fn open_to_read(&self, path: &Path) -> Result<Connection, SqliteError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let HeaderNumbers { application, version } = marks(&connection)?;
        if application != i64::from(self.application_id) {
            return Err(SqliteError::Foreign);
        }
        self.missing(version)?;
        Ok(connection)
    }

    /// Makes the tables, and sets up the connection.
    pub(crate) fn prepare(&self, connection: &mut Connection) -> Result<(), SqliteError> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        self.migrate(connection)?;
        // After the check of the file's owner: the journal mode changes the file.
        connection.pragma_update_and_check(None, "journal_mode", "wal", |_mode| Ok(()))?;
        // A negative number is KiB: 1 MiB, in the memory of an idle penstock.
        connection.pragma_update(None, "cache_size", -1024)?;
        Ok(())
    }

    fn migrate(&self, connection: &mut Connection) -> Result<(), SqliteError> {
        // Immediate: of two processes that start together, one migrates and the other waits.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let HeaderNumbers { application, version } = marks(&transaction)?;
        let tables: i64 =
            transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if application != i64::from(self.application_id) && (application != 0 || tables > 0) {
            return Err(SqliteError::Foreign);
        }
        let missing = self.missing(version)?;
        if missing.is_empty() {
            return Ok(());
        }
        for step in missing {
            transaction.execute_batch(step)?;
        }
        transaction.pragma_update(None, "application_id", self.application_id)?;
        let version = i64::try_from(self.migrations.len()).unwrap_or(i64::MAX);
        transaction.pragma_update(None, "user_version", version)?;
        Ok(transaction.commit()?)
    }

    /// Returns the steps from a version of the tables to this program's.
    fn missing(&self, version: i64) -> Result<&'static [&'static str], SqliteError> {
        let missing = usize::try_from(version).ok().and_then(|done| self.migrations.get(done..));
        missing.ok_or(SqliteError::Newer { version })
    }
}

/// The numbers in SQLite's header that an application may set.
struct HeaderNumbers {
    application: i64,
    version: i64,
}

fn marks(connection: &Connection) -> Result<HeaderNumbers, SqliteError> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok(HeaderNumbers { application: pragma("application_id")?, version: pragma("user_version")? })
}

/// Returns a number that changes when another process has written.
pub(crate) fn foreign_writes(connection: &Connection) -> Result<i64, SqliteError> {
    Ok(connection.pragma_query_value(None, "data_version", |row| row.get(0))?)
}
