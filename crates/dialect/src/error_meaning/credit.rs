//! The refusal of an account that has no credit, or has reached the limit that its owner set.

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
