//! `auth.jwt`: the identity providers whose tokens clients may send in place of a key.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use penstock_api::choice;
use penstock_api::units::ByteSize;

use crate::syntax::checked_text::{Checked, TextRule, is_one_word};
use crate::syntax::collections::{Maybe, OneOrMore};
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, choice_setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::{AtLeastOne, FilePath, Name, Positive};

/// The maximum number of identity providers: each has a thread that fetches its keys.
pub const MAX_ISSUERS: usize = 16;
/// The longest issuer, in bytes: it is a part of the id of each of its clients.
const MAX_ISSUER: usize = 512;

choice! {
    /// An algorithm of signatures. Symmetric ones and `none` are not among them: a program
    /// that checks such a token could also make one.
    pub enum TokenAlgorithm {
        /// RSA with PKCS #1 v1.5 and SHA-256.
        Rs256 = "RS256",
        /// RSA with PKCS #1 v1.5 and SHA-384.
        Rs384 = "RS384",
        /// RSA with PKCS #1 v1.5 and SHA-512.
        Rs512 = "RS512",
        /// RSA-PSS with SHA-256.
        Ps256 = "PS256",
        /// RSA-PSS with SHA-384.
        Ps384 = "PS384",
        /// RSA-PSS with SHA-512.
        Ps512 = "PS512",
        /// ECDSA over P-256 with SHA-256.
        Es256 = "ES256",
        /// ECDSA over P-384 with SHA-384.
        Es384 = "ES384",
        /// Ed25519.
        EdDsa = "EdDSA",
    }
}

impl Setting for TokenAlgorithm {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        // Letter for letter, as in tokens.
        let text = reader.scalar(node, "the name of an algorithm")?;
        let found = Self::ALL.iter().find(|algorithm| algorithm.name() == text).copied();
        found.or_else(|| reader.refuse_name(node, text, Self::names()))
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(value.name())
    }

    fn shape() -> Shape {
        Shape::names(Self::names())
    }
}

choice! {
    /// The part of a client's certificate that names its key.
    pub enum CertificateName {
        /// None: a certificate opens the connection and names no key.
        Off = "off",
        /// The common name of the subject.
        Subject = "subject",
        /// A subject alternative name: a DNS name, an e-mail address or a URI.
        San = "san",
    }
}
choice_setting!(CertificateName);

section! {
    /// The claims of a token that describe its client. A claim that is set here must be in the
    /// token, except those of `policies`, `objective` and `priority`. A name that starts with / is
    /// a JSON pointer, such as /realm_access/roles.
    pub struct ClaimNames {
        /// The claim whose value identifies the client for good: its limits, usage and stored
        /// responses belong to it, together with the issuer.
        pub id: String ["id" as Checked<ClaimName>] = "sub".to_owned(),
        /// The claim with the name in logs and metrics, where the name of the issuer and / precede
        /// it.
        pub name: String ["name" as Checked<ClaimName>] = "sub".to_owned(),
        /// The claim with the team. Default: tokens have no team.
        pub team: Option<String> ["team" as Maybe<Checked<ClaimName>>] = None,
        /// The claim with the models, with the wildcards * and ?: a list, or a text with spaces.
        /// Default: all models.
        pub models: Option<String> ["models" as Maybe<Checked<ClaimName>>] = None,
        /// The claim with the zones, likewise. Default: all zones.
        pub zones: Option<String> ["zones" as Maybe<Checked<ClaimName>>] = None,
        /// The claim with the policies that requests may name to loosen others, likewise. Default:
        /// none.
        pub policies: Option<String> ["policies" as Maybe<Checked<ClaimName>>] = None,
        /// The claim with the name of the budget. Default: none.
        pub budget: Option<String> ["budget" as Maybe<Checked<ClaimName>>] = None,
        /// The claim with the objective of requests that name none. Default: none.
        pub objective: Option<String> ["objective" as Maybe<Checked<ClaimName>>] = None,
        /// The claim with the highest priority, from -100 to 100. Default: that of the objective,
        /// else 0.
        pub priority: Option<String> ["priority" as Maybe<Checked<ClaimName>>] = None,
    }
}

