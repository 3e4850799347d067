//! The filters: the candidates of a request.

use penstock_api::{Capabilities, Operation};
use proptest::prelude::*;

use super::{Fleet, RouteInput, TestRequest, Timestamp, TokenCount, backend, plain_input};
use crate::fleet::{BreakerState, CooldownCause, CooldownScope, Health, Probe};
use crate::routing::RouteError;
use crate::routing::filters::{self, Candidacy, Conditions, Filters, RejectReason};

fn can(names: &str) -> String {
    format!("models: [{{ id: m, capabilities: [{names}] }}]")
}

#[test]
fn only_backends_with_the_exact_model_are_candidates() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("a", 1, "models: [\"llama3:8b\"]"),
        backend("b", 2, "models: [llama3]")
    );
    let mut fleet = Fleet::of(&yaml);
    assert_eq!(fleet.backend_for(TestRequest::of("llama3:8b")), "a");
    assert_eq!(fleet.backend_for(TestRequest::of("llama3")), "b");
    assert_eq!(fleet.backend_for(TestRequest::of("LLAMA3")), "b", "in any case, as in Ollama");
    let other = fleet.error_for(TestRequest::of("llama3:70b"));
    assert!(matches!(other, RouteError::ModelNotFound { .. }));
}

#[test]
fn only_healthy_backends_take_requests() {
    let yaml =
        format!("backends:\n{}{}", backend("a", 1, "models: [m]"), backend("b", 2, "models: [m]"));
    for health in [Health::Unknown, Health::Unhealthy] {
        let mut fleet = Fleet::of(&yaml);
        fleet.set_health("a", health);
        assert_eq!(fleet.backend_for(TestRequest::of("m")), "b", "{health:?}");
    }
    let mut fleet = Fleet::of(&yaml);
    fleet.state("a").set_draining(true);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b", "draining");
    let mut fleet = Fleet::of(&yaml);
    fleet.state("a").breaker.set(BreakerState::Open, fleet.now);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b", "breaker open");
    fleet.state("a").breaker.set(BreakerState::HalfOpen, fleet.now);
    let decision = fleet.route(TestRequest::of("m")).unwrap();
    assert_eq!(decision.probe, Probe::Breaker, "a half-open breaker lets one request find out");
}

#[test]
fn a_prompt_that_just_fits_fits() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("short", 1, "models: [{ id: m, context_length: 4096 }]"),
        backend("long", 2, "priority: 90, models: [{ id: m, context_length: 8192 }]")
    );
    let mut fleet = Fleet::of(&yaml);
    assert_eq!(fleet.backend_for(TestRequest { tokens: 4096, ..TestRequest::of("m") }), "short");
    assert_eq!(fleet.backend_for(TestRequest { tokens: 4097, ..TestRequest::of("m") }), "long");
    assert_eq!(
        fleet.backend_for(TestRequest { tokens: 0, ..TestRequest::of("m") }),
        "short",
        "nothing to fit"
    );
    let error = fleet.error_for(TestRequest { tokens: 8193, ..TestRequest::of("m") });
    assert!(matches!(error, RouteError::CapabilityMismatch { .. }), "longer than every window");
}

