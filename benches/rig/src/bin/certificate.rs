//! The certificate every proxy shows and the clients trust: ECDSA on P-256, for `localhost`, signed
//! by itself.
//!
//! `certificate FOLDER` writes `cert.pem`, `key.pem`, and `both.pem`.

use std::path::PathBuf;

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("a folder to write to"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let made = made.expect("a certificate for localhost");
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    for (name, text) in
        [("cert.pem", &cert), ("key.pem", &key), ("both.pem", &(cert.clone() + &key))]
    {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
