//! The counts and limits of ensembles. An ensemble costs seven calls, so it has limits: for all
//! clients together and for each key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_api::{ErrorCode, KindCounters};
use penstock_core::routing::EnsembleStage;

use crate::downstream::counted::Counted;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::RequestContext;

/// The time after which a refused client should try again: an ensemble takes its time.
const RETRY_AFTER: Duration = Duration::from_secs(5);

penstock_api::named! {
    pub(crate) enum EnsembleEnd {
        /// The client got a response of the model.
        Served = "served",
        /// No draft came, or the final call failed.
        Failed = "failed",
        Cancelled = "cancelled",
        /// A limit was reached.
        Refused = "refused",
    }
}

/// The counts of ensembles since the start.
#[derive(Debug, Default)]
pub struct EnsembleFigures {
    ends: KindCounters<{ EnsembleEnd::ALL.len() }>,
    /// Calls that came and calls that failed, by stage.
    calls: [KindCounters<2>; EnsembleStage::ALL.len()],
    in_flight: Arc<AtomicUsize>,
}

impl EnsembleFigures {
    /// The number of ensembles by their end.
    pub fn ends(&self) -> impl Iterator<Item = (&'static str, u64)> {
        EnsembleEnd::ALL.map(EnsembleEnd::name).into_iter().zip(self.ends.read())
    }

    /// Drafts and critiques: stage, outcome and count.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let stages = EnsembleStage::ALL.iter().zip(&self.calls);
        let stages = stages.filter(|(stage, _)| **stage != EnsembleStage::Final);
        stages.flat_map(|(stage, counts)| {
            let named = ["ok", "failed"].into_iter().zip(counts.read());
            named.map(|(outcome, count)| (stage.name(), outcome, count))
        })
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    pub(crate) fn count(&self, end: EnsembleEnd) {
        self.ends.count(end as usize);
    }

    pub(crate) fn count_call(&self, stage: EnsembleStage, is_ok: bool) {
        if let Some(counts) = self.calls.get(stage as usize) {
            counts.count(usize::from(!is_ok));
        }
    }
}

/// Ensembles in flight by the id of their client. Keys without one are removed.
type ByKey = Arc<Mutex<HashMap<Arc<str>, usize>>>;

/// The ensembles in flight.
#[derive(Debug, Default)]
pub(crate) struct Ensembles {
    pub(crate) figures: EnsembleFigures,
    pub(crate) calls: Arc<AtomicUsize>,
    by_key: ByKey,
}

impl Ensembles {
    /// Takes a slot for the ensemble of a client.
    ///
    /// # Errors
    /// When there are too many, or the client's key may have none.
    pub(crate) fn take(&self, ctx: &RequestContext) -> Result<EnsembleSlot, OwnError> {
        let config = &ctx.generation.config;
        let client = ctx.identity.as_ref();
        let of_key = client.and_then(|client| Some((&client.id, client.ensembles?)));
        if let Some((_, 0)) = of_key {
            let message = "This key may not use ensembles";
            let error = OwnError::new(ErrorCode::ModelNotAllowed, message);
            return Err(error.about(Some("model")));
        }
        let limit = config.ensembles.in_flight;
        let in_flight = Counted::try_new(&self.figures.in_flight, limit).ok_or_else(|| {
            too_many(format!("{limit} ensembles are in flight (ensembles.in_flight)"))
        })?;
        // Made before the key's limit is checked: from here on every return frees the slot.
        let mut slot = EnsembleSlot { _in_flight: in_flight, of_key: None };
        if let Some((id, limit)) = of_key {
            let mut counts = self.by_key.lock();
            let count = counts.entry(Arc::clone(id)).or_default();
            if *count >= limit {
                let message = format!("{limit} ensembles of this key are in flight");
                return Err(too_many(message));
            }
            *count += 1;
            slot.of_key = Some((Arc::clone(&self.by_key), Arc::clone(id)));
        }
        Ok(slot)
    }
}

fn too_many(message: String) -> OwnError {
    OwnError::new(ErrorCode::TooManyEnsembles, message).after(RETRY_AFTER)
}

/// The slot of an ensemble among those in flight.
#[derive(Debug)]
pub(crate) struct EnsembleSlot {
    _in_flight: Counted,
    of_key: Option<(ByKey, Arc<str>)>,
}

impl Drop for EnsembleSlot {
    fn drop(&mut self) {
        let Some((counts, name)) = self.of_key.take() else { return };
        let mut counts = counts.lock();
        if let Some(count) = counts.get_mut(&name) {
            *count = count.saturating_sub(1);
            // Otherwise the table would grow with every key that was ever used.
            if *count == 0 {
                counts.remove(&name);
            }
        }
    }
}
