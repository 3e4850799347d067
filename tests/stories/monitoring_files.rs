//! The Grafana dashboard and the alert rules use only metrics and labels that penstock exports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use penstock::observe::metrics::{MetricKind, MetricRow, metric_rows};
use penstock_api::ERROR_CODES;
use serde_json::Value;

use crate::support::eventually;
use crate::support::fleet::{Fleet, SOON, Setup};
use crate::support::promql::{self, Expression, Selector, is_of_the_scrape};

/// Metric families that the dashboard must show completely.
const COMPLETE_FAMILIES: [&str; 4] =
    ["penstock_backend_", "penstock_telemetry_", "penstock_prefix_", "penstock_shadow_"];

/// The metrics page of a mock engine.
const ENGINE_METRICS: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n\
                    vllm:kv_cache_usage_perc 0.25\nprocess_start_time_seconds 100\n\
                    vllm:lora_requests_info{running_lora_adapters=\"x\",\
                    waiting_lora_adapters=\"\",max_lora=\"2\"} 1\n";

fn conf(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The metrics on the page of a penstock after some traffic.
fn metrics_shown() -> BTreeSet<String> {
    let routing = "shadow: { strategy: weighted }";
    // No server is there: what is shared is 0, and on the page.
    let sections = "telemetry: { interval: 200ms, idle_interval: 200ms, max_cpu: 1 }\n\
                    shared_state: { redis: \"redis://127.0.0.1:1\" }";
    let backend = "engine: vllm, max_in_flight: 9";
    let fleet = Fleet::start(1, Setup { backend, routing, sections, ..Setup::default() });
    fleet.a().set_page("/metrics", Some(ENGINE_METRICS));
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(fleet.stream().status, 200);
    fleet.wait_metric("penstock_requests_total{", 2.0);
    fleet.wait_metric("penstock_attempts_total{", 2.0);
    let mut page = String::new();
    eventually("telemetry is fresh", SOON, || {
        page = fleet.penstock.admin("/metrics").text();
        page.contains("\npenstock_backend_waiting{")
    });
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

/// The row of a metric, and whether the name is a series of a histogram.
fn row(name: &str) -> Option<(&'static MetricRow, bool)> {
    let plain = metric_rows().find(|row| row.name == name && row.kind != MetricKind::Histogram);
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    let histogram =
        metric_rows().find(|row| row.kind == MetricKind::Histogram && base == Some(row.name));
    plain.map(|row| (row, false)).or(histogram.map(|row| (row, true)))
}

fn known_values(label: &str) -> Option<BTreeSet<&'static str>> {
    match label {
        "outcome" => Some(["ok", "client", "busy", "fault", "cancel"].into()),
        "code" => Some(ERROR_CODES.iter().map(|row| row.name).chain(["none"]).collect()),
        "result" => Some(
            ["written", "sent", "dropped", "failed", "applied", "refused"]
                .into_iter()
                .chain(["same", "other", "none", "not_sampled", "passed", "hit", "miss"])
                .collect(),
        ),
        "type" => Some(["input", "output", "cached", "expected"].into()),
        "side" => Some(["live", "shadow"].into()),
        _ => None,
    }
}

fn check_selector(selector: &Selector, shown: &BTreeSet<String>) -> Result<(), String> {
    let Selector { metric, within, matchers } = selector;
    // Added by Prometheus to each scrape.
    if metric == "up" {
        return Ok(());
    }
    let (row, is_series) = row(metric).ok_or_else(|| format!("unknown metric {metric}"))?;
    if !shown.contains(row.name) {
        return Err(format!("{} is not on the page", row.name));
    }
    let grows = row.kind == MetricKind::Counter || is_series;
    if grows != matches!(within.as_str(), "rate" | "increase") {
        return Err(format!("{metric} within '{within}'"));
    }
    for (label, value) in matchers {
        if is_of_the_scrape(label) {
            continue;
        }
        if !row.labels.contains(&label.as_str()) {
            return Err(format!("{metric} has no label {label}"));
        }
        let known = known_values(label);
        for one in value.split('|').filter(|one| !one.starts_with('$')) {
            if known.as_ref().is_some_and(|known| !known.contains(one)) {
                return Err(format!("{metric} never has {label}={one}"));
            }
        }
    }
    Ok(())
}

/// The labels of the metrics an expression names.
fn labels_of(parsed: &Expression) -> BTreeSet<&'static str> {
    let rows = parsed.selectors.iter().filter_map(|one| row(&one.metric));
    rows.flat_map(|(row, _)| row.labels).copied().collect()
}

fn check(expression: &str, shown: &BTreeSet<String>) -> Result<Expression, String> {
    let parsed = promql::parse(expression);
    if parsed.selectors.is_empty() {
        return Err("no metric".to_owned());
    }
    for selector in &parsed.selectors {
        check_selector(selector, shown)?;
    }
    let has_le = parsed.selectors.iter().any(|one| one.metric.ends_with("_bucket"));
    let of_metrics = labels_of(&parsed);
    for label in &parsed.grouped {
        let is_known = of_metrics.contains(label.as_str())
            || is_of_the_scrape(label)
            || (label == "le" && has_le);
        if !is_known {
            return Err(format!("nothing in it has the label {label}"));
        }
    }
    if has_le && !parsed.grouped.contains("le") {
        return Err("a quantile without its buckets".to_owned());
    }
    Ok(parsed)
}

/// Every `{{label}}` of a text.
fn labels_in(text: &str) -> Vec<&str> {
    let inner = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    inner.map(str::trim).collect()
}

#[test]
fn dashboard_queries_existing_metrics() {
    let dashboard: Value = serde_json::from_str(&conf("grafana-dashboard.json")).unwrap();
    let shown = metrics_shown();
    let mut asked = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} shares its id");
        assert_eq!(panel["type"] != "row", panel["targets"].is_array(), "{title}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = target["expr"].as_str().unwrap();
            let parsed =
                check(text, &shown).unwrap_or_else(|error| panic!("{title}: {error}: {text}"));
            for label in labels_in(target["legendFormat"].as_str().unwrap()) {
                assert!(parsed.grouped.contains(label), "{title}: {label} is gone from {text}");
            }
            asked.extend(parsed.selectors.into_iter().map(|one| one.metric));
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for variable in variables.iter().filter(|one| one["type"] == "query") {
        let query = variable["definition"].as_str().unwrap();
        let inner = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (metric, label) = inner.split_once(", ").unwrap();
        assert!(shown.contains(metric), "{query}");
        assert!(is_of_the_scrape(label) || row(metric).unwrap().0.labels.contains(&label));
    }
    assert!(asked.len() >= 30, "the dashboard shows {} metrics", asked.len());
    for row in metric_rows() {
        let may_be_left_out = !COMPLETE_FAMILIES.iter().any(|start| row.name.starts_with(start));
        assert!(may_be_left_out || asked.contains(row.name), "{} is on no panel", row.name);
    }
}

#[test]
fn alerts_query_existing_metrics() {
    type Rule = BTreeMap<String, Value>;
    let file: Value = serde_saphyr::from_str(&conf("alerts.yaml")).unwrap();
    let shown = metrics_shown();
    let mut names = BTreeSet::new();
    for group in file["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            let rule: Rule = serde_json::from_value(rule.clone()).unwrap();
            let name = rule["alert"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} is there twice");
            let text = rule["expr"].as_str().unwrap();
            let parsed =
                check(text, &shown).unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
            let labels = labels_of(&parsed);
            assert!(["page", "ticket"].contains(&rule["labels"]["severity"].as_str().unwrap()));
            for key in ["summary", "description"] {
                let text = rule["annotations"][key].as_str().unwrap();
                for used in labels_in(text) {
                    let label = used.strip_prefix("$labels.");
                    let is_left = |label: &str| {
                        is_of_the_scrape(label)
                            || parsed.grouped.contains(label)
                            || (parsed.grouped.is_empty() && labels.contains(label))
                    };
                    assert!(label.is_none_or(is_left), "{name}: {used} is not in its outcome");
                }
            }
        }
    }
    assert!(names.len() >= 15, "{names:?}");
}

