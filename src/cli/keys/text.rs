//! Keys as text: a table, or one line for each attribute.

use serde_json::Value;

const COLUMNS: [&str; 7] = ["id", "name", "team", "state", "key", "created_at", "expires_at"];
const TOKEN_COLUMNS: [&str; 4] = ["jti", "issuer", "revoked_at", "expires_at"];

pub(super) fn to_table(keys: &[Value]) -> String {
    if keys.is_empty() {
        return "there are no keys: penstock keys create --name NAME makes one\n".to_owned();
    }
    table(COLUMNS, keys)
}

pub(super) fn revoked_table(tokens: &[Value]) -> String {
    if tokens.is_empty() {
        return "there are no revoked tokens\n".to_owned();
    }
    table(TOKEN_COLUMNS, tokens)
}

fn table<const N: usize>(columns: [&str; N], rows: &[Value]) -> String {
    let head = columns.map(|name| name.to_uppercase().replace('_', " "));
    let mut lines = vec![head];
    lines.extend(rows.iter().map(|row| columns.map(|column| cell(row, column))));
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn cell(key: &Value, column: &str) -> String {
    match column {
        "key" => format!("…{}", plain(&key["last_four"])),
        _ => plain(&key[column]),
    }
}

/// Returns one line for each attribute of a key.
pub(super) fn to_lines(key: &Value) -> String {
    let fields = key.as_object().into_iter().flatten();
    let width = fields.clone().map(|(name, _)| name.len()).max().unwrap_or(0);
    fields.map(|(name, value)| format!("{name:width$}  {}\n", plain(value))).collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
