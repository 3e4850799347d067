//! An explanation for people: the request's needs, every candidate, the winner or the error.

use std::fmt::{self, Display, Formatter};

use penstock_api::{MAX_NAME, escape};
use penstock_scan::RequestRequirements;
use penstock_scoring::{Eviction, Objectives, PredictedLatency};

use super::report::{
    BudgetVerdict, CallCost, ContextShiftReport, DecisionReport, DryRunOutcome, DryRunReport,
    EnsembleReport, PlannedCall, PolicyReport, SessionReport, SplitReport,
};
use crate::routing::audit::CandidateReport;

/// Ends without a newline.
impl Display for DryRunReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if let Some(requirements) = &self.requirements {
            write_requirements(out, requirements)?;
        }
        if let Some(objectives) = &self.objectives {
            writeln!(out, "objective   {}", objectives_text(objectives))?;
        }
        if let Some(policy) = &self.policy {
            writeln!(out, "policy      {policy}")?;
        }
        for budget in &self.budgets {
            writeln!(out, "budget      {budget}")?;
        }
        if let Some(shift) = &self.context_shift {
            writeln!(out, "shift       {shift}")?;
        }
        if let Some(split) = &self.split {
            writeln!(out, "split       {split}")?;
        }
        if let Some(session) = &self.session {
            writeln!(out, "session     {session}")?;
        }
        if let Some(ensemble) = &self.ensemble {
            writeln!(out, "ensemble    {ensemble}")?;
        }
        self.outcome.fmt(out)
    }
}

impl Display for BudgetVerdict {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { name, subject, limit, left, estimate, fits, at_limit } = self;
        write!(out, "{name}")?;
        if !subject.is_empty() {
            // The name of a team may come from a token.
            write!(out, " of {}", subject.escape_debug())?;
        }
        write!(out, ": the request may cost {estimate:.6} of {limit}")?;
        match left {
            Some(left) => write!(out, ", of which {left:.6} is left")?,
            None => write!(out, "; what was spent is not known here")?,
        }
        if *fits { Ok(()) } else { write!(out, ": {at_limit}") }
    }
}

impl Display for DryRunOutcome {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let (error, candidates, queue_timeout_ms) = match self {
            Self::Decided { decision } => return decision.fmt(out),
            Self::Refused { error, candidates, queue_timeout_ms } => {
                (error, candidates, *queue_timeout_ms)
            }
        };
        if let Some(candidates) = candidates {
            writeln!(out, "{}", candidate_text(candidates, None))?;
        }
        match queue_timeout_ms {
            Some(timeout) => write!(
                out,
                "waits       in the queue, if that has room, for at most {} s: {}",
                timeout as f64 / 1000.0,
                error.shown_message(),
            ),
            None => write!(out, "refused     {error}"),
        }
    }
}

impl Display for DecisionReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let [backend, model, upstream] = [&self.backend, &self.model, &self.upstream_model]
            .map(|name| escape(name.as_deref().unwrap_or_default(), MAX_NAME));
        writeln!(out, "{}", candidate_text(&self.candidates, Some(self)))?;
        write!(out, "decision    {backend} with '{model}'")?;
        if model != upstream {
            write!(out, ", called '{upstream}' there")?;
        }
        let fallback = if self.fallback { ", as a fallback" } else { "" };
        let assumed = if self.assumed { ", on assumed capabilities" } else { "" };
        let below = if self.below_tier { ", below the tier of its policy" } else { "" };
        let preset = self.preset.as_ref().map(|preset| format!(", preset {preset}"));
        let strategy = format!("{}{}", self.strategy, preset.unwrap_or_default());
        write!(out, ", by {strategy}{fallback}{assumed}{below}")?;
        match &self.strategy_reason {
            Some(reason) => write!(out, "\nstrategy    {strategy}, because {reason}"),
            None => Ok(()),
        }
    }
}

