//! The refusal of a key, or of an account that has no credit or has reached the limit that its
//! owner set.

use super::request_size::names_time;

/// Types and codes, in lower case. Words of a message are no sign: an engine may quote them from a
/// prompt, and a pause would concern all clients.
pub(super) const CREDIT_NAMES: &[&str] = &[
    "insufficient_quota",
    "insufficient_user_quota",
    "insufficient_balance",
    "insufficient_credit",
    "insufficient_funds",
    "insufficientquota",
    "insufficientbalance",
    "out_of_credit",
    "credit_balance",
    "credit_limit",
    "exceeded_current_quota",
    "billing",
    "payment_required",
    "spend_limit",
    "spending_limit",
    "arrear",
];
/// Gemini reports every limit as a quota with a reference to billing: these mark one that returns.
const RENEWED: &[&str] = &["resource_exhausted", "quota exceeded for metric"];

/// The beginnings of whole messages about the key and its account that may come with the status or
/// the name of a request's fault, in lower case, each with the name of its type and the status that
/// it means. An engine may quote a prompt within its words, but no known one begins with it.
const KEY_SENTENCES: &[(&str, &str, u16)] = &[
    ("your credit balance is too low to access the ", "invalid_request_error", 402),
    ("you have reached your specified api usage limits", "invalid_request_error", 402),
    ("this organization has been disabled", "invalid_request_error", 401),
    ("insufficient balance", "unknown_error", 402),
    ("api key not valid. please pass a valid api key.", "invalid_argument", 401),
    ("api key not found. please pass a valid api key.", "invalid_argument", 401),
    ("api key expired. please renew the api key.", "invalid_argument", 401),
    ("incorrect api key provided: ", "client specified an invalid argument", 401),
];

/// Returns the sentence with which a provider rejects the key or its account, and the status that
/// it means. All is in lower case.
pub(super) fn key_refusal(names: &str, message: &str) -> Option<(&'static str, u16)> {
    let is_said = |(sentence, name, _): &&(&str, &str, u16)| {
        message.starts_with(sentence) && names.contains(name)
    };
    KEY_SENTENCES.iter().find(is_said).map(|(sentence, _, status)| (*sentence, *status))
}

/// Returns whether a message, in lower case, is about a limit that ends by itself.
pub(super) fn is_for_now(message: &str) -> bool {
    names_time(message) || RENEWED.iter().any(|mark| message.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_that_return_are_no_lack_of_credit() {
        for (message, expected) in [
            ("you exceeded your current quota. please retry in 33.4s", true),
            ("you exceeded your current quota. * quota exceeded for metric: requests", true),
            ("you exceeded your current quota, please check your plan and billing details", false),
            ("insufficient balance, please recharge and try again later", false),
        ] {
            assert_eq!(is_for_now(message), expected, "{message}");
        }
    }
}
