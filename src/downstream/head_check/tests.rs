use super::*;
use proptest::prelude::*;

const GOOD: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: a.example:8080\r\n\
                    Content-Type: application/json\r\nContent-Length: 12\r\n\r\n";

fn with(fields: &str) -> Result<(), Flaw> {
    check(format!("POST /x HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n").as_bytes(), 100)
}

fn line(line: &str) -> Result<(), Flaw> {
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
    assert_eq!(check(b"GET / HTTP/1.0\r\n\r\n", 1), Ok(()), "1.0 knows no Host");
}

#[test]
fn request_lines_that_are_none_are_refused() {
    for (text, flaw) in [
        ("GET /", Flaw::RequestLine),
        ("GET", Flaw::RequestLine),
        ("", Flaw::RequestLine),
        (" GET / HTTP/1.1", Flaw::RequestLine),
        ("GET / http/1.1", Flaw::RequestLine),
        ("GET / HTTP/1.1 ", Flaw::RequestLine),
        ("G\u{e9}T / HTTP/1.1", Flaw::RequestLine),
        ("G@T / HTTP/1.1", Flaw::RequestLine),
        ("GET\t/ HTTP/1.1", Flaw::RequestLine),
        ("GET / HTTP/1.2", Flaw::Version),
        ("GET / HTTP/2.0", Flaw::Version),
        ("GET / HTTP/1.10", Flaw::Version),
        ("GET / HTTP/01.1", Flaw::Version),
        ("GET / HTTP/0.9", Flaw::Version),
        ("PRI * HTTP/2.0", Flaw::Version),
        ("GET  / HTTP/1.1", Flaw::Target),
        ("GET /  HTTP/1.1", Flaw::Target),
        ("GET /a b HTTP/1.1", Flaw::Target),
        ("GET  HTTP/1.1", Flaw::Target),
        ("GET x HTTP/1.1", Flaw::Target),
        ("GET /a\tb HTTP/1.1", Flaw::Target),
        ("GET /a\0 HTTP/1.1", Flaw::Target),
        ("GET /a\rb HTTP/1.1", Flaw::Target),
        ("GET /caf\u{e9} HTTP/1.1", Flaw::Target),
        ("GET /a#b HTTP/1.1", Flaw::Target),
        ("GET /a\\b HTTP/1.1", Flaw::Target),
        ("GET /\"<> HTTP/1.1", Flaw::Target),
        ("GET h:80 HTTP/1.1", Flaw::Target),
        ("GET ftp://h/ HTTP/1.1", Flaw::Target),
        ("GET http:///x HTTP/1.1", Flaw::Target),
        ("GET http://u@h/ HTTP/1.1", Flaw::Target),
        ("GET http://other/ HTTP/1.1", Flaw::HostMismatch),
        ("CONNECT h:80 HTTP/1.1", Flaw::Connect),
    ] {
        assert_eq!(line(text), Err(flaw), "{text:?}");
    }
    let long = "a".repeat(MAX_TARGET);
    assert_eq!(line(&format!("GET /{long} HTTP/1.1")), Err(Flaw::TargetTooLong));
}

