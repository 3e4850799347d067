//! Policies: zones, tiers and quality, and what a request and its key may change.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use penstock_api::ErrorCode;

use super::{Fleet, NOW, TestRequest, backend};
use crate::fleet::{InflightGuard, PermitRequest, QualitySample};
use crate::routing::{ModelAsked, PolicyClient, PolicyError, PolicyWishes, RouteError, SplitPoint};

const LOCAL: &str = "policies: [{ name: private, models: [m], zones: [local] }]\n";

/// Two backends of `m`: `near` in the zone local, `far` in the cloud and with a better priority.
fn near_and_far(rest: &str) -> Fleet {
    let near = backend("near", 1, "priority: 9, models: [{ id: m, tier: 2 }, other]");
    let far = "  - { name: far, url: \"https://api.example\", priority: 1, tier: 4, models: [m, other] }\n";
    let mut fleet =
        Fleet::of(&format!("routing: {{ strategy: priority_only }}\n{rest}backends:\n{near}{far}"));
    fleet.tried = Default::default();
    fleet
}

fn ask(model: &str) -> TestRequest<'_> {
    TestRequest::of(model)
}

#[test]
fn request_never_leaves_its_zones() {
    let mut fleet = near_and_far(LOCAL);
    assert_eq!(fleet.backend_for(ask("m")), "near", "the better priority is in the cloud");
    assert_eq!(fleet.backend_for(ask("other")), "far", "no policy is about it");
    fleet.try_again("near");
    let error = fleet.error_for(ask("m"));
    assert!(matches!(error, RouteError::AllTried { .. }), "a retry stays there: {error}");
}

#[test]
fn spelling_and_alias_do_not_escape_a_policy() {
    let aliases = "routing: { strategy: priority_only, aliases: { fast: m, \"gpt-*\": m } }\n";
    let near = backend("near", 1, "priority: 9, models: [{ id: m, upstream_id: org/M-7b }]");
    let far = "  - { name: far, url: \"https://api.example\", priority: 1, models: [m] }\n";
    for models in ["m", "M", "m:latest", "org/*", "'?'", "fast"] {
        let policy = format!("policies: [{{ name: p, models: [{models}], zones: [local] }}]\n");
        let mut fleet = Fleet::of(&format!("{aliases}{policy}backends:\n{near}{far}"));
        for name in ["m", "M", "m:latest", "M:LATEST", "fast", "gpt-4"] {
            let expected = if models == "fast" && name != "fast" { "far" } else { "near" };
            assert_eq!(fleet.backend_for(ask(name)), expected, "{models}: {name}");
        }
    }
}

#[test]
fn fallback_meets_its_own_policy_and_the_requests() {
    let routing = "routing: { fallbacks: { m: [free, safe] } }\n";
    let policies = "policies:\n  - { name: eu, models: [m], zones: [local, eu] }\n  \
                    - { name: near, models: [safe], zones: [local] }\n";
    let line = |name: &str, zone: &str, model: &str| {
        backend(name, 1, &format!("zone: {zone}, models: [{model}]"))
    };
    let mut fleet = Fleet::of(&format!(
        "{routing}{policies}backends:\n{}{}{}{}",
        line("a", "cloud", "m"),
        line("b", "cloud", "free"),
        line("c", "eu", "safe"),
        line("d", "local", "safe"),
    ));
    for _ in 0..10 {
        assert_eq!(fleet.backend_for(ask("m")), "d", "in both policies");
    }
    assert_eq!(fleet.backend_for(ask("free")), "b");
}

#[test]
fn error_names_the_zones_and_each_backend_there() {
    let mut fleet = near_and_far(LOCAL);
    fleet.set_health("near", crate::fleet::Health::Unhealthy);
    let error = fleet.error_for(ask("m"));
    assert_eq!(error.code(), ErrorCode::NoBackendInZone);
    assert!(!error.is_final(), "it may recover");
    assert_eq!(
        error.to_string(),
        "Requests for model 'm' may only reach the zone local: near is unhealthy (1 in other zones)"
    );
    let mut fleet = near_and_far("policies: [{ name: mars, zones: [mars] }]\n");
    let error = fleet.error_for(ask("m"));
    assert!(error.is_final(), "only another configuration helps");
    assert_eq!(
        error.to_string(),
        "Requests for model 'm' may only reach the zone mars, where no backend serves it \
         (2 in other zones)"
    );
    let unknown = fleet.error_for(ask("nothing"));
    assert_eq!(unknown.code(), ErrorCode::ModelNotFound, "comes first");
    let mut fleet = near_and_far(LOCAL);
    let long = TestRequest { needs: penstock_api::Capabilities::VISION, ..ask("m") };
    assert_eq!(fleet.backend_for(long), "near", "assumed");
}

