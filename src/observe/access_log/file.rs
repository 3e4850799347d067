//! The target of the lines: standard output or a file in append mode, reopened for log rotation.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::observe::queue::Sink;

/// The mode of the file. Not world-readable: lines contain client addresses.
const MODE: u32 = 0o640;

/// The sink of lines.
pub(super) struct LineWriter {
    /// The path of the file; `None` for standard output.
    path: Option<PathBuf>,
    output: Box<dyn Write + Send>,
    reopen: Arc<AtomicBool>,
    /// True if a write failed, possibly within a line.
    is_torn: bool,
    joined: Vec<u8>,
}

impl LineWriter {
    /// Appends to `path`, or writes to standard output. Setting `reopen` reopens the file.
    pub(super) fn open(path: Option<PathBuf>, reopen: Arc<AtomicBool>) -> io::Result<Self> {
        let output = open(path.as_ref())?;
        Ok(Self { path, output, reopen, is_torn: false, joined: Vec::new() })
    }

    fn reopen_if_requested(&mut self) {
        if !self.reopen.swap(false, Ordering::AcqRel) {
            return;
        }
        match open(self.path.as_ref()) {
            Ok(output) => {
                self.output = output;
                // The unfinished line is in the file that was rotated away.
                self.is_torn = false;
                tracing::info!(file = self.destination(), "access log reopened");
            }
            Err(error) => {
                let file = self.destination();
                tracing::error!(file, %error, "cannot reopen the access log; still writing to the old file");
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

/// Checks that the file, or else a new one in its folder, can be opened.
pub(super) fn check(path: &Path) -> io::Result<()> {
    match OpenOptions::new().append(true).open(path) {
        // A check must not leave an empty file behind, with the wrong owner perhaps.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened.map(drop),
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(_) => Err(io::Error::other(format!("the folder {} does not exist", folder.display()))),
    }
}

impl Sink for LineWriter {
    const NAME: &'static str = "the access log";
    const BATCH_DELAY: Duration = Duration::from_millis(1);

    fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()> {
        self.reopen_if_requested();
        self.joined.clear();
        // The failed write may have ended within a line, which the next one must not continue.
        if self.is_torn {
            self.joined.push(b'\n');
        }
        batch.iter().for_each(|line| self.joined.extend_from_slice(line));
        // Standard output has a buffer: a line must not wait in it for the next ones.
        let written = self.output.write_all(&self.joined).and_then(|()| self.output.flush());
        self.is_torn = written.is_err();
        written
    }

    fn destination(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => "standard output".to_owned(),
        }
    }

    fn wake(&mut self) {
        self.reopen_if_requested();
    }
}
