//! The tables of simulated figures: the engines' rows in `docs/simulated-engines.md`, and the
//! results in `docs/performance/simulation.md` and `docs/performance/objectives.md`.

use penstock_sim::engine::{EngineRow, EngineSpec, engine_rows};
use penstock_sim::fit::{Errors, RunErrors};
use penstock_sim::run::RecordedRun;
use serde_json::Value;

use super::pages::root;
use crate::support::markdown::table;

/// The recorded runs: their rows, files and limits of a batch.
const RUNS: &[(&str, &str, u32)] = &[
    ("rtxpro6000/llama-3.1-8b/tp1", "rtxpro6000-llama-3.1-8b", 128),
    ("rtxpro6000/qwen3-32b/tp2", "rtxpro6000-qwen3-32b-tp2", 128),
    ("rtx4090/llama-3.1-8b/tp1", "rtx4090-llama-3.1-8b", 256),
];

pub(super) fn rows() -> String {
    let cells = |row: &EngineRow| {
        let figures = [row.base_ms, row.token_us, row.decode_us, row.context_1k_us, row.pair_1m_us];
        let mut cells = vec![format!("`{}`", row.name())];
        cells.extend(figures.iter().map(ToString::to_string));
        cells.extend([row.engine.clone(), row.source.clone(), row.error.clone()]);
        cells
    };
    let header = ["row", "base", "token", "decode", "context", "pair", "engine", "source", "error"];
    table(&header, engine_rows().unwrap().iter().map(cells))
}

pub(super) fn errors() -> String {
    let rows = engine_rows().unwrap();
    let mut lines = Vec::new();
    for (name, file, max_requests) in RUNS {
        let row = rows.iter().find(|row| row.name() == *name).unwrap();
        let path = root().join(format!("tests/data/vllm-runs/{file}.jsonl"));
        let run = RecordedRun::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let spec = EngineSpec {
            max_requests: *max_requests,
            max_step_tokens: 2048,
            max_context: 32_768,
            ..EngineSpec::from(row)
        };
        let errors = RunErrors::of(&run.simulated(&spec, 0).unwrap(), &run.measured());
        let of = |errors: Errors| {
            let Errors { mean, p50, p99, .. } = errors;
            let percents = [mean, p50, p99].map(|share| format!("{:+.1} %", share * 100.0));
            percents.join(", ")
        };
        let cells = [errors.first_token, errors.per_token, errors.total].map(of);
        lines.push(std::iter::once(format!("`{name}`")).chain(cells).collect());
    }
    table(&["run", "TTFT: mean, p50, p99", "TPOT", "total"], lines.into_iter())
}

/// Strategies and presets, in the order of the table.
const POLICIES: &[&str] = &[
    "round_robin",
    "smart",
    "least-loaded",
    "llm-d",
    "sglang",
    "lmetric",
    "token-load",
    "prefill-cost",
    "sticky",
    "balanced",
];

/// The table of the mean time to the end, relative to the best policy.
pub(super) fn policies() -> String {
    let cells = cells_of("policies.json");
    let rows = cells.iter().map(|cell| {
        let of = |policy: &str| cell["policies"][policy]["e2e"].as_f64().unwrap();
        let best = POLICIES.iter().map(|policy| of(policy)).fold(f64::MAX, f64::min);
        let is_saturated =
            POLICIES.iter().all(|policy| cell["policies"][policy]["saturated"] == 10);
        let load = format!("{}{}", cell["load"], if is_saturated { " (saturated)" } else { "" });
        let mut row = vec![cell["workload"].as_str().unwrap().to_owned(), load];
        row.push(format!("{best:.2} s"));
        row.extend(POLICIES.iter().map(|policy| {
            let loss = 100.0 * (of(policy) / best - 1.0);
            if loss < 0.05 { "best".to_owned() } else { format!("+{loss:.1} %") }
        }));
        row
    });
    let header: Vec<&str> =
        ["workload", "load", "best"].into_iter().chain(POLICIES.iter().copied()).collect();
    table(&header, rows)
}

/// The columns of the table of worlds: strategies in `docs/performance/worlds.json`.
const WORLDS: &[&str] = &["balanced", "slo", "sticky", "llm-d", "lmetric", "smart"];

