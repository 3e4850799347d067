//! The errors when no backend can take a request: every class, with its exact message.

use std::time::Duration;

use penstock_api::{Capabilities, ErrorCode, Operation};

use super::{Fleet, NOW, TestRequest, alike, backend};
use crate::fleet::{CooldownCause, CooldownScope, Health, InflightGuard, PermitRequest, Probe};
use crate::routing::RouteError;

fn reported(fleet: &mut Fleet, ask: TestRequest<'_>) -> (ErrorCode, u16, String) {
    let error = fleet.error_for(ask);
    (error.code(), error.code().row().status, error.to_string())
}

fn alone(model: &str) -> Fleet {
    Fleet::of(&format!("backends:\n{}", backend("one", 1, &format!("models: [{model}]"))))
}

#[test]
fn unserved_model_is_not_found() {
    for mut fleet in [alone("m"), Fleet::of("backends: []")] {
        let wanted = (ErrorCode::ModelNotFound, 404, "Model 'x' not found".to_owned());
        assert_eq!(reported(&mut fleet, TestRequest::of("x")), wanted);
    }
}

#[test]
fn dead_alias_names_itself_and_its_target() {
    let yaml = format!("routing: {{ aliases: {{ gpt-4: ghost }} }}\n{}", alike(1, "m"));
    let (code, status, message) = reported(&mut Fleet::of(&yaml), TestRequest::of("gpt-4"));
    assert_eq!((code, status), (ErrorCode::ModelNotFound, 404));
    assert!(message.contains("'gpt-4'") && message.contains("'ghost'"), "{message}");
    assert!(message.starts_with("Model 'ghost' not found"), "{message}");
}

#[test]
fn served_model_without_a_healthy_backend_is_unavailable() {
    for health in [Health::Unhealthy, Health::Unknown] {
        let mut fleet = alone("m");
        fleet.set_health("one", health);
        let message = "No healthy backend available for model 'm'".to_owned();
        assert_eq!(
            reported(&mut fleet, TestRequest::of("m")),
            (ErrorCode::NoHealthyBackend, 503, message)
        );
    }
}

#[test]
fn missing_capabilities_are_all_listed() {
    let mut fleet = alone("{ id: m, context_length: 100, capabilities: [json_mode] }");
    let needs = Capabilities::ALL;
    let message = "No backend supports required capabilities for model 'm': \
         [vision, tools, context_length] (one lacks vision, tools, context_length)";
    // A shorter prompt would be refused too: clients must not take this for an overflow.
    let wanted = (ErrorCode::CapabilityMismatch, 400, message.to_owned());
    assert_eq!(
        reported(&mut fleet, TestRequest { needs, tokens: 101, ..TestRequest::of("m") }),
        wanted
    );
    let message = "No backend supports required capabilities for model 'm': [vision, tools] \
                   (one lacks vision, tools)";
    let wanted = (ErrorCode::CapabilityMismatch, 400, message.to_owned());
    assert_eq!(reported(&mut fleet, TestRequest { needs, ..TestRequest::of("m") }), wanted);
}

#[test]
fn too_long_prompt_has_a_separate_error_code() {
    let mut fleet = alone("{ id: m, context_length: 100, capabilities: [] }");
    let message = "No backend supports required capabilities for model 'm': [context_length] \
                   (one lacks context_length): prompt is too long: 101 tokens > 100 maximum; \
                   this model's maximum context length is 100 tokens";
    let wanted = (ErrorCode::ContextLengthExceeded, 400, message.to_owned());
    assert_eq!(reported(&mut fleet, TestRequest { tokens: 101, ..TestRequest::of("m") }), wanted);
}

