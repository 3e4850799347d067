//! Sends what the process logs to standard error, by the configuration's `log` section. Pingora
//! logs through `log`; the subscriber bridges it.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Starts logging. `RUST_LOG`, where it is set, replaces the configured level.
pub(super) fn start(config: &LogConfig) -> Result<(), TryInitError> {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_unset| EnvFilter::new(filter(config)));
    let writer = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match config.format {
        LogFormat::Text => writer.with_ansi(io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => writer.json().flatten_event(true).finish().try_init(),
    }
}

/// What Pingora says about its own workings at `info` is no news to an operator, and its word on a
/// backend's health repeats ours.
fn filter(config: &LogConfig) -> String {
    let level = config.level.name();
    match config.level {
        LogLevel::Trace | LogLevel::Debug | LogLevel::Info => {
            format!("{level},pingora=warn,pingora_load_balancing=error")
        }
        LogLevel::Warn => format!("{level},pingora_load_balancing=error"),
        LogLevel::Error => level.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pingora_never_says_more_than_it_was_asked() {
        let of = |level| filter(&LogConfig { level, ..LogConfig::default() });
        assert_eq!(of(LogLevel::Info), "info,pingora=warn,pingora_load_balancing=error");
        assert_eq!(of(LogLevel::Error), "error");
        for level in LogLevel::ALL {
            assert!(EnvFilter::try_new(of(*level)).is_ok());
        }
    }
}
