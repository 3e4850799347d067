//! Requests in which an engine may read another value than penstock: a name in the query beside the
//! one in the body, two names, or a body that is not read here. They are refused, whatever the key
//! may use.

use http::header;
use penstock_api::{BodyFormat, ErrorCode, Operation, percent_decode};
use penstock_scan::{
    BYTE_ORDER_MARK, RequestProfile, ScanOptions, check_twins, deciding_in_query, scan, scan_any,
};
use serde_json::Value;

use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::request::scan_error;

/// The deciding fields in a query, each with whether it is written as it is read here. Old parsers
/// take a semicolon for an ampersand.
pub(crate) fn deciding(query: &str) -> impl Iterator<Item = (&'static str, bool)> {
    let pairs = query
        .split('&')
        .flat_map(|pair| pair.split(';').enumerate().map(|(number, pair)| (number == 0, pair)));
    pairs.filter_map(|(is_first, pair)| {
        let name = pair.split('=').next().unwrap_or(pair);
        let field = deciding_in_query(&percent_decode(&name.replace('+', " ")))?;
        Some((field, is_first && name == field))
    })
}

/// The error of a field that stands in a second place.
pub(crate) fn ambiguous(field: &'static str, place: &str) -> OwnError {
    let message = format!("'{field}' is there {place}");
    OwnError::new(ErrorCode::AmbiguousField, message).about(Some(field))
}

/// The body of a command as JSON.
///
/// # Errors
/// When it is no JSON, or an engine may read a member of it as another one.
pub(crate) fn read_json(body: &[u8]) -> Result<Value, OwnError> {
    check_twins(body).map_err(|error| scan_error(&error))?;
    serde_json::from_slice(body).map_err(|error| {
        OwnError::new(ErrorCode::InvalidJson, format!("The body is not JSON: {error}"))
    })
}

/// The model that a command's body names, as `model` or, by older clients, as `name`.
///
/// # Errors
/// When both are there and differ: engines of different age read different ones.
pub(crate) fn model_of(body: &Value) -> Result<Option<&str>, OwnError> {
    let text = |field: &str| body.get(field).and_then(Value::as_str);
    match (text("model"), text("name")) {
        (Some(model), Some(name)) if model != name => {
            Err(ambiguous("model", "a second time as 'name', with another value"))
        }
        (model, name) => Ok(model.or(name)),
    }
}

/// The profile of a body on a path that goes by the model: JSON and forms are read, anything else
/// is not.
///
/// # Errors
/// When the body is malformed, or a limited key sends one that is not read.
pub(crate) fn read_unknown(flow: &Flow<'_>, body: &[u8]) -> Result<RequestProfile, OwnError> {
    const OPERATION: Operation = Operation::Passthrough;
    debug_assert!(OPERATION.row().body == BodyFormat::Json);
    let options = ScanOptions {
        estimate: flow.ctx.generation.config.routing.token_estimate,
        arrived_at: flow.ctx.arrived_at,
    };
    let mut kinds = flow.client.head().headers.get_all(header::CONTENT_TYPE).iter();
    let kind = kinds.next().and_then(|value| value.to_str().ok());
    if kinds.next().is_some() {
        return Err(ambiguous("content-type", "more than once"));
    }
    let media = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    // An engine may skip the mark and read what follows.
    let text = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body).trim_ascii_start();
    if media.eq_ignore_ascii_case("multipart/form-data") && !body.is_empty() {
        return scan_any(OPERATION, kind, body, options).map_err(|error| scan_error(&error));
    }
    // Whatever its type: an engine may parse JSON without a look at the field.
    if text.starts_with(b"{") {
        return scan(OPERATION, None, body, options).map_err(|error| scan_error(&error));
    }
    if media.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let form = String::from_utf8_lossy(body);
        if deciding(&form).any(|(field, _)| field == "model") {
            return Err(ambiguous("model", "in a form: name it in the query, or in JSON"));
        }
    } else if !body.is_empty() && flow.ctx.is_limited_to_models() {
        let message = "This key is limited to models, and the body is none that can be read here";
        return Err(OwnError::new(ErrorCode::ModelNotAllowed, message));
    }
    Ok(RequestProfile::opaque(OPERATION, flow.ctx.arrived_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_name_agree() {
        let read = |text: &str| {
            model_of(&serde_json::from_str(text).unwrap()).map(|it| it.map(str::to_owned))
        };
        assert_eq!(read(r#"{"model":"a","name":"a"}"#).unwrap().as_deref(), Some("a"));
        assert_eq!(read(r#"{"name":"a"}"#).unwrap().as_deref(), Some("a"));
        assert_eq!(read("{}").unwrap(), None);
        assert!(read(r#"{"model":"a","name":"b"}"#).is_err());
        assert!(read(r#"{"model":"","name":"b"}"#).is_err(), "an empty one is no model to Ollama");
    }
}
