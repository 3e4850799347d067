//! A request to explain, never sent: path, body and headers, and the JSON line that carries it.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use penstock_api::token_of;
use penstock_config::{Config, KeyHash};
use serde_json::{Map, Value};

use crate::clients::{ClientIdentity, KeyTable};

/// The path of a request without one.
pub const DEFAULT_PATH: &str = "/v1/chat/completions";

/// A request to explain; always a POST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRunRequest {
    pub path: String,
    /// The body, byte for byte.
    pub body: Vec<u8>,
    /// Its headers; only those that name its content, its session and its key count.
    pub headers: Vec<(String, String)>,
}

/// An error in a line that should be a request to explain.
#[derive(Debug, thiserror::Error)]
pub enum DryRunRequestError {
    #[error("the line is not a JSON object: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("unknown key '{key}': a line has 'path', 'body' or 'body_b64', and 'headers'")]
    UnknownKey { key: String },
    #[error("'{key}' must be {expected}")]
    WrongType { key: &'static str, expected: &'static str },
    #[error("'body_b64' is not base64")]
    NotBase64,
    #[error("the line has neither 'body' nor 'body_b64'")]
    NoBody,
    #[error("the line has both 'body' and 'body_b64'")]
    TwoBodies,
}

impl DryRunRequest {
    /// Creates a request for [`DEFAULT_PATH`].
    pub fn new(body: Vec<u8>) -> Self {
        Self { path: DEFAULT_PATH.to_owned(), body, headers: Vec::new() }
    }

    /// Reads one line: `{"path", "body" (a string, taken verbatim) or "body_b64", "headers"?}`.
    ///
    /// # Errors
    /// [`DryRunRequestError`] if the line is no such object.
    pub fn from_line(line: &[u8]) -> Result<Self, DryRunRequestError> {
        let fields: Map<String, Value> = serde_json::from_slice(line)?;
        let mut sample = Self::new(Vec::new());
        let (mut text, mut bytes) = (None, None);
        for (key, value) in fields {
            match key.as_str() {
                "path" => sample.path = to_text("path", value)?,
                "body" => text = Some(to_text("body", value)?.into_bytes()),
                "body_b64" => {
                    let encoded = to_text("body_b64", value)?;
                    bytes = Some(
                        STANDARD
                            .decode(&encoded)
                            .map_err(|_invalid| DryRunRequestError::NotBase64)?,
                    );
                }
                "headers" => sample.headers = to_headers(value)?,
                // Left out, a misspelled `headers` would explain another request.
                _ => return Err(DryRunRequestError::UnknownKey { key }),
            }
        }
        sample.body = match (text, bytes) {
            (Some(body), None) | (None, Some(body)) => body,
            (None, None) => return Err(DryRunRequestError::NoBody),
            (Some(_), Some(_)) => return Err(DryRunRequestError::TwoBodies),
        };
        Ok(sample)
    }

    /// Returns the line that [`DryRunRequest::from_line`] reads back.
    pub fn to_line(&self) -> String {
        let mut fields = Map::new();
        fields.insert("path".to_owned(), self.path.as_str().into());
        match std::str::from_utf8(&self.body) {
            Ok(text) => fields.insert("body".to_owned(), text.into()),
            Err(_) => fields.insert("body_b64".to_owned(), STANDARD.encode(&self.body).into()),
        };
        if !self.headers.is_empty() {
            let pairs =
                self.headers.iter().map(|(name, value)| Value::from(vec![&**name, &**value]));
            fields.insert("headers".to_owned(), pairs.collect());
        }
        Value::Object(fields).to_string()
    }

    /// Returns the client whose key it has, in the file or among those of `auth.store`.
    pub fn client(
        &self,
        config: &Config,
        stored: Option<&KeyTable>,
    ) -> Option<Arc<ClientIdentity>> {
        let given = KeyHash::of(self.key()?);
        let key = config.auth.keys.iter().find(|key| key.to_hash() == given);
        let of_file = key.map(|key| Arc::new(ClientIdentity::of_key(key)));
        of_file.or_else(|| stored?.find(&given).map(|known| Arc::clone(&known.client)))
    }

    /// Returns the key in its headers.
    pub fn key(&self) -> Option<&[u8]> {
        let authorization = self.header("authorization");
        let given = authorization.and_then(|value| token_of(value.as_bytes()));
        let fields = ["x-api-key", "api-key", "x-goog-api-key"];
        given.or_else(|| fields.iter().find_map(|name| self.header(name)).map(str::as_bytes))
    }

    /// Returns the value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

fn to_text(key: &'static str, value: Value) -> Result<String, DryRunRequestError> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(DryRunRequestError::WrongType { key, expected: "a string" }),
    }
}

/// Reads headers: an object of strings, or a list of pairs if a name occurs twice.
fn to_headers(value: Value) -> Result<Vec<(String, String)>, DryRunRequestError> {
    const EXPECTED: &str = "an object of strings or a list of [name, value]";
    const WRONG: DryRunRequestError =
        DryRunRequestError::WrongType { key: "headers", expected: EXPECTED };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| Ok((name, value.as_str().ok_or(WRONG)?.to_owned())))
            .collect(),
        Value::Array(_) => {
            serde_json::from_value(value).map_err(|_other_than_pairs_of_strings| WRONG)
        }
        _ => Err(WRONG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<DryRunRequest, String> {
        DryRunRequest::from_line(line.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_line_carries_path_body_and_headers() {
        let sample = read(
            r#"{"path": "/v1/embeddings", "body": "{\"a\":\t1}", "headers": {"Content-Type": "x/y"}}"#,
        )
        .unwrap();
        assert_eq!(sample.path, "/v1/embeddings");
        assert_eq!(sample.body, b"{\"a\":\t1}", "verbatim, not parsed");
        assert_eq!(sample.header("content-type"), Some("x/y"));
        assert_eq!(read(r#"{"body_b64": "/w=="}"#).unwrap().body, [0xff]);
        assert_eq!(read(r#"{"body": ""}"#).unwrap(), DryRunRequest::new(Vec::new()));
    }

    #[test]
    fn invalid_dry_run_lines_name_the_reason() {
        for (line, reason) in [
            ("", "not a JSON object"),
            ("[]", "not a JSON object"),
            ("{", "not a JSON object"),
            ("{}", "neither 'body' nor 'body_b64'"),
            (r#"{"body": {}}"#, "'body' must be a string"),
            (r#"{"body_b64": "?"}"#, "not base64"),
            (r#"{"body": "", "body_b64": ""}"#, "both"),
            (r#"{"body": "", "method": "GET"}"#, "unknown key 'method'"),
            (r#"{"body": "", "headers": {"a": 1}}"#, "'headers' must be"),
            (r#"{"body": "", "headers": [["a"]]}"#, "'headers' must be"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn dry_run_request_round_trips_through_its_line() {
        for body in [&b"{\"model\": \"\xc3\xa4\"}"[..], b"\xff\x00", b""] {
            let headers = vec![("a".to_owned(), "b".to_owned()), ("a".to_owned(), "c".to_owned())];
            let sample = DryRunRequest { path: "/v1/x".to_owned(), body: body.to_owned(), headers };
            assert_eq!(read(&sample.to_line()).unwrap(), sample);
        }
    }
}
