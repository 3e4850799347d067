//! Log messages on standard error, configured by the `log` section. Pingora logs through
//! `log`, which the subscriber bridges.

use std::io::{self, IsTerminal};

use penstock_config::{LogConfig, LogFormat, LogLevel};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, reload};

use crate::lifecycle::ApplyLog;

/// Starts logging. `RUST_LOG` overrides the configured level. The returned function applies the
/// level of a reloaded configuration.
pub(super) fn start(config: &LogConfig) -> Result<ApplyLog, TryInitError> {
    let by_variable = EnvFilter::try_from_default_env().ok();
    // A reload does not undo what was set for this process.
    let is_fixed = by_variable.is_some();
    let first = by_variable.unwrap_or_else(|| EnvFilter::new(filter(config)));
    let writer = tracing_subscriber::fmt().with_writer(io::stderr);
    // It would report a line that cannot be written on the same standard error, and panic in the
    // thread that logged: on a full disk, or when the reader of a pipe has left.
    let writer = writer.log_internal_errors(false);
    let set: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync> = match config.format
    {
        LogFormat::Text => {
            // A file or a journal would keep the codes of colors in its lines.
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
            tracing::warn!(%error, "cannot change the log level");
        }
    }))
}

/// Builds the filter. Pingora's messages at `info` are of no use to an operator, and its health
/// messages duplicate ours.
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
    fn pingora_logs_at_most_at_the_configured_level() {
        let of = |level| filter(&LogConfig { level, ..LogConfig::default() });
        assert_eq!(of(LogLevel::Info), "info,pingora=warn,pingora_load_balancing=error");
        assert_eq!(of(LogLevel::Error), "error");
        for level in LogLevel::ALL {
            assert!(EnvFilter::try_new(of(level)).is_ok());
        }
    }
}
