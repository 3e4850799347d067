//! The claims of a verified token: whether it is valid now and here, and which client it names. A
//! claim of the wrong type is an error, never a default: a restriction that cannot be read must not
//! be lifted.

use std::sync::Arc;

use penstock_config::{
    ClaimNames, JwtConfig, KeyHash, MAX_PRIORITY, ModelGlob, UnixTime, is_plain_name,
};
use penstock_core::clients::ClientIdentity;
use serde_json::{Map, Value};

use super::refusal::{ClaimProblem, TokenRefusal};

/// The longest text, in bytes.
const MAX_TEXT: usize = 256;
/// The most entries of a list.
const MAX_ENTRIES: usize = 256;
/// The last time that a claim may have: the end of the year 9999.
const LAST_TIME: f64 = 253_402_300_799.0;

const TEXT: ClaimProblem = ClaimProblem::Not("a text of 1 to 256 bytes");
const NAME: ClaimProblem =
    ClaimProblem::Not("a text of 1 to 256 bytes without spaces or any of / ? # % \"");
const LIST: ClaimProblem =
    ClaimProblem::Not("a list of 1 to 256 texts, or a text of words with spaces");
const PRIORITY: ClaimProblem = ClaimProblem::Not("a whole number from -100 to 100");
const TIME: ClaimProblem = ClaimProblem::Not("a time in seconds since 1970");

type Claims = Map<String, Value>;

/// The content of a valid token.
#[derive(Debug)]
pub(super) struct TokenContent {
    pub(super) client: Arc<ClientIdentity>,
    /// The end of its validity, leeway included.
    pub(super) expires_at: UnixTime,
    /// The hash of its `jti`.
    pub(super) jti: Option<KeyHash>,
}

/// Reads the claims of a token whose signature is right.
pub(super) fn read(
    config: &JwtConfig,
    claims: &Claims,
    now: UnixTime,
) -> Result<TokenContent, TokenRefusal> {
    let expires_at = check_times(config, claims, now)?;
    check_audience(config, claims)?;
    let jti = match claims.get("jti") {
        None => None,
        Some(jti) => Some(KeyHash::of(text("jti", jti)?.as_bytes())),
    };
    Ok(TokenContent { client: Arc::new(to_client(config, claims)?), expires_at, jti })
}

/// Returns when the token expires, if it is valid now.
fn check_times(
    config: &JwtConfig,
    claims: &Claims,
    now: UnixTime,
) -> Result<UnixTime, TokenRefusal> {
    let expiry = time(claims, "exp")?.ok_or(missing("exp"))?;
    let expires_at = expiry.after(config.leeway);
    if now >= expires_at {
        return Err(TokenRefusal::Expired(expiry));
    }
    // A token from the future was made by a clock that is wrong, or by a forger.
    for claim in ["nbf", "iat"] {
        if let Some(from) = time(claims, claim)?
            && from > now.after(config.leeway)
        {
            return Err(TokenRefusal::NotYetValid(from));
        }
    }
    Ok(expires_at)
}

fn check_audience(config: &JwtConfig, claims: &Claims) -> Result<(), TokenRefusal> {
    let audience = claims.get("aud").ok_or_else(|| missing("aud"))?;
    // RFC 7519 §4.1.3 allows a single text in place of a list.
    let all = audience.as_array().map_or(std::slice::from_ref(audience), Vec::as_slice);
    let mut is_for_us = false;
    for one in all {
        // Every entry is checked, even after one that fits: a malformed list is not trusted.
        let one = text("aud", one)?;
        is_for_us |= config.audience.iter().any(|own| *own == one);
    }
    if is_for_us { Ok(()) } else { Err(TokenRefusal::Audience) }
}

fn to_client(config: &JwtConfig, claims: &Claims) -> Result<ClientIdentity, TokenRefusal> {
    let ClaimNames { id, name, team, models, zones, policies, budget, objective, priority } =
        &config.claims;
    let id = text("id", needed("id", claims, id)?)?;
    let name = text("name", needed("name", claims, name)?)?;
    if !is_plain_name(name) {
        return Err(refuse("name", NAME));
    }
    // A configured restriction must be in the token: without it, the client could use every model.
    let models = required("models", claims, models.as_ref(), list)?.unwrap_or_default();
    Ok(ClientIdentity {
        team: required("team", claims, team.as_ref(), text)?.map(Box::from),
        models: models.into_iter().map(ModelGlob::new).collect(),
        zones: boxed(required("zones", claims, zones.as_ref(), list)?),
        policies: boxed(optional("policies", claims, policies.as_ref(), list)?),
        budget: required("budget", claims, budget.as_ref(), text)?.map(Box::from),
        objective: optional("objective", claims, objective.as_ref(), text)?.map(Box::from),
        max_priority: optional("priority", claims, priority.as_ref(), to_priority)?,
        ..ClientIdentity::of_token(&config.issuer, id, config.issuer_name(), name)
    })
}

