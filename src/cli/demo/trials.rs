//! The requests of the demo, and the backend that each one must reach.

use penstock_mock::EXAMPLES;
use serde_json::Value;

use super::super::client::{HttpClient, HttpResponse};
use super::super::error::CliError;

const TOOLS: &str = r#"{"model": "qwen2.5:14b", "messages": [{"role": "user", "content": "Weather in Oslo?"}], "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]}"#;
const UNSERVED: &str =
    r#"{"model": "no-backend-serves-this", "messages": [{"role": "user", "content": "Hello!"}]}"#;

/// A request with a known outcome.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    pub(super) label: &'static str,
    pub(super) shows: &'static str,
    pub(super) body: &'static str,
    /// The backend that must receive it; `None` when the response must be a 404.
    pub(super) backend: Option<&'static str>,
}

/// The result of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TrialVerdict {
    pub(super) is_good: bool,
    pub(super) line: String,
}

/// Returns every trial, in the order in which they are run and shown.
pub(super) fn trials() -> [Trial; 4] {
    let [_, _, vision, alias, _, _] = EXAMPLES;
    [
        Trial { label: "vision", shows: vision.shows, body: vision.body, backend: Some("vision") },
        Trial {
            label: "tools",
            shows: "tools go to the model that can call them",
            body: TOOLS,
            backend: Some("tools"),
        },
        Trial { label: "alias", shows: alias.shows, body: alias.body, backend: Some("tools") },
        Trial {
            label: "404",
            shows: "a model that no backend serves is a 404",
            body: UNSERVED,
            backend: None,
        },
    ]
}

impl TrialVerdict {
    /// Formats a result: the label, the backend and the status. `wrong` is the expected result, if
    /// another one came.
    pub(super) fn new(
        label: &str,
        taker: &str,
        status: u16,
        text: String,
        wrong: Option<&str>,
    ) -> Self {
        let complaint = wrong.map_or_else(String::new, |wrong| format!("  WRONG: {wrong}"));
        let line = format!("{label:<8} -> {taker:<7} {status}  {text}{complaint}");
        Self { is_good: wrong.is_none(), line }
    }
}

impl Trial {
    /// Sends the request to the penstock at `authority`.
    pub(super) fn run(&self, authority: &str) -> Result<TrialVerdict, CliError> {
        let client = HttpClient::new(&format!("http://{authority}"), None);
        let response = client.post("/v1/chat/completions", self.body.as_bytes())?;
        let backend = response.header("x-penstock-backend");
        Ok(self.judge(response.status, backend, &text_of(&response)))
    }

    fn judge(&self, status: u16, backend: Option<&str>, text: &str) -> TrialVerdict {
        let is_good =
            backend == self.backend && status == if self.backend.is_some() { 200 } else { 404 };
        let wrong = match (is_good, self.backend) {
            (true, _) => None,
            (false, Some(wanted)) => Some(format!("expected '{wanted}'")),
            (false, None) => Some("expected a 404".to_owned()),
        };
        let taker = backend.unwrap_or("-");
        TrialVerdict::new(self.label, taker, status, text.to_owned(), wrong.as_deref())
    }
}

/// The content of a response: its text, the tool it calls, or its error.
fn text_of(response: &HttpResponse) -> String {
    let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    // The part that shows the outcome: a call has no text, and an error has no choices.
    let at = |pointer| body.pointer(pointer).and_then(Value::as_str);
    if let Some(tool) = at("/choices/0/message/tool_calls/0/function/name") {
        return format!("calls {tool}()");
    }
    let text = at("/choices/0/message/content").or_else(|| at("/error/message"));
    let line = text.and_then(|text| text.lines().next()).unwrap_or("");
    line.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_that_fits_single_shell_quotes() {
        for trial in trials() {
            assert!(serde_json::from_str::<Value>(trial.body).is_ok(), "{}", trial.label);
            assert!(!trial.body.contains('\''), "{}", trial.label);
        }
    }

    #[test]
    fn verdict_requires_the_expected_backend_and_status() {
        let [vision, .., unserved] = trials();
        assert!(vision.judge(200, Some("vision"), "").is_good);
        for (status, backend) in [(200, Some("text")), (500, Some("vision")), (404, None)] {
            let verdict = vision.judge(status, backend, "");
            assert!(!verdict.is_good && verdict.line.contains("WRONG"), "{verdict:?}");
        }
        assert!(unserved.judge(404, None, "").is_good);
        assert!(
            !unserved.judge(404, Some("text"), "").is_good,
            "no engine may receive the request"
        );
        assert!(unserved.judge(404, None, "no").line.starts_with("404      -> -       404  no"));
    }
}
