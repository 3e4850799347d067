//! Reads at start from the files of earlier processes: client keys, money spent, the day's tokens;
//! and shares what they know.

use std::sync::Arc;
use std::time::Duration;

use penstock_clock::{now, unix_seconds};
use penstock_config::Config;
use penstock_core::admission::budgets::Budgets;
use penstock_core::admission::rate_limits::LimitTime;
use penstock_core::clients::token_client_of;
use penstock_core::routing::Generation;

use super::ServerError;
use crate::key_store::{KeyStore, StoreLimits};
use crate::lifecycle::ShutdownHook;
use crate::observe::ledger::{Dimension, Ledger, ReportQuery, parse_day, report};
use crate::proxy::Proxy;
use crate::shared_state::{SharedBudgets, SharedState};

/// Opens the store of client keys, if there is one. Unlike the ledger it must be usable: without it
/// nothing says which keys were revoked.
pub(super) fn open_key_store(config: &Config) -> Result<Option<Arc<KeyStore>>, ServerError> {
    let Some(path) = config.auth.store.as_deref() else { return Ok(None) };
    let failed = |source| ServerError::key_store(path, source);
    let store = KeyStore::open(path, StoreLimits::of(&config.auth)).map_err(failed)?;
    let store = Arc::new(store);
    store.watch().map_err(|error| failed(error.into()))?;
    Ok(Some(store))
}

/// Opens the ledger, and reads from it what was spent of budgets.
pub(super) fn open_ledger(
    generation: &Generation,
) -> Result<(Arc<Ledger>, Arc<Budgets>), ServerError> {
    let budgets = Arc::new(Budgets::new(&generation.config));
    let ledger = Ledger::start(generation, Arc::clone(&budgets)).map_err(ServerError::Ledger)?;
    Ok((Arc::new(ledger), budgets))
}

/// Restores the tokens that keys have used today from the ledger, so that a restart does not reset
/// their day.
pub(super) fn restore_days(config: &Config, proxy: &Proxy) {
    // Limits per minute recover by themselves soon; only the day outlives a restart.
    let ids = proxy.day_limited();
    let are_tokens_limited =
        !config.auth.jwt.is_empty() && config.auth.limits.tokens_per_day.is_some();
    let has_limits = !ids.is_empty() || are_tokens_limited;
    let Some(path) = config.ledger.path.as_deref().filter(|_| has_limits) else { return };
    let today =
        ReportQuery { by: vec![Dimension::Key], since: parse_day("0d"), ..ReportQuery::default() };
    let rows = report(path, &today).unwrap_or_else(|error| {
        tracing::warn!(%error, "tokens_per_day starts at 0: the token ledger cannot be read");
        Vec::new()
    });
    for row in rows {
        let Some(account) = row.group.first() else { continue };
        let id = ids.get(account.as_str()).map(|id| &**id);
        let of_token = || token_client_of(account).filter(|_| are_tokens_limited);
        if let Some(id) = id.or_else(of_token) {
            let now = LimitTime { at: now(), unix: unix_seconds() };
            proxy.rates.restore_day(id, row.counts.total_tokens(), now);
        }
    }
}

/// Shares budgets, also without any at the start: a reload may bring some.
pub(super) fn share_budgets(
    shared: Option<&Arc<SharedState>>,
    budgets: &Arc<Budgets>,
    ledger: &Ledger,
) -> Option<Arc<SharedBudgets>> {
    let shared = Arc::clone(shared?);
    Some(SharedBudgets::new(shared, Arc::clone(budgets), ledger.identity()))
}

/// Returns a hook that reports what was spent before the process exits.
pub(super) fn report_budgets(budgets: Arc<SharedBudgets>) -> ShutdownHook {
    const MAX_FLUSH: Duration = Duration::from_secs(2);
    Box::new(move || budgets.flush(MAX_FLUSH))
}
