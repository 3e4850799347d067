//! Limits of work: requests wait while a backend has its maximum of prompts or streams.

use std::time::Duration;

use penstock_predict::{PredictionTicket, RequestShape};
use penstock_scoring::Objectives;

use super::reserve::held;
use super::weighted::{awaited, try_chat, try_chat_after};
use super::{Fleet, NOW, TestRequest, alike, backend, input_of};
use crate::fleet::Owner;
use crate::routing::{RouteError, Waited};

pub(super) const SENT: RequestShape = RequestShape {
    prompt_tokens: 500.0,
    cached_tokens: 0.0,
    max_output_tokens: 1000.0,
    is_whole: false,
};

fn fleet(limit: &str) -> Fleet {
    trained(&format!("queue: {{ size: 10{limit} }}\nrouting: {{ predict: true }}"))
}

/// Returns a fleet of one backend with trusted predictions.
pub(super) fn trained(sections: &str) -> Fleet {
    train(Fleet::of(&format!("{sections}\n{}", alike(1, "m"))))
}

/// Teaches the predictor of the first model on its first backend.
fn train(fleet: Fleet) -> Fleet {
    teach(&fleet, 0, 1.0);
    fleet
}

/// Teaches the predictor of the first model on a backend: steps of 5 ms, times `factor`.
fn teach(fleet: &Fleet, row: usize, factor: f64) {
    let topology = fleet.live.topology();
    let predictor = topology.models()[0].serving[row].model_state.predictor();
    for request in 0..20_u32 {
        // So late that the backend is not due to be tried.
        let mut now = NOW.0 as f64 - f64::from(20 - request) * 1e7;
        let prediction = predictor.estimate(&SENT, now).prediction;
        let mut ticket = predictor.send(SENT, prediction, None, now);
        now += 40_000.0 * factor;
        for _ in 0..100 {
            ticket.tokens(1, now);
            now += 5_000.0 * factor;
        }
        ticket.complete(None, now);
    }
}

/// Puts a request in flight on the first backend.
pub(super) fn send(
    fleet: &Fleet,
    sent: RequestShape,
    tpot_micros: Option<f64>,
) -> PredictionTicket {
    send_to(fleet, 0, sent, tpot_micros)
}

fn send_to(
    fleet: &Fleet,
    row: usize,
    sent: RequestShape,
    tpot_micros: Option<f64>,
) -> PredictionTicket {
    let topology = fleet.live.topology();
    let row = &topology.models()[0].serving[row];
    row.model_state.load.set_in_flight(row.model_state.load.in_flight() + 1);
    let predictor = row.model_state.predictor();
    let now = NOW.0 as f64;
    predictor.send(sent, predictor.estimate(&sent, now).prediction, tpot_micros, now)
}

fn is_saturated(fleet: &mut Fleet) -> bool {
    let ask = TestRequest { streaming: true, ..TestRequest::of("m") };
    matches!(fleet.route(ask), Err(RouteError::Saturated { .. }))
}

#[test]
fn requests_wait_while_prompts_take_longer_than_they_may() {
    let long = RequestShape { prompt_tokens: 100_000.0, ..SENT };
    let mut unlimited = fleet("");
    let _ticket = send(&unlimited, long, None);
    assert!(!is_saturated(&mut unlimited));
    let mut limited = fleet(", max_backlog: 200ms");
    assert!(!is_saturated(&mut limited), "an idle one takes anything");
    let short = send(&limited, SENT, None);
    assert!(!is_saturated(&mut limited));
    let mut ticket = send(&limited, long, None);
    assert!(is_saturated(&mut limited));
    ticket.tokens(1, NOW.0 as f64);
    drop(short);
    assert!(!is_saturated(&mut limited), "the prompt is done");
}

#[test]
fn request_with_a_cached_prompt_does_not_wait_for_other_prompts() {
    let limits = "queue: { size: 10, max_backlog: 200ms }\nrouting: { strategy: slo }";
    let mut fleet = trained(limits);
    try_chat(&mut fleet, 1).unwrap();
    let _ticket = send(&fleet, RequestShape { prompt_tokens: 100_000.0, ..SENT }, None);
    try_chat(&mut fleet, 1).unwrap();
    assert!(matches!(try_chat(&mut fleet, 2), Err(RouteError::Saturated { .. })));
}

