//! Part L, SLO-aware routing: predictions, objectives, what is picked and what is refused.

use super::{Part, Row};

pub(super) const PART: Part = Part { name: "L", rows: &[("L", 23..=36)], held: ROWS };

const ROWS: &[Row] = &[
    (
        "L23",
        "routing.predict predicts beside any strategy, the strategy slo decides by predictions",
        &[
            "objectives::predictions_are_learned_and_leave_nothing",
            "objectives::faster_backend_gets_requests_with_objectives",
        ],
    ),
    (
        "L24",
        "ruling: the configuration's strategy is the profile; the boolean header, withdrawn at its source, is not read and reaches no engine",
        &["objectives::engines_get_no_control_headers"],
    ),
    (
        "L25",
        "TTFT and TPOT are predicted for each candidate and kept with the request",
        &[
            "objectives::predictions_are_learned_and_leave_nothing",
            "objectives::quote_says_where_and_when",
            "crates/predict/src/shared_tests.rs::decisions_read_what_was_learned",
        ],
    ),
    (
        "L26 L27",
        "headroom is the tightest objective of the request and of what runs there, less the prediction: 80 and 50 with 60 predicted are -10",
        &[
            "crates/scoring/src/objectives.rs::tightest_objective_of_running_streams_counts",
            "crates/scoring/src/objectives.rs::both_objectives_are_to_be_met",
            "crates/predict/src/shared_tests.rs::tightest_objective_of_running_streams_is_seen",
            "crates/predict/src/backend_tests.rs::stream_that_is_ahead_bears_slower_steps",
        ],
    ),
    (
        "L28",
        "the backend is favoured where the request costs the least, missed objectives among the cost, or of those that meet the objectives the least or the least sufficient headroom; the picker may draw",
        &[
            "crates/scoring/src/scorers/slo_headroom/tests.rs::backends_that_miss_an_objective_come_last",
            "crates/scoring/src/scorers/slo_headroom/tests.rs::unknown_preference_is_refused",
            "objectives::faster_backend_gets_requests_with_objectives",
        ],
    ),
    (
        "L29",
        "a small share of requests that may be late explores backends whose predictions are not trusted",
        &[
            "crates/core/src/routing/strategies/exploration.rs::unknown_backends_are_explored_by_requests_that_may_be_late",
        ],
    ),
    (
        "L30",
        "where none meets the objectives, a request of priority 0 or more goes where it costs the least and makes the fewest others miss theirs (by measurement; the source has the least miss), and one below is refused",
        &[
            "crates/scoring/src/scorers/slo_headroom/tests.rs::backend_that_just_meets_the_time_per_token_is_not_crowded",
            "crates/scoring/src/scorers/slo_headroom/tests.rs::objective_that_is_missed_or_met_everywhere_changes_nothing",
            "crates/sim/src/world/tests.rs::more_requests_are_in_time_in_an_overload",
            "crates/scoring/src/scorers/slo_headroom/tests.rs::least_miss_is_best_where_all_miss",
            "objectives::sheddable_request_is_refused_where_it_would_be_late",
            "crates/core/src/routing/tests/work_limit.rs::refused_request_comes_back_when_its_objective_can_be_met",
        ],
    ),
    (
        "L31",
        "a running request counts until it completes, is aborted, fails, or its client leaves, once",
        &[
            "crates/predict/src/shared_tests.rs::tickets_leave_nothing_however_they_end",
            "crates/predict/src/backend_tests.rs::requests_that_end_in_any_way_leave_nothing",
            "objectives::predictions_are_learned_and_leave_nothing",
        ],
    ),
    (
        "L32",
        "what is predicted is compared with what comes, and learned from as tokens arrive",
        &[
            "crates/predict/src/backend_tests.rs::steps_are_learned_from_a_guess_that_is_far_off",
            "crates/predict/src/shared_tests.rs::gaps_of_a_single_stream_are_learned",
            "crates/predict/src/backend_tests.rs::engine_that_becomes_slower_is_noticed",
            "crates/sim/src/world/tests.rs::first_tokens_are_predicted_at_any_load",
            "crates/sim/src/world/tests.rs::engine_that_slows_down_is_followed",
            "objectives::timing_is_in_the_head_where_it_is_requested",
        ],
    ),
    (
        "L33",
        "cached tokens of the prompt make the predicted prefill shorter, and are not scored separately",
        &["crates/predict/src/shared_tests.rs::cached_tokens_cost_no_prefill"],
    ),
    (
        "L34",
        "ruling: objectives are optional, and one that cannot be read is a 400 in the client's dialect",
        &[
            "objectives::bad_values_are_refused_in_every_dialect",
            "crates/core/src/routing/objectives.rs::other_values_are_refused",
            "crates/scoring/src/scorers/slo_headroom/tests.rs::fastest_is_best_without_an_objective",
        ],
    ),
    (
        "L35",
        "how important a request is, is decided before it is routed: by header, name, key or model",
        &[
            "objectives::objectives_are_named_by_key_and_model",
            "crates/core/src/routing/objectives.rs::fields_come_before_names_and_keys_before_models",
        ],
    ),
    (
        "L36",
        "predictor, scorer, picker and queue work, and are tested, without each other",
        &[
            "crates/predict/src/backend_tests.rs::steps_are_learned_from_a_guess_that_is_far_off",
            "crates/scoring/src/scorers/slo_headroom/tests.rs::least_miss_is_best_where_all_miss",
            "crates/core/src/admission/queue/tests.rs::nothing_is_lost",
        ],
    ),
];
