//! The passes over the backends of a model: a strict one, then more lenient ones if it finds none.
//! Each pass is filters, readings, strategy.

use penstock_config::Strategy;
use penstock_scoring::{Needs, PrefixParams, RequestFeatures};

use super::{Considered, Router, work_limits};
use crate::fleet::{BackendState, ModelId};
use crate::routing::filters::{Candidacy, Conditions, Filters, RejectReason};
use crate::routing::random::RandomSource;
use crate::routing::readings;
use crate::routing::recorder::Recorder;
use crate::routing::scratch::RouteContext;
use crate::routing::strategies::{LiveReading, Picked, Rules, weighted};
use crate::routing::weighted::Weighted;

impl Router {
    // Inlined down to the pass: each call between it and `pick` costs as much as a candidate.
    #[inline(always)]
    pub(super) fn pick_of(
        &self,
        considered: Considered<'_>,
        strict: Conditions,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<Picked> {
        let picked = self.pass(considered, strict, context);
        if picked.is_some() {
            return picked;
        }
        self.pick_leniently(considered, strict, context)
    }

    /// Picks among backends that are only assumed to meet the needs. If requests may spill, also
    /// picks among backends on which the model is at its limit. Returns the conditions of the pass.
    #[inline(never)]
    pub(super) fn pick_assumed_or_spill(
        &self,
        considered: Considered<'_>,
        strict: Conditions,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<(Picked, Conditions)> {
        // A limit is exceeded only if not even an assumed capability finds room within it.
        let ways =
            [(Candidacy::Usable, false), (Candidacy::Known, true), (Candidacy::Usable, true)];
        for (candidacy, spills) in ways {
            if spills && !self.spills {
                return None;
            }
            let conditions = Conditions { candidacy, spills, ..strict };
            let picked = self.pick_of(considered, conditions, context);
            if let Some(picked) = picked {
                return Some((picked, conditions));
            }
        }
        None
    }

    /// Picks among the backends that a strict pass excluded only for a while.
    #[cold]
    #[inline(never)]
    fn pick_leniently(
        &self,
        considered: Considered<'_>,
        strict: Conditions,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<Picked> {
        // If only backends in slow start are left, they take every request; the same holds for
        // backends that fail more than others.
        let states = || considered.model.serving.iter().map(|one| &*one.state);
        let now = considered.input.now;
        let is_doubtful = |state: &BackendState| state.has_recent_faults(now) || state.is_frozen();
        let has_faults = states().any(is_doubtful);
        if has_faults || states().any(BackendState::is_in_slow_start) {
            let conditions = Conditions { ignores_slow_start: true, ..strict };
            let picked = self.pass(considered, conditions, context);
            // A working backend without room is waited for: failing ones are fast and attract
            // requests.
            if picked.is_some() || !has_faults || is_any_full(considered, conditions) {
                return picked;
            }
            let conditions = Conditions { ignores_faults: true, ..conditions };
            return self.pass(considered, conditions, context);
        }
        None
    }

    /// One pass over the backends of a model: filters, readings, strategy.
    #[inline(always)]
    fn pass<R: Recorder>(
        &self,
        considered: Considered<'_>,
        conditions: Conditions,
        context: &mut RouteContext<'_, impl RandomSource, R>,
    ) -> Option<Picked> {
        if !R::RECORDS && self.weighted_in(considered.strategy).is_none() {
            return if considered.model.has_weights() {
                self.pick_unrecorded::<true>(considered, conditions, context)
            } else {
                self.pick_unrecorded::<false>(considered, conditions, context)
            };
        }
        self.pick_by_readings(considered, conditions, context)
    }

    /// The pass that takes every reading before the strategy decides: for scorers and recorders.
    #[inline(never)]
    fn pick_by_readings<R: Recorder>(
        &self,
        considered: Considered<'_>,
        conditions: Conditions,
        context: &mut RouteContext<'_, impl RandomSource, R>,
    ) -> Option<Picked> {
        let Considered { input, model, id, strategy } = considered;
        let RouteContext { scratch, recorder, .. } = &mut *context;
        recorder.start_pass(id);
        let weighted = self.weighted_in(strategy);
        let needs = weighted.map_or(Needs::NONE, |weighted| weighted.profile().needs());
        let conditions = match needs.contains(Needs::PREDICTIONS) {
            true => work_limits::within(input, model, conditions),
            false => conditions,
        };
        let filters = Filters::new(input, model, conditions);
        let readings = &mut scratch.readings;
        readings.rows.clear();
        readings.rows.extend((0_u32..).zip(&model.serving).filter_map(|(row, candidate)| {
            recorder.filtered(row, filters.check(candidate)).then_some(row)
        }));
        if readings.rows.is_empty() {
            return None;
        }
        let needs = if R::RECORDS { needs.with(Needs::RECORDED) } else { needs };
        // Waiting prompts decide whether a session stays at home.
        let has_home = input.session.is_some_and(|session| session.home.is_some());
        let needs = if has_home { needs.with(Needs::TOKENS) } else { needs };
        readings::gather(input, model, needs, readings);
        let block_tokens = weighted.map(Weighted::block_tokens);
        let block_tokens = block_tokens.unwrap_or(PrefixParams::default().block_tokens);
        let features = readings::features(input, Some(model), block_tokens);
        recorder.read(&features, &readings.candidates);
        self.choose(strategy, &features, id, context)
    }

    /// The unobserved pass of a strategy without scorers: it reads the backends as it passes them.
    // A separate function: it takes no registers from the rest of a pass.
    #[inline(never)]
    fn pick_unrecorded<const HAS_WEIGHTS: bool>(
        &self,
        considered: Considered<'_>,
        conditions: Conditions,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<Picked> {
        let Considered { input, model, id, strategy } = considered;
        let filters = Filters::new(input, model, conditions);
        let rules = Rules { strategy, weights: &self.weights };
        let (is_streaming, now) = (input.request.streaming, input.now);
        let admitted = (0_u32..).zip(&model.serving);
        let admitted = admitted.filter(|(_, candidate)| filters.check::<bool>(candidate));
        let readings = admitted.map(|(row, serving)| LiveReading::<HAS_WEIGHTS> {
            row,
            serving,
            is_streaming,
            now,
        });
        let (rows, _) = context.scratch.split(model.serving.len());
        rules.pick(readings, rows, context.random, id)
    }

    /// Picks one of the candidates in `scratch` by their readings alone, live or recorded.
    pub(in crate::routing) fn choose(
        &self,
        strategy: Strategy,
        features: &RequestFeatures,
        model: ModelId,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<Picked> {
        let picked = match self.weighted_in(strategy) {
            Some(weighted) => weighted::pick(weighted.profile(), features, model, context),
            None => {
                let rules = Rules { strategy, weights: &self.weights };
                let (rows, readings) = context.scratch.split_for_readings();
                rules.pick(readings.candidates.iter(), rows, context.random, model)
            }
        };
        if let Some(turn) = picked.as_ref().and_then(|picked| picked.turn) {
            context.recorder.took_turn(turn);
        }
        picked
    }
}

/// Returns whether a backend would take the request if it had room.
fn is_any_full(considered: Considered<'_>, conditions: Conditions) -> bool {
    let Considered { input, model, .. } = considered;
    let filters = Filters::new(input, model, conditions);
    let mut verdicts =
        model.serving.iter().map(|one| filters.check::<Result<(), RejectReason>>(one));
    verdicts.any(|verdict| verdict.is_err_and(RejectReason::is_full))
}