#[test]
fn requests_wait_only_if_every_backend_is_at_its_limit() {
    for (routing, fast) in [
        ("strategy: slo", true),
        ("preset: balanced", true),
        // Without predictions nothing says what the backlog costs.
        ("preset: least-loaded, predict: true", false),
    ] {
        let sections =
            format!("queue: {{ size: 10, max_backlog: 10ms }}\nrouting: {{ {routing} }}");
        let mut fleet = train(Fleet::of(&format!("{sections}\n{}", alike(2, "m"))));
        teach(&fleet, 1, 3.5);
        let ask = TestRequest { streaming: true, ..TestRequest::of("m") };
        let _first = send(&fleet, SENT, None);
        assert_eq!(fleet.backend_for(ask) == "b0", fast, "{routing}");
        // After a wait, a prompt that takes half of its objective does not take the room there is.
        for (tokens, ttft_ms, is_long) in
            [(500, 2000.0, false), (500, 10.0, true), (50, 10.0, false)]
        {
            let waited = Some(Waited { ttft_ms: Some(ttft_ms) });
            let ask = TestRequest { waited, tokens, ..ask };
            assert_eq!(fleet.backend_for(ask) == "b0", fast && is_long, "{routing} {ttft_ms}");
        }
        let _other = send_to(&fleet, 1, SENT, None);
        assert!(is_saturated(&mut fleet), "{routing}");
    }
}

const HAS_WAITED: Option<Waited> = Some(Waited { ttft_ms: Some(2000.0) });

/// Returns a fleet, and the row of the backend that has the prompt of family 1. Its batch is full,
/// and the other backends are idle.
fn full_home(backends: usize) -> (Fleet, u32, Vec<PredictionTicket>) {
    // `slo` alone would weigh the full batch, too.
    let routing =
        "scorers: [{ name: prefix-affinity, weight: 9 }, { name: slo-headroom, weight: 1 }]";
    let sections = format!("queue: {{ size: 10, max_backlog: 10ms }}\nrouting: {{ {routing} }}");
    let mut fleet = train(Fleet::of(&format!("{sections}\n{}", alike(backends, "m"))));
    (1..backends).for_each(|row| teach(&fleet, row, 1.0));
    let home = try_chat(&mut fleet, 1).unwrap().row;
    let mut streams = vec![send_to(&fleet, home as usize, SENT, Some(7_000.0))];
    streams.extend((0..60).map(|_| send_to(&fleet, home as usize, SENT, None)));
    streams.iter_mut().for_each(|ticket| ticket.tokens(1, NOW.0 as f64));
    (fleet, home, streams)
}

/// Elsewhere it would be computed again, and others would be evicted.
#[test]
fn long_prompt_that_waited_goes_where_it_is_cached() {
    let (mut fleet, home, _streams) = full_home(2);
    assert_ne!(try_chat_after(&mut fleet, 2, HAS_WAITED).unwrap().row, home, "nowhere cached");
    assert_eq!(try_chat_after(&mut fleet, 1, HAS_WAITED).unwrap().row, home);
}

/// It would take the room of the others, there and elsewhere.
#[test]
fn long_prompt_of_an_owner_far_above_its_share_waits_for_a_backend_that_has_it() {
    let (mut fleet, home, _streams) = full_home(2);
    let other = held(&fleet, Owner { id: 1, weight: 1 }, 1 - home);
    let large: Vec<_> = (0..3).map(|_| held(&fleet, Owner::default(), home)).collect();
    let verdict = try_chat_after(&mut fleet, 1, HAS_WAITED);
    assert!(matches!(verdict, Err(RouteError::Saturated { .. })), "{verdict:?}");
    // Others pass it in the queue: they wait for more backends.
    let ids =
        fleet.live.topology().models()[0].serving.iter().map(|one| one.id).collect::<Vec<_>>();
    let awaits = |family| {
        let backends = awaited(&fleet, family, HAS_WAITED);
        ids.iter().map(|id| backends.contains(*id)).collect::<Vec<_>>()
    };
    assert_eq!(awaits(1), [home == 0, home == 1]);
    assert_eq!(awaits(2), [true, true]);
    assert_ne!(try_chat_after(&mut fleet, 2, HAS_WAITED).unwrap().row, home, "nowhere cached");
    drop(large);
    assert_eq!(try_chat_after(&mut fleet, 1, HAS_WAITED).unwrap().row, home, "within its share");
    let _large: Vec<_> = (0..3).map(|_| held(&fleet, Owner::default(), home)).collect();
    drop(other);
    assert_ne!(try_chat_after(&mut fleet, 1, HAS_WAITED).unwrap().row, home, "the other is idle");
}