/// The mean time to the end and the goodput in the workloads of `docs/performance/worlds`; in a
/// closed loop the tokens per second. A cell shows in how many seeds the queue grew.
pub(super) fn worlds() -> String {
    let rows = cells_of("worlds.json").into_iter().map(|cell| {
        let is_closed = cell["workload"] == "closed160";
        let percent = |one: &Value| format!("{:.1} %", 100.0 * one["goodput"].as_f64().unwrap());
        let of = |policy: &&str| {
            let one = &cell["strategies"][policy];
            let (e2e, tokens) = (&one["e2e"], one["tokens_per_second"].as_f64().unwrap());
            let second = if is_closed { format!("{tokens:.0}/s") } else { percent(one) };
            let grew = match one["saturated"].as_u64().unwrap() {
                // In a closed loop the queue is as long as the agents are many.
                _ if is_closed => String::new(),
                0 => String::new(),
                seeds => format!(", saturated {seeds}/{}", cell["seeds"]),
            };
            format!("{:.2} s, {second}{grew}", e2e.as_f64().unwrap())
        };
        let share = match cell["capacity_share"].as_f64() {
            Some(share) => format!("{share:.2} ± {:.2}", cell["capacity_error"].as_f64().unwrap()),
            None => "-".to_owned(),
        };
        let mut row = vec![cell["workload"].as_str().unwrap().to_owned()];
        row.extend([cell["load"].to_string(), share]);
        row.extend(WORLDS.iter().map(of));
        row
    });
    let header: Vec<&str> =
        ["workload", "load", "of capacity"].into_iter().chain(WORLDS.iter().copied()).collect();
    table(&header, rows)
}

/// Columns of the table of goodput: strategies in `docs/performance/goodput.json`, and their
/// titles.
const GOODPUT: &[(&str, &str)] = &[
    ("oracle, refusing", "oracle, refusing"),
    ("oracle", "oracle"),
    ("slo", "slo"),
    ("slo-queue", "slo, queue"),
    ("balanced", "balanced"),
    ("sticky", "sticky"),
    ("least-loaded", "least-loaded"),
    ("smart", "smart"),
    ("round_robin", "round_robin"),
];

fn cells_of(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(root().join("docs/performance").join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Goodput by workload, arrivals and load.
pub(super) fn goodput() -> String {
    let rows = cells_of("goodput.json").into_iter().map(|cell| {
        let of = |name: &str| {
            let share = cell["strategies"][name]["goodput"].as_f64();
            share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", share * 100.0))
        };
        let text = |name: &str| cell[name].as_str().unwrap().to_owned();
        let mut row = vec![text("workload"), text("arrivals"), cell["load"].to_string()];
        row.extend(GOODPUT.iter().map(|(name, _)| of(name)));
        row
    });
    let header: Vec<&str> = ["workload", "arrivals", "load"]
        .into_iter()
        .chain(GOODPUT.iter().map(|(_, title)| *title))
        .collect();
    table(&header, rows)
}

/// The table of requests refused in an overload, and whether that was right.
pub(super) fn sheds() -> String {
    let percent = |value: &Value| format!("{:.1} %", value.as_f64().unwrap() * 100.0);
    let share = |part: &Value, all: &Value| match all.as_f64().unwrap() {
        0.0 => "-".to_owned(),
        all => format!("{:.1} %", part.as_f64().unwrap() / all * 100.0),
    };
    let cells = cells_of("overload.json");
    let rows = cells.iter().flat_map(|cell| {
        let strategies = cell["strategies"].as_object().unwrap();
        strategies.iter().map(|(name, of)| {
            let [people, batch] = [0, 1].map(|index| &of["priorities"][index]);
            let mut row = vec![cell["load"].to_string(), name.clone(), percent(&of["goodput"])];
            row.push(percent(&people["goodput"]));
            row.push(format!("{:.2} s", people["ttft_p99"].as_f64().unwrap()));
            row.extend([percent(&batch["goodput"]), percent(&batch["shed"])]);
            let sheds = &of["sheds"];
            row.extend(match sheds.is_null() {
                true => ["-", "-", "-", "-"].map(str::to_owned),
                false => [
                    share(&sheds["wrong"], &sheds["judged"]),
                    share(&sheds["harmful"], &sheds["judged"]),
                    share(&sheds["missed"], &sheds["admitted"]),
                    format!("{:.1}", sheds["changes_per_minute"].as_f64().unwrap()),
                ],
            });
            row
        })
    });
    let header = [
        "load",
        "",
        "good",
        "people: good",
        "TTFT p99",
        "batches: good",
        "refused",
        "wrongly",
        "right for others",
        "served late",
        "changes/minute",
    ];
    table(&header, rows)
}
