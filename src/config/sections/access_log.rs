//! `access_log:` one line per request, for those who want to count afterwards.

use std::path::PathBuf;

use crate::config::syntax::document::Node;
use crate::config::syntax::dump::Dump;
use crate::config::syntax::reader::Reader;
use crate::config::syntax::setting::{Setting, section};
use crate::config::syntax::shape::Shape;
use crate::config::syntax::values::Share;

section! {
    /// One JSON line per request.
    pub struct AccessLogConfig {
        /// Where the lines go: off, stdout or a file, which SIGUSR1 opens anew.
        pub path: LogTarget = LogTarget::Off,
        /// The share of requests that went well that are written.
        pub sample: f64 ["sample" as Share] = 1.0,
        /// The share of all others.
        pub sample_failed: f64 ["sample_failed" as Share] = 1.0,
    }
}

/// Where log lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Nowhere.
    Off,
    /// To standard output.
    Stdout,
    /// To the end of a file.
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
                // Whole, so that a dump means the same file wherever it is loaded.
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

    fn shape() -> Shape {
        Shape::text()
    }
}