impl Display for EnsembleReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{} calls, {}", self.calls.len(), self.cost)?;
        let model_width = width(self.calls.iter().map(|call| &*call.model));
        let backend_width = width(self.calls.iter().filter_map(|call| call.backend.as_deref()));
        for PlannedCall { call, model, backend, cost, error } in &self.calls {
            let backend = backend.as_deref().unwrap_or_default();
            write!(out, "\n    {call:10}  {model:model_width$}  {backend:backend_width$}  ")?;
            match error {
                Some(error) => write!(out, "refused: {error}")?,
                None => cost.fmt(out)?,
            }
        }
        Ok(())
    }
}

impl Display for CallCost {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { input_tokens, output_tokens, price } = self;
        write!(out, "about {input_tokens} input and {output_tokens} output tokens")?;
        price.map_or(Ok(()), |price| write!(out, ", price {price:.6}"))
    }
}

/// Returns a text like `first token in 500 ms, 50 ms per token, priority 5`.
fn objectives_text(objectives: &Objectives) -> String {
    let Objectives { ttft_ms, tpot_ms, priority } = objectives;
    let first = ttft_ms.map(|ms| format!("first token in {ms} ms, "));
    let next = tpot_ms.map(|ms| format!("{ms} ms per token, "));
    format!("{}{}priority {priority}", first.unwrap_or_default(), next.unwrap_or_default())
}

impl Display for PolicyReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { name, zones, tier, preferred_tier } = self;
        out.write_str(name.as_deref().unwrap_or("of the key"))?;
        match zones.as_deref() {
            None => out.write_str(": all zones")?,
            Some([]) => out.write_str(": no zone at all")?,
            Some([one]) => write!(out, ": zone {one}")?,
            Some(several) => write!(out, ": zones {}", several.join(", "))?,
        }
        if *tier > 1 {
            write!(out, ", tier {tier} and above")?;
        }
        if preferred_tier > tier {
            write!(out, ", tier {preferred_tier} and above preferred")?;
        }
        Ok(())
    }
}

impl Display for ContextShiftReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { dropped_messages: dropped, whole_prompt_tokens: whole } = self;
        write!(out, "drops the {dropped} oldest messages of a prompt of about {whole} tokens")
    }
}

impl Display for SplitReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let shares = self.branches.iter().map(|one| format!("{} {}", one.model, one.weight));
        let shares = shares.collect::<Vec<_>>().join(", ");
        write!(out, "{} -> {} (of {shares})", self.alias, self.model)
    }
}

impl Display for SessionReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match &self.home {
            Some(home) => write!(out, "at home on {home}"),
            None => out.write_str("no home yet"),
        }
    }
}

fn write_requirements(out: &mut Formatter<'_>, request: &RequestRequirements) -> fmt::Result {
    let needs = [
        (request.needs_vision, "vision"),
        (request.needs_tools, "tools"),
        (request.needs_json_mode, "json_mode"),
        (request.prefers_streaming, "(a stream, if possible)"),
    ];
    let needs: Vec<&str> = needs.iter().filter(|need| need.0).map(|need| need.1).collect();
    let needs = if needs.is_empty() { "nothing special".to_owned() } else { needs.join(", ") };
    // The length of all that the engine reads, and of the conversation if that is less.
    let (whole, messages) = (request.prompt_tokens, request.estimated_tokens);
    writeln!(out, "model       {}", escape(&request.model, MAX_NAME))?;
    write!(out, "prompt      about {whole} tokens")?;
    if whole != messages {
        write!(out, ", {messages} of them in messages")?;
    }
    writeln!(out, "\nneeds       {needs}")
}

/// Returns the lines of candidates, without a newline at the end.
pub(in crate::routing::audit) fn candidate_text(
    candidates: &[CandidateReport],
    decision: Option<&DecisionReport>,
) -> String {
    if candidates.is_empty() {
        return "candidates  none".to_owned();
    }
    let backend_width = width(candidates.iter().map(|one| &*one.backend));
    let models = candidates.iter().map(|one| escape(&one.model, MAX_NAME).chars().count());
    let model_width = models.max().unwrap_or(0);
    // The two columns, with the mark and the gaps around them.
    let indent = backend_width + model_width + 8;
    let lines = candidates.iter().map(|candidate| {
        let CandidateReport { backend, model, .. } = candidate;
        let picked = decision.filter(|picked| {
            picked.backend.as_ref() == Some(backend) && picked.model.as_ref() == Some(model)
        });
        let model = escape(model, MAX_NAME);
        let mark = if picked.is_some() { '*' } else { ' ' };
        let verdict = verdict(candidate, picked.is_some_and(|picked| picked.next_probe));
        let predicted = predicted_text(candidate);
        let predicted = predicted.map(|text| format!("\n{:indent$}{text}", ""));
        let predicted = predicted.unwrap_or_default();
        format!("\n  {mark} {backend:backend_width$}  {model:model_width$}  {verdict}{predicted}")
    });
    std::iter::once("candidates".to_owned()).chain(lines).collect()
}

