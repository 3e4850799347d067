//! The disposition of a backend's response: a pure function of the request and of what is known of
//! the response. The status alone does not decide: a 200 may come with an error, or with nothing at
//! all.

mod content;
mod contexts;
mod streams;

use penstock_api::{Capabilities, Operation, ResultFormat, StreamFraming};
use penstock_dialect::{ContextRefusal, ErrorMeaning, read_refusal, read_unsupported};
use penstock_scan::{
    WholeResult, is_void, lacks_result, may_report_failure, reports_failed_result, reports_failure,
};

use self::content::is_foreign;
pub(crate) use self::contexts::Contexts;
use self::streams::of_stream;
use crate::upstream::failure::HoldReason;
use crate::upstream::named_resource::names_resource;
use crate::upstream::response_head::BodyEnd;

/// The maximum number of bytes of a response that are read before its disposition is decided.
pub(crate) const MAX_HELD: usize = 64 * 1024;

/// The owner of the key that a backend was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SentKey {
    /// The operator's key, or none even if the client sent one: its rejection is not the client's
    /// doing.
    Own,
    Clients,
}

/// The terms that decide about a response, besides the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseTerms<'a> {
    /// The operation that the client requested.
    pub(crate) operation: Operation,
    /// The operation that the backend was sent, with the name of the model in it.
    pub(crate) sent: Operation,
    pub(crate) model: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) key: SentKey,
    pub(crate) is_converted: bool,
    /// True if the request only loads or unloads the model.
    pub(crate) is_load: bool,
    /// True if the client has the head of a stream (`queue.keep_alive`).
    pub(crate) has_head: bool,
    /// True if only an ensemble gets the response.
    pub(crate) is_gathered: bool,
    /// `routing.retry_5xx`.
    pub(crate) retries_5xx: bool,
    /// True if the request may be shortened after a response of this status.
    pub(crate) may_shorten: bool,
    /// The capabilities that may be removed from the request after a response of this status.
    pub(crate) may_drop: Capabilities,
    /// The capabilities that the request needs, if a response of this status may say that the model
    /// lacks one.
    pub(crate) needs: Capabilities,
    /// The same, if another backend may have all of them.
    pub(crate) elsewhere: Capabilities,
    /// The contexts, if another backend has a known one.
    pub(crate) contexts: Option<Contexts>,
    /// True if the backend has served this operation before: a 404 then says nothing about the
    /// path.
    pub(crate) has_served: bool,
}

impl ResponseTerms<'_> {
    /// Returns whether a 404 says nothing about the path: it works there, or the request names
    /// something that the backend may lack.
    fn is_path_known(&self) -> bool {
        // The body is read last: it may be large.
        self.has_served || names_resource(self.body)
    }

    /// The capabilities that the request needs and the model lacks, by the words of an error.
    pub(crate) fn missing(&self, error: &[u8]) -> Capabilities {
        if self.needs.is_empty() {
            return Capabilities::NONE;
        }
        let missing = read_unsupported(error, self.body);
        if self.needs.contains(missing) { missing } else { Capabilities::NONE }
    }
}

/// The facts known of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenResponse<'a> {
    pub(crate) status: u16,
    pub(crate) framing: BodyEnd,
    /// The framing of a body that is a stream.
    pub(crate) stream: Option<StreamFraming>,
    /// True if the head declares a JSON body.
    pub(crate) is_json: bool,
    /// True if the head declares text of another type.
    pub(crate) is_text: bool,
    /// True if the body has a content coding.
    pub(crate) is_encoded: bool,
    /// The part of the body that has been read; `None` before any was.
    pub(crate) body: Option<&'a [u8]>,
    /// True if `body` is complete.
    pub(crate) is_whole: bool,
    /// The result in a whole success.
    pub(crate) result: Option<WholeResult>,
}

