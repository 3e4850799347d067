//! `log:` what is written to standard error.

use crate::config::syntax::setting::{choice, section};

choice! {
    /// The least severe messages to write.
    pub enum LogLevel {
        /// Everything.
        Trace = "trace",
        /// What helps to find a fault.
        Debug = "debug",
        /// What an operator may want to know.
        Info = "info",
        /// What an operator should look at.
        Warn = "warn",
        /// What went wrong.
        Error = "error",
    }
}
choice!(@setting LogLevel);

choice! {
    /// How messages look.
    pub enum LogFormat {
        /// Lines for people.
        Text = "text",
        /// A JSON object per line.
        Json = "json",
    }
}
choice!(@setting LogFormat);

section! {
    /// What is written to standard error.
    pub struct LogConfig {
        /// trace, debug, info, warn or error.
        pub level: LogLevel = LogLevel::Info,
        /// text or json.
        pub format: LogFormat = LogFormat::Text,
    }
}