/// Returns the predicted latency, with a mark if it is a guess.
fn predicted_text(candidate: &CandidateReport) -> Option<String> {
    let text = candidate.predicted.as_deref()?;
    let prediction = candidate.prediction.as_ref().and_then(PredictedLatency::from_value);
    let is_guess = prediction.is_some_and(|prediction| !prediction.is_trusted);
    Some(format!("{text}{}", if is_guess { ", a guess: too little is learned" } else { "" }))
}

fn width<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}

/// Returns a text like `total 0.83 (prefix-affinity 0.50 with 10/20 blocks, queue-depth 1.00), `;
/// empty without scorers.
fn scores_text(candidate: &CandidateReport) -> String {
    let (Some(total), Some(scores)) = (candidate.total, &candidate.scores) else {
        return String::new();
    };
    let scores = scores.iter().map(|(name, score)| {
        let blocks = match (name.as_str(), candidate.matched_blocks, candidate.prompt_blocks) {
            ("prefix-affinity", Some(matched), Some(all)) => {
                format!(" with {matched}/{all} blocks")
            }
            _ => String::new(),
        };
        format!("{name} {score:.2}{blocks}")
    });
    format!("total {total:.3} ({}), ", scores.collect::<Vec<_>>().join(", "))
}

/// Returns a text like `loadable (evicts idle), 1 of 2 slots, `; empty if there is no placement.
fn placement_text(candidate: &CandidateReport) -> String {
    let Some(residency) = &candidate.residency else { return String::new() };
    let evicts = candidate.evicts.as_ref().filter(|what| *what != Eviction::Nothing.name());
    let evicts = evicts.map(|what| format!(" (evicts {what})")).unwrap_or_default();
    let used = candidate.model_in_flight.unwrap_or_default();
    match candidate.slots {
        Some(slots) => format!("{residency}{evicts}, {used} of {slots} slots, "),
        None => format!("{residency}{evicts}, {used} of the model, "),
    }
}

fn verdict(candidate: &CandidateReport, is_probed: bool) -> String {
    let reason = candidate.reason.as_deref().unwrap_or_default();
    if is_probed {
        return format!("{reason}; probed: first to leave cooldown");
    }
    if let Some(excluded) = &candidate.excluded {
        return format!("rejected ({excluded}): {reason}");
    }
    let score = candidate.score.map(|score| format!("score {score:.2}, ")).unwrap_or_default();
    let converted = candidate.converted_to.as_ref().map(|to| format!(", converted to {to}"));
    let is_assumed = candidate.assumed.unwrap_or_default();
    format!(
        "{score}{}{}priority {}, {} in flight, {:.1} ms{}{}{}",
        scores_text(candidate),
        placement_text(candidate),
        candidate.priority.unwrap_or_default(),
        candidate.in_flight.unwrap_or_default(),
        candidate.latency_ms.unwrap_or_default(),
        telemetry_text(candidate),
        if is_assumed { ", capabilities assumed" } else { "" },
        converted.unwrap_or_default(),
    )
}

/// Returns a text like `, telemetry fresh, 31 ms old`; empty if telemetry does not count.
fn telemetry_text(candidate: &CandidateReport) -> String {
    let Some(standing) = &candidate.telemetry else { return String::new() };
    let age = candidate.telemetry_age_ms.map(|age| format!(", {age:.0} ms old"));
    format!(", telemetry {standing}{}", age.unwrap_or_default())
}
