//! Expected cache contents are withdrawn when the engine reports otherwise.

use std::time::Duration;

use penstock_api::Operation;
use penstock_scan::{ScanOptions, Usage, scan};
use penstock_scoring::PredictedLatency;

use super::weighted::{PREFIX, chat, prompt, route};
use super::{Fleet, alike};
use crate::fleet::{Outcome, Topology};
use crate::routing::{AttemptEnded, PrefixObserver, RequestObserver, RoutingDecision};

/// A whole response without a count of cached tokens.
fn ended<'a>(
    fleet: &'a Fleet,
    topology: &'a Topology,
    decision: &'a RoutingDecision,
) -> AttemptEnded<'a> {
    AttemptEnded {
        backend: decision.backend,
        name: "a",
        provider: "vllm",
        server: ("127.0.0.1", 1),
        number: 1,
        trace: None,
        decision,
        router: &fleet.router,
        fleet: topology,
        is_relayed: true,
        is_moved: false,
        has_output: true,
        usage: None,
        outcome: Outcome::Ok,
        conversion: None,
        code: None,
        took: Duration::ZERO,
    }
}

#[test]
fn failed_attempt_withdraws_the_prediction() {
    let body = chat("m", &prompt(1), "x");
    for (is_relayed, outcome, is_withdrawn) in [
        (true, Outcome::Ok, false),
        (true, Outcome::Fault, false),
        (true, Outcome::Client, true),
        (true, Outcome::Cancel, false),
        (false, Outcome::Fault, true),
        (false, Outcome::Unreachable, true),
    ] {
        let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(4, "m")));
        let (_, decision) = route(&mut fleet, &body);
        let topology = fleet.live.topology();
        let event = ended(&fleet, &topology, &decision);
        PrefixObserver.attempt_ended(&AttemptEnded { is_relayed, outcome, ..event });
        let matched = route(&mut fleet, &body).1.scores.unwrap().matched_blocks;
        assert_eq!(matched == 0, is_withdrawn, "relayed: {is_relayed}, {outcome:?}");
    }
}

#[test]
fn prompt_whose_client_left_before_it_was_computed_is_withdrawn() {
    let known = chat("m", &prompt(1), "x");
    let longer = chat("m", &prompt(1), &prompt(2));
    for (has_output, took, is_withdrawn) in [
        (false, Duration::ZERO, true),
        (false, Duration::from_secs(1), false),
        (true, Duration::ZERO, false),
    ] {
        let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(1, "m")));
        route(&mut fleet, &known);
        let (_, decision) = route(&mut fleet, &longer);
        let topology = fleet.live.topology();
        let event = AttemptEnded {
            outcome: Outcome::Cancel,
            has_output,
            took,
            ..ended(&fleet, &topology, &decision)
        };
        PrefixObserver.attempt_ended(&event);
        let shared = decision.scores.unwrap().matched_blocks;
        let scores = route(&mut fleet, &longer).1.scores.unwrap();
        let expected = if is_withdrawn { shared } else { scores.prompt_blocks };
        assert_eq!(scores.matched_blocks, expected, "output: {has_output}, {took:?}");
        assert!(shared > 10 && shared + 10 < scores.prompt_blocks, "{shared}");
    }
}

#[test]
fn learned_speed_of_an_engine_shows_whether_a_prompt_was_computed() {
    let body = chat("m", &prompt(1), "x");
    let slow = PredictedLatency { ttft: 3000.0, prefill: 2800.0, ..PredictedLatency::default() };
    let has_shown = PredictedLatency { first_tokens: 1.0, ..slow };
    for (prediction, millis, is_withdrawn) in
        [(slow, 400, false), (has_shown, 400, true), (has_shown, 2000, false)]
    {
        let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(1, "m")));
        let (_, mut decision) = route(&mut fleet, &body);
        decision.scores.as_mut().unwrap().prediction = Some(prediction);
        let topology = fleet.live.topology();
        let event = AttemptEnded {
            outcome: Outcome::Cancel,
            has_output: false,
            took: Duration::from_millis(millis),
            ..ended(&fleet, &topology, &decision)
        };
        PrefixObserver.attempt_ended(&event);
        let matched = route(&mut fleet, &body).1.scores.unwrap().matched_blocks;
        assert_eq!(matched == 0, is_withdrawn, "{millis} ms, {prediction:?}");
    }
}

