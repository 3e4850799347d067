//! Forms: the fields that count, and every form in which a backend could read another model than
//! penstock.

use penstock_api::units::TokenCount;
use penstock_api::{Capabilities, Dialect, ErrorCode, Operation};
use proptest::prelude::*;

use super::super::{
    ModelForm, MultipartSyntax, RequestProfile, ScanError, ScanOptions, TokenEstimate, scan,
};

const KIND: &str = "multipart/form-data; boundary=XyZ";
const AUDIO: &str = "--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a \\\"b\\\".wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\u{0}\r\n--Xy\r\n";

fn scan_form(kind: &str, body: &[u8]) -> Result<RequestProfile, ScanError> {
    scan(Operation::Transcriptions, Some(kind), body, ScanOptions::default())
}

fn field(name: &str, value: &str) -> String {
    format!("--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn model_of(kind: &str, body: &str) -> String {
    scan_form(kind, body.as_bytes()).unwrap().model_name(body.as_bytes()).into_owned()
}

#[test]
fn the_fields_of_a_form_are_found() {
    let body = [
        AUDIO,
        &field("model", "whisper-1"),
        &field("stream", "true"),
        &field("prompt", "12345678é"),
        "--XyZ--\r\n",
    ]
    .concat();
    for operation in [Operation::Transcriptions, Operation::Translations, Operation::ImageEdits] {
        let profile = scan(operation, Some(KIND), body.as_bytes(), ScanOptions::default()).unwrap();
        assert_eq!(profile.model_name(body.as_bytes()), "whisper-1");
        assert_eq!(profile.operation, operation);
        assert_eq!(profile.dialect, Dialect::OpenAi);
        assert!(profile.streaming);
        assert_eq!(profile.estimated_tokens, TokenCount(2));
        assert_eq!(profile.needs, Capabilities::NONE);
        assert_eq!(profile.max_tokens, None);
    }
    let body = [&field("model", "m"), &field("prompt", "éééé日日日日"), "--XyZ--"].concat();
    for (estimate, expected) in
        [(TokenEstimate::Auto, 4), (TokenEstimate::Chars, 2), (TokenEstimate::Utf8, 5)]
    {
        let options = ScanOptions { estimate, ..ScanOptions::default() };
        let scanned = scan(Operation::Transcriptions, Some(KIND), body.as_bytes(), options);
        assert_eq!(scanned.unwrap().estimated_tokens, TokenCount(expected), "{estimate:?}");
    }
}

#[test]
fn one_model_counts_and_blanks_are_none() {
    let two = |second: &str| [&field("model", "a"), AUDIO, second, "--XyZ--"].concat();
    let twin = Err(ScanError::Twin { field: "model" });
    for name in ["model", "Model", "mod%65l", "model[]", " model"] {
        let body = two(&field(name, "b"));
        assert_eq!(scan_form(KIND, body.as_bytes()), twin, "{name}");
    }
    assert_eq!(scan_form(KIND, two(&field("model", "a")).as_bytes()), twin, "the same twice");
    let none = [AUDIO, "--XyZ--"].concat();
    let profile = scan_form(KIND, none.as_bytes()).unwrap();
    assert_eq!((profile.model_form, profile.model.range()), (ModelForm::Missing, 0..0));
    for blank in ["", "  ", "\u{3000}"] {
        let body = [&field("model", blank), "--XyZ--"].concat();
        assert_eq!(scan_form(KIND, body.as_bytes()), Err(ScanError::EmptyModel));
    }
}

#[test]
fn boundaries_are_read_as_written() {
    let body = [&field("model", "m"), "--XyZ--"].concat();
    for kind in [
        "Multipart/Form-Data;Boundary=\"XyZ\"",
        "multipart/form-data; charset=utf-8; boundary=XyZ ; x=y",
        "multipart/form-data; boundary=XyZ;",
    ] {
        assert_eq!(model_of(kind, &body), "m", "{kind}");
    }
    let padded = body.replace("--XyZ\r\n", "--XyZ \t\r\n");
    assert_eq!(model_of(KIND, &padded), "m");
    assert_eq!(model_of(KIND, &format!("\r\n{body}\r\n")), "m");
    let long = "b".repeat(70);
    let kind = format!("multipart/form-data; boundary={long}");
    assert_eq!(model_of(&kind, &body.replace("XyZ", &long)), "m");
    for kind in ["", "application/json", "multipart/mixed; boundary=XyZ"] {
        let error = scan_form(kind, body.as_bytes()).unwrap_err();
        assert_eq!(error, ScanError::MediaType { expected: "multipart/form-data" }, "{kind}");
        assert_eq!(error.code(), ErrorCode::UnsupportedEncoding);
    }
    for kind in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"XyZ",
        "multipart/form-data; boundary=XyZ; boundary=XyZ",
        "multipart/form-data; XyZ",
        "multipart/form-data; boundary=\"X\\yZ\"",
        "multipart/form-data; boundary=\"XyZ\"x",
    ] {
        let error = scan_form(kind, body.as_bytes()).unwrap_err();
        assert_eq!(
            error,
            ScanError::MalformedForm { offset: 0, expected: MultipartSyntax::ContentType },
            "{kind}"
        );
        assert_eq!(error.code(), ErrorCode::InvalidJson);
    }
    assert!(scan_form(&format!("multipart/form-data; boundary={long}b"), body.as_bytes()).is_err());
    assert!(
        scan(Operation::Transcriptions, None, body.as_bytes(), ScanOptions::default()).is_err()
    );
}

