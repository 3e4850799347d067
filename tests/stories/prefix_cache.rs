//! An operator trusts what penstock believes of caches: it is hashed once, it ends with the process that
//! had it, and a backend that did not serve a prompt does not have it.

use serde_json::json;

use crate::support::client;
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, metric, name};
use crate::support::{block_on, eventually};
use crate::weighted_scorers::{backend_of, conversation, weighted};

crate::trials![
    long_prompt_is_hashed_once,
    engine_restart_clears_its_prefix_index,
    failed_request_is_not_recorded_as_cached,
];

fn long_prompt_is_hashed_once() {
    let fleet = weighted("prefix-affinity:3,load-balance:1");
    let pieces = |result: &str| {
        let name = format!("penstock_hash_cache_pieces_total{{result=\"{result}\"}}");
        metric(&fleet.penstock, &name)
    };
    let system = "A \"system\" prompt,\nquoted & long. ".repeat(900);
    let ask = |turn: usize| {
        let messages = json!([
            {"role": "system", "content": system},
            {"role": "user", "content": format!("Question {turn}: {}", "word ".repeat(1000))},
        ]);
        let body = json!({"model": "m", "messages": messages, "max_tokens": 2});
        let response = fleet.penstock.post(CHAT, &body);
        let decision = response.header("x-penstock-decision").unwrap().to_owned();
        (backend_of(&response), decision)
    };
    let (home, first) = ask(0);
    let total = &first[first.find(";blocks=0/").expect("all of it is new") + ";blocks=0/".len()..];
    let blocks = total.split(';').next().unwrap().to_owned();
    assert_eq!((pieces("hit"), pieces("miss")), (0.0, 1.0), "what is new is not asked about");
    ask(1);
    assert_eq!(pieces("hit"), 0.0);
    let learned = pieces("miss");
    assert!(learned > 12.0, "{learned}");
    for turn in 2..5 {
        let (backend, decision) = ask(turn);
        assert_eq!(backend, home);
        assert!(decision.contains(&format!("/{blocks};")), "{decision} of {blocks}");
        assert!(!decision.contains(";blocks=0/"), "{decision}");
    }
    assert!(pieces("hit") > 36.0, "{}", pieces("hit"));
    assert_eq!(
        metric(&fleet.penstock, "penstock_max_hash_cache_bytes"),
        f64::from((16 << 20) / 384 * 384)
    );
    // Without it, nothing changes.
    let text = std::fs::read_to_string(&fleet.penstock.config).unwrap();
    std::fs::write(&fleet.penstock.config, format!("{text}\nlimits: {{ hash_cache: 0B }}\n"))
        .unwrap();
    assert_eq!(fleet.penstock.reload().status, 200);
    let (hits, misses) = (pieces("hit"), pieces("miss"));
    let (backend, decision) = ask(5);
    assert_eq!(backend, home);
    assert!(decision.contains(&format!("/{blocks};")), "{decision} of {blocks}");
    assert_eq!((pieces("hit"), pieces("miss")), (hits, misses));
    assert_eq!(metric(&fleet.penstock, "penstock_max_hash_cache_bytes"), 0.0);
}

fn engine_restart_clears_its_prefix_index() {
    let setup = Setup {
        strategy: "weighted",
        routing: "shadow: { strategy: weighted }",
        sections: "telemetry: { interval: 20ms, idle_interval: 50ms, max_cpu: 1 }",
        backend: "engine: vllm",
        ..Setup::default()
    };
    let fleet = Fleet::start(1, setup);
    let page = |started: u32| {
        let text = format!("vllm:num_requests_running 0\nprocess_start_time_seconds {started}\n");
        fleet.a().set_page("/metrics", Some(&text));
    };
    page(100);
    eventually("its metrics were scraped", SOON, || {
        fleet.fact("a", "telemetry")["standing"] == "fresh"
    });
    let prompt = conversation(1, 3);
    let question = json!({"path": CHAT, "body": prompt.to_string()});
    let explained = || client::post(fleet.penstock.admin, "/explain", &question).json();
    let matched = || explained()["decision"]["candidates"][0]["matched_blocks"].as_u64().unwrap();
    let shadowed = |count: f64| {
        let name = "penstock_shadow_decisions_total{result=\"same\"}";
        eventually("the shadow has seen it", SOON, || fleet.metric(name) == count);
        fleet.metric("penstock_shadow_expected_tokens_total{side=\"shadow\"}")
    };
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert!(matched() > 10, "{}", explained());
    assert_eq!(shadowed(1.0), 0.0);
    page(200);
    fleet.wait_metric("penstock_backend_restarts_total{backend=\"a\"}", 1.0);
    assert_eq!(matched(), 0, "it is known before the next request");
    assert_eq!(fleet.metric("penstock_backend_prefix_blocks{backend=\"a\"}"), 0.0);
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert_eq!(shadowed(2.0), 0.0, "the shadow knows it as well");
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert!(matched() > 10 && shadowed(3.0) > 160.0);
    assert_eq!(fleet.metric("penstock_decisions_without_telemetry_total"), 0.0);
    fleet.a().set_page("/metrics", None);
    eventually("it is silent", SOON, || fleet.fact("a", "telemetry")["standing"] != "fresh");
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert_eq!(fleet.metric("penstock_decisions_without_telemetry_total"), 1.0);
}

fn failed_request_is_not_recorded_as_cached() {
    let fleet = weighted("prefix-affinity:1");
    let prompt = conversation(1, 3);
    let question = json!({"path": CHAT, "body": prompt.to_string()});
    let explained = || client::post(fleet.penstock.admin, "/explain", &question).json();
    let home = explained()["decision"]["backend"].as_str().unwrap().to_owned();
    let index = (0..fleet.engines.len()).find(|index| name(*index) == home).unwrap();
    block_on(fleet.engines[index].kill()).unwrap();
    let served = backend_of(&fleet.penstock.post(CHAT, &prompt));
    assert_ne!(served, home);
    for candidate in explained()["decision"]["candidates"].as_array().unwrap() {
        let matched = candidate["matched_blocks"].as_u64().unwrap();
        assert_eq!(matched > 0, candidate["backend"] == *served, "{candidate}");
    }
}
