use super::*;
use proptest::prelude::*;

const GOOD: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: a.example:8080\r\n\
                    Content-Type: application/json\r\nContent-Length: 12\r\n\r\n";

fn with(fields: &str) -> Result<(), HeadError> {
    check(format!("POST /x HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n").as_bytes(), 100)
}

fn line(line: &str) -> Result<(), HeadError> {
    check(format!("{line}\r\nHost: h\r\n\r\n").as_bytes(), 100)
}

#[test]
fn ordinary_heads_pass() {
    assert_eq!(check(GOOD.as_bytes(), 100), Ok(()));
    for fields in [
        "Content-Length:\t5",
        "Content-Length: 5 \t",
        "content-length:5",
        "Transfer-Encoding: Chunked",
        "Expect: 100-continue\r\nContent-Length: 5",
        "Connection: Upgrade\r\nUpgrade: websocket",
        "X-Empty:",
        "X-Latin: caf\u{e9}",
        "!#$%&'*+-.^_`|~: odd but a token",
    ] {
        assert_eq!(with(fields), Ok(()), "{fields}");
    }
    for ordinary in [
        "GET / HTTP/1.1",
        "GET /v1/models/meta%2Fllama:8b?x=[1]&y=a+b HTTP/1.1",
        "GET http://h/v1/models HTTP/1.1",
        "GET HTTPS://h?x HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "BREW /pot HTTP/1.0",
    ] {
        assert_eq!(line(ordinary), Ok(()), "{ordinary}");
    }
    assert_eq!(check(b"GET / HTTP/1.0\r\n\r\n", 1), Ok(()), "HTTP/1.0 needs no Host");
}

#[test]
fn malformed_request_lines_are_refused() {
    for (text, error) in [
        ("GET /", HeadError::RequestLine),
        ("GET", HeadError::RequestLine),
        ("", HeadError::RequestLine),
        (" GET / HTTP/1.1", HeadError::RequestLine),
        ("GET / http/1.1", HeadError::RequestLine),
        ("GET / HTTP/1.1 ", HeadError::RequestLine),
        ("G\u{e9}T / HTTP/1.1", HeadError::RequestLine),
        ("G@T / HTTP/1.1", HeadError::RequestLine),
        ("GET\t/ HTTP/1.1", HeadError::RequestLine),
        ("GET / HTTP/1.2", HeadError::Version),
        ("GET / HTTP/2.0", HeadError::Version),
        ("GET / HTTP/1.10", HeadError::Version),
        ("GET / HTTP/01.1", HeadError::Version),
        ("GET / HTTP/0.9", HeadError::Version),
        ("PRI * HTTP/2.0", HeadError::Version),
        ("GET  / HTTP/1.1", HeadError::Target),
        ("GET /  HTTP/1.1", HeadError::Target),
        ("GET /a b HTTP/1.1", HeadError::Target),
        ("GET  HTTP/1.1", HeadError::Target),
        ("GET x HTTP/1.1", HeadError::Target),
        ("GET /a\tb HTTP/1.1", HeadError::Target),
        ("GET /a\0 HTTP/1.1", HeadError::Target),
        ("GET /a\rb HTTP/1.1", HeadError::Target),
        ("GET /caf\u{e9} HTTP/1.1", HeadError::Target),
        ("GET /a#b HTTP/1.1", HeadError::Target),
        ("GET /a\\b HTTP/1.1", HeadError::Target),
        ("GET /\"<> HTTP/1.1", HeadError::Target),
        ("GET h:80 HTTP/1.1", HeadError::Target),
        ("GET ftp://h/ HTTP/1.1", HeadError::Target),
        ("GET http:///x HTTP/1.1", HeadError::Target),
        ("GET http://u@h/ HTTP/1.1", HeadError::Target),
        ("GET http://other/ HTTP/1.1", HeadError::HostMismatch),
        ("CONNECT h:80 HTTP/1.1", HeadError::Connect),
    ] {
        assert_eq!(line(text), Err(error), "{text:?}");
    }
    let long = "a".repeat(MAX_TARGET);
    assert_eq!(line(&format!("GET /{long} HTTP/1.1")), Err(HeadError::TargetTooLong));
}