impl SeenResponse<'_> {
    /// Reads the result in a whole success that is no stream.
    pub(crate) fn read_result(mut self, operation: Operation) -> Self {
        let is_read = self.is_whole && matches!(self.status, 200..=299);
        let body = self.body.filter(|_| is_read && self.stream.is_none() && !self.is_encoded);
        self.result = body.map(|body| WholeResult::read(operation, body));
        self
    }
}

/// The next step with a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// It goes to the client as it comes.
    Relay,
    /// It does not go to the client, while another backend may do better.
    Hold(HoldReason),
    /// It goes to the client as an error of the client's dialect.
    ConvertError,
    /// The request is too long for this backend, and may be shortened.
    Shorten(ContextRefusal),
    /// The model cannot do this, and the request may do without.
    Drop(Capabilities),
    /// The client has the head of a stream, which this response cannot continue.
    NoStream,
}

impl Disposition {
    /// Decides the next step with a response; `None` while more of its body has to be read first,
    /// up to [`MAX_HELD`].
    pub(crate) fn of(terms: &ResponseTerms<'_>, seen: &SeenResponse<'_>) -> Option<Self> {
        match seen.status {
            200..=299 => of_success(terms, seen),
            // A redirect is no response of an engine, and its target is the operator's matter.
            300..=399 if is_judged(terms.operation) => Some(Self::Hold(HoldReason::NoResult)),
            _ => of_error(terms, seen),
        }
    }
}

fn of_success(terms: &ResponseTerms<'_>, seen: &SeenResponse<'_>) -> Option<Disposition> {
    if !is_judged(terms.operation) {
        return Some(Disposition::Relay);
    }
    let is_empty = matches!(seen.framing, BodyEnd::Empty | BodyEnd::Length(0));
    // Neither status has a body (RFC 9110 §15.3.5 and §15.3.6), and inference has a result.
    if matches!(seen.status, 204 | 205) || (is_empty && !may_be_empty(terms, seen)) {
        return Some(Disposition::Hold(HoldReason::NoWork));
    }
    // Bytes of a content coding cannot go on a stream whose head names none.
    if seen.is_encoded || is_empty {
        return Some(match terms.has_head {
            true => Disposition::NoStream,
            false => Disposition::Relay,
        });
    }
    let judged = match (seen.stream, seen.body) {
        // A stream may report a failure in its first event.
        (Some(_), None) => None,
        (Some(framing), Some(body)) => of_stream(terms, framing, body, seen.is_whole),
        (None, body) => of_whole(terms, seen, body),
    }?;
    let dialect = terms.operation.row().dialect.row();
    // The head that the client has says 200, and names the framing of its dialect. A conversion
    // makes a stream of a whole response, too.
    let continues =
        seen.status == 200 && (terms.is_converted || seen.stream == Some(dialect.framing));
    Some(match judged {
        Disposition::Relay if terms.has_head && !continues => Disposition::NoStream,
        judged => judged,
    })
}

fn of_whole(
    terms: &ResponseTerms<'_>,
    seen: &SeenResponse<'_>,
    body: Option<&[u8]>,
) -> Option<Disposition> {
    // Read whatever type the head declares: some engines declare none, or a wrong one.
    let body = body?;
    // A large response is no error.
    let is_short = !seen.is_large() && body.len() < MAX_HELD;
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    Some(match text.first() {
        None if seen.is_whole && !may_be_empty(terms, seen) => {
            Disposition::Hold(HoldReason::NoWork)
        }
        // Its client gets nothing before its end.
        None | Some(b'{') if terms.is_converted && !seen.is_whole && is_short => return None,
        // White space before the end is relayed: it keeps a client's connection alive.
        None => Disposition::Relay,
        Some(b'{' | b'[') if seen.is_whole && is_void(text) => {
            Disposition::Hold(HoldReason::NoResult)
        }
        Some(b'{')
            if seen.is_whole
                && (reports_failure(text) || has_failed_before_output(terms, seen, text)) =>
        {
            Disposition::Hold(refusal_of(terms, text))
        }
        Some(b'{' | b'[') if seen.is_whole && is_no_result(terms, seen, text) => {
            Disposition::Hold(no_result(terms, text))
        }
        Some(b'{') if seen.is_whole => Disposition::Relay,
        // A body that has content passes as it comes.
        Some(b'{') if is_short && may_report_failure(text) => return None,
        Some(b'{' | b'[') => Disposition::Relay,
        // Neither an object nor a list, such as the page of a web server.
        Some(_) if is_foreign(terms.operation.row().result, seen, text) => {
            Disposition::Hold(HoldReason::NoResult)
        }
        Some(_) => Disposition::Relay,
    })
}

