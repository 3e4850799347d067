//! Addresses of the data port and of the admin port.

use super::{load_more, refusal};

#[test]
fn duplicate_listen_addresses_are_refused() {
    let error = refusal("server: {listen: ['127.0.0.1:9090', '127.0.0.1:0', '127.0.0.1:0']}");
    let also = "penstock.yaml:2:19: duplicate listen address 127.0.0.1:9090: it is also that of";
    assert_eq!(error, format!("{also} 'admin.listen'"), "the default is not in the file");
    let error = refusal("server: {listen: ['127.0.0.1:1', '127.0.0.1:1']}");
    let also = "penstock.yaml:2:34: duplicate listen address 127.0.0.1:1: it is also that of";
    assert_eq!(error, format!("{also} 'server.listen[0]'"));
    let error = refusal("server: {listen: ['unix:/a/s', 'unix:/a/./s']}");
    assert!(error.contains("duplicate listen address unix:/a/./s"), "{error}");
}

#[test]
fn wildcard_listen_addresses_take_their_port_on_every_address() {
    let error = refusal("server: {listen: '0.0.0.0:9090'}");
    let expected = "penstock.yaml:2:18: listen address 0.0.0.0:9090 overlaps with 127.0.0.1:9090 of \
                    'admin.listen'";
    assert!(error.starts_with(expected), "{error}");
    let error = refusal("admin: {listen: '127.0.0.1:8080'}");
    let expected = "penstock.yaml:2:17: listen address 127.0.0.1:8080 overlaps with 0.0.0.0:8080 of \
                    'server.listen'";
    assert!(error.starts_with(expected), "{error}");
    let both =
        |one: &str, other: &str| load_more(&format!("server: {{listen: ['{one}', '{other}']}}"));
    for (one, other) in [
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "127.0.0.1:1"),
        ("[::]:1", "0.0.0.0:1"),
        ("[::]:1", "[::1]:1"),
        ("[::ffff:127.0.0.1]:1", "127.0.0.1:1"),
        ("[::ffff:127.0.0.1]:1", "0.0.0.0:1"),
    ] {
        for (one, other) in [(one, other), (other, one)] {
            assert!(both(one, other).is_err(), "{one} and {other}");
        }
    }
    for (one, other) in [
        ("127.0.0.1:1", "127.0.0.2:1"),
        ("127.0.0.1:1", "[::1]:1"),
        ("0.0.0.0:1", "[::1]:1"),
        ("0.0.0.0:1", "127.0.0.1:2"),
        ("[::]:0", "0.0.0.0:0"),
        ("[fe80::1%1]:1", "[fe80::1%2]:1"),
    ] {
        assert!(both(one, other).is_ok(), "{one} and {other}");
    }
}

#[test]
fn open_admin_port_needs_a_token() {
    let error = refusal("admin:\n  listen: 0.0.0.0:9090");
    assert!(error.starts_with("penstock.yaml:3:11: 'admin.listen' is 0.0.0.0:9090"), "{error}");
    assert!(load_more("admin: {listen: '[::1]:9090'}").is_ok());
}
