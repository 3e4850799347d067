//! Reads the database of a ledger, even while a process writes it: sums by day, backend, model or
//! key.

use std::path::Path;

use penstock_core::admission::budgets::Spending;
use rusqlite::{Connection, params_from_iter};
use serde_json::{Map, Value, json};

use super::counts::LedgerCounts;
use super::database::{DatabaseError, FILE, spent_since, to_u64};

penstock_api::named! {
    /// A dimension by which rows are grouped.
    pub enum Dimension {
        /// The day in UTC.
        Day = "day",
        Model = "model",
        Backend = "backend",
        /// The name of the client's key.
        Key = "key",
    }
}

impl Dimension {
    /// Returns the dimension called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    fn column(self) -> &'static str {
        match self {
            // `key` alone is a word of SQL.
            Self::Key => "client_key",
            Self::Day | Self::Model | Self::Backend => self.name(),
        }
    }
}

/// The parameters of a report.
#[derive(Debug, Clone, Default)]
pub struct ReportQuery {
    /// The dimensions by which rows are grouped, in this order; one row for everything if empty.
    pub by: Vec<Dimension>,
    /// The first day, as 2026-11-23.
    pub since: Option<String>,
    pub until: Option<String>,
    /// The maximum number of rows, those with the most tokens first; `None` for all rows, ordered
    /// by name.
    pub limit: Option<usize>,
}

/// The sums of the requests with the same dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportRow {
    /// The values of the dimensions, in the order of [`ReportQuery::by`].
    pub group: Vec<String>,
    /// The counts of the row.
    pub counts: LedgerCounts,
    /// Their cost; `None` if no model has a price.
    pub cost: Option<f64>,
}

impl ReportRow {
    pub fn sum(rows: &[Self]) -> Self {
        let mut sum = Self { group: Vec::new(), counts: LedgerCounts::default(), cost: None };
        for row in rows {
            sum.add(&row.counts, row.cost);
        }
        sum
    }

    /// Adds other counts and their cost.
    pub(super) fn add(&mut self, counts: &LedgerCounts, cost: Option<f64>) {
        self.counts.add(counts);
        self.cost = cost.map_or(self.cost, |more| Some(self.cost.unwrap_or(0.0) + more));
    }

    /// Returns the row as a JSON object: a key per dimension, then the counts; an unknown cost is
    /// null.
    pub fn to_json(&self, by: &[Dimension]) -> Value {
        let names = by.iter().zip(&self.group);
        let mut object: Map<String, Value> =
            names.map(|(dimension, name)| (dimension.name().to_owned(), json!(name))).collect();
        let figures = [
            ("requests", self.counts.requests),
            ("estimated", self.counts.estimated_requests),
            ("input_tokens", self.counts.input_tokens),
            ("output_tokens", self.counts.output_tokens),
            ("total_tokens", self.counts.total_tokens()),
        ];
        object.extend(figures.map(|(name, count)| (name.to_owned(), json!(count))));
        object.insert("cost".to_owned(), json!(self.cost));
        Value::Object(object)
    }
}

/// Sums up the database at `path`.
///
/// # Errors
/// When it cannot be read or is not a ledger.
pub fn report(path: &Path, query: &ReportQuery) -> Result<Vec<ReportRow>, DatabaseError> {
    sums(&FILE.open_to_read(path)?, query)
}

/// Returns what was spent of budgets since a time, by the database at `path`.
///
/// # Errors
/// When it cannot be read or is not a ledger.
pub fn spent(path: &Path, oldest: u64) -> Result<Vec<Spending>, DatabaseError> {
    let connection = FILE.open_to_read(path)?;
    let find = "SELECT count(*) FROM sqlite_schema WHERE name = 'budget_spending'";
    // The file of an earlier version has no such table until penstock writes to it.
    let tables: i64 = connection.query_row(find, [], |row| row.get(0))?;
    if tables == 0 { Ok(Vec::new()) } else { spent_since(&connection, oldest) }
}

/// Sums up an open database.
pub(super) fn sums(
    connection: &Connection,
    query: &ReportQuery,
) -> Result<Vec<ReportRow>, DatabaseError> {
    let columns: Vec<&str> = query.by.iter().map(|one| one.column()).collect();
    let (mut conditions, mut values) = (Vec::new(), Vec::new());
    for (operator, day) in [(">=", &query.since), ("<=", &query.until)] {
        if let Some(day) = day {
            values.push(day);
            conditions.push(format!("day {operator} ?{}", values.len()));
        }
    }
    let list = |words: &[&str]| words.iter().map(|word| format!("{word}, ")).collect::<String>();
    let mut sql = format!(
        "SELECT {}sum(requests), sum(estimated_requests), sum(input_tokens), sum(output_tokens), \
         sum(cost) FROM usage_by_day",
        list(&columns)
    );
    if !conditions.is_empty() {
        sql.push_str(&format!(" WHERE {}", conditions.join(" AND ")));
    }
    if columns.is_empty() {
        // Without groups, SQL has one row of nulls for an empty table.
        sql.push_str(" HAVING count(*) > 0");
    } else {
        let columns = columns.join(", ");
        sql.push_str(&format!(" GROUP BY {columns} ORDER BY "));
        match query.limit {
            None => sql.push_str(&columns),
            Some(limit) => sql.push_str(&format!(
                "sum(input_tokens + output_tokens) DESC, sum(requests) DESC, {columns} LIMIT {limit}"
            )),
        }
    }
    let mut select = connection.prepare(&sql)?;
    let groups = columns.len();
    let rows = select.query_map(params_from_iter(values), |row| {
        let count = |position: usize| row.get(groups + position).map(to_u64);
        Ok(ReportRow {
            group: (0..groups).map(|position| row.get(position)).collect::<Result<_, _>>()?,
            counts: LedgerCounts {
                requests: count(0)?,
                estimated_requests: count(1)?,
                input_tokens: count(2)?,
                output_tokens: count(3)?,
                ..LedgerCounts::default()
            },
            cost: row.get(groups + 4)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Checks that a process can use `path`; the folder of a missing file must exist.
pub(super) fn check(path: &Path) -> Result<(), DatabaseError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.exists() {
        // To read only: a check must not bring the tables to a newer version.
        FILE.open_to_read(path).map(drop)
    } else if folder.is_none_or(Path::is_dir) {
        Ok(())
    } else {
        Err(std::io::Error::new(std::io::ErrorKind::NotFound, "its folder does not exist").into())
    }
}
