//! The command, with short workloads.

use super::super::tests::call;

const SHORT: [&str; 8] =
    ["simulate", "chatbot", "--part", "0.05", "--backends", "2", "--seeds", "2"];

fn simulate(more: &[&str]) -> super::super::tests::Done {
    call(&[&SHORT[..], more].concat())
}

#[test]
fn one_page_of_results_is_the_same_in_every_run() {
    let first = simulate(&["--threads", "1"]);
    assert_eq!(first.code, 0, "{}", first.complaints);
    for part in [
        "TTFT      mean",
        "goodput",
        "load (rate / capacity)",
        "250 requests",
        "2 x h100/qwen3-32b/tp2",
    ] {
        assert!(first.results.contains(part), "{part}: {}", first.results);
    }
    assert_eq!(first.results, simulate(&["--threads", "2"]).results);
    assert_ne!(first.results, simulate(&["--seed", "9"]).results);
}

#[test]
fn assertions_decide_the_exit_code() {
    assert_eq!(simulate(&["--assert", "goodput > 0.5"]).code, 0);
    let failed = simulate(&["--assert", "ttft_p99 < 1ms"]);
    assert_eq!(failed.code, 1);
    assert!(failed.complaints.contains("1 of 1: 'ttft_p99 < 1ms'"), "{}", failed.complaints);
    let wrong = simulate(&["--assert", "speed < 1ms"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.complaints.contains("there is no such figure"), "{}", wrong.complaints);
}

#[test]
fn sweep_shows_each_point_and_gives_advice_or_a_reason() {
    let swept = simulate(&["--load", "0.8", "--sweep", "routing.strategy=round_robin,smart"]);
    assert_eq!(swept.code, 0, "{}", swept.complaints);
    for part in ["strategy=round_robin", "strategy=smart", "as configured", "best"] {
        assert!(swept.results.contains(part), "{part}: {}", swept.results);
    }
    let unknown = simulate(&["--sweep", "routing.speed=1,2"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.complaints.contains("routing.speed"), "{}", unknown.complaints);
}

#[test]
fn wrong_inputs_are_named() {
    for (arguments, part) in [
        (&["simulate"][..], "pass a workload: a file, a trace, or one of chatbot"),
        (&["simulate", "/nowhere"][..], "cannot read /nowhere"),
        (&["simulate", "chatbot", "--engine", "x"][..], "no row 'x'"),
        (&["simulate", "chatbot", "--engine", "b9=h100/qwen3-32b/tp2"][..], "no backend 'b9'"),
        (
            &["simulate", "chatbot", "--fault", "at 1s backend b9 down 1s"][..],
            "names the backend 'b9'",
        ),
        (&["simulate", "chatbot", "--seeds", "0"][..], "--seeds: at least 1"),
        (&["simulate", "chatbot", "--speed", "0"][..], "--speed: a number greater than 0"),
        (&["simulate", file!()][..], "no known trace"),
    ] {
        let called = call(arguments);
        assert_eq!(called.code, 2, "{arguments:?}");
        assert!(called.complaints.contains(part), "{arguments:?}: {}", called.complaints);
    }
    assert!(call(&["simulate", "--list"]).results.contains("shared-prefix"));
}
