//! `access_log:` one JSON line per request.

use std::path::PathBuf;

use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, section};
use crate::syntax::values::Share;

section! {
    /// One JSON line per request.
    pub struct AccessLogConfig {
        /// Destination: off, stdout or a file. SIGUSR1 reopens the file.
        pub path: LogTarget = LogTarget::Off,
        /// The share of successful requests to log, 0 to 1.
        pub sample: f64 ["sample" as Share] = 1.0,
        /// The share of failed requests to log, 0 to 1.
        pub sample_failed: f64 ["sample_failed" as Share] = 1.0,
        /// Adds what a replay by penstock simulate needs of prefixes and sessions: hashes with a
        /// salt of the process, no text.
        pub replay: bool = false,
    }
}

/// The destination of log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// No log.
    Off,
    /// Standard output.
    Stdout,
    /// A file, appended to.
    File(PathBuf),
}

impl Setting for LogTarget {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        const EXPECTED: &str = "off, stdout or the path of a file";
        match reader.scalar(node, EXPECTED)?.trim() {
            "" => reader.refuse_value(node, "", EXPECTED),
            text if text.eq_ignore_ascii_case("off") => Some(Self::Off),
            text if text.eq_ignore_ascii_case("stdout") => Some(Self::Stdout),
            text => {
                let path = reader.base_dir().join(text);
                // Absolute, so that a dump means the same file wherever it is loaded.
                Some(Self::File(std::path::absolute(&path).unwrap_or(path)))
            }
        }
    }

    fn dump(value: &Self) -> Dump {
        match value {
            Self::Off => Dump::text("off"),
            Self::Stdout => Dump::text("stdout"),
            Self::File(path) => Dump::text(&path.to_string_lossy()),
        }
    }
}
