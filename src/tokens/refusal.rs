//! The reasons why a token is refused, in the words that its client gets. None of them quotes the
//! token.

use std::fmt;

use penstock_config::UnixTime;

/// The reason why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRefusal {
    /// It is longer than `auth.max_token_size`.
    TooLong {
        limit: usize,
    },
    /// Its header cannot be read, or names an algorithm that no token has.
    Header,
    /// Its header demands an extension (`crit`).
    Critical,
    /// Its claims cannot be read.
    Claims,
    /// A claim is there twice.
    DuplicateClaim,
    /// No issuer of the configuration made it.
    Issuer,
    /// Its algorithm is not one of the issuer's.
    Algorithm,
    /// The keys of the issuer were never fetched.
    NoKeys {
        issuer: usize,
    },
    /// The issuer has no such key.
    UnknownKey {
        issuer: usize,
    },
    /// It names no key, and the issuer has several.
    NoKeyId,
    /// Its key is for another algorithm.
    KeyAlgorithm,
    /// Its signature is wrong.
    Signature,
    /// It is for another audience.
    Audience,
    /// A claim that describes its client is missing or of the wrong type.
    Claim {
        claim: &'static str,
        problem: ClaimProblem,
    },
    Expired(UnixTime),
    NotYetValid(UnixTime),
    Revoked,
}

/// The fault of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimProblem {
    Missing,
    /// It is not of this type.
    Not(&'static str),
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::TooLong { limit } => {
                return write!(out, "The token is longer than {limit} bytes (auth.max_token_size)");
            }
            Self::Expired(at) => return write!(out, "The token expired at {at}"),
            Self::NotYetValid(from) => return write!(out, "The token is valid from {from}"),
            Self::Claim { claim, problem: ClaimProblem::Missing } => {
                return write!(out, "The token lacks the claim for its {claim}");
            }
            Self::Claim { claim, problem: ClaimProblem::Not(expected) } => {
                return write!(out, "The token's claim for its {claim} is not {expected}");
            }
            Self::Header => "The token's header cannot be read, or its algorithm is not allowed",
            Self::Critical => "The token demands an extension (crit) that is not known",
            Self::Claims => "The token's claims cannot be read",
            Self::DuplicateClaim => "The token has a claim twice",
            Self::Issuer => "The token is from an unknown issuer",
            Self::Algorithm => "The token's algorithm is not allowed for its issuer",
            Self::NoKeys { .. } => {
                "The token cannot be checked: the keys of its issuer are not there yet"
            }
            Self::UnknownKey { .. } => "The token's key is not one of its issuer's",
            Self::NoKeyId => "The token names no key (kid), and its issuer has several",
            Self::KeyAlgorithm => "The token's key is for another algorithm",
            Self::Signature => "The token's signature is wrong",
            Self::Audience => "The token is for another audience",
            Self::Revoked => "The token was revoked",
        };
        out.write_str(text)
    }
}
