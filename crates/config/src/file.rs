//! Reads a configuration file within a few seconds, whatever the path leads to: a reload that waits
//! for a pipe would block all later reloads.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use penstock_clock::now;
use rustix::fs::OFlags;

/// The maximum size of a configuration file.
const MAX_SIZE: usize = 64 << 20;
/// The time that the program at the other end of a pipe may take.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const CHUNK: usize = 64 << 10;

/// Reads a file, or a pipe that another program writes to (`--config <(envsubst < template)`).
///
/// # Errors
/// The error of the system; a pipe without a writer; a file larger than the maximum.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Without this flag, opening a pipe waits for its writer.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Pipes and devices report no size, so they are read until their end.
    let is_pipe = !file.metadata()?.is_file();
    let bytes = read_within(&mut file, PATIENCE)?;
    // An empty file is a configuration; a pipe that ends at once has no writer.
    if is_pipe && bytes.is_empty() {
        return Err(io::Error::other("it is not a file, and nothing is written to it"));
    }
    Ok(bytes)
}

fn read_within(file: &mut File, patience: Duration) -> io::Result<Vec<u8>> {
    let until = now().after(patience);
    let mut bytes = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A writer has the pipe open, and has written nothing yet.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(error) => return Err(error),
        }
        if bytes.len() > MAX_SIZE {
            return Err(io::Error::other("it is larger than 64 MiB"));
        }
        // A writer that sends a byte now and then must not hold the reload either.
        if now() > until {
            let reason = "it is not a file, and its writer does not end within 5 s";
            return Err(io::Error::other(reason));
        }
    }
}