section! {
    /// An identity provider whose tokens are valid in place of a key.
    pub struct JwtConfig requires ["issuer", "jwks", "audience"] {
        /// The `iss` of its tokens, letter for letter.
        pub issuer: String ["issuer" as Checked<IssuerText>] = String::new(),
        /// The name of the issuer, before the names of its clients. Default: the host of `issuer`.
        pub name: Option<String> ["name" as Maybe<Name>] = None,
        /// The keys of the provider: an https:// URL, or a file. Redirects are not followed.
        pub jwks: JwksSource = JwksSource::File(PathBuf::new()),
        /// A PEM file with the CAs of the URL's certificate. Default: those of the system.
        pub jwks_ca: Option<PathBuf> ["jwks_ca" as Maybe<FilePath>] = None,
        /// The audiences that a token may have in `aud`; one of them is enough.
        pub audience: Vec<String> ["audience" as OneOrMore<Checked<ClaimName>>] = Vec::new(),
        /// The algorithms of signatures. A token with another one is refused, whatever its key.
        pub algorithms: Vec<TokenAlgorithm> ["algorithms" as OneOrMore<TokenAlgorithm>] =
            // What providers use; HMAC is not even in the list, since its secret would be shared.
            vec![TokenAlgorithm::Rs256, TokenAlgorithm::Es256, TokenAlgorithm::EdDsa],
        /// The difference of clocks that `exp`, `nbf` and `iat` leave room for.
        pub leeway: Duration = Duration::from_secs(60),
        /// The claims that describe the client.
        pub claims: ClaimNames = ClaimNames::default(),
        /// The time between two fetches of the keys; for a token with an unknown key they are
        /// fetched sooner, at most every 10 s.
        pub refresh: Duration ["refresh" as Positive] = Duration::from_secs(600),
        /// The timeout of a fetch.
        pub jwks_timeout: Duration ["jwks_timeout" as Positive] = Duration::from_secs(10),
        /// The maximum size of the keys that are fetched.
        pub max_jwks_size: ByteSize = ByteSize::mib(1),
        /// The maximum number of keys; with more of them none is used.
        pub max_jwks_keys: usize ["max_jwks_keys" as AtLeastOne<usize>] = 100,
    }
}

impl JwtConfig {
    /// Returns the name of the issuer in logs, metrics and the names of its clients.
    pub fn issuer_name(&self) -> &str {
        let after_scheme = self.issuer.split_once("://").map_or(&*self.issuer, |(_, rest)| rest);
        let host = after_scheme.split(['/', '?']).next().unwrap_or(after_scheme);
        self.name.as_deref().unwrap_or(host)
    }
}

/// The place of a provider's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwksSource {
    /// An `https://` URL.
    Https(String),
    /// A file.
    File(PathBuf),
}

impl fmt::Display for JwksSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Https(url) => out.write_str(url),
            Self::File(path) => path.display().fmt(out),
        }
    }
}

impl Setting for JwksSource {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        const EXPECTED: &str =
            "an https:// URL without a user, or the path of a file; keys come over TLS only";
        let text = reader.scalar(node, EXPECTED)?.trim();
        if !text.contains("://") {
            return FilePath::read(node, reader).map(Self::File);
        }
        let uri = text.parse::<Uri>().ok();
        let is_fit = uri.is_some_and(|uri| {
            let has_user = uri.authority().is_some_and(|all| all.as_str().contains('@'));
            // In clear text, an attacker on the network could put its keys in place of them.
            uri.scheme_str() == Some("https") && uri.host().is_some() && !has_user
        });
        match is_fit {
            true => Some(Self::Https(text.to_owned())),
            // Not quoted: it may have a password.
            false => reader.refuse_value(node, "this URL", EXPECTED),
        }
    }

    fn dump(value: &Self) -> Dump {
        match value {
            Self::Https(url) => Dump::text(url),
            Self::File(path) => FilePath::dump(path),
        }
    }
}

/// The issuer of tokens.
struct IssuerText;

impl TextRule for IssuerText {
    // Without # the id of a client has one place where its issuer ends.
    const EXPECTED: &'static str = "a URL or a name of at most 512 bytes, without spaces or #";

    fn accepts(text: &str) -> bool {
        text.len() <= MAX_ISSUER && !text.contains('#') && is_one_word(text)
    }
}

/// The name of a claim, or one of its values.
struct ClaimName;

impl TextRule for ClaimName {
    const EXPECTED: &'static str = "a text of 1 to 256 bytes";

    fn accepts(text: &str) -> bool {
        (1..=256).contains(&text.len())
    }
}
