//! The client side of the admin port, for commands that query a running penstock.

use std::path::Path;

use penstock_config::BackendUrl;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{HttpClient, HttpResponse};
use super::error::CliError;

/// The admin port of a running penstock.
#[derive(Debug)]
pub(super) struct AdminPort {
    authority: String,
    client: HttpClient,
}

impl AdminPort {
    /// The admin port at `url`, with the token in a file.
    pub(super) fn new(url: &str, token_file: Option<&Path>) -> Result<Self, CliError> {
        let url: BackendUrl = url.parse()?;
        let token = token_file.map(read_token).transpose()?;
        // Editors end the file of a token with a line break.
        let client = HttpClient::new(&url.to_string(), token.as_deref().map(str::trim));
        Ok(Self { authority: url.authority(), client })
    }

    /// Its host and port.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// The body of a page.
    pub(super) fn page(&self, path: &str) -> Result<Vec<u8>, CliError> {
        body_of(self.client.get(path)?)
    }

    pub(super) fn json(&self, path: &str) -> Result<Value, CliError> {
        parse(&self.page(path)?)
    }

    /// POSTs a body; returns the response as JSON.
    pub(super) fn post<T: DeserializeOwned>(&self, path: &str, body: &[u8]) -> Result<T, CliError> {
        parse(&body_of(self.client.post(path, body)?)?)
    }
}

fn read_token(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path)
        .map_err(|source| CliError::Unreadable { path: path.to_owned(), source })
}

fn body_of(response: HttpResponse) -> Result<Vec<u8>, CliError> {
    if response.status == 200 {
        Ok(response.body)
    } else {
        Err(refused(response.status, &response.body))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(body)
        .map_err(|source| CliError::AdminResponse { source, body: start_of(body) })
}

/// The error in a response: its message, or the start of its body.
fn refused(status: u16, body: &[u8]) -> CliError {
    let error: Option<Value> = serde_json::from_slice(body).ok();
    let message = error.as_ref().and_then(|error| error.pointer("/error/message")?.as_str());
    let message = message.map_or_else(|| start_of(body), str::to_owned);
    CliError::AdminRefused { status, message }
}

fn start_of(body: &[u8]) -> String {
    // Another server may be at the address: its page may have any length.
    String::from_utf8_lossy(body).trim().chars().take(300).collect()
}