#[test]
fn long_prompt_of_an_owner_far_above_its_share_exceeds_limits_while_others_have_room() {
    let (mut fleet, home, _streams) = full_home(3);
    let _other = held(&fleet, Owner { id: 1, weight: 1 }, (home + 2) % 3);
    let _large: Vec<_> = (0..3).map(|_| held(&fleet, Owner::default(), home)).collect();
    assert_eq!(try_chat_after(&mut fleet, 1, HAS_WAITED).unwrap().row, home);
    let long = RequestShape { prompt_tokens: 100_000.0, ..SENT };
    let busy = usize::try_from((home + 1) % 3).unwrap();
    let _prompt = send_to(&fleet, busy, long, None);
    let verdict = try_chat_after(&mut fleet, 1, HAS_WAITED);
    assert!(matches!(verdict, Err(RouteError::Saturated { .. })), "one is left: {verdict:?}");
}

#[test]
fn requests_that_may_be_refused_fill_a_smaller_batch() {
    let mut fleet = fleet(", max_backlog: 100s");
    let mut streams: Vec<PredictionTicket> = Vec::new();
    // The streams beside which a request with an objective of 7 ms per token is still admitted.
    let mut room = |priority| loop {
        let objectives = Objectives { tpot_ms: Some(7.0), priority, ..Objectives::default() };
        let ask = TestRequest { streaming: true, objectives, ..TestRequest::of("m") };
        if matches!(fleet.route(ask), Err(RouteError::Saturated { .. })) {
            return streams.len();
        }
        assert!(streams.len() < 1000);
        streams.push(send(&fleet, SENT, None));
        streams.iter_mut().for_each(|ticket| ticket.tokens(1, NOW.0 as f64));
    };
    let (sheddable, important) = (room(-1), room(0));
    assert!(sheddable > 1 && important > sheddable, "{sheddable} {important}");
}

#[test]
fn tight_objective_of_a_request_that_may_be_refused_bounds_the_batch_too() {
    let mut fleet = fleet(", max_backlog: 100s");
    // Steps take 5 ms: the share of its objective that such a request may use is less than that.
    let objectives = Objectives { tpot_ms: Some(6.5), priority: -1, ..Objectives::default() };
    let ask = TestRequest { streaming: true, objectives, ..TestRequest::of("m") };
    let mut streams: Vec<PredictionTicket> = (0..100).map(|_| send(&fleet, SENT, None)).collect();
    streams.iter_mut().for_each(|ticket| ticket.tokens(1, NOW.0 as f64));
    assert!(matches!(fleet.route(ask), Err(RouteError::Saturated { .. })));
}

#[test]
fn requests_wait_while_another_stream_makes_one_miss_its_objective() {
    let mut fleet = fleet(", max_backlog: 100s");
    let mut first = send(&fleet, SENT, Some(7_000.0));
    first.tokens(1, NOW.0 as f64);
    assert!(!is_saturated(&mut fleet));
    let mut others: Vec<PredictionTicket> = (0..60).map(|_| send(&fleet, SENT, None)).collect();
    others.iter_mut().for_each(|ticket| ticket.tokens(1, NOW.0 as f64));
    assert!(is_saturated(&mut fleet));
    drop(first);
    assert!(!is_saturated(&mut fleet), "no other has an objective");
    let mut hopeless = send(&fleet, SENT, Some(1_000.0));
    hopeless.tokens(1, NOW.0 as f64);
    assert!(!is_saturated(&mut fleet), "it would miss that alone as well");
}

#[test]
fn refused_request_comes_back_when_its_objective_can_be_met() {
    let mut fleet = trained("routing: { strategy: slo }");
    assert_eq!(wait_of(&mut fleet, 500.0), Ok(()), "it is idle");
    let _ticket = send(&fleet, RequestShape { prompt_tokens: 100_000.0, ..SENT }, None);
    let topology = fleet.live.topology();
    let predictor = topology.models()[0].serving[0].model_state.predictor();
    let backlog = predictor.estimate(&SENT, NOW.0 as f64).prediction.backlog_us / 1e6;
    let seconds = |wait: Result<_, (Duration, _)>| wait.unwrap_err().0.as_secs_f64();
    let soon = seconds(wait_of(&mut fleet, backlog * 500.0));
    let later = seconds(wait_of(&mut fleet, 500.0));
    assert!(soon < later && (0.5..1.5).contains(&(later / backlog)), "{soon} {later} {backlog}");
}