#[test]
fn what_other_prompts_share_stays_after_the_first_one_is_withdrawn() {
    let [first, second, longer] = [prompt(2), prompt(3), format!("{} {}", prompt(2), prompt(4))]
        .map(|end| chat("m", &prompt(1), &end));
    for (next, is_withdrawn) in [(&second, true), (&longer, false)] {
        let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(1, "m")));
        let (_, decision) = route(&mut fleet, &first);
        route(&mut fleet, next);
        let topology = fleet.live.topology();
        let left = AttemptEnded {
            outcome: Outcome::Cancel,
            has_output: false,
            ..ended(&fleet, &topology, &decision)
        };
        PrefixObserver.attempt_ended(&left);
        let again = route(&mut fleet, next).1.scores.unwrap();
        assert_eq!(again.matched_blocks, again.prompt_blocks, "the one that was computed stays");
        let first = route(&mut fleet, &first).1.scores.unwrap();
        assert_eq!(first.matched_blocks < first.prompt_blocks, is_withdrawn, "{first:?}");
    }
}

#[test]
fn reported_cache_miss_withdraws_the_prediction() {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(4, "m")));
    let body = chat("m", &prompt(1), "x");
    let (_, first) = route(&mut fleet, &body);
    let (home, again) = route(&mut fleet, &body);
    let topology = fleet.live.topology();
    let learn = |fleet: &Fleet, decision, cached| {
        let usage = Usage { cached_tokens: Some(cached), ..Usage::default() };
        let event = ended(fleet, &topology, decision);
        PrefixObserver.attempt_ended(&AttemptEnded { usage: Some(usage), ..event });
    };
    learn(&fleet, &first, 0);
    learn(&fleet, &again, 64);
    let matched = route(&mut fleet, &body).1.scores.unwrap().matched_blocks;
    assert!(matched > 10, "nothing was predicted at first, and then enough was cached");
    learn(&fleet, &again, 3);
    let (next, decision) = route(&mut fleet, &body);
    assert_eq!(decision.scores.unwrap().matched_blocks, 0, "from {home} to {next}");
}

#[test]
fn only_uncached_tokens_wait_for_prefill() {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(4, "m")));
    let first = chat("m", &prompt(1), "x");
    let next = chat("m", &prompt(1), &format!("x, {}", "and more ".repeat(20)));
    let uncached = |fleet: &mut Fleet, body: &str| {
        let (_, decision) = route(fleet, body);
        let scanned = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        (decision.uncached_tokens(&scanned), scanned.prefill_tokens().0)
    };
    let (tokens, prompt) = uncached(&mut fleet, &first);
    assert!(tokens >= prompt, "nothing is cached: {tokens} of {prompt}");
    let (tokens, prompt) = uncached(&mut fleet, &next);
    assert!((40..100).contains(&tokens) && prompt > 3 * tokens, "{tokens} of {prompt}");
}

#[test]
fn dense_text_is_cached_by_its_own_tokens() {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(4, "m")));
    let rows = (0..200_u64).map(|row| {
        let hash = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{row},{hash:016x},{:.6};", row as f64 * 0.618)
    });
    let data: String = rows.collect();
    let first = chat("m", &data, "x");
    route(&mut fleet, &first);
    let (_, decision) = route(&mut fleet, &first);
    let scanned = scan(Operation::Chat, None, first.as_bytes(), ScanOptions::default()).unwrap();
    let (prompt, text) = (scanned.prefill_tokens().0, u32::try_from(data.len()).unwrap() / 4);
    assert!(prompt > text * 3 / 2, "{prompt} tokens, {text} by four bytes");
    let uncached = decision.uncached_tokens(&scanned);
    assert!(uncached < 64, "all but the end is cached: {uncached} of {prompt}");
}
