//! The formats of `penstock usage`: a table for people, CSV for spreadsheets, JSON for programs.

use penstock_api::escape;
use serde_json::Value;

use crate::observe::ledger::{Dimension, ReportRow};

/// The longest name in a table.
pub(super) const MAX_NAME: usize = 60;
const FIGURES: [&str; 6] =
    ["requests", "estimated", "input_tokens", "output_tokens", "total_tokens", "cost"];

/// Formats a table with aligned columns and a sum below them.
pub(super) fn to_table(by: &[Dimension], rows: &[ReportRow]) -> String {
    if rows.is_empty() {
        return "nothing was counted in this time\n".to_owned();
    }
    let head = by
        .iter()
        .map(|one| one.name())
        .chain(FIGURES)
        .map(|name| name.to_uppercase().replace('_', " "));
    let mut lines: Vec<Vec<String>> = vec![head.collect()];
    lines.extend(rows.iter().map(|row| {
        let names = by.iter().zip(&row.group).map(|(dimension, name)| shown(*dimension, name));
        names.chain(figures(row, &four_digits)).collect()
    }));
    // The sum of a single row is that row.
    if rows.len() > 1 {
        let total = (0..by.len()).map(|column| if column == 0 { "total" } else { "" }.to_owned());
        lines.push(total.chain(figures(&ReportRow::sum(rows), &four_digits)).collect());
    }
    aligned(&lines, by.len())
}

/// Aligns the columns of lines: the first `names` to the left, the others to the right.
pub(super) fn aligned(lines: &[Vec<String>], names: usize) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < names { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Formats CSV (RFC 4180) with a line of names.
pub(super) fn to_csv(by: &[Dimension], rows: &[ReportRow]) -> String {
    let names: Vec<&str> = by.iter().map(|one| one.name()).chain(FIGURES).collect();
    let mut text = format!("{}\r\n", names.join(","));
    for row in rows {
        let cells = row.group.iter().map(|name| quoted(name)).chain(figures(row, &exact));
        text.push_str(&cells.collect::<Vec<_>>().join(","));
        text.push_str("\r\n");
    }
    text
}

/// Formats a JSON array of objects.
pub(super) fn to_json(by: &[Dimension], rows: &[ReportRow]) -> String {
    format!("{:#}\n", Value::Array(rows.iter().map(|row| row.to_json(by)).collect()))
}

fn figures<'a>(
    row: &'a ReportRow,
    cost: &'a dyn Fn(f64) -> String,
) -> impl Iterator<Item = String> + 'a {
    let counts = row.counts;
    let numbers = [
        counts.requests,
        counts.estimated_requests,
        counts.input_tokens,
        counts.output_tokens,
        counts.total_tokens(),
    ];
    numbers
        .into_iter()
        .map(|number| number.to_string())
        .chain([row.cost.map_or_else(String::new, cost)])
}

fn four_digits(cost: f64) -> String {
    format!("{cost:.4}")
}

fn exact(cost: f64) -> String {
    cost.to_string()
}

fn shown(dimension: Dimension, name: &str) -> String {
    if dimension == Dimension::Key && name.is_empty() {
        return "(none)".to_owned();
    }
    escape(name, MAX_NAME).to_string()
}

/// Quotes a name. Names come from backends: they must neither break the line nor be a formula in a
/// spreadsheet.
pub(super) fn quoted(name: &str) -> String {
    let is_formula = name.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let name = if is_formula { format!("'{name}") } else { name.to_owned() };
    if name.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", name.replace('"', "\"\""));
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::observe::ledger::LedgerCounts;

    fn rows() -> Vec<ReportRow> {
        let row = |key: &str, model: &str, input_tokens, cost| ReportRow {
            group: vec![key.to_owned(), model.to_owned()],
            counts: LedgerCounts {
                requests: 2,
                estimated_requests: 1,
                input_tokens,
                output_tokens: 5,
                ..LedgerCounts::default()
            },
            cost,
        };
        vec![row("", "llama3:8b", 1000, Some(0.125)), row("team-a", "=a,\"b\"", 7, None)]
    }

    const BY: [Dimension; 2] = [Dimension::Key, Dimension::Model];

    #[test]
    fn table_is_aligned_and_has_a_sum() {
        let expected = "\
KEY     MODEL      REQUESTS  ESTIMATED  INPUT TOKENS  OUTPUT TOKENS  TOTAL TOKENS    COST
(none)  llama3:8b         2          1          1000              5          1005  0.1250
team-a  =a,\"b\"            2          1             7              5            12
total                     4          2          1007             10          1017  0.1250
";
        assert_eq!(to_table(&BY, &rows()), expected);
        assert_eq!(to_table(&BY, &[]), "nothing was counted in this time\n");
    }

    #[test]
    fn csv_quotes_names_and_defuses_formulas() {
        let expected = "\
key,model,requests,estimated,input_tokens,output_tokens,total_tokens,cost\r
,llama3:8b,2,1,1000,5,1005,0.125\r
team-a,\"'=a,\"\"b\"\"\",2,1,7,5,12,\r
";
        assert_eq!(to_csv(&BY, &rows()), expected);
    }

    #[test]
    fn json_has_null_for_an_unknown_cost() {
        let parsed: Value = serde_json::from_str(&to_json(&BY, &rows())).unwrap();
        assert_eq!(parsed[0]["total_tokens"], 1005);
        assert_eq!((&parsed[1]["cost"], &parsed[0]["key"]), (&Value::Null, &json!("")));
    }
}
