//! The result of a broadcast: the end on each backend, and the response for the client.

use serde_json::Value;

use crate::proxy::backend_call::error_of;
use crate::upstream::engine_exchange::EngineExchange;

/// The end of a command on one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetEnd {
    Done,
    /// The command failed; `status` is the engine's, if it responded with one.
    Failed {
        status: Option<u16>,
        text: String,
    },
}

impl TargetEnd {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Failed { status: Some(404), .. })
    }
}

/// The result over all backends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BroadcastVerdict {
    Done,
    /// At least one backend failed; others may have succeeded.
    Failed {
        status: u16,
        text: String,
    },
}

/// Judges the ends on all backends, by name. `may_miss`: only the backends that have the model must
/// succeed.
pub(crate) fn judge(ends: &[(&str, TargetEnd)], may_miss: bool) -> BroadcastVerdict {
    let done: Vec<&str> =
        ends.iter().filter(|(_, end)| *end == TargetEnd::Done).map(|(name, _)| *name).collect();
    let failed: Vec<(&str, Option<u16>, &str)> = ends
        .iter()
        .filter(|(_, end)| !(may_miss && !done.is_empty() && end.is_missing()))
        .filter_map(|(name, end)| match end {
            TargetEnd::Done => None,
            TargetEnd::Failed { status, text } => Some((*name, *status, text.as_str())),
        })
        .collect();
    let Some((_, first, text)) = failed.first().copied() else { return BroadcastVerdict::Done };
    let is_one = ends.len() == 1;
    let is_same = failed.iter().all(|(_, _, other)| *other == text) && failed.len() == ends.len();
    let mut message = match is_one || is_same {
        true => text.to_owned(),
        false => {
            let parts = failed.iter().map(|(name, _, text)| format!("backend '{name}': {text}"));
            parts.collect::<Vec<_>>().join("; ")
        }
    };
    if !done.is_empty() {
        message += &format!(" (done on {})", done.join(", "));
    }
    // The engines' status is used only if all backends share it: once a part is done, the failure
    // of the rest is penstock's own.
    let is_common = done.is_empty() && failed.iter().all(|(_, status, _)| *status == first);
    let status = first.filter(|status| is_common && (400..600).contains(status));
    BroadcastVerdict::Failed { status: status.unwrap_or(502), text: message }
}

/// The end of an exchange that the engine refused.
pub(crate) async fn read_refusal(exchange: &mut EngineExchange, status: u16) -> TargetEnd {
    // Engines report an error in one line of JSON; any other body is not worth reading.
    let line = exchange.next_line().await.ok().flatten();
    let text = line.and_then(|line| {
        let value: Value = serde_json::from_slice(&line).ok()?;
        error_of(&value)
    });
    let text = text.unwrap_or_else(|| format!("it responded with {status}"));
    TargetEnd::Failed { status: Some(status), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(status: u16, text: &str) -> TargetEnd {
        TargetEnd::Failed { status: Some(status).filter(|one| *one > 0), text: text.to_owned() }
    }

    fn verdict(ends: &[(&str, TargetEnd)], may_miss: bool) -> Option<(u16, String)> {
        match judge(ends, may_miss) {
            BroadcastVerdict::Done => None,
            BroadcastVerdict::Failed { status, text } => Some((status, text)),
        }
    }

    #[test]
    fn backends_without_the_model_fail_nothing_where_another_has_it() {
        let ends = [("a", TargetEnd::Done), ("b", failed(404, "no m"))];
        assert_eq!(verdict(&ends, true), None);
        let expected = Some((502, "backend 'b': no m (done on a)".to_owned()));
        assert_eq!(verdict(&ends, false), expected);
        let none = [("a", failed(404, "no m")), ("b", failed(404, "no m"))];
        assert_eq!(verdict(&none, true), Some((404, "no m".to_owned())));
    }

    #[test]
    fn failures_name_their_backends() {
        let ends = [("a", failed(500, "disk full")), ("b", failed(0, "the connection broke"))];
        let text = "backend 'a': disk full; backend 'b': the connection broke".to_owned();
        assert_eq!(verdict(&ends, true), Some((502, text)));
        let ends = [("a", TargetEnd::Done), ("b", failed(404, "x")), ("c", failed(500, "y"))];
        assert_eq!(verdict(&ends, true), Some((502, "backend 'c': y (done on a)".to_owned())));
        assert_eq!(verdict(&ends[2..], false), Some((500, "y".to_owned())), "its own words");
        assert_eq!(verdict(&ends[..1], false), None);
    }
}
