//! `log:` log messages on standard error.

use penstock_api::choice;

use crate::syntax::setting::{choice_setting, section};

choice! {
    /// The lowest severity to log.
    pub enum LogLevel {
        /// Everything.
        Trace = "trace",
        /// Details for troubleshooting.
        Debug = "debug",
        /// Normal events.
        Info = "info",
        /// Events that need attention.
        Warn = "warn",
        /// Failures.
        Error = "error",
    }
}
choice_setting!(LogLevel);

choice! {
    /// The format of log messages.
    pub enum LogFormat {
        /// Plain text.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}
choice_setting!(LogFormat);

section! {
    /// Log messages on standard error.
    pub struct LogConfig {
        /// The lowest severity to log: trace, debug, info, warn or error.
        pub level: LogLevel = LogLevel::Info,
        /// The format: text or json.
        pub format: LogFormat = LogFormat::Text,
    }
}