#[test]
fn prompt_is_cut_only_where_no_context_holds_it() {
    let short = |name: &str, engine: &str| {
        backend(name, 1, &format!("engine: {engine}, models: [{{ id: m, context_length: 100 }}]"))
    };
    let long =
        backend("long", 2, "engine: vllm, priority: 90, models: [{ id: m, context_length: 200 }]");
    let embed = TestRequest {
        operation: Operation::OllamaEmbed,
        cut_to: Some(TokenCount(0)),
        ..TestRequest::of("m")
    };
    let rank = TestRequest { operation: Operation::Rerank, ..embed };
    for (engine, request, is_cut) in [
        ("ollama", embed, true),
        ("vllm", embed, false),
        ("vllm", rank, true),
        ("other", rank, true),
        ("llamacpp", rank, false),
    ] {
        let alone = format!("backends:\n{}", short("short", engine));
        let both = format!("{alone}{long}");
        let of = |tokens| TestRequest { tokens, ..request };
        assert_eq!(Fleet::of(&alone).backend_for(of(100)), "short", "{engine}");
        assert_eq!(Fleet::of(&alone).route(of(101)).is_ok(), is_cut, "{engine}");
        assert_eq!(Fleet::of(&both).backend_for(of(101)), "long", "{engine}");
        let uncut = TestRequest { cut_to: None, ..of(101) };
        assert!(Fleet::of(&alone).route(uncut).is_err(), "{engine}");
        let to_length = |length| TestRequest { cut_to: Some(TokenCount(length)), ..of(300) };
        assert_eq!(Fleet::of(&alone).route(to_length(100)).is_ok(), is_cut, "{engine}");
        assert!(Fleet::of(&alone).route(to_length(101)).is_err(), "{engine}: still too long");
    }
}

#[test]
fn context_that_a_request_names_counts_before_that_of_its_model() {
    let of = |length: &str| {
        let model = format!("models: [{{ id: m{length} }}]");
        let backend = backend("a", 1, &format!("engine: ollama, {model}"));
        format!("models: {{ m: {{ num_ctx: 100 }} }}\nbackends:\n{backend}")
    };
    let (known, unknown) = (of(", context_length: 300"), of(""));
    let ask = TestRequest { operation: Operation::OllamaChat, ..TestRequest::of("m") };
    for (yaml, named, tokens, fits) in [
        (&known, None, 101, false),
        (&known, Some(200), 200, true),
        (&known, Some(200), 201, false),
        (&known, Some(999), 300, true),
        (&known, Some(999), 301, false),
        (&known, Some(50), 100, true),
        (&known, Some(50), 101, false),
        (&unknown, Some(200), 200, true),
        (&unknown, Some(200), 201, false),
    ] {
        let context_length = named.map(TokenCount);
        let taken = Fleet::of(yaml).route(TestRequest { tokens, context_length, ..ask });
        assert_eq!(taken.is_ok(), fits, "{named:?} {tokens}");
    }
    let longer = TestRequest { tokens: 301, context_length: Some(TokenCount(999)), ..ask };
    let error = Fleet::of(&known).error_for(longer).to_string();
    assert!(error.contains("301 tokens > 300 maximum"), "{error}");
    let elsewhere = backend("v", 1, "engine: vllm, models: [{ id: m, context_length: 100 }]");
    let mut fleet = Fleet::of(&format!("backends:\n{elsewhere}"));
    assert!(fleet.route(longer).is_err(), "no other engine loads a model for a request");
}

#[test]
fn an_unknown_context_fits_everything() {
    let mut fleet = Fleet::of("backends: [{ url: \"http://h:1\", models: [m] }]");
    assert!(fleet.route(TestRequest { tokens: u32::MAX, ..TestRequest::of("m") }).is_ok());
}

#[test]
fn reserved_output_counts_towards_the_context_where_configured() {
    let backends = format!(
        "backends:\n{}{}",
        backend("short", 1, "models: [{ id: m, context_length: 100 }]"),
        backend("long", 2, "priority: 90, models: [{ id: m, context_length: 200 }]")
    );
    let ask = TestRequest { tokens: 60, max_tokens: Some(41), ..TestRequest::of("m") };
    assert_eq!(Fleet::of(&backends).backend_for(ask), "short", "not by default");
    let reserving = format!("routing: {{ reserve_output: true }}\n{backends}");
    assert_eq!(Fleet::of(&reserving).backend_for(ask), "long");
    let fits = TestRequest { max_tokens: Some(40), ..ask };
    assert_eq!(Fleet::of(&reserving).backend_for(fits), "short", "equal fits");
    let huge = TestRequest { max_tokens: Some(u32::MAX), ..ask };
    assert!(Fleet::of(&reserving).route(huge).is_err(), "no overflow");
}