#[test]
fn longest_context_is_the_limit_of_a_too_long_prompt() {
    let yaml = format!(
        "backends:\n{}{}{}",
        backend("short", 1, "models: [{ id: m, context_length: 50 }]"),
        backend("long", 2, "models: [{ id: m, context_length: 100 }]"),
        backend("blind", 3, "models: [{ id: m, context_length: 80, operations: [embeddings] }]")
    );
    let request = TestRequest { tokens: 101, ..TestRequest::of("m") };
    let (_, _, message) = reported(&mut Fleet::of(&yaml), request);
    assert!(message.contains(": prompt is too long: 101 tokens > 100 maximum; "), "{message}");
}

#[test]
fn prompt_too_long_for_a_whole_chain_is_no_outage() {
    let yaml = format!(
        "routing: {{ fallbacks: {{ a: [b, ghost, c] }} }}\nbackends:\n{}{}{}",
        backend("one", 1, "models: [{ id: a, context_length: 100 }]"),
        backend("two", 2, "models: [{ id: b, context_length: 300 }]"),
        backend("three", 3, "models: [{ id: c, context_length: 200 }]")
    );
    let mut fleet = Fleet::of(&yaml);
    let request = TestRequest { tokens: 301, ..TestRequest::of("a") };
    let (code, status, message) = reported(&mut fleet, request);
    assert_eq!((code, status), (ErrorCode::ContextLengthExceeded, 400), "no retry can be served");
    assert!(message.contains("301 tokens > 300 maximum"), "{message}");
    fleet.set_health("two", Health::Unhealthy);
    let (code, ..) = reported(&mut fleet, request);
    assert_eq!(code, ErrorCode::FallbackChainExhausted, "what is out may have room");
}

#[test]
fn unserved_operation_is_named() {
    let mut fleet = alone("{ id: m, operations: [chat] }");
    let (code, status, message) = reported(
        &mut fleet,
        TestRequest { operation: Operation::Embeddings, ..TestRequest::of("m") },
    );
    assert_eq!((code, status), (ErrorCode::CapabilityMismatch, 400));
    assert!(message.ends_with("for model 'm': [embeddings] (one lacks embeddings)"), "{message}");
}

#[test]
fn capabilities_missing_on_different_backends_are_listed_together() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("sees", 1, "models: [{ id: m, capabilities: [vision] }]"),
        backend("calls", 2, "models: [{ id: m, capabilities: [tools] }]")
    );
    let needs = Capabilities::VISION.union(Capabilities::TOOLS);
    let (_, _, message) =
        reported(&mut Fleet::of(&yaml), TestRequest { needs, ..TestRequest::of("m") });
    assert!(
        message.ends_with(": [vision, tools] (sees lacks tools; calls lacks vision)"),
        "no backend has both: {message}"
    );
}

#[test]
fn capability_mismatch_lists_all_that_some_candidate_lacks() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("short", 1, "models: [{ id: m, context_length: 100, capabilities: [tools] }]"),
        backend("long", 2, "models: [{ id: m, capabilities: [] }]")
    );
    let needs = Capabilities::VISION.union(Capabilities::TOOLS);
    let request = TestRequest { needs, tokens: 101, ..TestRequest::of("m") };
    let (code, _, message) = reported(&mut Fleet::of(&yaml), request);
    assert_eq!(code, ErrorCode::CapabilityMismatch);
    let listed = ": [vision, tools, context_length] (short lacks vision, context_length; long lacks vision, tools)";
    assert!(message.ends_with(listed), "one change must suffice for any backend: {message}");
}

#[test]
fn capability_mismatch_names_at_most_five_candidates() {
    let blind = |index: usize| {
        backend(&format!("b{index}"), 1 + index, "models: [{ id: m, capabilities: [] }]")
    };
    let yaml = format!("backends:\n{}", (0..7).map(blind).collect::<String>());
    let request = TestRequest { needs: Capabilities::VISION, ..TestRequest::of("m") };
    let (_, _, message) = reported(&mut Fleet::of(&yaml), request);
    assert_eq!(message.matches(" lacks vision").count(), 5, "{message}");
    assert!(message.ends_with("b4 lacks vision)"), "{message}");
}

