//! Where the lines go: standard output or the end of a file, which is opened anew when asked to.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::observe::queue::Sink;

/// Clients' addresses are in it: not for every user of the machine.
const MODE: u32 = 0o640;

/// Writes lines.
pub(super) struct LineWriter {
    /// The file; standard output without one.
    path: Option<PathBuf>,
    output: Box<dyn Write + Send>,
    reopen: Arc<AtomicBool>,
    /// Whether a write broke off, perhaps in the middle of a line.
    is_torn: bool,
    joined: Vec<u8>,
}

impl LineWriter {
    /// Writes to the end of `path`, or to standard output. Setting `reopen` opens the file anew.
    pub(super) fn open(path: Option<PathBuf>, reopen: Arc<AtomicBool>) -> io::Result<Self> {
        let output = open(path.as_ref())?;
        Ok(Self { path, output, reopen, is_torn: false, joined: Vec::new() })
    }

    fn reopen_if_asked(&mut self) {
        if !self.reopen.swap(false, Ordering::AcqRel) {
            return;
        }
        match open(self.path.as_ref()) {
            Ok(output) => {
                self.output = output;
                self.is_torn = false;
                tracing::info!("the access log was opened anew");
            }
            Err(error) => {
                tracing::error!(%error, "the access log cannot be opened anew; the old file goes on");
            }
        }
    }
}

fn open(path: Option<&PathBuf>) -> io::Result<Box<dyn Write + Send>> {
    Ok(match path {
        None => Box::new(io::stdout()),
        Some(path) => Box::new(OpenOptions::new().create(true).append(true).mode(MODE).open(path)?),
    })
}

impl Sink for LineWriter {
    const NAME: &'static str = "the access log";
    const BATCH_DELAY: Duration = Duration::from_millis(1);

    fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()> {
        self.reopen_if_asked();
        self.joined.clear();
        if self.is_torn {
            self.joined.push(b'\n');
        }
        batch.iter().for_each(|line| self.joined.extend_from_slice(line));
        let written = self.output.write_all(&self.joined).and_then(|()| self.output.flush());
        self.is_torn = written.is_err();
        written
    }

    fn wake(&mut self) {
        self.reopen_if_asked();
    }
}