fn boxed(texts: Option<Vec<&str>>) -> Vec<Box<str>> {
    texts.unwrap_or_default().into_iter().map(Box::from).collect()
}

/// Reads the value of a claim.
type ClaimReader<'a, T> = fn(&'static str, &'a Value) -> Result<T, TokenRefusal>;

/// Reads a claim that has to be in the token if the configuration names it.
fn required<'a, T>(
    claim: &'static str,
    claims: &'a Claims,
    name: Option<&String>,
    read: ClaimReader<'a, T>,
) -> Result<Option<T>, TokenRefusal> {
    name.map(|name| read(claim, needed(claim, claims, name)?)).transpose()
}

/// Reads a claim that may be missing.
fn optional<'a, T>(
    claim: &'static str,
    claims: &'a Claims,
    name: Option<&String>,
    read: ClaimReader<'a, T>,
) -> Result<Option<T>, TokenRefusal> {
    let value = name.and_then(|name| find(claims, name)).filter(|value| !value.is_null());
    value.map(|value| read(claim, value)).transpose()
}

fn refuse(claim: &'static str, problem: ClaimProblem) -> TokenRefusal {
    TokenRefusal::Claim { claim, problem }
}

fn missing(claim: &'static str) -> TokenRefusal {
    refuse(claim, ClaimProblem::Missing)
}

/// Returns a claim by its name, or by a JSON pointer.
fn find<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    let Some(pointer) = name.strip_prefix('/') else { return claims.get(name) };
    let (first, rest) = pointer.split_once('/').map_or((pointer, None), |(a, b)| (a, Some(b)));
    let value = claims.get(&first.replace("~1", "/").replace("~0", "~"))?;
    rest.map_or(Some(value), |rest| value.pointer(&format!("/{rest}")))
}

fn needed<'a>(
    claim: &'static str,
    claims: &'a Claims,
    name: &str,
) -> Result<&'a Value, TokenRefusal> {
    find(claims, name).filter(|value| !value.is_null()).ok_or(missing(claim))
}

fn text<'a>(claim: &'static str, value: &'a Value) -> Result<&'a str, TokenRefusal> {
    let is_fit =
        |text: &&str| (1..=MAX_TEXT).contains(&text.len()) && !text.chars().any(char::is_control);
    value.as_str().filter(is_fit).ok_or(refuse(claim, TEXT))
}

/// Returns the texts of a list, or the words of a text. An empty list is an error: to the keys of
/// the file it means everything, to a provider nothing.
fn list<'a>(claim: &'static str, value: &'a Value) -> Result<Vec<&'a str>, TokenRefusal> {
    let texts = match value {
        Value::Array(items) if items.len() <= MAX_ENTRIES => {
            items.iter().map(|item| text(claim, item)).collect::<Result<Vec<_>, _>>()
        }
        Value::String(words) => Ok(words.split_ascii_whitespace().collect()),
        _ => Err(refuse(claim, LIST)),
    };
    let texts = texts.map_err(|_inner| refuse(claim, LIST))?;
    let is_fit = (1..=MAX_ENTRIES).contains(&texts.len());
    if is_fit { Ok(texts) } else { Err(refuse(claim, LIST)) }
}

fn to_priority(claim: &'static str, value: &Value) -> Result<i32, TokenRefusal> {
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    let is_fit = |number: &i32| (-MAX_PRIORITY..=MAX_PRIORITY).contains(number);
    number.filter(is_fit).ok_or(refuse(claim, PRIORITY))
}

/// Returns a time; seconds may have a fraction (RFC 7519 §2).
fn time(claims: &Claims, claim: &'static str) -> Result<Option<UnixTime>, TokenRefusal> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| (0.0..=LAST_TIME).contains(seconds));
    let seconds = seconds.ok_or(refuse(claim, TIME))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
    let whole = seconds as u64;
    Ok(Some(UnixTime(whole)))
}
