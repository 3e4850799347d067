//! The reference tables. Each is rendered from a table of the code, into every page that has a
//! place for it: `<!-- generated: NAME -->` up to `<!-- end -->`.

use std::collections::BTreeSet;
use std::fmt::Write;

use penstock::observe::metrics::metric_rows;
use penstock_api::{BodyFormat, ERROR_CODES, OLLAMA_ROUTES, OPERATIONS, OllamaRoute};
use penstock_config::{json_schema, known_variables};
use penstock_scoring::{PRESETS, SCORERS};
use serde_json::Value;

use super::{performance, simulation, succeed};
use crate::support::markdown::table;
use crate::support::penstock::Penstock;

/// Writes one table.
type Render = fn() -> String;

/// The tables by name.
pub(super) const TABLES: &[(&str, Render)] = &[
    ("bench-averages", performance::averages),
    ("bench-bodies", performance::bodies),
    ("bench-clients", performance::clients),
    ("bench-decisions", performance::decisions),
    ("bench-machine", performance::machine),
    ("bench-percentiles", performance::percentiles),
    ("bench-scanner", performance::scanner),
    ("bench-telemetry", performance::telemetry),
    ("bench-weighted", performance::weighted),
    ("cli", cli),
    ("config", config),
    ("endpoints", endpoints),
    ("engine-errors", simulation::errors),
    ("engine-rows", simulation::rows),
    ("policies", simulation::policies),
    ("worlds", simulation::worlds),
    ("goodput", simulation::goodput),
    ("sheds", simulation::sheds),
    ("errors", errors),
    ("metrics", metrics),
    ("ollama-routes", ollama_routes),
    ("operations", operations),
    ("presets", presets),
    ("scorers", scorers),
];

const START: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

/// Returns the page with every table as the code and the kept rows have it now, and the names of
/// the code's tables.
pub(super) fn fill(text: &str) -> (String, Vec<String>) {
    let mut filled = String::new();
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once(START) {
        let (name, from) = from.split_once(" -->\n").unwrap();
        let (old, after) = from.split_once(END).unwrap_or_else(|| panic!("{name} has no end"));
        let table = match name.strip_prefix("rig-") {
            Some(run) => performance::rig(run).unwrap_or_else(|| old.to_owned()),
            None => {
                names.push(name.to_owned());
                let table = TABLES.iter().find(|table| table.0 == name);
                table.unwrap_or_else(|| panic!("no table is called {name}")).1()
            }
        };
        write!(filled, "{before}{START}{name} -->\n{table}{END}").unwrap();
        rest = after;
    }
    filled.push_str(rest);
    (filled, names)
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn codes(texts: &[&str]) -> String {
    texts.iter().map(|text| code(text)).collect::<Vec<_>>().join(", ")
}

fn errors() -> String {
    let mut rows: Vec<_> = ERROR_CODES.iter().collect();
    rows.sort_by_key(|row| row.status);
    let cells = |row: &&penstock_api::ErrorRow| {
        vec![row.status.to_string(), code(row.name), row.when.to_owned()]
    };
    table(&["status", "code", "when"], rows.iter().map(cells))
}

fn metrics() -> String {
    let rows = metric_rows().map(|row| {
        vec![code(row.name), row.kind.name().to_owned(), codes(row.labels), row.meaning.to_owned()]
    });
    table(&["metric", "kind", "labels", "meaning"], rows)
}

fn endpoints() -> String {
    let penstock = Penstock::start("backends: []");
    let list = penstock.admin("/").text();
    let methods = ["GET ", "POST ", "PATCH ", "DELETE "];
    let rows = list.lines().filter(|line| methods.iter().any(|method| line.starts_with(method)));
    let cells = |line: &str| {
        let (verb, rest) = line.split_once(' ').unwrap();
        let (path, about) = rest.trim_start().split_once(' ').unwrap();
        vec![format!("{verb} `{path}`"), about.trim_start().to_owned()]
    };
    table(&["endpoint", "what"], rows.map(cells))
}

fn operations() -> String {
    let rows = OPERATIONS.iter().filter(|row| !row.paths.is_empty()).map(|row| {
        let dialect = row.dialect.row().name;
        let body = match row.body {
            BodyFormat::Json => "JSON",
            BodyFormat::Multipart => "multipart form",
        };
        let others = codes(row.paths.get(1..).unwrap_or_default());
        let path = format!("POST `{}`", row.paths.first().unwrap());
        vec![path, others, code(row.name), dialect.to_owned(), body.to_owned()]
    });
    table(&["path", "also as", "operation", "dialect", "body"], rows)
}

fn ollama_routes() -> String {
    let rows = OLLAMA_ROUTES.iter().map(|row| {
        let rest = if matches!(row.route, OllamaRoute::Blob(_)) { "{digest}" } else { "" };
        vec![format!("{} `{}{rest}`", row.methods, row.path), row.what.to_owned()]
    });
    table(&["path", "response"], rows)
}

fn scorers() -> String {
    let rows = SCORERS.iter().map(|row| {
        let (formula, unknown) = (row.formula.to_owned(), row.unknown.to_owned());
        vec![code(row.name), formula, unknown, codes(row.params), row.source.to_owned()]
    });
    table(&["scorer", "score", "unknown", "parameters", "source"], rows)
}

fn presets() -> String {
    let rows = PRESETS.iter().map(|preset| {
        let weight = |(name, weight): &(&str, f64)| format!("`{name}` {weight}");
        let scorers: Vec<String> = preset.scorers.iter().map(weight).collect();
        vec![code(preset.name), scorers.join(", "), preset.about.to_owned()]
    });
    table(&["preset", "scorers", "what"], rows)
}

/// The help of every command that does something.
fn cli() -> String {
    let mut text = String::new();
    add_command(&mut Vec::new(), &mut text);
    text
}

fn add_command(command: &mut Vec<&str>, text: &mut String) {
    let mut arguments = command.clone();
    arguments.push("--help");
    let help = succeed(&arguments, "");
    let name = [&["penstock"], command.as_slice()].concat().join(" ");
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    writeln!(text, "\n## {name}\n\n```text\n{}\n```", help.join("\n")).unwrap();
    let commands = help.iter().skip_while(|line| **line != "Commands:").skip(1);
    let names = commands.take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.split_whitespace().next());
    for inner in names.filter(|name| *name != "help").map(str::to_owned).collect::<Vec<_>>() {
        let mut deeper: Vec<&str> = command.clone();
        deeper.push(&inner);
        add_command(&mut deeper, text);
    }
}