#[test]
fn ambiguous_fields_are_refused() {
    for (fields, error) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", HeadError::TwoFramings),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", HeadError::TwoFramings),
        ("Content-Length: 5\r\ncontent-length: 5", HeadError::Length),
        ("Content-Length: 5\r\nContent-Length: 6", HeadError::Length),
        ("Content-Length: 5, 5", HeadError::Length),
        ("Content-Length: +5", HeadError::Length),
        ("Content-Length: -5", HeadError::Length),
        ("Content-Length: 0x5", HeadError::Length),
        ("Content-Length: 5 5", HeadError::Length),
        ("Content-Length:", HeadError::Length),
        ("Content-Length: 5;", HeadError::Length),
        ("Content-Length: 18446744073709551616", HeadError::Length),
        ("Content-Length: \u{665}", HeadError::Length),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", HeadError::Coding),
        ("Transfer-Encoding: identity", HeadError::Coding),
        ("Transfer-Encoding: gzip, chunked", HeadError::Coding),
        ("Transfer-Encoding: chunked, identity", HeadError::Coding),
        ("Transfer-Encoding: xchunked", HeadError::Coding),
        ("Transfer-Encoding: \"chunked\"", HeadError::Coding),
        ("Transfer-Encoding: chunked;q=1", HeadError::Coding),
        ("Transfer-Encoding: ,chunked", HeadError::Coding),
        ("Transfer-Encoding:", HeadError::Coding),
        ("Transfer-Encoding: \u{b}chunked", HeadError::Value),
        ("Transfer-Encoding : chunked", HeadError::Name),
        ("Transfer-Encoding\t: chunked", HeadError::Name),
        ("Transfer\u{b}Encoding: chunked", HeadError::Name),
        (" Transfer-Encoding: chunked", HeadError::Folded),
        ("X: 1\r\n folded", HeadError::Folded),
        ("X: 1\r\n\tfolded", HeadError::Folded),
        ("no colon", HeadError::Name),
        (": no name", HeadError::Name),
        ("b\u{e9}d: x", HeadError::Name),
        ("a b: x", HeadError::Name),
        ("a(b): x", HeadError::Name),
        ("X: a\0b", HeadError::Value),
        ("X: a\rb", HeadError::Value),
        ("X: a\u{1b}[31m", HeadError::Value),
        ("X: \u{7f}", HeadError::Value),
        ("X: a\nY: b", HeadError::BareLf),
        ("X: a\r\r\nY: b", HeadError::Value),
        ("Host: h", HeadError::Host),
        ("Host: other", HeadError::Host),
    ] {
        assert_eq!(with(fields), Err(error), "{fields:?}");
    }
    for host in ["a,b", "u@h", "h/x", "h?x", "h h", "h#", "a\\b", "\u{e9}"] {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(check(head.as_bytes(), 100), Err(HeadError::Host), "{host}");
    }
    assert_eq!(check(b"GET / HTTP/1.1\r\nX: y\r\n\r\n", 100), Err(HeadError::Host), "none");
    let old = "POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(check(old.as_bytes(), 100), Err(HeadError::CodingInHttp10));
    assert_eq!(check(GOOD.as_bytes(), 2), Err(HeadError::TooManyFields));
    assert_eq!(check(GOOD.as_bytes(), 3), Ok(()));
}

#[test]
fn partial_head_is_refused_early() {
    for (part, error) in [
        (&b"\x16\x03\x01\x02\x00"[..], HeadError::RequestLine),
        (b"\n", HeadError::RequestLine),
        (b"GET / HTTP/1.1\nHost: x\n\n", HeadError::BareLf),
        (b"GET / HTTP/1.1\r\nHost: x\n", HeadError::BareLf),
        (b"GET /\r\n", HeadError::RequestLine),
        (b"PRI * HTTP/2.0\r\n", HeadError::Version),
    ] {
        assert_eq!(check_partial(part, 0), Err(error), "{part:?}");
        let in_pieces = (1..=part.len()).find_map(|end| check_partial(&part[..end], end - 1).err());
        assert_eq!(in_pieces, Some(error), "{part:?} in single bytes");
    }
    let long = [b"GET /".to_vec(), vec![b'a'; MAX_TARGET + MAX_LINE_SLACK]].concat();
    assert_eq!(check_partial(&long, 0), Err(HeadError::TargetTooLong));
    let head = GOOD.as_bytes();
    for end in 0..head.len() {
        for searched in [0, end / 2, end] {
            assert_eq!(check_partial(&head[..end], searched), Ok(()), "{end}");
        }
    }
}