/// Returns whether a whole response that does not pass as it came reports a failure beside its
/// result, or in it. With output, work was done: only a busy backend, or `routing.retry_5xx`, then
/// sends the request elsewhere.
fn has_failed_before_output(
    terms: &ResponseTerms<'_>,
    seen: &SeenResponse<'_>,
    body: &[u8],
) -> bool {
    (terms.is_converted || terms.is_gathered)
        && reports_failed_result(body)
        && (terms.retries_5xx
            || seen.result != Some(WholeResult::Filled)
            || refusal_of(terms, body) != HoldReason::NoWork)
}

/// Returns whether the result may be empty: the text of a sound without words.
fn may_be_empty(terms: &ResponseTerms<'_>, seen: &SeenResponse<'_>) -> bool {
    seen.is_text && terms.operation.row().result == ResultFormat::Text
}

/// Returns whether a whole response is no result of its operation.
fn is_no_result(terms: &ResponseTerms<'_>, seen: &SeenResponse<'_>, body: &[u8]) -> bool {
    lacks_result(body) || !terms.is_load && seen.result == Some(WholeResult::Missing)
}

/// The reason to hold back a response that is no result of an engine.
fn no_result(terms: &ResponseTerms<'_>, error: &[u8]) -> HoldReason {
    match refusal_of(terms, error) {
        HoldReason::NoWork => HoldReason::NoResult,
        refusal => refusal,
    }
}

/// The reason to hold back a response that reports a failure with a good status.
fn refusal_of(terms: &ResponseTerms<'_>, error: &[u8]) -> HoldReason {
    match ErrorMeaning::read(error, terms.model, terms.body) {
        ErrorMeaning::RateLimited => HoldReason::RateLimited,
        ErrorMeaning::TooLarge => HoldReason::TooLarge,
        ErrorMeaning::OutOfCredit if terms.key == SentKey::Own => HoldReason::KeyRejected,
        ErrorMeaning::Overloaded => HoldReason::Overloaded,
        ErrorMeaning::ModelMissing => HoldReason::ModelMissing,
        ErrorMeaning::PathMissing => {
            refusal_of_status(terms, 404, error).unwrap_or(HoldReason::NoWork)
        }
        ErrorMeaning::OutOfCredit | ErrorMeaning::NamedMissing | ErrorMeaning::Moderated => {
            HoldReason::Client
        }
        // As with the status that it should have had.
        ErrorMeaning::KeyRefused(status) | ErrorMeaning::Client(status) => {
            refusal_of_status(terms, status, error).unwrap_or(HoldReason::Client)
        }
        ErrorMeaning::Other => HoldReason::NoWork,
    }
}