#[test]
fn capabilities_are_per_model_and_backend() {
    let yaml = format!(
        "backends:\n{}{}{}",
        backend(
            "sees",
            1,
            "models: [{ id: m, capabilities: [vision] }, { id: n, capabilities: [] }]"
        ),
        backend("calls", 2, "models: [{ id: m, capabilities: [tools] }]"),
        backend("writes", 3, "models: [{ id: m, capabilities: [json_mode] }]")
    );
    let mut fleet = Fleet::of(&yaml);
    for (needs, taker) in [
        (Capabilities::VISION, "sees"),
        (Capabilities::TOOLS, "calls"),
        (Capabilities::JSON_MODE, "writes"),
    ] {
        assert_eq!(fleet.backend_for(TestRequest { needs, ..TestRequest::of("m") }), taker);
    }
    assert!(
        fleet.route(TestRequest { needs: Capabilities::VISION, ..TestRequest::of("n") }).is_err(),
        "what another model of the same backend can do does not count"
    );
}

#[test]
fn plain_requests_go_anywhere() {
    let yaml = format!(
        "routing: {{ strategy: round_robin }}\nbackends:\n{}{}",
        backend("all", 1, &can("vision, tools, json_mode")),
        backend("none", 2, &can(""))
    );
    let mut fleet = Fleet::of(&yaml);
    let takers: Vec<String> = (0..4).map(|_| fleet.backend_for(TestRequest::of("m"))).collect();
    assert_eq!(takers, ["all", "none", "all", "none"]);
}

#[test]
fn known_capability_beats_an_assumed_one() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("assumed", 1, "priority: 1, models: [m]"),
        backend("known", 2, &format!("priority: 99, {}", can("vision")))
    );
    let mut fleet = Fleet::of(&yaml);
    let image = TestRequest { needs: Capabilities::VISION, ..TestRequest::of("m") };
    let decision = fleet.route(image).unwrap();
    assert!(!decision.is_assumed);
    assert_eq!(decision.candidates, 1, "the assumed one is not even looked at");
    assert_eq!(fleet.backend_for(image), "known");
    assert_eq!(
        fleet.backend_for(TestRequest::of("m")),
        "assumed",
        "nothing needed, nothing assumed"
    );
    fleet.set_health("known", Health::Unhealthy);
    let decision = fleet.route(image).unwrap();
    assert!(decision.is_assumed, "no backend known to have it is left");
    assert_eq!(fleet.backend_for(image), "assumed");
}

#[test]
fn unknown_capabilities_may_be_denied() {
    let yaml =
        "routing: { unknown_capability: deny }\nbackends: [{ url: \"http://h:1\", models: [m] }]";
    let mut fleet = Fleet::of(yaml);
    assert!(fleet.route(TestRequest::of("m")).is_ok());
    assert!(
        fleet.route(TestRequest { needs: Capabilities::TOOLS, ..TestRequest::of("m") }).is_err()
    );
}

#[test]
fn operations_restrict_the_candidates() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("chat", 1, "models: [{ id: m, operations: [chat, completions] }]"),
        backend("embed", 2, "models: [{ id: m, operations: [embeddings] }]")
    );
    let mut fleet = Fleet::of(&yaml);
    let operation = |operation| TestRequest { operation, ..TestRequest::of("m") };
    assert_eq!(fleet.backend_for(operation(Operation::Chat)), "chat");
    assert_eq!(fleet.backend_for(operation(Operation::Embeddings)), "embed");
    assert!(fleet.route(operation(Operation::Rerank)).is_err());
}

fn can_all(bits: u8) -> Capabilities {
    let named = Capabilities::NAMED.iter().enumerate();
    named
        .filter(|(index, _)| bits & (1 << index) != 0)
        .fold(Capabilities::NONE, |all, (_, (one, _))| all.union(*one))
}

