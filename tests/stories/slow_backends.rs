//! Backends that are many times slower than another one.

use std::time::Duration;

use penstock_mock::{Fault, Pace};
use serde_json::{Value, json};

use crate::support::client::{chat, request, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Setup, engine, yaml};
use crate::support::penstock::Penstock;

/// More than are sent until eight of them have tried the second backend: each does so with a chance
/// of 1 in 4.
const MANY: u32 = 150;

fn pace(first_token: u64, per_token: u64) -> Pace {
    let millis = Duration::from_millis;
    Pace { first_token: millis(first_token), per_token: millis(per_token), tokens: 25 }
}

fn set(penstock: &Penstock, backend: &str, state: &str) {
    let response =
        request(penstock.admin, "POST", &format!("/backends/{backend}/{state}"), &[], b"");
    assert_eq!(response.status, 200);
}

fn reason(penstock: &Penstock, prompt: &str) -> Value {
    let question = json!({ "body": chat("m", prompt).to_string() }).to_string();
    let json = ("content-type", "application/json");
    let response = request(penstock.admin, "POST", "/explain", &[json], question.as_bytes()).json();
    response["decision"]["candidates"][0]["excluded"].clone()
}

#[test]
fn popular_prompts_leave_a_backend_that_is_many_times_slower() {
    let prompt = "a beginning that all prompts have in common ".repeat(40);
    for (strategy, routing) in [("slo", "predict: true"), ("weighted", "preset: balanced")] {
        let engines = vec![engine("a", pace(80, 8)), engine("b", pace(5, 1))];
        let setup = Setup { strategy, routing, ..Setup::default() };
        let penstock = Penstock::start(&yaml(&engines, &["m", "m"], setup));
        let fleet = Fleet { penstock, engines };
        let send = |number: u32| {
            let body = streaming_chat("m", &format!("{prompt}{number}"));
            assert_eq!(fleet.penstock.post(CHAT, &body).status, 200);
        };
        let is_trusted = || {
            let backend = fleet.penstock.backend("a");
            backend["models"][0]["prediction"]["trusted"] == json!(true)
        };
        // The slow one gets the beginning while the other one is away.
        set(&fleet.penstock, "b", "drain");
        (0..MANY).take_while(|_| !is_trusted()).for_each(send);
        set(&fleet.penstock, "b", "resume");
        assert!(fleet.b().received().is_empty());
        let is_left = || reason(&fleet.penstock, &prompt) == "slower";
        (0..MANY).take_while(|_| !is_left()).for_each(send);
        let before = fleet.a().counters().requests;
        (0..10).for_each(send);
        assert_eq!(fleet.a().counters().requests, before, "{strategy}");
        // Where nothing else is left, it serves.
        set(&fleet.penstock, "b", "drain");
        send(0);
        assert_eq!(fleet.a().counters().requests, before + 1, "{strategy}");
    }
}

/// Only a request shows that an idle backend has become faster: sessions stay where they are.
#[test]
fn backend_that_was_slow_is_used_again() {
    let engines = vec![engine("a", pace(2, 1)), engine("b", pace(20, 1))];
    let late = Fault::SlowHead(Duration::from_millis(50));
    let setup = Setup { strategy: "slo", routing: "predict: true", ..Setup::default() };
    let penstock = Penstock::start(&yaml(&engines, &["m", "m"], setup));
    let fleet = Fleet { penstock, engines };
    let send = |number: usize| {
        let body = streaming_chat("m", &format!("{number} is the number of this prompt"));
        assert_eq!(fleet.penstock.post(CHAT, &body).status, 200);
    };
    let served_by_a_of = |numbers: std::ops::Range<usize>| {
        let before = fleet.a().counters().requests;
        numbers.for_each(send);
        fleet.a().counters().requests - before
    };
    fleet.a().always(Some(late));
    (0..50).find(|batch| served_by_a_of(batch * 20..batch * 20 + 20) < 2).expect("it is left");
    fleet.a().always(None);
    let is_used = |batch: &usize| served_by_a_of(batch * 20..batch * 20 + 20) > 15;
    (50..500).find(is_used).expect("it is tried, and found to be faster");
}
