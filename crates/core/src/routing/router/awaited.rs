//! What a request waits for that no backend can take now.

use std::time::Duration;

use super::super::RouteInput;
use super::super::filters::{self, RejectReason};
use super::super::prediction;
use super::{Considered, Router};
use crate::fleet::{BackendSet, ModelId, Serving};
use penstock_api::units::{Timestamp, whole_seconds};
use penstock_predict::{LONGEST_WAIT, Sent};

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

/// The room that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedRoom<'a> {
    /// The model in whose queue it waits.
    pub model: &'a str,
    /// The backends that could take it if they had room.
    pub backends: BackendSet,
    /// Whether one of them has room that is kept for owners below their share.
    pub is_held_back: bool,
}

/// When a request that finds every backend full could be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Until a backend has room.
    pub wait: Duration,
    /// How many could be served in the second after that.
    pub together: u32,
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

/// When a request that is refused now could be served, if nothing else arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    /// Until the first of the model's backends meets its objectives; `None` where none would, not even an idle one.
    pub(super) until_met: Option<Duration>,
    /// Until one has nothing to do: an idle backend refuses none.
    pub(super) until_idle: Duration,
    /// How many like it could be served together a whole second after that.
    pub(super) together: u32,
}

impl Awaited {
    /// Looks at all backends that could take the request: the one that was picked may be too slow even
    /// where another one is free in a moment.
    pub(super) fn of(input: &RouteInput<'_>, model: ModelId) -> Self {
        let mut soonest = Self { until_met: None, until_idle: LONGEST_WAIT, together: 0 };
        let Some(model) = input.fleet.model(model) else { return soonest };
        let rows = || {
            let rows = filters::rejections(input, model).zip(&model.serving);
            rows.filter_map(|((_, verdict), row)| {
                // Its own 429 or 503 keeps requests away until then.
                let cooldown = match verdict {
                    Err(RejectReason::Cooldown { until, .. }) => until.since(input.now),
                    Err(reason) if reason.is_lasting() => return None,
                    Ok(()) | Err(_) => Duration::ZERO,
                };
                Some((row, prediction::sent_to(input, model, row), cooldown))
            })
        };
        for (row, sent, cooldown) in rows() {
            let met = row.time_until_met(&sent, &input.objectives, input.now);
            let met = met.map(|wait| wait.max(cooldown));
            soonest.until_met = soonest.until_met.into_iter().chain(met).min();
            let idle = row.time_until_idle(&sent, input.now).max(cooldown);
            soonest.until_idle = soonest.until_idle.min(idle);
        }
        // `Retry-After` has whole seconds.
        let wait = whole_seconds(soonest.wait());
        let met = |(row, sent, cooldown): (&Serving, Sent, Duration)| match wait >= cooldown {
            true => row.met_together(&sent, &input.objectives, wait, input.now),
            false => 0,
        };
        soonest.together = rows().map(met).sum();
        soonest
    }

    /// Until it could be served.
    pub(super) fn wait(&self) -> Duration {
        self.until_met.unwrap_or(self.until_idle)
    }
}

impl Router {
    /// The room that a request waits for where the backends of its model are full; those of fallbacks count where they may
    /// serve it then.
    pub fn awaited<'a>(&'a self, input: &RouteInput<'a>) -> Option<AwaitedRoom<'a>> {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut backends = BackendSet::default();
        let mut is_held_back = false;
        for Considered { model, .. } in self.awaited_models(input, target) {
            for ((_, verdict), row) in filters::rejections(input, model).zip(&model.serving) {
                is_held_back |= verdict == Err(RejectReason::Kept);
                if verdict.err().is_none_or(|reason| !reason.is_lasting()) {
                    backends.insert(row.id);
                }
            }
        }
        let id = input.fleet.model_id(target)?;
        Some(AwaitedRoom { model: &input.fleet.model(id)?.name, backends, is_held_back })
    }

    /// When the first of the backends that could take a request, all of which are at their limits, has one request less, and
    /// how many end in the second that follows, if nothing else arrives; `None` where that is not predicted.
    pub fn room(&self, input: &RouteInput<'_>) -> Option<Room> {
        if !self.predicts {
            return None;
        }
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let waits = self.awaited_models(input, target).flat_map(|Considered { model, .. }| {
            let rows = filters::rejections(input, model).zip(&model.serving);
            rows.filter_map(move |((_, verdict), row)| match verdict {
                Err(RejectReason::Cooldown { until, .. }) => Some(until.since(input.now)),
                Err(reason) if reason.is_lasting() => None,
                Ok(()) | Err(_) => {
                    Some(row.time_until_room(&prediction::sent_to(input, model, row), input.now))
                }
            })
        });
        let second = Duration::from_secs(1).as_micros();
        let (mut wait, mut per_second) = (None, 0);
        for one in waits {
            wait = Some(wait.map_or(one, |least: Duration| least.min(one)));
            per_second += second / one.as_micros().max(1000);
        }
        Some(Room { wait: wait?, together: u32::try_from(per_second).unwrap_or(u32::MAX) })
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
