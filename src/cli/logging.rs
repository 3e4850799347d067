//! Sends what the process logs to standard error, by the configuration's `log` section. Pingora
//! logs through `log`; the subscriber bridges it.

use std::io::{self, IsTerminal};

use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, reload};

use crate::config::{LogConfig, LogFormat, LogLevel};
use crate::lifecycle::ApplyLog;

/// Starts logging. `RUST_LOG`, where it is set, replaces the configured level. What is returned lets
/// the level follow a configuration that is loaded later.
pub(super) fn start(config: &LogConfig) -> Result<ApplyLog, TryInitError> {
    let by_variable = EnvFilter::try_from_default_env().ok();
    let is_fixed = by_variable.is_some();
    let first = by_variable.unwrap_or_else(|| EnvFilter::new(filter(config)));
    let writer = tracing_subscriber::fmt().with_writer(io::stderr);
    let set: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync> = match config.format
    {
        LogFormat::Text => {
            let writer = writer.with_ansi(io::stderr().is_terminal());
            let writer = writer.with_env_filter(first).with_filter_reloading();
            let handle = writer.reload_handle();
            writer.finish().try_init()?;
            Box::new(move |filter| handle.reload(filter))
        }
        LogFormat::Json => {
            let writer = writer.json().flatten_event(true);
            let writer = writer.with_env_filter(first).with_filter_reloading();
            let handle = writer.reload_handle();
            writer.finish().try_init()?;
            Box::new(move |filter| handle.reload(filter))
        }
    };
    Ok(Box::new(move |config| {
        let wanted = (!is_fixed).then(|| EnvFilter::new(filter(config)));
        if let Some(Err(error)) = wanted.map(&set) {
            tracing::warn!(%error, "the level of the log stays as it is");
        }
    }))
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
