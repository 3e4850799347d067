//! The capacity that a request waits for while no backend can take it.

use std::time::Duration;

use penstock_api::units::{Timestamp, whole_seconds};
use penstock_predict::{MAX_LOOKAHEAD, RequestShape};

use super::super::RouteInput;
use super::super::filters::{self, Conditions, RejectReason};
use super::super::prediction;
use super::{Router, work_limits};
use crate::fleet::{BackendSet, Model, ModelId, Openings, Serving};

/// The cooldowns that cover a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cooling {
    /// The backends that they keep the request from.
    pub backends: BackendSet,
    /// The end of the first of them.
    pub until: Timestamp,
    /// 503 if one of them came from a 503, else 429.
    pub status: u16,
}

/// The queue to join while all backends are full, and the backends to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedRoom<'a> {
    /// The model whose queue it joins.
    pub model: &'a str,
    /// The backends that could take it if they had room.
    pub backends: BackendSet,
    /// True if one of them has room that is reserved for owners below their share.
    pub is_held_back: bool,
}

/// The line of refused requests that return to the same room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReturnLine<'a> {
    /// Backends that bound the requests of all their models together.
    Backends(BackendSet),
    /// A model whose own requests are bounded, too.
    Model(&'a str),
}

/// The time to first token of a request, counted from the moment a backend takes it. A waiting
/// request must be sent this long before its objective ends: sent by the 90th percentile it very
/// probably meets it, sent by the mean it is as good as late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceTime {
    pub mean: Duration,
    pub p90: Duration,
}

/// The shortest time that a request takes an idle backend for.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// The estimated wait of a request that is refused now, if nothing else arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    /// The time until the first backend meets its objectives; `None` if not even an idle one would.
    pub(super) until_met: Option<Duration>,
    /// The time until one is idle: an idle backend refuses none.
    pub(super) until_idle: Duration,
    /// The time between two such requests that could be served from then on.
    pub(super) interval: Duration,
}

impl Awaited {
    /// Examines all backends that could take the request: the picked one may be too slow although
    /// another is free in a moment.
    pub(super) fn of(input: &RouteInput<'_>, model: ModelId) -> Self {
        let mut soonest =
            Self { until_met: None, until_idle: MAX_LOOKAHEAD, interval: Duration::from_secs(1) };
        let Some(model) = input.fleet.model(model) else { return soonest };
        let rows = || {
            let rows = filters::rejections(input, model).zip(&model.serving);
            rows.filter_map(|((_, verdict), row)| {
                // A cooldown after its own 429 or 503 keeps requests away until it ends.
                let cooldown = match verdict {
                    Err(RejectReason::Cooldown { until, .. }) => until.since(input.now),
                    Err(reason) if reason.is_lasting() => return None,
                    Ok(()) | Err(_) => Duration::ZERO,
                };
                Some((row, prediction::shape_on(input, model, row), cooldown))
            })
        };
        for (row, shape, cooldown) in rows() {
            let met = row.time_until_met(&shape, &input.objectives, input.now);
            let met = met.map(|wait| wait.max(cooldown));
            soonest.until_met = soonest.until_met.into_iter().chain(met).min();
            let idle = row.time_until_idle(&shape, input.now).max(cooldown);
            soonest.until_idle = soonest.until_idle.min(idle);
        }
        if soonest.until_met.is_none() {
            // Each takes an idle backend, which is idle again at its end.
            let usual = |row: &Serving| row.usual_duration().unwrap_or(soonest.until_idle);
            let rates = rows().map(|(row, ..)| 1.0 / usual(row).max(MIN_INTERVAL).as_secs_f64());
            let interval = Duration::try_from_secs_f64(1.0 / rates.sum::<f64>());
            return Self { interval: interval.unwrap_or(MAX_LOOKAHEAD), ..soonest };
        }
        // `Retry-After` has whole seconds.
        let wait = whole_seconds(soonest.wait());
        let met =
            |(row, shape, cooldown): (&Serving, RequestShape, Duration)| match wait >= cooldown {
                true => row.met_together(&shape, &input.objectives, wait, input.now),
                false => 0,
            };
        let together: u32 = rows().map(met).sum();
        soonest.interval = Duration::from_secs(1) / together.max(1);
        soonest
    }

    /// Returns the time until it could be served.
    pub(super) fn wait(&self) -> Duration {
        self.until_met.unwrap_or(self.until_idle)
    }
}

impl Router {
    /// Returns the queue to join while the backends of the model are full, and every backend that
    /// could take the request once it has room. Those of fallbacks count if they may serve it then.
    pub fn awaited<'a>(&'a self, input: &RouteInput<'a>) -> Option<AwaitedRoom<'a>> {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut backends = BackendSet::default();
        let mut is_held_back = false;
        for (input, model) in self.awaited_models(input, target) {
            // Others need not wait behind it: such a request waits for the room of few backends.
            let only_cached = self.weighs_predictions(self.strategy_of(model, input.now))
                && work_limits::within(&input, model, Conditions::LENIENT).only_cached;
            for ((_, verdict), row) in filters::rejections(&input, model).zip(&model.serving) {
                is_held_back |= verdict == Err(RejectReason::Kept);
                let may_take = verdict.err().is_none_or(|reason| !reason.is_lasting());
                if may_take && (!only_cached || prediction::has_prompt(&input, model, row)) {
                    backends.insert(row.id);
                }
            }
        }
        let id = input.fleet.model_id(target)?;
        Some(AwaitedRoom { model: &input.fleet.model(id)?.name, backends, is_held_back })
    }

