//! One thing that was looked at.

use serde::Serialize;

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Fine.
    Ok,
    /// It works, and may not always.
    Warn,
    /// It does not work.
    Fail,
}

impl Level {
    /// The word it is shown as.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What was looked at, how it is, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// A backend's name, or a word such as `files`.
    pub(super) about: String,
    pub(super) message: String,
    pub(super) remedy: Option<String>,
}

impl Finding {
    /// Nothing to do.
    pub(super) fn ok(about: &str, message: impl Into<String>) -> Self {
        Self::new(Level::Ok, about, message.into(), None)
    }

    /// Something to look at.
    pub(super) fn warn(about: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Warn, about, message.into(), Some(remedy.into()))
    }

    /// Something that does not work.
    pub(super) fn fail(about: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Fail, about, message.into(), Some(remedy.into()))
    }

    fn new(level: Level, about: &str, message: String, remedy: Option<String>) -> Self {
        Self { level, about: about.to_owned(), message, remedy }
    }
}

/// How many of them are so.
pub(super) fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|finding| finding.level == level).count()
}