#[test]
fn refused_request_goes_to_a_fallback_where_saturation_does() {
    for (enabled, name) in [(true, Some("spare")), (false, None)] {
        let routing = format!(
            "routing: {{ strategy: slo, fallback_on_saturation: {enabled}, fallbacks: {{ m: [n] }} }}"
        );
        let backends = format!("{}{}", alike(1, "m"), backend("spare", 8100, "models: [n]"));
        let mut fleet = train(Fleet::of(&format!("{routing}\n{backends}")));
        let _ticket = send(&fleet, RequestShape { prompt_tokens: 100_000.0, ..SENT }, None);
        let objectives = Objectives { ttft_ms: Some(50.0), priority: -1, ..Objectives::default() };
        let ask = TestRequest { streaming: true, objectives, ..TestRequest::of("m") };
        match name {
            Some(name) => assert_eq!(fleet.backend_for(ask), name),
            None => assert!(matches!(fleet.error_for(ask), RouteError::ObjectiveMissed { .. })),
        }
    }
}

#[test]
fn idle_backend_refuses_none() {
    let mut fleet = trained("routing: { strategy: slo }");
    assert_eq!(
        wait_of(&mut fleet, 5.0),
        Ok(()),
        "too slow as it seems, but nothing else would show it"
    );
    let _ticket = send(&fleet, SENT, None);
    let took = Duration::from_millis(3200);
    let topology = fleet.live.topology();
    let durations = &topology.models()[0].serving[0].latency.durations;
    (0..30).for_each(|_| durations.learn(took));
    let (until_idle, interval) = wait_of(&mut fleet, 5.0).unwrap_err();
    assert!(until_idle > Duration::ZERO, "it has a request until then");
    assert!(
        (0.9..1.2).contains(&(interval.as_secs_f64() / 3.2)),
        "each needs it idle: {interval:?}"
    );
}

#[test]
fn requests_that_are_sent_together_fill_a_batch_before_their_first_tokens() {
    let mut fleet = fleet(", max_backlog: 100s");
    let objectives = Objectives { tpot_ms: Some(7.0), ..Objectives::default() };
    let ask = TestRequest { streaming: true, objectives, ..TestRequest::of("m") };
    let mut sent: Vec<PredictionTicket> = Vec::new();
    while fleet.route(ask).is_ok() {
        assert!(sent.len() < 1000, "no batch is full");
        sent.push(send(&fleet, SENT, None));
    }
    assert!(sent.len() > 2);
}

#[test]
fn objective_that_leaves_no_room_for_a_second_stream_keeps_none_away() {
    let mut fleet = fleet(", max_backlog: 100s");
    // Steps take 5 ms.
    let mut greedy = send(&fleet, SENT, Some(5_500.0));
    greedy.tokens(1, NOW.0 as f64);
    let mut others: Vec<PredictionTicket> = (0..60).map(|_| send(&fleet, SENT, None)).collect();
    others.iter_mut().for_each(|ticket| ticket.tokens(1, NOW.0 as f64));
    assert!(!is_saturated(&mut fleet));
    let objectives = Objectives { tpot_ms: Some(5.5), ..Objectives::default() };
    let ask = TestRequest { streaming: true, objectives, ..TestRequest::of("m") };
    assert!(fleet.route(ask).is_ok(), "nor does it hold up those behind it in a queue");
}

/// Routes a sheddable request; the error is the wait that it gets if its objective is missed, and
/// the time to the next one.
fn wait_of(fleet: &mut Fleet, ttft_ms: f64) -> Result<(), (Duration, Duration)> {
    let objectives = Objectives { ttft_ms: Some(ttft_ms), priority: -1, ..Objectives::default() };
    let ask = TestRequest { streaming: true, objectives, ..TestRequest::of("m") };
    match fleet.route(ask) {
        Ok(_decision) => Ok(()),
        Err(RouteError::ObjectiveMissed { wait, interval, .. }) => Err((wait, interval)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn service_time_is_known_once_predictions_are_trusted() {
    let service = |fleet: &Fleet| {
        let ask = TestRequest { streaming: true, ..TestRequest::of("m") };
        let topology = fleet.live.topology();
        let profile = ask.profile();
        let input = input_of(&profile, ask, &fleet.router, &fleet.tried, &topology);
        fleet.router.service_time(&input).p90.as_secs_f64()
    };
    let unknown = Fleet::of(&format!("routing: {{ strategy: slo }}\n{}", alike(1, "m")));
    assert_eq!(service(&unknown), 0.0);
    let known = trained("routing: { strategy: slo }");
    assert!((0.005..0.1).contains(&service(&known)), "{}", service(&known));
    let _ticket = send(&known, RequestShape { prompt_tokens: 100_000.0, ..SENT }, None);
    assert!(service(&known) > 1.0, "what is there comes before it");
}