#[test]
fn full_zone_is_waited_for() {
    let near = backend("near", 1, "max_in_flight: 1, models: [m]");
    let far = "  - { name: far, url: \"https://api.example\", models: [m] }\n";
    let mut fleet = Fleet::of(&format!("{LOCAL}backends:\n{near}{far}"));
    fleet.state("near").load.set_in_flight(1);
    let error = fleet.error_for(ask("m"));
    assert!(error.may_pass() && error.code() == ErrorCode::AllBackendsBusy, "{error}");
}

#[test]
fn strict_tier_is_a_need_and_flexible_one_a_preference() {
    let strict = "policies: [{ name: good, min_tier: 3 }]\n";
    let mut fleet = near_and_far(strict);
    assert_eq!(fleet.backend_for(ask("m")), "far");
    fleet.set_health("far", crate::fleet::Health::Unhealthy);
    let error = fleet.error_for(ask("m"));
    assert_eq!(
        error.to_string(),
        "No healthy backend available for model 'm' (the healthy ones lack [tier 3])"
    );
    let mut fleet = near_and_far("policies: [{ name: best, min_tier: 5 }]\n");
    assert_eq!(
        fleet.error_for(ask("m")).to_string(),
        "No backend supports required capabilities for model 'm': [tier 5] (near lacks tier 5; far lacks tier 5)"
    );
    let flexible = "policies: [{ name: good, min_tier: 3, tier_mode: flexible }]\n";
    let mut fleet = near_and_far(flexible);
    let decision = fleet.route(ask("m")).unwrap();
    assert!(!decision.is_below_tier, "far has the tier");
    fleet.set_health("far", crate::fleet::Health::Unhealthy);
    let decision = fleet.route(ask("m")).unwrap();
    assert!(decision.is_below_tier, "and near serves while it is down");
    let wishes = PolicyWishes { is_strict: Some(true), ..PolicyWishes::default() };
    let error = fleet.error_for(TestRequest { wishes, ..ask("m") });
    assert_eq!(error.code(), ErrorCode::NoHealthyBackend, "unless the request is strict");
}

#[test]
fn request_adds_restrictions_and_its_key_loosens_them() {
    let policies = "policies:\n  - { name: private, models: [m], zones: [local], min_tier: 1 }\n  \
                    - { name: open, models: [none] }\n  - { name: far, models: [none], zones: [cloud] }\n";
    let mut fleet = near_and_far(policies);
    let wish = |policy| PolicyWishes { policy: Some(policy), ..PolicyWishes::default() };
    let may = [Box::from("open")];
    let client = PolicyClient { may_choose: &may, ..PolicyClient::default() };
    assert_eq!(fleet.backend_for(TestRequest { wishes: wish("open"), ..ask("m") }), "near");
    assert_eq!(fleet.backend_for(TestRequest { wishes: wish("open"), client, ..ask("m") }), "far");
    assert_eq!(fleet.backend_for(TestRequest { wishes: wish("private"), ..ask("other") }), "near");
    let error = fleet.error_for(TestRequest { wishes: wish("far"), client, ..ask("m") });
    assert!(matches!(error, RouteError::NoBackendInZone { .. }), "both hold: {error}");
    let zones = [Box::from("local")];
    let client = PolicyClient { zones: &zones, ..client };
    assert_eq!(fleet.backend_for(TestRequest { client, ..ask("other") }), "near", "the key's own");
    assert_eq!(fleet.backend_for(TestRequest { wishes: wish("open"), client, ..ask("m") }), "near");
}

#[test]
fn tier_is_relaxed_only_by_a_key_that_may() {
    let fleet = near_and_far("policies: [{ name: good, min_tier: 3 }, { name: nice }]\n");
    let topology = fleet.live.topology();
    let asked = ModelAsked { name: "m", fleet: &topology, split: SplitPoint::default() };
    let wishes = PolicyWishes { is_strict: Some(false), ..PolicyWishes::default() };
    let policy = |names: &[Box<str>], wishes: &PolicyWishes<'_>| {
        let client = PolicyClient { may_choose: names, ..PolicyClient::default() };
        fleet.router.policy_of(&asked, &client, wishes)
    };
    assert_eq!(policy(&[], &wishes), Err(PolicyError::NotRelaxed));
    assert_eq!(policy(&["nice".into()], &wishes), Err(PolicyError::NotRelaxed));
    let scope = policy(&["good".into()], &wishes).unwrap();
    assert_eq!(
        (scope.restriction.tier.number(), scope.restriction.preferred_tier.number()),
        (1, 3)
    );
    let named = PolicyWishes { policy: Some("other"), ..wishes };
    assert!(matches!(policy(&[], &named), Err(PolicyError::Unknown { .. })));
    let both = PolicyWishes { policy: Some("nice"), ..wishes };
    assert_eq!(policy(&["nice".into()], &both).map(|scope| scope.restriction.tier.number()), Ok(1));
}