#[test]
fn target_of_a_refused_head_is_found() {
    assert_eq!(requested_target(b"POST /v1/messages HTTP/1.1\r\nx"), b"/v1/messages");
    assert_eq!(requested_target(b"GET /old\r\n"), b"/old");
    assert_eq!(requested_target(b"\x16\x03"), b"");
}

/// Reads a head by the letter of RFC 9112, sharing nothing with `check`; returns its fields.
fn read_by_the_letter(head: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let lines: Vec<Vec<u8>> = {
        let mut lines = vec![Vec::new()];
        let mut bytes = head.iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            match byte {
                b'\r' if bytes.peek() == Some(&b'\n') => {
                    bytes.next();
                    lines.push(Vec::new());
                }
                b'\r' | b'\n' | 0 => return None,
                other => lines.last_mut().unwrap().push(other),
            }
        }
        lines
    };
    let [first, fields @ .., empty, end] = &lines[..] else { return None };
    let first = String::from_utf8(first.clone()).ok()?;
    let [method, target, version] = first.split(' ').collect::<Vec<_>>()[..] else { return None };
    let token = |text: &str| {
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        !text.is_empty() && text.chars().all(is_token)
    };
    let is_fit = token(method)
        && target.chars().all(|c| c.is_ascii_graphic())
        && ["HTTP/1.1", "HTTP/1.0"].contains(&version)
        && empty.is_empty()
        && end.is_empty();
    let read = fields.iter().map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = String::from_utf8(line[..colon].to_vec()).ok().filter(|name| token(name))?;
        let value = line[colon + 1..].trim_ascii().to_vec();
        let is_clean = value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control());
        is_clean.then_some((name.to_ascii_lowercase(), value))
    });
    let read = read.collect::<Option<Vec<_>>>()?;
    let count = |name: &str| read.iter().filter(|(own, _)| own == name).count();
    let framings = count("content-length") + count("transfer-encoding");
    let is_clear = framings <= 1 && (count("host") == 1 || version == "HTTP/1.0");
    (is_fit && is_clear).then_some(read)
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![
            "Host: h\r\n", "Content-Length: 5\r\n", "content-length:\t7\r\n", "X-A: b\r\n",
            "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip\r\n", "Connection: close\r\n",
            "X_A: b\r\n", "X: \u{e9}\r\n", "Expect: 100-continue\r\n", "Content-Length: +5\r\n",
        ]).prop_map(|text: &str| text.as_bytes().to_vec()),
        1 => prop::sample::select(vec!["\r", "\n", "\r\n", " ", "\t", ":", "\0", "\u{b}", ",", ";"])
            .prop_map(|text: &str| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ];
    let line = prop::sample::select(vec![
        "POST /v1/chat/completions HTTP/1.1\r\n",
        "GET / HTTP/1.0\r\n",
        "GET http://h/ HTTP/1.1\r\n",
        "GET /a b HTTP/1.1\r\n",
        "GET / HTTP/1.1\n",
        "GET /\r\n",
    ]);
    (line, prop::collection::vec(piece, 0..6)).prop_map(|(line, pieces)| {
        [line.as_bytes().to_vec(), pieces.concat(), b"\r\n".to_vec()].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn checked_heads_read_alike_everywhere(bytes in pieces()) {
        // Cut at the same position as in the guard.
        let end = memchr::memmem::find(&bytes, b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let head = &bytes[..end];
        if check(head, 100).is_ok() {
            let by_the_letter = read_by_the_letter(head);
            prop_assert!(by_the_letter.is_some(), "{}", head.escape_ascii());
            let mut slots = [httparse::EMPTY_HEADER; 100];
            let mut parsed = httparse::Request::new(&mut slots);
            let status = parsed.parse(head);
            prop_assert_eq!(status, Ok(httparse::Status::Complete(head.len())));
            let fields: Vec<_> = parsed
                .headers
                .iter()
                .map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()))
                .collect();
            prop_assert_eq!(Some(fields), by_the_letter);
            for cut in 0..head.len() - 1 {
                prop_assert_eq!(check_partial(&head[..cut], cut / 2), Ok(()));
            }
        }
    }

    #[test]
    fn check_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), from in 0_usize..300) {
        let judged = check(&bytes, 10);
        prop_assert!(judged.is_err() || bytes.ends_with(b"\r\n\r\n"));
        let _judged_too = (check_partial(&bytes, from.min(bytes.len())), requested_target(&bytes));
    }
}