/// A section each, in the order of the configuration's own schema.
fn config() -> String {
    let schema = json_schema();
    let variables: BTreeSet<String> = known_variables().into_iter().collect();
    let file = schema["anyOf"].as_array().unwrap().iter().find(|one| one["properties"].is_object());
    let mut text = String::new();
    for (name, section) in file.unwrap()["properties"].as_object().unwrap() {
        let mut rows = Vec::new();
        add_options(section, name, &variables, &mut rows);
        let about = section["description"].as_str().unwrap_or_default();
        let columns = ["option", "value", "default", "environment", "meaning"];
        write!(text, "\n## {name}\n\n{about}\n\n{}", table(&columns, rows.into_iter())).unwrap();
    }
    text
}

fn add_options(
    schema: &Value,
    path: &str,
    variables: &BTreeSet<String>,
    rows: &mut Vec<Vec<String>>,
) {
    for one in schema["anyOf"].as_array().into_iter().flatten() {
        add_options(one, path, variables, rows);
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        let variable = format!("PENSTOCK_{}", path.replace('.', "_").to_uppercase());
        let variable = if variables.contains(&variable) { code(&variable) } else { String::new() };
        let about = inner["description"].as_str().unwrap_or_default().to_owned();
        let mut values = Vec::new();
        add_values(inner, &mut values);
        let is_required =
            schema["required"].as_array().is_some_and(|all| all.contains(&key.as_str().into()));
        let default = if is_required { "required".to_owned() } else { default(inner) };
        rows.push(vec![code(&path), values.join(" or "), default, variable, about]);
        add_options(inner, &path, variables, rows);
    }
    if schema["items"].is_object() {
        add_options(&schema["items"], &format!("{path}[]"), variables, rows);
    }
    if schema["additionalProperties"].is_object() {
        add_options(&schema["additionalProperties"], &format!("{path}.*"), variables, rows);
    }
}

fn default(schema: &Value) -> String {
    match &schema["default"] {
        Value::Null => String::new(),
        Value::String(text) => code(text),
        Value::Array(items) if items.iter().any(Value::is_object) => String::new(),
        other => code(&other.to_string()),
    }
}

/// Adds the allowed values, in words.
fn add_values(schema: &Value, found: &mut Vec<String>) {
    let mut add = |text: String| {
        if !found.contains(&text) {
            found.push(text);
        }
    };
    if let Some(names) = schema["enum"].as_array() {
        names.iter().for_each(|name| add(code(name.as_str().unwrap_or(&name.to_string()))));
    } else if let Some(pattern) = schema["pattern"].as_str() {
        add(kind_of(pattern).to_owned());
    } else if schema["items"].is_object() {
        add("list".to_owned());
    } else if schema["properties"].is_object() || schema["additionalProperties"].is_object() {
        add("mapping".to_owned());
    } else {
        match schema["type"].as_str() {
            Some("boolean") => add("`true` or `false`".to_owned()),
            Some("integer") => add("whole number".to_owned()),
            Some("number") => add("number".to_owned()),
            Some("null") => {}
            _ if schema["type"].is_array() => add("text".to_owned()),
            _ => {}
        }
    }
    for one in schema["anyOf"].as_array().into_iter().flatten() {
        add_values(one, found);
    }
}

fn kind_of(pattern: &str) -> &'static str {
    let kinds = [
        ("(us|ms|s|m|h)", "duration"),
        ("(B|KiB|MiB|GiB)/s", "size per second"),
        ("(B|KiB|MiB|GiB)", "size"),
        ("[hH][tT][tT][pP]", "URL"),
        ("rediss?://", "URL"),
        ("sha256:", "SHA-256 hash"),
        ("[Tt][0-9]{2}", "time (RFC 3339)"),
        ("unix:/", "address"),
        ("unix)", "address or network"),
        ("^.+:[0-9]+$", "address"),
        ("^/", "path"),
    ];
    let found = kinds.iter().find(|(part, _)| pattern.contains(part));
    found.unwrap_or_else(|| panic!("a pattern without a name: {pattern}")).1
}
