//! The place where a value was written: file, line and column, or the environment variable, or the
//! command line.

use std::fmt;
use std::sync::Arc;

use penstock_api::{MAX_NAME, escape};

/// The longest message, in bytes: messages quote the file.
pub(super) const MAX_MESSAGE: usize = 1024;

/// The place where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourcePlace {
    File {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// The name of the file as it was given.
        file: Arc<str>,
    },
    Variable(String),
    /// On the command line. The message names the setting.
    CommandLine,
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => {
                write!(out, "{}:{line}:{column}", escape(file, MAX_MESSAGE))
            }
            Self::Variable(name) => out.write_str(&escape(name, MAX_NAME)),
            Self::CommandLine => out.write_str("command line"),
        }
    }
}