#[test]
fn policies_of_keys_come_in_order() {
    let policies = "policies:\n  - { name: a, keys: ['team-*'], zones: [local] }\n  \
                    - { name: b, keys: [bob], zones: [cloud] }\n  - { name: c, zones: [local, cloud] }\n";
    let mut fleet = near_and_far(policies);
    for (key, expected) in [(Some("team-x"), "near"), (Some("bob"), "far"), (None, "far")] {
        let client = PolicyClient { key, ..PolicyClient::default() };
        assert_eq!(fleet.backend_for(TestRequest { client, ..ask("m") }), expected, "{key:?}");
    }
}

#[test]
fn unread_request_meets_every_policy_of_its_key() {
    let policies = "policies:\n  - { name: a, models: [m], zones: [local] }\n  \
                    - { name: b, models: [other], keys: [bob], zones: [cloud] }\n";
    let fleet = near_and_far(policies);
    let zones = |key| {
        let client = PolicyClient { key, ..PolicyClient::default() };
        let scope = fleet.router.policies.of_unread(&client, &PolicyWishes::default()).unwrap();
        let topology = fleet.live.topology();
        topology.zones.names_in(scope.restriction.zones).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(zones(None), ["local"]);
    assert_eq!(zones(Some("bob")), Vec::<String>::new());
}

#[test]
fn unknown_zone_is_outside_of_every_policy_about_zones() {
    let group = "  - { name: g, url: \"http://engines.example\", resolve: each, models: [m] }\n";
    let near = backend("near", 1, "models: [m]");
    let fleet = Fleet::of(&format!(
        "policies: [{{ name: p, zones: [local, cloud] }}]\nbackends:\n{near}{group}"
    ));
    let zones = &fleet.live.topology().zones;
    let (client, wishes) = (PolicyClient::default(), PolicyWishes::default());
    let restriction = fleet.router.policies.of_unread(&client, &wishes).unwrap().restriction;
    assert_eq!(zones.names_in(restriction.zones).count(), 2);
    assert!(!restriction.admits_zone(zones.id("elsewhere")), "a member of the group has none");
}

/// Measures times to the first token on `far`. Returns the state of the model there.
fn learn(fleet: &Fleet, millis: u64) -> std::sync::Arc<crate::fleet::ModelState> {
    let topology = fleet.live.topology();
    let model = topology.model(topology.model_id("m").unwrap()).unwrap();
    let far = model.serving.iter().find(|row| &*row.state.name == "far").unwrap();
    let ttft = Some(Duration::from_millis(millis));
    let sample = QualitySample { at: NOW, is_fault: false, ttft, tpot: None };
    (0..20).for_each(|_| far.quality.as_ref().unwrap().learn(&sample));
    far.model_state.clone()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn one_of_many_threads_tries_a_backend_beyond_the_bounds_of_quality() {
    let quality = "policies: [{ name: fast, quality: { max_ttft: 500ms, min_requests: 10 } }]\n";
    let mut fleet = near_and_far(quality);
    let state = learn(&fleet, 5000);
    let topology = fleet.live.topology();
    for _ in 0..50 {
        // All have decided before the first one takes its permit.
        let decisions: Vec<_> = (0..8).map(|_| fleet.route(ask("m")).unwrap()).collect();
        assert!(decisions.iter().all(|one| one.is_quality_probe), "{decisions:?}");
        let barrier = Barrier::new(decisions.len());
        let permits: Vec<Option<InflightGuard>> = thread::scope(|scope| {
            let reserve = |decision: &crate::routing::RoutingDecision| {
                let limits = decision.permit_limits();
                let wanted = PermitRequest { limits, ..PermitRequest::default() };
                barrier.wait();
                decision.serving(&topology).unwrap().try_reserve(&wanted)
            };
            let threads: Vec<_> =
                decisions.iter().map(|decision| scope.spawn(move || reserve(decision))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(permits.iter().flatten().count(), 1);
        assert_eq!(fleet.backend_for(ask("m")), "near", "while it is tried");
    }
    state.load.set_in_flight(7);
    fleet.set_health("near", crate::fleet::Health::Unhealthy);
    let last = fleet.route(ask("m")).unwrap();
    assert!(!last.is_quality_probe, "the only one left takes as many as it can");
}

#[test]
fn backend_beyond_the_bounds_of_quality_is_left_out_while_another_can_take_the_request() {
    let quality = "policies: [{ name: fast, quality: { max_ttft: 500ms, min_requests: 10 } }]\n";
    let mut fleet = near_and_far(quality);
    learn(&fleet, 100);
    assert_eq!(fleet.backend_for(ask("m")), "far");
    let state = learn(&fleet, 5000);
    assert_eq!(fleet.backend_for(ask("m")), "far", "one request at a time tries it");
    state.load.set_in_flight(1);
    assert_eq!(fleet.backend_for(ask("m")), "near");
    fleet.set_health("near", crate::fleet::Health::Unhealthy);
    assert_eq!(fleet.backend_for(ask("m")), "far", "rather than none");
    assert_eq!(fleet.backend_for(ask("other")), "far", "the model is judged, not the backend");
}
