//! `ledger:` the token counts that survive restarts.

use std::path::PathBuf;
use std::time::Duration;

use penstock_api::choice;

use crate::syntax::collections::{Never, Off, Or};
use crate::syntax::setting::{choice_setting, section};
use crate::syntax::values::{AtLeastOne, FilePath, Positive};

choice! {
    /// The streamed requests to which `stream_options.include_usage` is added.
    pub enum RequestUsage {
        /// All, if the ledger has a file or the client's tokens are limited.
        Auto = "auto",
        /// Always.
        Always = "true",
        /// Never: a stream is estimated if its client does not request its usage.
        Never = "false",
    }
}
choice_setting!(RequestUsage);

section! {
    /// The token ledger: tokens per backend, model and client key, in an SQLite database.
    pub struct LedgerConfig {
        /// The database file, or off: tokens are then counted in memory only, since the start.
        pub path: Option<PathBuf> ["path" as Or<Off, FilePath>] = None,
        /// Time between two writes; a crash loses what was counted since the last one.
        pub flush_interval: Duration ["flush_interval" as Positive] = Duration::from_secs(10),
        /// The time that counts per minute are kept, or none: forever. Totals and days are kept
        /// forever. In memory they are kept for at most a day.
        pub retention: Option<Duration> ["retention" as Or<Never, Positive>] =
            Some(Duration::from_secs(90 * 24 * 3600)),
        /// The maximum number of counted combinations of backend, model and key, and of rows that
        /// wait for a database that cannot be written.
        pub max_rows: usize ["max_rows" as AtLeastOne<usize>] = 100_000,
        /// Requests token counts from engines that stream (`stream_options.include_usage`): true,
        /// false, or auto: when `path` is set or the client's tokens are limited. The additional
        /// event is removed from the stream of a client that did not request it.
        pub request_usage: RequestUsage = RequestUsage::Auto,
    }
}

impl LedgerConfig {
    /// Returns whether token counts are requested from engines that stream.
    pub fn requests_usage(&self) -> bool {
        match self.request_usage {
            RequestUsage::Auto => self.path.is_some(),
            RequestUsage::Always => true,
            RequestUsage::Never => false,
        }
    }
}