#[test]
fn fields_that_parsers_disagree_on_are_refused() {
    for (fields, flaw) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", Flaw::TwoFramings),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", Flaw::TwoFramings),
        ("Content-Length: 5\r\ncontent-length: 5", Flaw::Length),
        ("Content-Length: 5\r\nContent-Length: 6", Flaw::Length),
        ("Content-Length: 5, 5", Flaw::Length),
        ("Content-Length: +5", Flaw::Length),
        ("Content-Length: -5", Flaw::Length),
        ("Content-Length: 0x5", Flaw::Length),
        ("Content-Length: 5 5", Flaw::Length),
        ("Content-Length:", Flaw::Length),
        ("Content-Length: 5;", Flaw::Length),
        ("Content-Length: 18446744073709551616", Flaw::Length),
        ("Content-Length: \u{665}", Flaw::Length),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Flaw::Coding),
        ("Transfer-Encoding: identity", Flaw::Coding),
        ("Transfer-Encoding: gzip, chunked", Flaw::Coding),
        ("Transfer-Encoding: chunked, identity", Flaw::Coding),
        ("Transfer-Encoding: xchunked", Flaw::Coding),
        ("Transfer-Encoding: \"chunked\"", Flaw::Coding),
        ("Transfer-Encoding: chunked;q=1", Flaw::Coding),
        ("Transfer-Encoding: ,chunked", Flaw::Coding),
        ("Transfer-Encoding:", Flaw::Coding),
        ("Transfer-Encoding: \u{b}chunked", Flaw::Value),
        ("Transfer-Encoding : chunked", Flaw::Name),
        ("Transfer-Encoding\t: chunked", Flaw::Name),
        ("Transfer\u{b}Encoding: chunked", Flaw::Name),
        (" Transfer-Encoding: chunked", Flaw::Folded),
        ("X: 1\r\n folded", Flaw::Folded),
        ("X: 1\r\n\tfolded", Flaw::Folded),
        ("no colon", Flaw::Name),
        (": no name", Flaw::Name),
        ("b\u{e9}d: x", Flaw::Name),
        ("a b: x", Flaw::Name),
        ("a(b): x", Flaw::Name),
        ("X: a\0b", Flaw::Value),
        ("X: a\rb", Flaw::Value),
        ("X: a\u{1b}[31m", Flaw::Value),
        ("X: \u{7f}", Flaw::Value),
        ("X: a\nY: b", Flaw::BareLf),
        ("X: a\r\r\nY: b", Flaw::Value),
        ("Host: h", Flaw::Host),
        ("Host: other", Flaw::Host),
    ] {
        assert_eq!(with(fields), Err(flaw), "{fields:?}");
    }
    for host in ["a,b", "u@h", "h/x", "h?x", "h h", "h#", "a\\b", "\u{e9}"] {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(check(head.as_bytes(), 100), Err(Flaw::Host), "{host}");
    }
    assert_eq!(check(b"GET / HTTP/1.1\r\nX: y\r\n\r\n", 100), Err(Flaw::Host), "none");
    let old = "POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(check(old.as_bytes(), 100), Err(Flaw::OldCoding));
    assert_eq!(check(GOOD.as_bytes(), 2), Err(Flaw::TooManyFields));
    assert_eq!(check(GOOD.as_bytes(), 3), Ok(()));
}

#[test]
fn what_cannot_end_well_is_refused_before_its_end() {
    for (part, flaw) in [
        (&b"\x16\x03\x01\x02\x00"[..], Flaw::RequestLine),
        (b"\n", Flaw::RequestLine),
        (b"GET / HTTP/1.1\nHost: x\n\n", Flaw::BareLf),
        (b"GET / HTTP/1.1\r\nHost: x\n", Flaw::BareLf),
        (b"GET /\r\n", Flaw::RequestLine),
        (b"PRI * HTTP/2.0\r\n", Flaw::Version),
    ] {
        assert_eq!(check_begun(part, 0), Err(flaw), "{part:?}");
        let in_pieces = (1..=part.len()).find_map(|end| check_begun(&part[..end], end - 1).err());
        assert_eq!(in_pieces, Some(flaw), "{part:?} in single bytes");
    }
    let long = [b"GET /".to_vec(), vec![b'a'; MAX_TARGET + LINE_SLACK]].concat();
    assert_eq!(check_begun(&long, 0), Err(Flaw::TargetTooLong));
    let head = GOOD.as_bytes();
    for end in 0..head.len() {
        for searched in [0, end / 2, end] {
            assert_eq!(check_begun(&head[..end], searched), Ok(()), "{end}");
        }
    }
}

#[test]
fn the_path_of_a_refused_head_is_found() {
    assert_eq!(asked_path(b"POST /v1/messages HTTP/1.1\r\nx"), b"/v1/messages");
    assert_eq!(asked_path(b"GET /old\r\n"), b"/old");
    assert_eq!(asked_path(b"\x16\x03"), b"");
}

/// Reads a head by the letter of RFC 9112, sharing nothing with `check`; gives its fields.
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
    fn what_passes_reads_alike_everywhere(bytes in pieces()) {
        // Cut where the guard would cut it.
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
                prop_assert_eq!(check_begun(&head[..cut], cut / 2), Ok(()));
            }
        }
    }

    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..300), from in 0_usize..300) {
        let judged = check(&bytes, 10);
        prop_assert!(judged.is_err() || bytes.ends_with(b"\r\n\r\n"));
        let _judged_too = (check_begun(&bytes, from.min(bytes.len())), asked_path(&bytes));
    }
}