#[test]
fn unknown_metrics_are_detected() {
    let shown: BTreeSet<String> = metric_rows().map(|row| row.name.to_owned()).collect();
    for good in [
        "sum by (backend) (rate(penstock_attempts_total{code!=\"none\"}[5m]))",
        "histogram_quantile(0.9, sum by (le) (rate(penstock_ttft_seconds_bucket[5m])))",
        "(penstock_backend_up == 0) * 2 or penstock_backend_up",
    ] {
        assert!(check(good, &shown).is_ok(), "{good}: {:?}", check(good, &shown));
    }
    for bad in [
        "penstock_backends_up",
        "rate(penstock_backend_up[5m])",
        "penstock_requests_total",
        "sum(rate(penstock_requests_total{verb=\"x\"}[5m]))",
        "sum(rate(penstock_requests_total{outcome=\"failed\"}[5m]))",
        "sum(rate(penstock_shadow_decisions_total{result=\"skipped\"}[5m]))",
        "sum(rate(penstock_tokens_total{type=\"guessed\"}[5m]))",
        "sum by (backend) (rate(penstock_errors_total[5m]))",
        "histogram_quantile(0.9, sum(rate(penstock_ttft_seconds_bucket[5m])))",
        "rate(penstock_ttft_seconds[5m])",
        "vector(1)",
    ] {
        assert!(check(bad, &shown).is_err(), "{bad}");
    }
    let none = BTreeSet::new();
    assert!(check("penstock_backend_up", &none).is_err(), "known, and not on the page");
}
