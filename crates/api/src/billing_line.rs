//! The first line of Claude Code's instructions: a provider header in the text of the prompt. Its
//! value changes with each request, and means nothing to a model.

/// The start of the line.
pub const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// Returns the text without the line, if it begins with it.
pub fn without_billing_line(text: &str) -> &str {
    if !text.starts_with(BILLING_LINE) {
        return text;
    }
    // The line alone: nothing of it is for a model.
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn billing_line_is_removed_and_following_text_is_kept() {
        let line =
            "x-anthropic-billing-header: cc_version=2.1.30.a1b; cc_entrypoint=cli; cch=00ff1;";
        assert_eq!(without_billing_line(line), "");
        assert_eq!(without_billing_line(&format!("{line}\nBe brief.\nNow.")), "Be brief.\nNow.");
        for other in ["", "Be brief.", "A x-anthropic-billing-header: is a header."] {
            assert_eq!(without_billing_line(other), other);
        }
    }
}
