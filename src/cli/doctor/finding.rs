//! One result of an examination.

use serde::Serialize;

penstock_api::named! {
    /// The severity of a finding.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Severity {
        Ok = "ok",
        /// It works now, but may fail.
        Warn = "warn",
        /// It does not work.
        Fail = "fail",
    }
}

/// The subject of an examination, its result, and a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Severity,
    /// A backend's name, or a word such as `files`.
    pub(super) about: String,
    pub(super) message: String,
    pub(super) remedy: Option<String>,
}

impl Finding {
    /// A finding that needs no action.
    pub(super) fn ok(about: &str, message: impl Into<String>) -> Self {
        Self::new(Severity::Ok, about, message.into(), None)
    }

    /// A finding that needs attention.
    pub(super) fn warn(about: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Severity::Warn, about, message.into(), Some(remedy.into()))
    }

    /// A finding about a failure.
    pub(super) fn fail(about: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Severity::Fail, about, message.into(), Some(remedy.into()))
    }

    fn new(level: Severity, about: &str, message: String, remedy: Option<String>) -> Self {
        Self { level, about: about.to_owned(), message, remedy }
    }
}

/// Returns the number of findings of a level.
pub(super) fn count(findings: &[Finding], level: Severity) -> usize {
    findings.iter().filter(|finding| finding.level == level).count()
}
