//! Part C: rulings where the sources of part N contradict each other, and additions.

use super::{Part, Row};

pub(super) const PART: Part = Part { name: "C", rows: &[("C", 1..=34)], held: ROWS };

const ROWS: &[Row] = &[
    (
        "C1",
        "empty tools count, null does not",
        &[
            "crates/scan/src/tests/rules.rs::tools_count_also_when_the_list_is_empty_but_not_when_null",
        ],
    ),
    (
        "C2",
        "cycles are refused at load, long chains stop at the third hop with a warning",
        &[
            "crates/config/src/tests/rules.rs::alias_cycles_are_printed",
            "crates/config/src/tests/rules.rs::long_alias_chains_warn_and_name_where_they_stop",
            "crates/core/src/routing/resolve.rs::aliases_are_followed_three_hops",
        ],
    ),
    (
        "C3",
        "characters of the decoded text are counted, the total is divided",
        &[
            "crates/scan/src/tests/rules.rs::text_is_counted_decoded_and_as_a_whole",
            "explain::explain_honours_the_token_estimate",
        ],
    ),
    (
        "C4",
        "aliases come first; one that hides a model is warned of",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::aliases_go_before_models_of_the_same_name",
            "crates/config/src/tests/rules.rs::aliases_that_hide_models_warn",
        ],
    ),
    (
        "C5",
        "a chain is found under the target, then back along the alias",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::a_chain_is_found_under_the_target_or_back_along_the_alias",
            "crates/core/src/routing/resolve.rs::a_chain_is_looked_up_under_the_target_then_back_along_the_alias",
        ],
    ),
    (
        "C6",
        "the requirement keeps the model as sent",
        &["explain::explain_prints_requirements_and_decisions"],
    ),
    (
        "C7",
        "an incapable model falls back; without a chain it is a 400",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::missing_capability_falls_back_before_it_is_refused",
            "aliases_and_fallbacks::missing_capability_falls_back_before_it_is_refused",
            "crates/core/src/routing/tests/errors.rs::missing_capabilities_are_all_listed",
        ],
    ),
    (
        "C8",
        "an unhealthy capable backend makes it a 503",
        &[
            "crates/core/src/routing/tests/errors.rs::unhealthy_capable_backend_makes_the_status_503",
            "capability_routing::unhealthy_capable_backend_is_a_503",
        ],
    ),
    (
        "C9",
        "less than 1 ms at P95, by figures of real bodies",
        &[
            "benches/route.rs::percentiles_of_requests",
            "crates/core/src/routing/tests/strategies.rs::analysis_and_decision_take_less_than_two_milliseconds",
        ],
    ),
    (
        "C10",
        "lengths are compared, never special cases",
        &["crates/core/src/routing/tests/filtering.rs::a_prompt_that_just_fits_fits"],
    ),
    (
        "C11",
        "the first of equals, by undivided sums",
        &["crates/core/src/routing/tests/strategies.rs::smart_is_brute_force"],
    ),
    (
        "C12",
        "an exhausted chain is a 503 with the list",
        &["aliases_and_fallbacks::exhausted_fallback_chain_lists_every_model"],
    ),
    (
        "C13",
        "a capability mismatch is a 400 with the list",
        &[
            "crates/core/src/routing/tests/errors.rs::missing_capabilities_are_all_listed",
            "capability_routing::capability_mismatch_lists_what_is_missing",
        ],
    ),
    (
        "C14",
        "parts without a type are ignored",
        &["crates/scan/src/tests/rules.rs::parts_without_a_known_type_need_and_count_nothing"],
    ),
    (
        "C15",
        "an unknown strategy is smart with a warning",
        &[
            "crates/config/src/tests/rules.rs::unknown_strategy_becomes_smart_with_a_warning",
            "strategies::unknown_strategy_falls_back_to_smart_with_a_warning",
        ],
    ),
    (
        "C16",
        "variables override, and the sum of weights is checked",
        &[
            "crates/config/src/tests/loading.rs::variables_override_the_file",
            "crates/config/src/tests/rules.rs::weights_must_sum_to_100",
        ],
    ),
    (
        "C17",
        "an empty model is a 400",
        &["crates/scan/src/tests/rules.rs::a_missing_model_is_seen_and_an_empty_one_refused"],
    ),
    (
        "C18",
        "random is tested with 3,000 requests",
        &["crates/core/src/routing/tests/strategies.rs::random_picks_are_fair"],
    ),
    (
        "C19",
        "the last duplicate counts; a wrong type is a 400",
        &[
            "crates/scan/src/tests/rules.rs::the_last_of_two_members_counts",
            "crates/scan/src/tests/rules.rs::wrong_types_are_refused_by_name",
            "request_validation::wrong_types_get_400_with_the_field",
        ],
    ),
    (
        "C20",
        "malformed JSON is a 400 in the API's form",
        &[
            "crates/scan/src/tests/malformed.rs::each_kind_of_bad_json_is_refused",
            "request_validation::malformed_json_gets_400_and_reaches_no_backend",
        ],
    ),
    (
        "C21",
        "fallbacks go through aliases, within max_retries, to capable backends",
        &[
            "crates/core/src/routing/tests/fallbacks.rs::fallback_entries_are_resolved_through_aliases",
            "crates/core/src/routing/tests/fallbacks.rs::a_model_whose_every_backend_was_tried_falls_back",
            "crates/core/src/routing/tests/filtering.rs::incapable_backends_receive_no_request",
            "failover::fallback_model_follows_when_every_candidate_was_tried",
            "failover::max_retries_bounds_attempts",
        ],
    ),
    (
        "C22",
        "the response when every backend is full or in cooldown",
        &[
            "cooldown::saturation_falls_back_only_if_configured",
            "cooldown::saturated_backends_reject_at_once",
            "cooldown::one_probe_goes_to_the_first_cooldown_to_expire",
            "crates/core/src/routing/tests/errors.rs::next_probe_goes_to_the_first_to_leave_cooldown",
            "crates/core/src/routing/tests/errors.rs::one_cooldown_after_a_503_makes_the_status_503",
        ],
    ),
    (
        "C23",
        "priority is 50 by default; equal ones go to the idlest, then rotate",
        &[
            "crates/core/src/routing/tests/strategies.rs::priority_only_takes_the_lowest_then_the_idlest_then_rotates",
            "crates/config/src/tests/loading.rs::defaults_match_the_design",
        ],
    ),
    (
        "C24",
        "known capabilities come before assumed ones, which are counted and shown",
        &[
            "crates/core/src/routing/tests/filtering.rs::known_capability_beats_an_assumed_one",
            "crates/core/src/routing/tests/errors.rs::next_probe_goes_to_a_backend_known_to_be_capable",
            "capability_routing::known_capability_beats_an_assumed_one",
        ],
    ),
    (
        "C25",
        "no 404 before every model list is known",
        &[
            "crates/core/src/routing/tests/errors.rs::unknown_model_waits_for_discovery",
            "crates/core/src/routing/tests/errors.rs::models_of_an_unhealthy_backend_stay_known",
            "discovery::unknown_model_waits_for_discovery",
            "discovery::models_of_an_unhealthy_backend_stay_known",
        ],
    ),
    (
        "C26",
        "backends serve operations; a missing one is named",
        &[
            "client_paths::every_path_of_an_operation_is_served",
            "client_paths::requests_go_to_engines_that_serve_the_operation",
            "client_paths::operations_no_engine_serves_are_named",
            "crates/core/src/routing/tests/filtering.rs::operations_restrict_the_candidates",
            "crates/core/src/routing/tests/errors.rs::unserved_operation_is_named",
            "capability_routing::operation_selects_a_backend_that_serves_it",
        ],
    ),
    (
        "C27",
        "one table of error codes, printed in the reference",
        &[
            "crates/api/src/errors.rs::table_has_a_row_per_code_in_order",
            "documentation::reference_tables_match_the_code",
            "crates/core/src/routing/tests/errors.rs::missing_capabilities_are_all_listed",
        ],
    ),
    (
        "C28",
        "the last duplicate model key decides and is forwarded",
        &[
            "crates/scan/src/tests/rules.rs::the_last_of_two_members_counts",
            "model_routing::last_duplicate_model_key_wins",
        ],
    ),
    (
        "C29",
        "a capability mismatch says what each of five candidates lacks",
        &[
            "crates/core/src/routing/tests/errors.rs::capability_mismatch_lists_all_that_some_candidate_lacks",
            "crates/core/src/routing/tests/errors.rs::capability_mismatch_names_at_most_five_candidates",
        ],
    ),
    (
        "C30",
        "the grammar of scorers is exact",
        &[
            "src/cli/score/tests.rs::error_names_the_path_of_the_invalid_value",
            "crates/scoring/src/tests.rs::lists_that_make_no_sense_are_refused_in_words",
            "crates/config/src/tests/scorers.rs::invalid_scorers_are_refused_with_position",
        ],
    ),
    (
        "C31",
        "models of a backend share its cache when they record",
        &[
            "crates/core/src/prefix/model_index/tests.rs::models_of_a_backend_share_its_capacity",
            "crates/core/src/fleet/cache_sharing.rs::models_of_one_engine_share_its_cache",
        ],
    ),
    (
        "C32",
        "auto is the default estimate and is within 25 % for every kind of text",
        &[
            "explain::explain_honours_the_token_estimate",
            "crates/scan/src/tests/estimate.rs::auto_is_within_a_quarter_for_every_kind_of_text",
            "crates/scan/src/tests/rules.rs::text_is_counted_decoded_and_as_a_whole",
            "crates/scan/src/tests/allocations.rs::a_scan_allocates_nothing",
            "crates/config/src/tests/loading.rs::defaults_match_the_design",
        ],
    ),
    (
        "C33",
        "a request may leave its model to the fleet",
        &[
            "default_model::the_only_model_is_the_default",
            "default_model::configured_default_serves_any_operation",
            "default_model::defaults_can_differ_by_operation",
            "default_model::without_a_default_the_error_names_the_field",
            "default_model::optional_models_go_where_the_operation_is_served",
        ],
    ),
    (
        "C34",
        "aliases may be patterns, which are listed nowhere",
        &[
            "crates/core/src/routing/resolve.rs::the_most_specific_pattern_counts_after_exact_aliases",
            "aliases_and_fallbacks::patterns_cover_names_that_no_backend_serves",
        ],
    ),
];