#[test]
fn unhealthy_capable_backend_makes_the_status_503() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("blind", 1, "models: [{ id: m, capabilities: [] }]"),
        backend("sees", 2, "models: [{ id: m, capabilities: [vision] }]")
    );
    let mut fleet = Fleet::of(&yaml);
    fleet.set_health("sees", Health::Unhealthy);
    let image = TestRequest { needs: Capabilities::VISION, ..TestRequest::of("m") };
    let (code, status, message) = reported(&mut fleet, image);
    assert_eq!((code, status), (ErrorCode::NoHealthyBackend, 503), "a retry may succeed");
    assert!(message.starts_with("No healthy backend available for model 'm'"), "{message}");
    assert!(message.contains("vision"), "{message}");
}

#[test]
fn full_backends_are_busy() {
    let mut fleet =
        Fleet::of(&format!("backends:\n{}", backend("one", 1, "max_in_flight: 1, models: [m]")));
    let _place =
        InflightGuard::try_reserve(&fleet.state("one"), 1, &PermitRequest::default()).unwrap();
    let (code, status, _) = reported(&mut fleet, TestRequest::of("m"));
    assert_eq!((code, status), (ErrorCode::AllBackendsBusy, 503));
    assert!(matches!(fleet.error_for(TestRequest::of("m")), RouteError::Saturated { .. }));
}

#[test]
fn next_probe_goes_to_the_first_to_leave_cooldown() {
    let mut fleet = Fleet::of(&alike(3, "m"));
    for (name, seconds) in [("b0", 30), ("b1", 5), ("b2", 60)] {
        fleet.state(name).cooldowns.start(
            CooldownScope::BACKEND,
            NOW.after(Duration::from_secs(seconds)),
            CooldownCause::of_status(429),
            NOW,
        );
    }
    let decision = fleet.route(TestRequest::of("m")).unwrap();
    assert_eq!(decision.probe, Probe::Cooldown);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b1", "its cooldown ends first");
    let probe = InflightGuard::try_reserve(
        &fleet.state("b1"),
        u32::MAX,
        &PermitRequest { probe: decision.probe, now: NOW, ..PermitRequest::default() },
    )
    .unwrap();
    let error = fleet.error_for(TestRequest::of("m"));
    let until = NOW.after(Duration::from_secs(5));
    assert_eq!(error, RouteError::CoolingDown { model: "m".to_owned(), until, status: 429 });
    assert_eq!((error.code(), error.code().row().status), (ErrorCode::BackendsCoolingDown, 429));
    drop(probe);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b1", "the probe is free again");
    fleet.now = NOW.after(Duration::from_secs(31));
    assert_eq!(
        fleet.backend_for(TestRequest::of("m")),
        "b0",
        "two cooldowns are over, the first backend is best"
    );
}

#[test]
fn next_probe_goes_to_a_backend_known_to_be_capable() {
    let yaml = format!(
        "backends:\n{}{}",
        backend("assumed", 1, "models: [m]"),
        backend("known", 2, "models: [{ id: m, capabilities: [vision] }]")
    );
    let mut fleet = Fleet::of(&yaml);
    for (name, seconds) in [("assumed", 5), ("known", 30)] {
        let until = NOW.after(Duration::from_secs(seconds));
        fleet.state(name).cooldowns.start(
            CooldownScope::BACKEND,
            until,
            CooldownCause::of_status(429),
            NOW,
        );
    }
    let image = TestRequest { needs: Capabilities::VISION, ..TestRequest::of("m") };
    let decision = fleet.route(image).unwrap();
    assert_eq!((decision.probe, decision.is_assumed), (Probe::Cooldown, false));
    assert_eq!(fleet.backend_for(image), "known", "though its cooldown ends later");
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "assumed", "nothing is needed");
    fleet.set_health("known", Health::Unhealthy);
    let decision = fleet.route(image).unwrap();
    assert_eq!((decision.probe, decision.is_assumed), (Probe::Cooldown, true));
    assert_eq!(fleet.backend_for(image), "assumed");
}

