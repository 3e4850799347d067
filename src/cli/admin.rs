//! The admin port of a running penstock, as commands ask it.

use std::path::Path;

use serde_json::Value;

use super::client::{Answer, Call};
use super::error::CliError;
use crate::config::BackendUrl;

/// Where it is, and what lets us in.
#[derive(Debug)]
pub(super) struct AdminPort {
    authority: String,
    base_path: String,
    token: Option<String>,
}

impl AdminPort {
    /// The port at `url`, with the token in a file.
    pub(super) fn new(url: &str, token_file: Option<&Path>) -> Result<Self, CliError> {
        let url: BackendUrl = url.parse()?;
        if url.https {
            return Err(CliError::AdminHttps);
        }
        let read = |path: &Path| {
            let unreadable = |source| CliError::Unreadable { path: path.to_owned(), source };
            std::fs::read_to_string(path).map_err(unreadable)
        };
        let token = token_file.map(read).transpose()?;
        Ok(Self {
            authority: url.authority(),
            base_path: url.base_path,
            token: token.map(|token| token.trim().to_owned()),
        })
    }

    /// Its host and port.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// The body of a page.
    pub(super) fn page(&self, path: &str) -> Result<Vec<u8>, CliError> {
        self.ask(path, None)
    }

    /// A page that is JSON.
    pub(super) fn json(&self, path: &str) -> Result<Value, CliError> {
        parse(&self.page(path)?)
    }

    /// The answer to a question that is POSTed.
    pub(super) fn post(&self, path: &str, body: &[u8]) -> Result<Value, CliError> {
        parse(&self.ask(path, Some(body))?)
    }

    fn ask(&self, path: &str, body: Option<&[u8]>) -> Result<Vec<u8>, CliError> {
        let path = format!("{}{path}", self.base_path);
        let token = self.token.as_deref();
        let call = Call { authority: &self.authority, path: &path, token, body };
        let Answer { status, body, .. } = call.send()?;
        if status == 200 { Ok(body) } else { Err(refused(status, &body)) }
    }
}

fn parse(body: &[u8]) -> Result<Value, CliError> {
    serde_json::from_slice(body).map_err(|_not_json| refused(200, body))
}

/// What the port answered instead; its errors have a message.
fn refused(status: u16, body: &[u8]) -> CliError {
    let told: Option<Value> = serde_json::from_slice(body).ok();
    let message = told.as_ref().and_then(|told| told.pointer("/error/message")?.as_str());
    let text = || String::from_utf8_lossy(body).trim().chars().take(300).collect();
    CliError::AdminRefused { status, message: message.map_or_else(text, str::to_owned) }
}
