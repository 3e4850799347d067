//! Limits of work: requests wait while a backend has as many prompts as it may, or as many streams as objectives allow.

use super::{Fleet, NOW, TestRequest, alike};
use crate::predict::{PredictionTicket, Sent};
use crate::routing::RouteError;

const SENT: Sent = Sent { prompt: 500.0, cached: 0.0, max_output: 1000.0, is_whole: false };

fn fleet(limit: &str) -> Fleet {
    let queue = format!("queue: {{ size: 10{limit} }}");
    let fleet = Fleet::of(&format!("{queue}\nrouting: {{ predict: true }}\n{}", alike(1, "m")));
    let topology = fleet.live.topology();
    let predictor = topology.models()[0].serving[0].model_state.predictor();
    // Steps of 5 ms.
    for request in 0..20_u32 {
        let mut now = f64::from(request) * 1e7;
        let prediction = predictor.estimate(&SENT, now).prediction;
        let mut ticket = predictor.send(SENT, prediction, None, now);
        now += 40_000.0;
        for _ in 0..100 {
            ticket.tokens(1, now);
            now += 5_000.0;
        }
        ticket.complete(None, now);
    }
    fleet
}

/// A request in flight.
fn send(fleet: &Fleet, sent: Sent, tpot_micros: Option<f64>) -> PredictionTicket {
    let topology = fleet.live.topology();
    let row = &topology.models()[0].serving[0];
    row.model_state.set_in_flight(row.model_state.in_flight() + 1);
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
    let long = Sent { prompt: 100_000.0, ..SENT };
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
