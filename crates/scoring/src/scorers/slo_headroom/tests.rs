//! The preference between backends for a request.

use super::*;
use crate::params::{Params, Value};

fn scores(prefer: &str, ttft: Option<f64>, predicted: [f32; 3]) -> [f64; 3] {
    let candidates = predicted.map(|ttft| Candidate {
        prediction: Some(PredictedLatency {
            ttft,
            ttft_p90: ttft,
            prefill: ttft,
            tightest_tpot: f32::INFINITY,
            ..PredictedLatency::default()
        }),
        ..Candidate::default()
    });
    let objectives = Objectives { ttft_ms: ttft, ..Objectives::default() };
    let features = RequestFeatures { objectives, ..RequestFeatures::default() };
    let mut params = Params::default();
    params.set("prefer", Value::Text(prefer.to_owned()));
    let mut scores = [0.0; 3];
    ROW.make(&params).unwrap().score(&features, &candidates, &mut scores);
    scores
}

fn with_cached(cached: u32, ttft: [f32; 2], objective: Option<f64>) -> [f64; 2] {
    with_priority(0, cached, ttft, objective)
}

/// Scores of two backends, the first of which has `cached` of the prompt.
fn with_priority(priority: i32, cached: u32, ttft: [f32; 2], objective: Option<f64>) -> [f64; 2] {
    let candidate = |matched_blocks, ttft| Candidate {
        prompt_blocks: 100,
        matched_blocks,
        prediction: Some(PredictedLatency {
            ttft,
            ttft_p90: 2.0 * ttft,
            tightest_tpot: f32::INFINITY,
            ..PredictedLatency::default()
        }),
        ..Candidate::default()
    };
    let candidates = [candidate(cached, ttft[0]), candidate(0, ttft[1])];
    let objectives = Objectives { ttft_ms: objective, priority, ..Objectives::default() };
    let features = RequestFeatures { objectives, ..RequestFeatures::default() };
    let mut scores = [0.0; 2];
    ROW.make(&Params::default()).unwrap().score(&features, &candidates, &mut scores);
    scores
}

#[test]
fn backend_with_the_prompt_is_kept_while_it_meets_the_objective() {
    let keeps = |cached, ttft, objective| {
        let [warm, cold] = with_cached(cached, ttft, objective);
        warm > cold
    };
    assert!(keeps(80, [400.0, 100.0], None));
    assert!(!keeps(79, [400.0, 100.0], None), "a small part of the prompt is no reason");
    assert!(keeps(90, [600.0, 100.0], None));
    assert!(!keeps(90, [601.0, 100.0], None), "until it costs 1 s more");
    assert!(keeps(90, [400.0, 100.0], Some(500.0)), "its mean counts");
    assert!(!keeps(90, [600.0, 100.0], Some(500.0)));
}