#[test]
fn one_cooldown_after_a_503_makes_the_status_503() {
    let mut fleet = Fleet::of(&alike(2, "m"));
    fleet.state("b0").cooldowns.start(
        CooldownScope::BACKEND,
        NOW.after(Duration::from_secs(9)),
        CooldownCause::of_status(429),
        NOW,
    );
    fleet.state("b1").cooldowns.start(
        CooldownScope::BACKEND,
        NOW.after(Duration::from_secs(4)),
        CooldownCause::of_status(503),
        NOW,
    );
    let _probe = InflightGuard::try_reserve(
        &fleet.state("b1"),
        9,
        &PermitRequest { probe: Probe::Cooldown, now: NOW, ..PermitRequest::default() },
    )
    .unwrap();
    let (code, status, _) = reported(&mut fleet, TestRequest::of("m"));
    assert_eq!((code, status), (ErrorCode::AllBackendsBusy, 503));
}

#[test]
fn full_backend_causes_no_probe_of_a_backend_in_cooldown() {
    let mut fleet = Fleet::of(&format!(
        "backends:\n{}{}",
        backend("full", 1, "max_in_flight: 1, models: [m]"),
        backend("cooldown", 2, "models: [m]")
    ));
    fleet.state("full").load.set_in_flight(1);
    fleet.state("cooldown").cooldowns.start(
        CooldownScope::BACKEND,
        NOW.after(Duration::from_secs(9)),
        CooldownCause::of_status(429),
        NOW,
    );
    assert!(matches!(fleet.error_for(TestRequest::of("m")), RouteError::Saturated { .. }));
}

#[test]
fn unknown_model_waits_for_discovery() {
    let yaml =
        format!("backends:\n{}{}", backend("known", 1, "models: [m]"), backend("silent", 2, ""));
    let mut fleet = Fleet::of(&yaml);
    let (code, status, _) = reported(&mut fleet, TestRequest::of("x"));
    assert_eq!((code, status), (ErrorCode::DiscoveryPending, 503));
    let id = fleet.state("silent").id;
    assert!(fleet.live.learn_models(id, &[]));
    assert_eq!(
        reported(&mut fleet, TestRequest::of("x")).0,
        ErrorCode::ModelNotFound,
        "every backend has reported its models"
    );
}

#[test]
fn unknown_model_is_not_found_once_discovery_gives_up() {
    let silent: String = (1..=7).map(|number| backend(&format!("s{number}"), 2, "")).collect();
    let yaml = format!(
        "discovery: {{ give_up: 10s }}\nbackends:\n{}{silent}",
        backend("known", 1, "models: [m]")
    );
    let mut fleet = Fleet::of(&yaml);
    for backend in &fleet.live.topology().backends {
        backend.state.await_models(NOW);
    }
    fleet.now = NOW.after(Duration::from_millis(9_999));
    assert_eq!(reported(&mut fleet, TestRequest::of("x")).0, ErrorCode::DiscoveryPending);
    fleet.now = NOW.after(Duration::from_secs(10));
    let (code, status, message) = reported(&mut fleet, TestRequest::of("x"));
    assert_eq!((code, status), (ErrorCode::ModelNotFound, 404));
    assert_eq!(
        message,
        "Model 'x' not found; backends that have never reported their models: s1, s2, s3, s4, s5 \
         and 2 more"
    );
    fleet.state("s7").await_models(fleet.now);
    let again = reported(&mut fleet, TestRequest::of("x")).0;
    assert_eq!(again, ErrorCode::ModelNotFound, "a reload does not start the wait again");
}

#[test]
fn models_of_an_unhealthy_backend_stay_known() {
    let mut fleet = alone("m");
    fleet.set_health("one", Health::Unhealthy);
    assert_eq!(reported(&mut fleet, TestRequest::of("m")).0, ErrorCode::NoHealthyBackend, "no 404");
}
