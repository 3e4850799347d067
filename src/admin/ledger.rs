//! `/usage`: the counts of the token ledger, summed up by key, model, backend or day.

use std::sync::Arc;

use penstock_api::query_value;
use serde_json::json;

use super::response::{AdminRefusal, AdminResponse, PendingResponse};
use super::{Admin, AdminCall};
use crate::observe::ledger::{Dimension, ReportQuery, ReportRow, parse_day};
use crate::observe::usage::UsageError;

/// The number of rows in a response without `n`.
pub(super) const DEFAULT_ROWS: usize = 100;
/// The maximum number of rows in a response.
pub(super) const MAX_ROWS: usize = 1000;

/// `/usage`: the sums of `by`, the largest first. `since` and `until` are days; `n` limits the
/// rows.
pub(super) fn report(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let request = read(call.query);
    let usage = Arc::clone(&admin.usage);
    Box::pin(async move {
        let (query, count) = request?;
        let ledger = usage.ledger();
        let all = ReportQuery { by: Vec::new(), ..query.clone() };
        let sum = ledger.report(all).await.map_err(UsageError::Ledger)?;
        let rows = ledger.report(query.clone()).await.map_err(UsageError::Ledger)?;
        let names: Vec<&str> = query.by.iter().map(|one| one.name()).collect();
        let shown: Vec<_> = rows.iter().take(count).map(|row| row.to_json(&query.by)).collect();
        Ok(AdminResponse::json(&json!({
            "has_file": ledger.has_file(),
            "by": names,
            "since": query.since,
            "until": query.until,
            "rows": shown,
            "has_more": rows.len() > count,
            "sum": ReportRow::sum(&sum).to_json(&[]),
        })))
    })
}

fn read(query: &str) -> Result<(ReportQuery, usize), AdminRefusal> {
    let given = |name| query_value(query, name).filter(|value| !value.is_empty());
    let mut by = Vec::new();
    for name in given("by").as_deref().unwrap_or("key").split(',') {
        let dimension = Dimension::from_name(name).ok_or(AdminRefusal::NotADimension)?;
        if !by.contains(&dimension) {
            by.push(dimension);
        }
    }
    let day = |name| {
        given(name).map(|day| parse_day(&day).ok_or(AdminRefusal::NotADay { name })).transpose()
    };
    let count = match given("n") {
        None => DEFAULT_ROWS,
        Some(count) => count.parse().map_err(|_not_a_number| AdminRefusal::NotACount)?,
    };
    let count = count.min(MAX_ROWS);
    // One more than shown, to see whether there are more.
    let limit = Some(count + 1);
    let query = ReportQuery { by, since: day("since")?, until: day("until")?, limit };
    Ok((query, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_read_or_refused() {
        let (query, count) = read("by=model,key,model&since=2026-11-01&n=5000").unwrap();
        assert_eq!(query.by, [Dimension::Model, Dimension::Key]);
        assert_eq!((query.since.as_deref(), query.until), (Some("2026-11-01"), None));
        assert_eq!(count, MAX_ROWS, "bounded");
        let (query, count) = read("").unwrap();
        assert_eq!((query.by, count), (vec![Dimension::Key], DEFAULT_ROWS));
        for wrong in ["by=client_key", "by=key;--", "since=today", "until=7", "n=-1", "n=x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