/// The streams of a backend whose batch is full take longer, whatever it has cached.
#[test]
fn backend_with_the_prompt_is_left_while_responses_take_much_longer() {
    let keeps = |further| {
        let candidate = |matched_blocks, further| Candidate {
            prompt_blocks: 100,
            matched_blocks,
            prediction: Some(PredictedLatency {
                further,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        };
        let candidates = [candidate(90, further), candidate(0, 2000.0)];
        let mut scores = [0.0; 2];
        let features = RequestFeatures::default();
        ROW.make(&Params::default()).unwrap().score(&features, &candidates, &mut scores);
        scores[0] > scores[1]
    };
    assert!(keeps(2900.0));
    assert!(!keeps(3100.0));
}

#[test]
fn request_that_may_be_refused_goes_where_it_surely_is_in_time() {
    let [warm, cold] = with_priority(-1, 90, [400.0, 100.0], Some(500.0));
    assert!(cold > warm, "the 90th percentiles are 800 and 200");
}

#[test]
fn backends_that_miss_an_objective_come_last() {
    let [fast, slow, missed] = scores("most", Some(500.0), [100.0, 350.0, 600.0]);
    assert!(fast > slow && slow > missed && missed > 0.0, "it is no gate, but a cost");
    let [fast, slow, missed] = scores("least", Some(500.0), [100.0, 350.0, 600.0]);
    assert!(slow > fast && fast > 0.0 && missed == 0.0);
    let [fast, knee, close] = scores("knee", Some(500.0), [100.0, 390.0, 480.0]);
    assert!(knee > fast && fast > close, "{fast} {knee} {close}");
}

#[test]
fn least_miss_is_best_where_all_miss() {
    for prefer in ["most", "least", "knee"] {
        let [one, two, three] = scores(prefer, Some(100.0), [120.0, 150.0, 300.0]);
        assert!(one > two && two > three && three > 0.0, "{prefer}");
    }
}

#[test]
fn fastest_is_best_without_an_objective() {
    let [first, second, third] = scores("most", None, [100.0, 250.0, 400.0]);
    assert_eq!((first, second, third), (1.0, 0.5, 1e-3));
}

#[test]
fn delay_of_the_requests_there_counts() {
    let candidate = |ttft, requests| Candidate {
        prediction: Some(PredictedLatency {
            ttft,
            ttft_p90: ttft,
            requests,
            slowdown: 10.0,
            tightest_tpot: f32::INFINITY,
            ..PredictedLatency::default()
        }),
        ..Candidate::default()
    };
    let picks = |requests: f32| {
        let candidates = [candidate(100.0, requests), candidate(150.0, 100.0)];
        let mut scores = [0.0; 2];
        let scorer = ROW.make(&Params::default()).unwrap();
        scorer.score(&RequestFeatures::default(), &candidates, &mut scores);
        scores[0] > scores[1]
    };
    assert!(picks(109.0), "50 ms are worth 100");
    assert!(!picks(111.0));
}

/// A prompt evicts others from caches that streams fill.
#[test]
fn prompt_stays_where_it_is_cached_while_caches_are_full() {
    let keeps = |used: [Option<f64>; 2]| {
        let candidate = |uncached, further, kv_utilization| Candidate {
            kv_utilization,
            prediction: Some(PredictedLatency {
                uncached,
                further,
                work: 0.05 * uncached,
                requests: 4.0,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        };
        // 1.6 s of delay for the requests there, 4 s for the response.
        let candidates = [candidate(1000.0, 8000.0, used[0]), candidate(2000.0, 4000.0, used[1])];
        let mut scores = [0.0; 2];
        let features = RequestFeatures::default();
        ROW.make(&Params::default()).unwrap().score(&features, &candidates, &mut scores);
        scores[0] > scores[1]
    };
    assert!(!keeps([None, None]) && !keeps([Some(0.5), Some(0.5)]));
    assert!(keeps([Some(0.9), Some(0.9)]) && keeps([Some(1.0), None]), "the mean of the known");
}

#[test]
fn noise_of_what_is_learned_does_not_favour_a_backend() {
    let candidate = |requests, noise: f32| Candidate {
        prediction: Some(PredictedLatency {
            ttft: 100.0,
            ttft_p90: 100.0,
            tpot: 30.0,
            further: 3000.0,
            requests,
            work: 10.0 * noise,
            uncached: 250.0,
            slowdown: 10.0 * noise,
            tightest_tpot: f32::INFINITY,
            ..PredictedLatency::default()
        }),
        ..Candidate::default()
    };
    let candidates = [candidate(110.0, 0.5), candidate(100.0, 2.0)];
    let mut scores = [0.0; 2];
    let scorer = ROW.make(&Params::default()).unwrap();
    scorer.score(&RequestFeatures::default(), &candidates, &mut scores);
    assert!(scores[1] > scores[0], "the one with fewer requests: {scores:?}");
}

/// Scores by the requests there and the time per token, with an objective for that time.
fn by_tpot(limit: Option<f64>, backends: [(f32, f32); 2]) -> [f64; 2] {
    let candidates = backends.map(|(requests, tpot)| Candidate {
        prediction: Some(PredictedLatency {
            ttft: 100.0,
            ttft_p90: 130.0,
            tpot,
            tpot_p90: 1.4 * tpot,
            further: 200.0 * tpot,
            output: 200.0,
            added: 3.0,
            requests,
            tightest_tpot: f32::INFINITY,
            ..PredictedLatency::default()
        }),
        ..Candidate::default()
    });
    let objectives = Objectives { tpot_ms: limit, ..Objectives::default() };
    let features = RequestFeatures { objectives, ..RequestFeatures::default() };
    let mut scores = [0.0; 2];
    ROW.make(&Params::default()).unwrap().score(&features, &candidates, &mut scores);
    scores
}

#[test]
fn backend_that_just_meets_the_time_per_token_is_not_crowded() {
    let takes_fast = |tpot| {
        let [fast, slow] = by_tpot(Some(60.0), [(20.0, tpot), (4.0, 80.0)]);
        fast > slow
    };
    assert!(takes_fast(30.0), "all meet it there");
    assert!(!takes_fast(50.0), "twenty may miss it for one that does not");
    let [fast, slow] = by_tpot(None, [(20.0, 50.0), (4.0, 80.0)]);
    assert!(fast > slow, "without an objective it is the cheaper one");
    assert!(takes_fast(62.0), "misses that no choice avoids do not count");
}

#[test]
fn backend_that_is_late_does_not_take_all_further_requests() {
    let takes_late = |requests| {
        let [good, late] = by_tpot(Some(60.0), [(40.0, 50.0), (requests, 120.0)]);
        late > good
    };
    assert!(takes_late(10.0), "each of forty may miss it for one that does not");
    assert!(!takes_late(40.0), "those that are late become later");
}

#[test]
fn long_prompt_does_not_delay_streams_that_just_meet_their_time_per_token() {
    let takes_first = |work: f32| {
        let candidates = [(100.0, 45.0), (1500.0, 30.0)].map(|(ttft, tpot)| Candidate {
            prediction: Some(PredictedLatency {
                ttft,
                ttft_p90: ttft,
                tpot,
                tpot_p90: tpot,
                output: 200.0,
                requests: 10.0,
                work,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        });
        let objectives = Objectives { tpot_ms: Some(60.0), ..Objectives::default() };
        let features = RequestFeatures { objectives, ..RequestFeatures::default() };
        let mut scores = [0.0; 2];
        ROW.make(&Params::default()).unwrap().score(&features, &candidates, &mut scores);
        scores[0] > scores[1]
    };
    assert!(takes_first(10.0));
    assert!(!takes_first(2000.0), "10 ms more for each of 200 tokens");
}

#[test]
fn objective_that_is_missed_or_met_everywhere_changes_nothing() {
    let backends = [(12.0, 55.0), (10.0, 70.0)];
    let order = |limit| {
        let [one, other] = by_tpot(limit, backends);
        one.total_cmp(&other)
    };
    for limit in [Some(2.0), Some(5.0), Some(1000.0)] {
        assert_eq!(order(limit), order(None), "{limit:?}");
    }
}

#[test]
fn unknown_preference_is_refused() {
    let mut params = Params::default();
    params.set("prefer", Value::Text("best".to_owned()));
    assert!(ROW.make(&params).is_err());
}
