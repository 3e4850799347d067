//! The line of the shadow strategy: totals since its start, as in `/shadow`.

use super::{Figures, FrameLine, Tone, show_rate};

const DECISIONS: &str = "penstock_shadow_decisions_total";
const EXPECTED: &str = "penstock_shadow_expected_tokens_total";
const PROMPTS: &str = "penstock_shadow_prompt_tokens_total";

/// Returns the line; `None` without a shadow strategy.
pub(super) fn shadow(figures: &Figures<'_>) -> Option<FrameLine> {
    if !figures.has(DECISIONS) {
        return None;
    }
    let decisions = |result| figures.total(DECISIONS, &[("result", result)]);
    let (same, other) = (decisions("same"), decisions("other"));
    let prompts = figures.total(PROMPTS, &[]);
    let expected = |side| show_share(figures.total(EXPECTED, &[("side", side)]), prompts);
    let mut line = FrameLine::default();
    line.fact("shadow agrees", show_share(same, same + other), Tone::Title);
    line.fact("expected cached: live", expected("live"), Tone::Plain);
    line.fact("shadow", expected("shadow"), Tone::Plain);
    let dropped = figures.rate(DECISIONS, &[("result", "dropped")]);
    let tone = if dropped > 0.0 { Tone::Warning } else { Tone::Plain };
    line.fact("dropped/s", show_rate(dropped), tone);
    Some(line)
}

fn show_share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", part / whole * 100.0) } else { "-".to_owned() }
}
