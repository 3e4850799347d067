//! One page of results.

use std::collections::BTreeSet;
use std::fmt::Write;

use penstock_sim::compare::{Difference, compare};
use penstock_sim::statistics::mean;
use penstock_sim::summary::{PredictionFigures, PriorityFigures, ShedFigures, Summary};
use penstock_sim::workload::Workload;
use penstock_sim::world::BudgetResult;

use super::overload::{overload, warnings};
use super::setup::{PlannedLoad, SimulationPlan};
use super::template::hash_of;
use super::{Arm, short};

pub(super) fn render(plan: &SimulationPlan, arms: &[Arm<'_>]) -> String {
    let mut text = overload(plan, arms);
    text.push_str(&head(plan));
    let names: Vec<String> = arms.iter().map(|arm| short(&arm.variant.name)).collect();
    let widths: Vec<usize> = names.iter().map(|name| name.chars().count().max(12)).collect();
    let mut row = |label: &str, cells: Vec<String>| {
        _ = write!(text, "{label:<26}");
        for (cell, width) in cells.iter().zip(&widths) {
            _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    };
    row("", names.clone());
    for (label, cell) in ROWS {
        let cells: Vec<String> = arms.iter().map(|arm| cell(arm, plan)).collect();
        // Rare events that occurred nowhere get no row.
        let is_needed =
            !label.starts_with(RARE) || cells.iter().any(|cell| cell != "0" && cell != UNKNOWN);
        if is_needed {
            row(label.trim_start_matches(RARE), cells);
        }
    }
    for (label, cells) in by_priority(arms) {
        row(&label, cells);
    }
    for (label, cells) in by_budget(arms) {
        row(&label, cells);
    }
    for (label, cells) in sheds(arms) {
        row(label, cells);
    }
    for reason in reasons(arms) {
        let cells = arms.iter().map(|arm| count_of(arm, &reason));
        row(&reason, cells.collect());
    }
    for arm in arms.iter().skip(1) {
        if let Some(base) = arms.first() {
            text.push_str(&differences(base, arm));
        }
    }
    text.push_str(&warnings(plan, arms));
    text
}

/// The prefix of the labels of rows that are omitted if all their cells are 0.
const RARE: char = '?';

/// The cell of a figure that does not exist for a configuration.
const UNKNOWN: &str = "-";

/// A row of the table: its label, and the function that fills a column's cell.
type Row = (&'static str, fn(&Arm<'_>, &SimulationPlan) -> String);

const ROWS: &[Row] = &[
    ("TTFT      mean", |arm, _| time(arm, |one| one.first_token.mean)),
    ("          p50", |arm, _| time(arm, |one| one.first_token.p50)),
    ("          p90", |arm, _| time(arm, |one| one.first_token.p90)),
    ("          p99", |arm, _| time(arm, |one| one.first_token.p99)),
    ("?queued    mean", |arm, _| rare_time(arm, |one| one.queued.mean)),
    ("?          p99", |arm, _| rare_time(arm, |one| one.queued.p99)),
    ("TPOT      mean", |arm, _| time(arm, |one| one.per_token.mean)),
    ("          p99", |arm, _| time(arm, |one| one.per_token.p99)),
    ("E2E       mean", |arm, _| time(arm, |one| one.total.mean)),
    ("          p99", |arm, _| time(arm, |one| one.total.p99)),
    ("goodput", |arm, _| share(arm, |one| one.goodput)),
    ("output tokens/s", |arm, _| number(arm, |one| one.tokens_per_second)),
    ("cache hits", |arm, _| share(arm, |one| one.hit_rate)),
    ("cache hits believed", |arm, _| {
        match arm.summaries.iter().all(|one| one.believed_rate.is_none()) {
            true => UNKNOWN.to_owned(),
            false => share(arm, |one| one.believed_rate.unwrap_or_default()),
        }
    }),
    ("imbalance (CV of tokens)", |arm, _| number(arm, |one| one.imbalance)),
    ("engines busy", |arm, _| share(arm, |one| one.utilization)),
    ("     full: KV cache in use", |arm, _| share(arm, |one| one.kv_use)),
    ("load (rate / capacity)", |_, plan| {
        plan.load().map_or_else(|| UNKNOWN.to_owned(), PlannedLoad::shown)
    }),
    ("fairness of clients", |arm, _| number(arm, |one| one.fairness)),
    ("?predicted TTFT: error", |arm, _| predicted(arm, |one| one.mean_error)),
    ("?                weighted", |arm, _| predicted(arm, |one| one.weighted_error)),
    ("?                p90 holds", |arm, _| predicted(arm, |one| one.coverage)),
    ("?preemptions", |arm, _| number(arm, |one| one.preemptions as f64)),
    ("?models loaded", |arm, _| number(arm, |one| one.loads as f64)),
    ("?retries", |arm, _| number(arm, |one| one.retries as f64)),
    ("?clients that left", |arm, _| number(arm, |one| one.left as f64)),
    ("?never sent: session ended", |arm, _| number(arm, |one| one.abandoned as f64)),
];

fn head(plan: &SimulationPlan) -> String {
    let Some(workload) = plan.setting.workloads.first() else { return String::new() };
    let MeanTokens { input, output } = MeanTokens::of(workload);
    let last = workload.requests.iter().map(|request| request.arrives_at).max().unwrap_or(0);
    let arrivals = match plan.has_rate() {
        true => format!(" in {:.0} s, {:.2}/s", last as f64 * 1e-6, plan.rate),
        // After the responses before them, or all at once.
        false => String::new(),
    };
    let seeds = plan.setting.workloads.len() as u64;
    let mut engines: Vec<(&str, usize)> = Vec::new();
    for name in &plan.engine_names {
        match engines.iter_mut().find(|(one, _)| one == name) {
            Some((_, count)) => *count += 1,
            None => engines.push((name, 1)),
        }
    }
    let engines: Vec<String> =
        engines.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    format!(
        "workload  {} ({}): {} requests{arrivals}; tokens in {input:.0}, out {output:.0}\n\
         engines   {}\n\
         run       seeds {}..{}, penstock {}, {}\n\n",
        plan.workload_name,
        plan.workload_hash,
        workload.requests.len(),
        engines.join(", "),
        plan.setting.seed,
        plan.setting.seed + seeds - 1,
        env!("CARGO_PKG_VERSION"),
        plan.variants
            .iter()
            .map(|one| format!("{} {}", short(&one.name), hash_of(&format!("{:?}", one.config))))
            .collect::<Vec<_>>()
            .join(", "),
    )
}

/// The mean tokens of a workload.
struct MeanTokens {
    input: f64,
    output: f64,
}

impl MeanTokens {
    fn of(workload: &Workload) -> Self {
        let of = |tokens: fn(&penstock_sim::workload::Request) -> u32| {
            mean(&workload.requests.iter().map(|one| f64::from(tokens(one))).collect::<Vec<_>>())
        };
        Self { input: of(|one| one.input_tokens), output: of(|one| one.output_tokens) }
    }
}

/// Formats a figure of predictions as a share, if there were any.
fn predicted(arm: &Arm<'_>, figure: fn(&PredictionFigures) -> f64) -> String {
    if arm.summaries.iter().all(|one| one.prediction.is_none()) {
        return UNKNOWN.to_owned();
    }
    share(arm, |one| one.prediction.as_ref().map_or(f64::NAN, figure))
}

fn average(arm: &Arm<'_>, of: impl Fn(&Summary) -> f64) -> f64 {
    mean(&arm.summaries.iter().map(of).collect::<Vec<_>>())
}

fn time(arm: &Arm<'_>, of: impl Fn(&Summary) -> f64) -> String {
    seconds(average(arm, of))
}

/// Formats a time that is 0 in most runs.
fn rare_time(arm: &Arm<'_>, of: impl Fn(&Summary) -> f64) -> String {
    let value = average(arm, of);
    if value > 0.0 { seconds(value) } else { "0".to_owned() }
}

/// Formats a time with three digits.
pub(super) fn seconds(value: f64) -> String {
    let millis = value * 1e3;
    match millis.abs() {
        small if small < 9.995 => format!("{millis:.2} ms"),
        small if small < 99.95 => format!("{millis:.1} ms"),
        small if small < 999.5 => format!("{millis:.0} ms"),
        large if large < 9_995.0 => format!("{value:.2} s"),
        large if large < 99_950.0 => format!("{value:.1} s"),
        _ => format!("{value:.0} s"),
    }
}

fn share(arm: &Arm<'_>, of: impl Fn(&Summary) -> f64) -> String {
    format!("{:.1} %", average(arm, of) * 100.0)
}

fn number(arm: &Arm<'_>, of: impl Fn(&Summary) -> f64) -> String {
    let value = average(arm, of);
    match value {
        0.0 => "0".to_owned(),
        small if small < 10.0 => format!("{small:.2}"),
        large => format!("{large:.0}"),
    }
}

/// Returns the rows of each priority, if requests have several.
fn by_priority(arms: &[Arm<'_>]) -> Vec<(String, Vec<String>)> {
    let summaries = || arms.iter().flat_map(|arm| &arm.summaries);
    let mut found: Vec<i8> =
        summaries().flat_map(|one| &one.priorities).map(|one| one.priority).collect();
    // Wider than `i8`, whose smallest number has no opposite.
    found.sort_unstable_by_key(|priority| -i16::from(*priority));
    found.dedup();
    let mut rows = Vec::new();
    for priority in found {
        let mut row = |label: &str, cell: &dyn Fn(&Arm<'_>) -> String| {
            rows.push((label.to_owned(), arms.iter().map(cell).collect()));
        };
        row(&format!("priority {priority:<3} goodput"), &|arm| {
            share(arm, |one| of_priority(one, priority, |one| one.goodput))
        });
        row("             TTFT p99", &|arm| {
            time(arm, |one| of_priority(one, priority, |one| one.first_token.p99))
        });
        row("             shed", &|arm| {
            share(arm, |one| {
                of_priority(one, priority, |one| one.shed as f64 / one.requests.max(1) as f64)
            })
        });
    }
    rows
}

/// Returns the rows of each budget.
fn by_budget(arms: &[Arm<'_>]) -> Vec<(String, Vec<String>)> {
    type BudgetFigure = fn(&BudgetResult) -> f64;
    const CELLS: [(&str, BudgetFigure); 3] = [
        ("spent", |one| one.spent.amount()),
        ("refused", |one| one.refused as f64),
        ("other model or zones", |one| one.changed as f64),
    ];
    let summaries = arms.iter().flat_map(|arm| &arm.summaries);
    let mut names: Vec<&str> =
        summaries.flat_map(|one| &one.budgets).map(|one| &*one.name).collect();
    names.sort_unstable();
    names.dedup();
    let rows = names.into_iter().flat_map(|name| {
        CELLS.iter().enumerate().map(move |(at, (label, of))| {
            let label = match at {
                0 => format!("budget {} {label}", short(name)),
                _ => format!("     {label}"),
            };
            let of_run =
                |one: &Summary| one.budgets.iter().find(|one| one.name == name).map_or(0.0, of);
            (label, arms.iter().map(|arm| number(arm, of_run)).collect())
        })
    });
    rows.collect()
}

/// Returns the rows about refusals, if any was examined.
fn sheds(arms: &[Arm<'_>]) -> Vec<(&'static str, Vec<String>)> {
    let summaries = || arms.iter().flat_map(|arm| &arm.summaries);
    if summaries().filter_map(|one| one.sheds).all(|sheds| sheds.judged == 0) {
        return Vec::new();
    }
    let row = |of: fn(&ShedFigures) -> f64, show: fn(f64) -> String| {
        let cell = |arm: &Arm<'_>| match arm.summaries.iter().all(|one| one.sheds.is_none()) {
            true => "-".to_owned(),
            false => show(average(arm, |one| one.sheds.as_ref().map_or(0.0, of))),
        };
        arms.iter().map(cell).collect()
    };
    let percent = |value: f64| format!("{:.1} %", value * 100.0);
    vec![
        ("shed wrongly", row(ShedFigures::wrong_share, percent)),
        ("     right for others", row(ShedFigures::harmful_share, percent)),
        ("sheddable: served late", row(ShedFigures::missed_share, percent)),
        (
            "shedding changes/minute",
            row(|one| one.changes_per_minute, |value| format!("{value:.1}")),
        ),
    ]
}

fn of_priority(one: &Summary, priority: i8, of: impl Fn(&PriorityFigures) -> f64) -> f64 {
    one.priorities.iter().find(|one| one.priority == priority).map_or(0.0, of)
}

/// Returns the reasons for which requests were shed or failed, with their counts.
fn reasons_of(one: &Summary) -> impl Iterator<Item = (String, usize)> {
    let shed = one.shed.iter().map(|(reason, count)| (format!("shed: {}", reason.name()), *count));
    let failed = one.failed.iter();
    let failed = failed.map(|(reason, count)| (format!("failed: {}", reason.name()), *count));
    shed.chain(failed)
}

fn reasons(arms: &[Arm<'_>]) -> BTreeSet<String> {
    let summaries = arms.iter().flat_map(|arm| &arm.summaries);
    summaries.flat_map(reasons_of).map(|(reason, _)| reason).collect()
}

fn count_of(arm: &Arm<'_>, reason: &str) -> String {
    number(arm, |one| {
        let mut found = reasons_of(one).filter(|(name, _)| name == reason);
        found.next().map_or(0.0, |(_, count)| count as f64)
    })
}

fn differences(base: &Arm<'_>, arm: &Arm<'_>) -> String {
    let mut text = format!("\n{} against {}\n", arm.variant.name, base.variant.name);
    for difference in compare(&base.summaries, &arm.summaries) {
        let Difference { figure, base, interval, verdict, .. } = difference;
        // A base of zero shows a huge percentage, and not none at all.
        let percent = |value: f64| 100.0 * value / base.abs().max(f64::MIN_POSITIVE);
        let shown = match interval.margin.is_finite() {
            true => format!("{:+.1} % ± {:.1}", percent(interval.mean), percent(interval.margin)),
            // One seed has no interval.
            false => format!("{:+.1} %", percent(interval.mean)),
        };
        _ = writeln!(text, "  {figure:<12} {shown:>20}  {}", verdict.text());
    }
    text
}
