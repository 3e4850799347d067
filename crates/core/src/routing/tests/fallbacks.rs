//! Fallbacks to other models, and aliases.

use penstock_api::{Capabilities, ErrorCode};

use super::{Fleet, TestRequest, alike, backend};
use crate::fleet::Health;
use crate::routing::RouteError;

/// Three backends with a model each: `a`, `b` and `c`.
fn abc(routing: &str) -> Fleet {
    let one =
        |name: &str, port| backend(name, port, &format!("max_in_flight: 2, models: [{name}]"));
    let backends = [one("a", 1), one("b", 2), one("c", 3)].concat();
    Fleet::of(&format!("routing: {{ {routing} }}\nbackends:\n{backends}"))
}

fn model_for(fleet: &mut Fleet, name: &str) -> String {
    fleet.taken(TestRequest::of(name)).unwrap_or_else(|error| panic!("{error}")).1
}

#[test]
fn an_alias_is_its_target() {
    let mut fleet = abc("aliases: { gpt-4: a, claude: gpt-4 }");
    assert_eq!(model_for(&mut fleet, "gpt-4"), "a");
    assert_eq!(model_for(&mut fleet, "claude"), "a");
    let decision = fleet.route(TestRequest::of("gpt-4")).unwrap();
    assert!(!decision.is_fallback, "an alias is no fallback");
}

#[test]
fn aliases_go_before_models_of_the_same_name() {
    let mut fleet = abc("aliases: { a: b }");
    assert_eq!(model_for(&mut fleet, "a"), "b");
}

#[test]
fn fallbacks_are_tried_in_their_order() {
    let mut fleet = abc("fallbacks: { a: [b, c] }");
    assert_eq!(model_for(&mut fleet, "a"), "a");
    fleet.set_health("a", Health::Unhealthy);
    let decision = fleet.route(TestRequest::of("a")).unwrap();
    assert!(decision.is_fallback);
    assert_eq!(model_for(&mut fleet, "a"), "b");
    fleet.set_health("b", Health::Unhealthy);
    assert_eq!(model_for(&mut fleet, "a"), "c");
    fleet.set_health("c", Health::Unhealthy);
    let error = fleet.error_for(TestRequest::of("a"));
    assert_eq!(error.to_string(), "All backends in fallback chain unavailable: [a, b, c]");
}

#[test]
fn a_missing_model_falls_back_too() {
    let mut fleet = abc("fallbacks: { ghost: [b] }");
    assert_eq!(model_for(&mut fleet, "ghost"), "b");
}

#[test]
fn missing_capability_falls_back_before_it_is_refused() {
    let yaml = format!(
        "routing: {{ fallbacks: {{ blind: [mute, sees] }} }}\nbackends:\n{}{}{}",
        backend("one", 1, "models: [{ id: blind, capabilities: [] }]"),
        backend("two", 2, "models: [{ id: mute, capabilities: [tools] }]"),
        backend("three", 3, "models: [{ id: sees, capabilities: [vision] }]")
    );
    let mut fleet = Fleet::of(&yaml);
    let image = TestRequest { needs: Capabilities::VISION, ..TestRequest::of("blind") };
    assert_eq!(fleet.backend_for(image), "three", "the filters hold for fallbacks");
    fleet.set_health("three", Health::Unhealthy);
    let error = fleet.error_for(image);
    assert_eq!(error.code(), ErrorCode::FallbackChainExhausted, "with a chain no 400");
    assert_eq!(
        error.to_string(),
        "All backends in fallback chain unavailable: [blind, mute, sees]"
    );
}

#[test]
fn fallback_entries_are_resolved_through_aliases() {
    let mut fleet = abc("aliases: { cheap: c }, fallbacks: { a: [cheap] }");
    fleet.set_health("a", Health::Unhealthy);
    assert_eq!(model_for(&mut fleet, "a"), "c");
}

#[test]
fn a_chain_is_found_under_the_target_or_back_along_the_alias() {
    let mut fleet = abc("aliases: { opus: mid, mid: a }, fallbacks: { opus: [c] }");
    fleet.set_health("a", Health::Unhealthy);
    assert_eq!(model_for(&mut fleet, "opus"), "c", "the fallbacks of the requested name apply");
    assert!(
        fleet.route(TestRequest::of("mid")).is_err(),
        "they do not apply to the name the alias points to"
    );
    let mut fleet = abc("aliases: { opus: a }, fallbacks: { a: [b], opus: [c] }");
    fleet.set_health("a", Health::Unhealthy);
    assert_eq!(model_for(&mut fleet, "opus"), "b", "the target's own chain goes first");
}

#[test]
fn fallbacks_do_not_chain() {
    let mut fleet = abc("fallbacks: { a: [b], b: [c] }");
    fleet.set_health("a", Health::Unhealthy);
    fleet.set_health("b", Health::Unhealthy);
    let error = fleet.error_for(TestRequest::of("a"));
    assert_eq!(error.to_string(), "All backends in fallback chain unavailable: [a, b]");
    assert_eq!(model_for(&mut fleet, "b"), "c", "its fallbacks apply when it is requested itself");
}

#[test]
fn model_with_all_backends_tried_falls_back() {
    let mut fleet = abc("fallbacks: { a: [b] }");
    fleet.try_again("a");
    assert_eq!(model_for(&mut fleet, "a"), "b");
    fleet.try_again("b");
    assert!(matches!(fleet.error_for(TestRequest::of("a")), RouteError::AllTried { .. }));
}

#[test]
fn saturated_model_falls_back_only_where_configured() {
    let mut fleet = abc("fallbacks: { a: [b] }");
    fleet.state("a").load.set_in_flight(2);
    assert_eq!(fleet.error_for(TestRequest::of("a")).code(), ErrorCode::AllBackendsBusy);
    let mut fleet = abc("fallback_on_saturation: true, fallbacks: { a: [b] }");
    fleet.state("a").load.set_in_flight(2);
    assert_eq!(model_for(&mut fleet, "a"), "b");
}

#[test]
fn an_empty_chain_is_no_chain() {
    let mut fleet =
        Fleet::of(&format!("routing: {{ fallbacks: {{ b0: [] }} }}\n{}", alike(1, "m")));
    assert_eq!(fleet.error_for(TestRequest::of("b0")).code(), ErrorCode::ModelNotFound);
}