#[test]
fn a_form_two_parsers_could_read_differently_is_refused() {
    let good = field("model", "m");
    let with_head = |head: &str| format!("{good}--XyZ\r\n{head}\r\n\r\nother\r\n--XyZ--");
    let disposition = "Content-Disposition: form-data; name=\"model\"";
    for body in [
        String::new(),
        good.clone(),
        format!("{good}--XyZ"),
        format!("{good}--XyZ--x"),
        format!("x{good}--XyZ--"),
        good.replace("--XyZ", "--XyW"),
        format!("{good}--XyZx\r\n\r\n--XyZ--"),
        format!("{good}--XyZ\n\n--XyZ--"),
        good.replace("\r\n", "\n"),
        with_head(""),
        with_head("Content-Type: text/plain"),
        with_head("no colon"),
        with_head(&format!("{disposition}\r\n folded")),
        with_head(&format!("{disposition}\r\n{disposition}")),
        with_head(&format!("{disposition}; name=\"x\"")),
        with_head(&format!("{disposition}; name*=utf-8''x")),
        with_head("Content-Disposition : form-data; name=\"model\""),
        with_head("Content-Disposition: form-data; name=\"mo\\del\""),
        with_head("Content-Disposition: form-data; name=\"model"),
        with_head("Content-Disposition: form-data"),
        with_head("Content-Disposition: attachment; name=\"model\""),
        format!("{good}--XyZ\r\n{disposition}"),
        format!("{good}--XyZ\r\nX: {}\r\n\r\n--XyZ--", "x".repeat(20_000)),
    ] {
        let error = scan_form(KIND, body.as_bytes()).unwrap_err();
        assert!(matches!(error, ScanError::MalformedForm { .. }), "{error} in {body:?}");
        assert_eq!(error.code(), ErrorCode::InvalidJson);
    }
}

#[test]
fn a_form_without_parts_is_refused() {
    for body in ["--XyZ--", "\r\n--XyZ--\r\n"] {
        let found = scan_form(KIND, body.as_bytes()).unwrap_err();
        let expected = MultipartSyntax::PartHead;
        assert!(
            matches!(found, ScanError::MalformedForm { expected: at, .. } if at == expected),
            "{body:?}: {found}"
        );
    }
}

#[test]
fn files_are_no_fields_and_text_must_be_utf8() {
    let file =
        "--XyZ\r\ncontent-disposition: form-data; name=\"prompt\"; filename=x\r\n\r\n12345678\r\n";
    let body = [&field("model", "m"), file, "--XyZ--"].concat();
    assert_eq!(scan_form(KIND, body.as_bytes()).unwrap().estimated_tokens, TokenCount(0));
    let body = body.replace("\"prompt\"", "\"model\"");
    let error = scan_form(KIND, body.as_bytes()).unwrap_err();
    assert_eq!((error.code(), error.param()), (ErrorCode::InvalidType, Some("model")));
    let [head, tail] = [
        &b"--XyZ\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm"[..],
        b"\xff\r\n--XyZ--",
    ];
    let error = scan_form(KIND, &[head, tail].concat()).unwrap_err();
    assert_eq!(error, ScanError::InvalidUtf8 { offset: head.len() });
}

#[test]
fn a_form_is_scanned_without_an_allocation() {
    let audio = "x".repeat(1 << 20);
    let body = [&field("file", &audio), &field("model", "whisper-1"), "--XyZ--"].concat();
    let counted = allocation_counter::measure(|| assert!(scan_form(KIND, body.as_bytes()).is_ok()));
    assert_eq!(counted.count_total, 0);
}

proptest! {
    #[test]
    fn any_file_may_stand_beside_the_model(file in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assume!(memchr::memmem::find(&file, b"\r\n--XyZ").is_none());
        let head = field("model", "m");
        let part = b"--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n";
        let body = [head.as_bytes(), part, &file, b"\r\n--XyZ--\r\n"].concat();
        prop_assert_eq!(scan_form(KIND, &body).unwrap().model_name(&body), "m");
    }

    #[test]
    fn broken_forms_never_panic(
        kind in "multipart/form-data; ?(boundary=)?\"?[A-Za-z\\\\\"; =]{0,6}\"?",
        cut: prop::sample::Index, byte: u8,
    ) {
        let mut body = [AUDIO, &field("model", "m"), &field("stream", "1"), "--XyZ--\r\n"].concat().into_bytes();
        let place = cut.index(body.len());
        body[place] = byte;
        _ = scan_form(&kind, &body);
        _ = scan_form(KIND, &body);
        _ = scan_form(KIND, &body[..place]);
    }
}
