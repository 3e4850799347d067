//! Queries of the database: tokens of a model over time, days for
//! `POST /api/aggregate_time_series_days`.

use rusqlite::params;

use super::batch::{Batch, LedgerAccount, TokenSums};
use super::database::{Database, DatabaseError, to_i64, to_u64};
use super::day::date_of;
use super::report::{Dimension, ReportQuery, ReportRow, sums};

/// The maximum number of points of a time series.
const MAX_POINTS: u32 = 50_000;
/// The points of a time series, newest first.
const SERIES: &str = "
    SELECT endpoint, input_tokens, output_tokens, timestamp FROM time_series
    WHERE model = ?1 ORDER BY timestamp DESC, endpoint LIMIT ?2";
const GROUPS: &str = "
    SELECT count(*) FROM (
        SELECT 1 FROM usage_by_day WHERE day < date(?1, 'unixepoch') GROUP BY day, backend, model
    )";

/// The tokens of one backend in one minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    pub endpoint: String,
    /// The tokens in that minute.
    pub tokens: TokenSums,
    /// The start of the minute, in seconds since 1970.
    pub timestamp: u64,
}

/// The tokens of a model, newest first.
pub type TimeSeries = Vec<Point>;

/// The daily counts of the time before a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DailyGroups {
    /// Combinations of day, backend and model.
    pub groups: u64,
    /// Rows by minute that were deleted.
    pub deleted: u64,
}

/// Returns the newest points of a model, including those that wait to be written.
pub(super) fn time_series(
    database: Option<&Database>,
    pending: &Batch,
    model: &str,
) -> Result<TimeSeries, DatabaseError> {
    let mut points = match database {
        Some(database) => stored_points(database, model)?,
        None => Vec::new(),
    };
    for ((minute, pair), tokens) in
        pending.minutes.iter().filter(|((_, pair), _)| &*pair.model == model)
    {
        let (timestamp, endpoint) = (minute * 60, &*pair.endpoint);
        // The current minute is written in parts: a point may be half in the file and half in
        // memory.
        let same = |point: &&mut Point| point.timestamp == timestamp && point.endpoint == endpoint;
        match points.iter_mut().find(same) {
            Some(point) => point.tokens.add(*tokens),
            None => {
                points.push(Point { endpoint: endpoint.to_owned(), tokens: *tokens, timestamp })
            }
        }
    }
    points.sort_by(|one, other| {
        other.timestamp.cmp(&one.timestamp).then_with(|| one.endpoint.cmp(&other.endpoint))
    });
    points.truncate(usize::try_from(MAX_POINTS).unwrap_or(usize::MAX));
    Ok(points)
}

fn stored_points(database: &Database, model: &str) -> Result<TimeSeries, DatabaseError> {
    let mut select = database.connection().prepare(SERIES)?;
    let rows = select.query_map(params![model, MAX_POINTS], |row| {
        let tokens = TokenSums { input: to_u64(row.get(1)?), output: to_u64(row.get(2)?) };
        Ok(Point { endpoint: row.get(0)?, tokens, timestamp: to_u64(row.get(3)?) })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the combinations of day, backend and model before a Unix time; `deletes` removes the
/// rows by minute. The rows by day are kept, so repeated calls count nothing twice.
pub(super) fn daily_groups(
    database: &Database,
    before: u64,
    deletes: bool,
) -> Result<DailyGroups, DatabaseError> {
    let groups = database.connection().query_row(GROUPS, [to_i64(before)], |row| row.get(0))?;
    let deleted = if deletes { database.delete_before(before)? } else { 0 };
    Ok(DailyGroups { groups: to_u64(groups), deleted: u64::try_from(deleted).unwrap_or(0) })
}

/// Returns the sums of `query`, the largest first, including counts that wait to be written.
pub(super) fn report(
    database: Option<&Database>,
    pending: &Batch,
    query: &ReportQuery,
) -> Result<Vec<ReportRow>, DatabaseError> {
    let mut rows = match database {
        Some(database) => sums(database.connection(), query)?,
        None => Vec::new(),
    };
    for ((day, account), row) in &pending.days {
        let day = date_of(*day);
        let is_before = query.since.as_ref().is_some_and(|since| day < *since);
        if is_before || query.until.as_ref().is_some_and(|until| day > *until) {
            continue;
        }
        let group: Vec<String> = query.by.iter().map(|by| value(*by, &day, account)).collect();
        match rows.iter_mut().find(|row| row.group == group) {
            Some(same) => same.add(&row.counts, row.cost),
            None => rows.push(ReportRow { group, counts: row.counts, cost: row.cost }),
        }
    }
    rows.sort_by(|one, other| {
        let size = |row: &ReportRow| (row.counts.total_tokens(), row.counts.requests);
        size(other).cmp(&size(one)).then_with(|| one.group.cmp(&other.group))
    });
    // Only after the merge: a group may be among the largest because of what is not yet written.
    rows.truncate(query.limit.unwrap_or(usize::MAX));
    Ok(rows)
}

fn value(dimension: Dimension, day: &str, account: &LedgerAccount) -> String {
    match dimension {
        Dimension::Day => day.to_owned(),
        Dimension::Model => account.model.to_string(),
        Dimension::Backend => account.backend.to_string(),
        Dimension::Key => account.key.to_string(),
    }
}
