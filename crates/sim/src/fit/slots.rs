//! The number of requests that an engine runs at a time, where a run shows it: no log names it, and
//! requests that wait for a slot look as if their prompts took long.

use penstock_api::Engine;

use super::super::engine::EngineSpec;
use super::super::run::RecordedRun;

/// The limit of a backend's engine, as far as its run shows it.
#[derive(Debug, Clone, Copy)]
pub struct ShownLimit<'a> {
    /// The kind of the engine; `None` if its limit is configured, so that none is lent to it.
    pub kind: Option<Engine>,
    /// The limit that was assumed before the run.
    pub assumed: u32,
    /// The learned limit.
    pub learned: Option<u32>,
    pub run: &'a RecordedRun,
}

/// Returns the limit of requests at a time that would explain waits of the run: as many as had a
/// first token at once, while more were in flight.
pub(super) fn shown_limit(run: &RecordedRun, start: &EngineSpec) -> Option<u32> {
    let count = run.max_streams();
    // Models loaded on demand have the limit each, and a run mixes them.
    let is_seen = start.on_demand.is_none() && !run.lacks_requests();
    let is_lower = (1..start.max_requests).contains(&count);
    (is_seen && is_lower && run.max_in_flight() > count).then_some(count)
}

/// Returns the limit for an engine that was never full: the most that another one of its kind with
/// the same model showed, unless it had more streams than that. Without it, a strategy that sends
/// more there would look too good. The predictor of the proxy lends slots in the same way, by the
/// engines that it has detected.
pub fn lent_limit(one: &ShownLimit<'_>, all: &[ShownLimit<'_>]) -> Option<u32> {
    if one.learned.is_some() || one.kind.is_none() || one.run.lacks_requests() {
        return None;
    }
    let alike =
        all.iter().filter(|other| other.kind == one.kind && one.run.has_model_of(other.run));
    let limit = alike.filter_map(|other| other.learned).max()?;
    (one.run.max_streams() <= limit && limit < one.assumed).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::super::{fit, fit_steps};
    use super::*;
    use crate::engine::{StepTime, engine_rows};
    use crate::run::{Timing, mark_unseen};

    const ROW: &str = "rtxpro6000/llama-3.1-8b/tp1";

    fn start() -> EngineSpec {
        let rows = engine_rows().unwrap();
        EngineSpec::from(rows.iter().find(|row| row.name() == ROW).unwrap())
    }

    /// Returns a run of an engine: bursts of `burst` requests every 4 s.
    fn run(spec: &EngineSpec, burst: u32) -> RecordedRun {
        let requests = (0..6 * burst).map(|n| Timing {
            arrived: f64::from(n / burst) * 4.0,
            input_tokens: 100 + n * 577 % 900,
            output_tokens: 20 + n * 131 % 200,
            ..Timing::default()
        });
        let sent = RecordedRun::of(requests.collect()).unwrap();
        let latencies = sent.simulated(spec, 4_000_000_000).unwrap();
        let timings = sent.timings().iter().zip(latencies).map(|(one, found)| Timing {
            first_token: one.arrived + found.first_token,
            last_token: one.arrived + found.total,
            ..one.clone()
        });
        RecordedRun::of(timings.collect()).unwrap().at_penstock()
    }

    /// Returns an engine whose steps the row does not have.
    fn limited(max_requests: u32) -> EngineSpec {
        let time = start().step_time.linear().unwrap();
        let time = StepTime { base: time.base * 3 / 2, per_decode: time.per_decode * 2, ..time };
        EngineSpec { step_time: time.into(), max_requests, ..start() }
    }

    #[test]
    fn slots_of_a_full_engine_are_found() {
        let least = StepTime::default();
        for slots in [4, 8] {
            let run = run(&limited(slots), 3 * slots);
            let found = fit(&run, &start(), &least).unwrap();
            let count = found.max_requests.unwrap_or_default();
            assert!(count.abs_diff(slots) <= 1, "{found:?}");
            let without = fit_steps(run.len() / 2, &run, &start(), &least).unwrap();
            let error = |one: &super::super::EngineFit| one.other.first_token.weighted;
            assert!(error(&without) > 0.3 && error(&found) < 0.1, "{without:?} {found:?}");
            assert_eq!(found.engine(&start()).max_requests, count);
        }
    }

    #[test]
    fn engine_that_is_never_full_has_no_limit() {
        // Requests of the last two wait as well: for their prompts, and for KV blocks.
        let chunked = EngineSpec { max_step_tokens: 256, ..limited(256) };
        let short = EngineSpec { kv_blocks: 400, ..limited(256) };
        for (spec, burst) in [(limited(256), 24), (limited(16), 7), (chunked, 24), (short, 24)] {
            let run = run(&spec, burst);
            let start = EngineSpec { max_requests: 256, step_time: start().step_time, ..spec };
            let found = fit(&run, &start, &StepTime::default()).unwrap();
            assert_eq!(found.max_requests, None, "{:?} {found:?}", shown_limit(&run, &start));
        }
    }

    #[test]
    fn stream_of_one_token_takes_no_slot_for_good() {
        let mut timings = run(&limited(4), 12).timings().to_vec();
        let alone =
            Timing { first_token: 0.2, last_token: 0.2, output_tokens: 1, ..timings[0].clone() };
        timings.iter_mut().for_each(|one| {
            one.arrived += 10.0;
            one.first_token += 10.0;
            one.last_token += 10.0;
        });
        timings.insert(0, alone);
        assert_eq!(shown_limit(&RecordedRun::of(timings).unwrap(), &start()), Some(4));
    }

    #[test]
    fn streams_among_other_requests_show_no_limit() {
        let mut timings = run(&limited(4), 12).timings().to_vec();
        let streams = timings.len();
        for (unseen, shown) in [(streams / 30, Some(4)), (streams / 10, None)] {
            mark_unseen(&mut timings, unseen);
            let run = RecordedRun::of(timings.clone()).unwrap();
            assert_eq!(shown_limit(&run, &start()), shown);
        }
    }

    #[test]
    fn overlap_of_a_moment_is_no_slot() {
        let stream = |n: u32, first_token: f64, last_token: f64| Timing {
            arrived: f64::from(n / 2) * 10.0,
            first_token,
            last_token,
            ..Timing::default()
        };
        let timings = (0..20).map(|n| {
            let at = f64::from(n) * 5.0;
            // Its end is seen a moment after the next one started.
            stream(n, at + 0.1, at + 5.11)
        });
        let run = RecordedRun::of(timings.collect()).unwrap();
        assert_eq!((run.max_streams(), run.max_in_flight()), (1, 2));
    }

    #[test]
    fn limit_is_lent_to_engines_of_its_kind() {
        let full = run(&limited(8), 24);
        let idle = run(&limited(8), 6);
        let kind = Some(Engine::Vllm);
        let shows = ShownLimit { kind, assumed: 256, learned: Some(8), run: &full };
        let lent = |one: ShownLimit<'_>| lent_limit(&one, &[one, shows]);
        let one = ShownLimit { learned: None, run: &idle, ..shows };
        assert_eq!(lent(one), Some(8));
        assert_eq!(lent(ShownLimit { kind: Some(Engine::Sglang), ..one }), None, "another kind");
        assert_eq!(lent(ShownLimit { kind: None, assumed: 64, ..one }), None, "configured");
        assert_eq!(lent(ShownLimit { assumed: 4, ..one }), None, "a lower one is assumed");
        let more = run(&limited(256), 24);
        assert_eq!(lent(ShownLimit { run: &more, ..one }), None, "it had more streams");
        let timings = idle.timings().iter().cloned();
        let other = timings.map(|one| Timing { model: "other".into(), ..one });
        let other = RecordedRun::of(other.collect()).unwrap();
        assert_eq!(lent(ShownLimit { run: &other, ..one }), None, "another model");
    }
}
