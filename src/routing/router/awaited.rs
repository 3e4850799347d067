//! What a request waits for that no backend can take now.

use std::time::Duration;

use super::super::RouteInput;
use super::super::filters::{self, RejectReason};
use super::super::prediction;
use super::{Considered, Router};
use crate::fleet::BackendSet;
use crate::units::Timestamp;

/// The cooldowns that cover a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cooling {
    /// The backends that could take the request but for them.
    pub backends: BackendSet,
    /// When the first of them ends.
    pub until: Timestamp,
    /// 503 where one of them came from a 503, else 429.
    pub status: u16,
}

/// How long the first token of a request takes once a backend takes it. A request that waits has to be sent so long before
/// its objective ends: by the 90th percentile it still meets it most probably, by the mean it is as good as late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceTime {
    /// On average.
    pub mean: Duration,
    /// The 90th percentile.
    pub p90: Duration,
}

impl Router {
    /// The model that a request waits for where its backends are full, and those that could take the request if
    /// they had room, backends of fallbacks among them where they may serve it then.
    pub fn awaited<'a>(&'a self, input: &RouteInput<'a>) -> Option<(&'a str, BackendSet)> {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut backends = BackendSet::default();
        for Considered { model, .. } in self.awaited_models(input, target) {
            for ((_, verdict), row) in filters::rejections(input, model).zip(&model.serving) {
                if verdict.err().is_none_or(|reason| !reason.is_lasting()) {
                    backends.insert(row.id);
                }
            }
        }
        let id = input.fleet.model_id(target)?;
        Some((&input.fleet.model(id)?.name, backends))
    }

    /// How long the first token of a request takes once a backend takes it, on the best one. Zero where that is not known.
    pub fn service_time(&self, input: &RouteInput<'_>) -> ServiceTime {
        if !self.predicts {
            return ServiceTime::default();
        }
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let times = self.awaited_models(input, target).flat_map(|Considered { model, .. }| {
            let sent = |row| prediction::sent_to(input, model, row);
            model.serving.iter().map(move |row| row.time_admitted(&sent(row), input.now))
        });
        let (mean, p90) = times.min_by(|(a, _), (b, _)| a.total_cmp(b)).unwrap_or_default();
        let time = |micros: f64| Duration::from_secs_f64(micros.clamp(0.0, 1e9) / 1e6);
        ServiceTime { mean: time(mean), p90: time(p90) }
    }

    /// Whether a backend without other requests would meet the objectives of a request, or one may of which too little is
    /// known.
    pub fn may_be_met(&self, input: &RouteInput<'_>) -> bool {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        self.awaited_models(input, target).any(|Considered { model, .. }| {
            model.serving.iter().any(|row| {
                let sent = prediction::sent_to(input, model, row);
                !row.estimate(&sent, input.now).is_trusted
                    || row.time_until_met(&sent, &input.objectives, input.now).is_some()
            })
        })
    }

    /// The cooldowns that cover a request on backends of these models; `None` where there are none.
    pub fn cooling<'a>(&'a self, input: &RouteInput<'a>) -> Option<Cooling> {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut all: Option<Cooling> = None;
        for Considered { model, .. } in self.awaited_models(input, target) {
            for ((_, verdict), row) in filters::rejections(input, model).zip(&model.serving) {
                if let Err(RejectReason::Cooldown { until, status, .. }) = verdict {
                    let backends = BackendSet::default();
                    let cooling = all.get_or_insert(Cooling { backends, until, status });
                    cooling.backends.insert(row.id);
                    cooling.until = cooling.until.min(until);
                    cooling.status = cooling.status.max(status);
                }
            }
        }
        all
    }

    fn awaited_models<'a, 'b>(
        &'a self,
        input: &'b RouteInput<'a>,
        target: &'a str,
    ) -> impl Iterator<Item = Considered<'b>> {
        let chain = self.names.chain(input.model, input.fleet, input.split);
        let others = chain.iter().filter(|_| self.fallback_on_saturation);
        let others = others.map(|entry| self.names.resolve(entry, input.fleet, input.split));
        std::iter::once(target).chain(others).filter_map(|name| self.consider(input, name))
    }
}
