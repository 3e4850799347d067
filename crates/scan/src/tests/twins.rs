//! Names that an engine may read as a field that penstock decides by: refused in every operation.

use penstock_api::{BodyFormat, OPERATIONS};

use super::super::{ScanError, ScanOptions, scan};
use super::scan_chat;

#[test]
fn twins_of_what_decides_are_refused_in_every_operation() {
    for row in OPERATIONS.iter().filter(|row| row.body == BodyFormat::Json) {
        let read = |body: &str| scan(row.operation, None, body.as_bytes(), ScanOptions::default());
        let mut fields =
            vec!["model", "stream", "max_tokens", "n", "previous_response_id", "options"];
        fields.extend(row.prompt.iter().map(|field| field.name));
        for field in fields {
            let body = format!(r#"{{"model":"m","{}":"x"}}"#, field.to_uppercase());
            assert!(
                matches!(read(&body), Err(ScanError::Twin { field: found }) if found == field),
                "{} {body}",
                row.name
            );
        }
        assert_eq!(
            read(r#"{"model":"a","model":null}"#),
            Err(ScanError::Twin { field: "model" }),
            "to Go null is no value"
        );
    }
    for (body, field) in [
        (r#"{"model":"m","stream_options":{"Include_Usage":false}}"#, "include_usage"),
        (r#"{"model":"m","conversation":{"ID":"c"}}"#, "conversation.id"),
    ] {
        assert_eq!(scan_chat(body), Err(ScanError::Twin { field }), "{body}");
    }
    let kelvin = "{\"model\":\"m\",\"max_to\u{212a}ens\":1}";
    assert_eq!(scan_chat(kelvin), Err(ScanError::Twin { field: "max_tokens" }));
    let escaped = r#"{"model":"a","\u004dodel":"b"}"#;
    assert_eq!(scan_chat(escaped), Err(ScanError::Twin { field: "model" }));
    assert!(scan_chat(r#"{"model":"m","Temperature":1,"metadata":{"Model":"x"}}"#).is_ok());
    assert!(scan_chat(r#"{"model":null,"model":"m"}"#).is_ok(), "the last value counts");
}