proptest! {
    // With fallbacks, retries and load, no backend receives a request whose needs it does not meet.
    #[test]
    fn incapable_backends_receive_no_request(
        backends in prop::collection::vec((0..8_u8, 0..8_u8, 1..100_u32, 0..3_u32), 1..6),
        needs in 0..8_u8,
        tokens in 0..120_u32,
    ) {
        let lines: String = backends.iter().enumerate().map(|(index, (m, n, context, load))| {
            backend(&format!("b{index}"), 8000 + index, &format!(
                "max_in_flight: {}, models: [{{ id: m, context_length: {context}, capabilities: {} }}, \
                 {{ id: n, context_length: 100, capabilities: {} }}]",
                load + 1, can_all(*m), can_all(*n)
            ))
        }).collect();
        let routing = "routing: { fallback_on_saturation: true, fallbacks: { m: [n] } }\n";
        let mut fleet = Fleet::of(&format!("{routing}backends:\n{lines}"));
        let ask = TestRequest { needs: can_all(needs), tokens, ..TestRequest::of("m") };
        // Each attempt fails, until no backend is left.
        for _ in 0..=backends.len() {
            let Ok((name, model)) = fleet.taken(ask) else { break };
            let (m, n, context, _) = backends[name[1..].parse::<usize>().unwrap()];
            let (has, fits) = if model == "m" { (m, context) } else { (n, 100) };
            prop_assert!(can_all(has).contains(can_all(needs)), "{} as {}", name, model);
            prop_assert!(fits >= tokens, "{} as {}", name, model);
            prop_assert!(!fleet.tried.contains(fleet.state(&name).id), "never tried twice");
            fleet.try_again(&name);
        }
        prop_assert!(fleet.route(ask).is_err(), "every backend was tried");
    }
}

proptest! {
    #[test]
    fn filters_admit_the_same_with_and_without_reasons(
        (health, draining, breaker) in (0..3_usize, any::<bool>(), 0..3_usize),
        (rest, load, tried) in (0..3_u64, 0..4_u32, any::<bool>()),
        (has, needs, tokens) in (0..8_u8, 0..8_u8, 90..110_u32),
        embeddings in any::<bool>(),
    ) {
        let yaml = format!("backends:\n{}", backend("a", 1, &format!(
            "max_in_flight: 2, models: [{{ id: m, context_length: 100, capabilities: {}, \
             operations: [chat] }}]", can_all(has)
        )));
        let mut fleet = Fleet::of(&yaml);
        let state = fleet.state("a");
        state.health.set([Health::Healthy, Health::Unknown, Health::Unhealthy][health]);
        state.set_draining(draining);
        let breakers = [BreakerState::Closed, BreakerState::HalfOpen, BreakerState::Open];
        state.breaker.set(breakers[breaker], fleet.now);
        state.cooldowns.start(CooldownScope::BACKEND, Timestamp(fleet.now.0 + rest - 1), CooldownCause::of_status(429), fleet.now);
        state.load.set_in_flight(load);
        if tried {
            fleet.try_again("a");
        }
        let operation = if embeddings { Operation::Embeddings } else { Operation::Chat };
        let profile = TestRequest { needs: can_all(needs), tokens, operation, ..TestRequest::of("m") }.profile();
        let snapshot = fleet.live.topology();
        let input = RouteInput { tokens: TokenCount(tokens), now: fleet.now, ..plain_input(&profile, &snapshot, &fleet.tried) };
        let model = snapshot.model(snapshot.model_id("m").unwrap()).unwrap();
        for candidacy in [Candidacy::Usable, Candidacy::Known] {
            let conditions = Conditions { candidacy, ..Conditions::LENIENT };
            let filters = Filters::new(&input, model, conditions);
            let verdict: Result<(), RejectReason> = filters.check(&model.serving[0]);
            prop_assert_eq!(filters.check::<bool>(&model.serving[0]), verdict.is_ok());
            let is_lenient = Filters::new(&input, model, Conditions::LENIENT).check(&model.serving[0]);
            let is_known = filters::is_known(&input, &model.serving[0]);
            let expected = is_lenient && (candidacy == Candidacy::Usable || is_known);
            prop_assert_eq!(verdict.is_ok(), expected, "{:?} {:?}", candidacy, verdict);
        }
    }
}