    /// Returns the times at which a refused request finds room if nothing else arrives, on any
    /// backend that could take it; those of fallbacks count if they may serve it then, or if
    /// `in_chain` is set. `None` if no backend could ever take it.
    pub fn openings(&self, input: &RouteInput<'_>, in_chain: bool) -> Option<Openings> {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut openings = None;
        for (input, model) in self.models_of_chain(input, target, in_chain) {
            // Backends of one model are alike, as far as nothing else is known.
            let usual = model.serving.iter().filter_map(Serving::usual_duration).max();
            for ((_, verdict), row) in filters::rejections(&input, model).zip(&model.serving) {
                if !verdict.is_err_and(RejectReason::is_lasting) {
                    let openings = openings.get_or_insert_default();
                    add_openings(&input, model, row, verdict, usual, openings);
                }
            }
        }
        openings
    }

    /// Returns the line in which a refused request waits for [`Self::openings`]. Models on the same
    /// backends share one: a slot that is promised to one of them is not there for another.
    pub fn return_line<'a>(&'a self, input: &RouteInput<'a>, in_chain: bool) -> ReturnLine<'a> {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut backends = BackendSet::default();
        for (_, model) in self.models_of_chain(input, target, in_chain) {
            for row in &model.serving {
                if row.max_in_flight_of_model < row.max_in_flight {
                    return ReturnLine::Model(target);
                }
                backends.insert(row.id);
            }
        }
        ReturnLine::Backends(backends)
    }

    /// Returns the service time of a request on the best backend; zero if unknown.
    pub fn service_time(&self, input: &RouteInput<'_>) -> ServiceTime {
        if !self.predicts {
            return ServiceTime::default();
        }
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let times = self.awaited_models(input, target).flat_map(|(input, model)| {
            let admitted = move |row: &&Serving| input.policy.restriction.admits(row);
            let shape = move |row| prediction::shape_on(&input, model, row);
            let rows = model.serving.iter().filter(admitted);
            rows.map(move |row| row.admitted_ttft(&shape(row), input.now))
        });
        let best = times.min_by(|a, b| a.mean_us.total_cmp(&b.mean_us)).unwrap_or_default();
        // A prediction may be infinite, on which the conversion would panic.
        let time = |us: f64| Duration::from_secs_f64(us.clamp(0.0, 1e9) / 1e6);
        ServiceTime { mean: time(best.mean_us), p90: time(best.p90_us) }
    }

    /// Returns the cooldowns that cover a request on its backends and fallbacks; `None` without
    /// any.
    pub fn cooling<'a>(&'a self, input: &RouteInput<'a>) -> Option<Cooling> {
        let target = self.names.resolve(input.model, input.fleet, input.split);
        let mut all: Option<Cooling> = None;
        for (input, model) in self.awaited_models(input, target) {
            for ((_, verdict), row) in filters::rejections(&input, model).zip(&model.serving) {
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

    /// Returns the models that a request may wait for, with the request as it may go there.
    fn awaited_models<'a>(
        &'a self,
        input: &RouteInput<'a>,
        target: &'a str,
    ) -> impl Iterator<Item = (RouteInput<'a>, &'a Model)> {
        self.models_of_chain(input, target, self.fallback_on_saturation)
    }

    /// Returns the model of a request, and its fallbacks if `in_chain` is set or they serve
    /// requests for which it has no room.
    fn models_of_chain<'a>(
        &'a self,
        input: &RouteInput<'a>,
        target: &'a str,
        in_chain: bool,
    ) -> impl Iterator<Item = (RouteInput<'a>, &'a Model)> {
        let input = *input;
        let chain = self.names.chain(input.model, input.fleet, input.split);
        let others = chain.iter().filter(move |_| in_chain || self.fallback_on_saturation);
        let others = others.map(move |entry| self.fall_back(&input, entry));
        std::iter::once((target, input)).chain(others).filter_map(|(name, input)| {
            Some((input, input.fleet.model(input.fleet.model_id(name)?)?))
        })
    }
}

/// Adds the times at which a request finds room on a backend that is out of the question now.
fn add_openings(
    input: &RouteInput<'_>,
    model: &Model,
    row: &Serving,
    verdict: Result<(), RejectReason>,
    usual: Option<Duration>,
    openings: &mut Openings,
) {
    let backend = input.fleet.backends.get(usize::from(row.backend));
    let health = backend.map(|backend| &backend.config.health);
    let usable_in = match verdict {
        Err(RejectReason::Cooldown { until, .. }) => until.since(input.now),
        // Only predictions say when work is done.
        Err(
            RejectReason::Backlog { .. }
            | RejectReason::Batch { .. }
            | RejectReason::Kept
            | RejectReason::NotCached,
        ) => {
            let shape = prediction::shape_on(input, model, row);
            let wait = row.time_until_room(&shape, input.now);
            return openings.add_rate(wait, wait);
        }
        Ok(()) | Err(_) => Duration::ZERO,
    };
    let recovery = health.map_or(Duration::ZERO, |it| row.state.time_until_usable(it, input.now));
    row.add_openings(usable_in.max(recovery), usual, input.now, openings);
}
