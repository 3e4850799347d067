//! Part N: what a request needs, which backends may take it, and which does.

use super::{Part, Row};

pub(super) const PART: Part = Part { name: "N", rows: &[("N", 1..=56)], held: ROWS };

const ROWS: &[Row] = &[
    (
        "N1",
        "an image part needs vision",
        &[
            "crates/scan/src/tests/rules.rs::an_image_part_needs_vision_wherever_it_stands",
            "crates/scan/src/tests/oracle.rs::facts_agree_with_a_walk_over_the_tree",
            "capability_routing::each_capability_selects_a_backend_that_has_it",
        ],
    ),
    (
        "N2",
        "text needs no vision",
        &[
            "crates/scan/src/tests/oracle.rs::facts_agree_with_a_walk_over_the_tree",
            "capability_routing::plain_request_may_use_any_backend",
        ],
    ),
    (
        "N3",
        "tokens are estimated from the text, images add none",
        &[
            "crates/scan/src/tests/rules.rs::text_is_counted_decoded_and_as_a_whole",
            "capability_routing::long_prompt_selects_a_long_context",
        ],
    ),
    (
        "N4",
        "no messages are no tokens and no filter",
        &[
            "crates/scan/src/tests/oracle.rs::facts_agree_with_a_walk_over_the_tree",
            "crates/core/src/routing/tests/filtering.rs::a_prompt_that_just_fits_fits",
        ],
    ),
    (
        "N5",
        "text beside an image is counted",
        &["crates/scan/src/tests/oracle.rs::facts_agree_with_a_walk_over_the_tree"],
    ),
    (
        "N6",
        "tools are needed when the field is there",
        &[
            "crates/scan/src/tests/rules.rs::tools_count_also_when_the_list_is_empty_but_not_when_null",
        ],
    ),
    (
        "N7",
        "without tools every backend stays a candidate",
        &[
            "crates/scan/src/tests/rules.rs::the_facts_of_a_usual_request_are_found",
            "capability_routing::plain_request_may_use_any_backend",
        ],
    ),
    (
        "N8",
        "JSON formats need JSON mode",
        &["crates/scan/src/tests/rules.rs::json_formats_need_json_mode"],
    ),
    (
        "N9",
        "streaming is a hint",
        &[
            "crates/scan/src/tests/rules.rs::only_true_is_a_stream",
            "crates/core/src/routing/tests/strategies.rs::streams_and_whole_responses_are_scored_by_separate_latencies",
        ],
    ),
    (
        "N10",
        "parts without a known type need nothing",
        &["crates/scan/src/tests/rules.rs::parts_without_a_known_type_need_and_count_nothing"],
    ),
    (
        "N11",
        "requirements have six fields",
        &[
            "crates/scan/src/tests/rules.rs::the_facts_of_a_usual_request_are_found",
            "explain::explain_prints_requirements_and_decisions",
        ],
    ),
    (
        "N12",
        "a body is forwarded as it came, but for its model",
        &[
            "chat_completions::alias_changes_only_the_model_value",
            "chat_completions::bodies_of_every_size_arrive_byte_for_byte",
            "model_routing::every_operation_reaches_the_engine_unchanged",
        ],
    ),
    (
        "N13",
        "a decision uses no network and no other service",
        &["tests/architecture.rs::pure_folders_name_no_io_and_no_clock"],
    ),
    (
        "N14",
        "analysis and decision are one pass each",
        &[
            "crates/core/src/routing/tests/duration.rs::scan_takes_one_pass_over_messages",
            "crates/core/src/routing/tests/duration.rs::decision_takes_one_pass_over_backends",
        ],
    ),
    (
        "N15",
        "analysis takes less than 0.5 ms at P95",
        &[
            "crates/core/src/routing/tests/strategies.rs::analysis_and_decision_take_less_than_two_milliseconds",
        ],
    ),
    (
        "N16",
        "the estimate is within 25 % of the real count",
        &["crates/scan/src/tests/estimate.rs::auto_is_within_a_quarter_for_every_kind_of_text"],
    ),
    (
        "N17",
        "candidates serve exactly the model",
        &[
            "crates/core/src/routing/tests/filtering.rs::only_backends_with_the_exact_model_are_candidates",
        ],
    ),
    (
        "N18",
        "only healthy backends take requests",
        &[
            "crates/core/src/routing/tests/filtering.rs::only_healthy_backends_take_requests",
            "health_and_circuit_breaker::backend_is_unused_before_its_first_check",
        ],
    ),
    (
        "N19",
        "each capability that the model lacks removes the backend",
        &[
            "crates/core/src/routing/tests/filtering.rs::incapable_backends_receive_no_request",
            "capability_routing::each_capability_selects_a_backend_that_has_it",
        ],
    ),
    (
        "N20",
        "a prompt equal to the context fits",
        &["crates/core/src/routing/tests/filtering.rs::a_prompt_that_just_fits_fits"],
    ),
    (
        "N21",
        "an incapable backend never receives the request, fallback and retry included",
        &["crates/core/src/routing/tests/filtering.rs::incapable_backends_receive_no_request"],
    ),
    (
        "N22",
        "a plain request may use any backend",
        &[
            "crates/core/src/routing/tests/filtering.rs::plain_requests_go_anywhere",
            "capability_routing::plain_request_may_use_any_backend",
        ],
    ),
    (
        "N23",
        "a prompt longer than every context has no candidate",
        &[
            "crates/core/src/routing/tests/filtering.rs::a_prompt_that_just_fits_fits",
            "crates/core/src/routing/tests/errors.rs::too_long_prompt_has_a_separate_error_code",
        ],
    ),
    (
        "N24",
        "capabilities belong to a backend and a model",
        &[
            "crates/core/src/routing/tests/filtering.rs::capabilities_are_per_model_and_backend",
            "crates/core/src/fleet/tests.rs::declared_facts_win_over_discovered_ones",
        ],
    ),
    (
        "N25",
        "an alias is replaced by its target",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::an_alias_is_its_target",
            "aliases_and_fallbacks::alias_rewrites_only_the_model_value",
        ],
    ),
    (
        "N26",
        "aliases are followed three hops",
        &["crates/core/src/routing/resolve.rs::aliases_are_followed_three_hops"],
    ),
    (
        "N27",
        "alias cycles are detected and hang nothing",
        &[
            "crates/config/src/tests/rules.rs::alias_cycles_are_printed",
            "crates/core/src/routing/resolve.rs::resolution_ends_for_any_aliases",
        ],
    ),
    (
        "N28",
        "an alias without a backend is a 404 that names both",
        &[
            "crates/core/src/routing/tests/errors.rs::dead_alias_names_itself_and_its_target",
            "aliases_and_fallbacks::unserved_alias_error_names_alias_and_target",
        ],
    ),
    (
        "N29",
        "the fallbacks of an alias's target are tried",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::a_chain_is_found_under_the_target_or_back_along_the_alias",
        ],
    ),
    (
        "N30",
        "fallbacks are tried in order with the same filters",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::fallbacks_are_tried_in_their_order",
            "crates/core/src/routing/tests/fallbacks.rs::a_missing_model_falls_back_too",
            "crates/core/src/routing/tests/fallbacks.rs::missing_capability_falls_back_before_it_is_refused",
        ],
    ),
    (
        "N31",
        "the fallback's name is sent upstream",
        &[
            "aliases_and_fallbacks::fallback_serves_when_the_model_is_unavailable",
            "aliases_and_fallbacks::each_attempt_sends_the_backends_model_name",
        ],
    ),
    (
        "N32",
        "an exhausted chain is a 503 with every model",
        &["aliases_and_fallbacks::exhausted_fallback_chain_lists_every_model"],
    ),
    (
        "N33",
        "an empty chain is none, and chains do not chain",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::an_empty_chain_is_no_chain",
            "crates/core/src/routing/tests/fallbacks.rs::fallbacks_do_not_chain",
        ],
    ),
    (
        "N34",
        "four strategies; an unknown one is smart",
        &[
            "crates/config/src/tests/rules.rs::unknown_strategy_becomes_smart_with_a_warning",
            "crates/config/src/tests/loading.rs::defaults_match_the_design",
            "strategies::unknown_strategy_falls_back_to_smart_with_a_warning",
        ],
    ),
    (
        "N35",
        "the score follows its formula",
        &[
            "crates/core/src/routing/strategies/smart.rs::formula_gives_the_documented_values",
            "crates/core/src/routing/strategies/smart.rs::scores_stay_in_range",
        ],
    ),
    (
        "N36",
        "weights sum to 100 and are 50, 30, 20 by default",
        &[
            "crates/config/src/tests/rules.rs::weights_must_sum_to_100",
            "crates/config/src/tests/loading.rs::defaults_match_the_design",
            "crates/core/src/routing/tests/strategies.rs::weights_decide_what_counts",
        ],
    ),
    (
        "N37",
        "the highest score wins, of equals the first",
        &[
            "crates/core/src/routing/tests/strategies.rs::smart_is_brute_force",
            "crates/core/src/routing/tests/strategies.rs::equal_scores_go_to_the_first_candidate",
        ],
    ),
    (
        "N38",
        "priority and load are clamped; no latency is 0 ms",
        &[
            "crates/core/src/routing/strategies/smart.rs::formula_gives_the_documented_values",
            "crates/core/src/routing/tests/strategies.rs::smart_is_brute_force",
        ],
    ),
    (
        "N39",
        "fewer in flight and less latency score higher",
        &[
            "crates/core/src/routing/tests/strategies.rs::fewer_in_flight_and_less_latency_score_higher",
        ],
    ),
    (
        "N40",
        "rotation is even",
        &[
            "crates/core/src/routing/tests/strategies.rs::six_requests_rotate_evenly_over_three_backends",
            "crates/core/src/routing/tests/strategies.rs::rotation_is_even_beside_other_models",
        ],
    ),
    (
        "N41",
        "priority_only takes the lowest number",
        &[
            "crates/core/src/routing/tests/strategies.rs::priority_only_takes_the_lowest_then_the_idlest_then_rotates",
            "strategies::priority_only_picks_the_lowest_number",
        ],
    ),
    (
        "N42",
        "random is fair",
        &["crates/core/src/routing/tests/strategies.rs::random_picks_are_fair"],
    ),
    (
        "N43",
        "a model that no backend serves is a 404",
        &[
            "crates/core/src/routing/tests/errors.rs::unserved_model_is_not_found",
            "model_routing::unserved_model_is_a_404",
        ],
    ),
    (
        "N44",
        "a model without a healthy backend is a 503",
        &[
            "crates/core/src/routing/tests/errors.rs::served_model_without_a_healthy_backend_is_unavailable",
            "model_routing::no_healthy_backend_is_a_503",
        ],
    ),
    (
        "N45",
        "missing capabilities are a 400 that lists all",
        &[
            "crates/core/src/routing/tests/errors.rs::missing_capabilities_are_all_listed",
            "crates/core/src/routing/tests/errors.rs::capability_mismatch_lists_all_that_some_candidate_lacks",
            "capability_routing::capability_mismatch_lists_what_is_missing",
        ],
    ),
    (
        "N46",
        "an exhausted chain is a 503 with the chain",
        &["aliases_and_fallbacks::exhausted_fallback_chain_lists_every_model"],
    ),
    (
        "N47",
        "an empty model name is a 400",
        &[
            "crates/scan/src/tests/rules.rs::a_missing_model_is_seen_and_an_empty_one_refused",
            "request_validation::wrong_types_get_400_with_the_field",
        ],
    ),
    (
        "N48",
        "every failure has a message",
        &[
            "crates/api/src/errors.rs::table_has_a_row_per_code_in_order",
            "crates/api/src/dialect.rs::error_bodies_follow_the_dialect",
        ],
    ),
    (
        "N49",
        "routing keys, and variables that override them",
        &[
            "crates/config/src/tests/loading.rs::every_kind_of_value_is_read",
            "crates/config/src/tests/loading.rs::variables_override_the_file",
            "crates/config/src/tests/loading.rs::defaults_match_the_design",
        ],
    ),
    (
        "N50",
        "a decision takes less than 1 ms, 2 ms at most, under load",
        &["crates/core/src/routing/tests/live_fleet.rs::decision_is_fast_beside_others"],
    ),
    (
        "N51",
        "aliases and chains are small",
        &["crates/core/src/routing/tests/allocations.rs::aliases_and_chains_are_small"],
    ),
    (
        "N52",
        "decisions take no lock and read cached state only",
        &[
            "tests/architecture.rs::decisions_take_no_lock_but_the_index",
            "tests/architecture.rs::pure_folders_name_no_io_and_no_clock",
            "crates/core/src/routing/tests/allocations.rs::decisions_allocate_nothing",
        ],
    ),
    (
        "N53",
        "changes of the fleet show in the next decision",
        &[
            "crates/core/src/routing/tests/live_fleet.rs::every_decision_is_a_candidate_of_its_snapshot",
            "crates/core/src/routing/tests/live_fleet.rs::parallel_picks_never_exceed_a_limit",
            "discovery::requests_succeed_while_model_lists_change",
        ],
    ),
    ("N54", "an unhealthy fleet rejects at once", &["cooldown::all_unhealthy_is_rejected_at_once"]),
    ("N55", "no GPU scheduling, model management or autoscaling", &[]),
    (
        "N56",
        "benches of the analysis, the pipeline and filtered routing",
        &[
            "benches/scan.rs::bench",
            "benches/route.rs::scan_and_route",
            "benches/route.rs::route_by_capability",
            "benches/route.rs::percentiles_of_requests",
        ],
    ),
];