fn of_error(terms: &ResponseTerms<'_>, seen: &SeenResponse<'_>) -> Option<Disposition> {
    // A large error is passed on, whatever it says, unless its status says enough.
    let body = match seen.body {
        None if seen.is_large() => &[],
        None if !reads_error(terms, seen.status) => return Some(Disposition::Relay),
        None => return None,
        Some(body) if !seen.is_whole && body.len() < MAX_HELD => return None,
        Some(body) => body,
    };
    if terms.may_shorten
        && let Some(refusal) = read_refusal(body)
    {
        return Some(Disposition::Shorten(refusal));
    }
    if let Some(contexts) = terms.contexts
        && let Some(context) = read_refusal(body).and_then(|refusal| contexts.exceeded(&refusal))
    {
        return Some(Disposition::Hold(HoldReason::ContextTooShort(context)));
    }
    let missing = terms.missing(body);
    if !missing.is_empty() && terms.elsewhere.contains(missing) {
        return Some(Disposition::Hold(HoldReason::CapabilityMissing));
    }
    // All of it, or nothing: the engine would refuse what is left of it again.
    if !missing.is_empty() && terms.may_drop.contains(missing) {
        return Some(Disposition::Drop(missing));
    }
    Some(match refusal_of_status(terms, seen.status, body) {
        Some(refusal) => Disposition::Hold(refusal),
        None if terms.is_converted || terms.is_gathered || terms.has_head => {
            Disposition::ConvertError
        }
        None => Disposition::Relay,
    })
}

/// Returns whether an error of this status says more than its status.
fn reads_error(terms: &ResponseTerms<'_>, status: u16) -> bool {
    terms.is_converted
        || terms.is_gathered
        || terms.has_head
        || terms.may_shorten
        || !terms.needs.is_empty()
        || terms.contexts.is_some()
        || matches!(status, 429 | 503 | 529)
        || (terms.retries_5xx && status >= 500)
        || (is_judged(terms.operation) && (matches!(status, 400..=405) || status >= 500))
}

/// The reason to hold back a response of this status, by the table of the rule on outcomes; `None`
/// if it goes to the client.
fn refusal_of_status(terms: &ResponseTerms<'_>, status: u16, body: &[u8]) -> Option<HoldReason> {
    let meaning = || ErrorMeaning::read(body, terms.model, terms.body);
    let is_own = terms.key == SentKey::Own;
    match status {
        429 => {
            return match meaning() {
                ErrorMeaning::TooLarge => Some(HoldReason::TooLarge),
                ErrorMeaning::OutOfCredit => is_own.then_some(HoldReason::KeyRejected),
                _ => Some(HoldReason::RateLimited),
            };
        }
        503 | 529 => return Some(HoldReason::Overloaded),
        _ if !is_judged(terms.operation) => {
            return (terms.retries_5xx && status >= 500).then_some(HoldReason::ServerError);
        }
        _ => {}
    }
    match (status, meaning()) {
        (400.., ErrorMeaning::KeyRefused(401)) if is_own => Some(HoldReason::KeyInvalid),
        (400.., ErrorMeaning::KeyRefused(_)) if is_own => Some(HoldReason::KeyRejected),
        // The operator's key is rejected, or its account is empty: other backends have other
        // accounts.
        (401 | 402, _) if is_own => Some(HoldReason::KeyRejected),
        (500.., ErrorMeaning::OutOfCredit) if is_own => Some(HoldReason::KeyRejected),
        // Clients can make a backend quote words in a 400: a fault counts for the client alone.
        (400, ErrorMeaning::OutOfCredit) if is_own => Some(HoldReason::Forbidden),
        // Moderation is about the prompt, not about penstock's key.
        (403, ErrorMeaning::Moderated) => None,
        (403, _) if is_own => Some(HoldReason::Forbidden),
        (404, ErrorMeaning::ModelMissing) => Some(HoldReason::ModelMissing),
        (404, ErrorMeaning::NamedMissing) => None,
        // The engine may be too old for the path: another one may know it.
        (404 | 405 | 501, _) if !terms.is_path_known() => Some(HoldReason::OperationMissing),
        (400.., ErrorMeaning::RateLimited) if status >= 500 => Some(HoldReason::RateLimited),
        (400.., ErrorMeaning::Overloaded) if status >= 500 => Some(HoldReason::Overloaded),
        (500.., _) if terms.retries_5xx => Some(HoldReason::ServerError),
        _ => None,
    }
}

/// Returns whether a backend's errors for an operation are about the backend. The operation of a
/// passed-through request is not known.
fn is_judged(operation: Operation) -> bool {
    operation != Operation::Passthrough
}

#[cfg(test)]
mod tests;
