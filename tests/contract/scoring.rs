//! Part B: weighted scorers and the prefix index, with their invariants (INV) and decisions (D).

use super::{Part, Row};

pub(super) const PART: Part =
    Part { name: "B", rows: &[("B", 1..=22), ("INV-", 1..=7), ("D-", 1..=5)], held: ROWS };

const ROWS: &[Row] = &[
    (
        "B1",
        "the highest weighted sum of clamped scores wins",
        &[
            "crates/scoring/src/tests/properties.rs::outliers_are_clamped_before_they_are_weighted",
            "crates/scoring/src/tests/properties.rs::any_multiple_of_all_weights_changes_no_total",
        ],
    ),
    (
        "B2 INV-1",
        "scores lie between 0 and 1 before they are weighted",
        &[
            "crates/scoring/src/tests/properties.rs::every_score_of_every_scorer_is_in_range",
            "crates/scoring/src/tests/properties.rs::outliers_are_clamped_before_they_are_weighted",
        ],
    ),
    (
        "B3 INV-2",
        "every candidate is scored, what is unknown with 0",
        &[
            "crates/scoring/src/tests/properties.rs::every_score_of_every_scorer_is_in_range",
            "crates/scoring/src/tests.rs::unknown_readings_score_zero_and_change_no_other_score",
        ],
    ),
    (
        "B4 INV-3",
        "the same requests, seed and configuration decide alike",
        &[
            "crates/scoring/src/tests/properties.rs::decisions_are_the_same_every_time",
            "crates/core/src/routing/tests/sweep.rs::same_seed_gives_the_same_decisions_and_scores",
            "crates/core/src/routing/tests/captures.rs::captures_do_not_change_decisions_and_replay_identically",
            "decision_replay::captures_of_1024_decisions_replay_identically",
        ],
    ),
    (
        "B5 INV-4",
        "every decision is observed, the first included",
        &[
            "weighted_scorers::burst_of_equal_prompts_sees_the_first_decision",
            "crates/core/src/routing/tests/weighted.rs::burst_sees_its_own_first_decision",
            "crates/core/src/routing/tests/weighted.rs::a_prompt_goes_where_its_beginning_went",
        ],
    ),
    (
        "B6 INV-5",
        "other strategies decide as recorded",
        &["explain::golden_decisions_are_unchanged"],
    ),
    (
        "B7 INV-6",
        "weights are relative; zero, negative and others are refused",
        &[
            "crates/core/src/routing/tests/sweep.rs::multiples_of_weights_decide_alike_and_rounded_ones_nearly",
            "crates/scoring/src/tests.rs::lists_that_make_no_sense_are_refused_in_words",
            "crates/scoring/src/tests/properties.rs::whole_multiples_of_all_weights_change_nothing",
            "crates/scoring/src/tests/properties.rs::any_multiple_of_all_weights_changes_no_total",
        ],
    ),
    (
        "B8 INV-7",
        "the index stays within its capacity at all times",
        &[
            "crates/core/src/prefix/index/tests.rs::lookups_and_eviction_match_exact_lru",
            "crates/core/src/prefix/index/tests.rs::a_chain_longer_than_a_lane_keeps_its_beginning",
            "crates/core/src/prefix/model_index/tests.rs::models_of_a_backend_share_its_capacity",
        ],
    ),
    (
        "B9 D-1",
        "prefixes are recorded from decisions, without a request to an engine",
        &[
            "prefix_cache::reported_cached_tokens_correct_the_prediction",
            "crates/core/src/routing/tests/weighted.rs::a_prompt_goes_where_its_beginning_went",
            "crates/core/src/routing/tests/cached_predictions.rs::failed_attempt_withdraws_the_prediction_unless_the_client_left",
            "tests/architecture.rs::pure_folders_name_no_io_and_no_clock",
        ],
    ),
    (
        "B10 D-2",
        "the hash of a block includes those before it",
        &[
            "crates/core/src/prefix/prompt/tests.rs::salts_models_and_tools_share_no_blocks",
            "crates/core/src/prefix/chain.rs::equal_blocks_at_different_positions_hash_differently",
            "crates/core/src/prefix/run.rs::shared_blocks_are_counted_up_to_the_first_difference",
        ],
    ),
    (
        "B11 D-3",
        "a scorer is one file and one row",
        &["tests/extensions.rs::worked_examples_touch_few_files_and_their_tests_pass"],
    ),
    (
        "B12 D-4",
        "the four scorers are there",
        &[
            "crates/scoring/src/tests.rs::every_formula_gives_its_documented_values",
            "crates/scoring/src/tests.rs::prefix_defaults_are_those_of_the_contract",
        ],
    ),
    (
        "B13 D-5",
        "the pair of weights of old is an error",
        &[
            "src/cli/tests.rs::invalid_arguments_and_files_exit_with_2",
            "crates/config/src/tests/scorers.rs::invalid_scorers_are_refused_with_position",
        ],
    ),
    (
        "B14",
        "prefix-affinity is the longest run over the full blocks",
        &[
            "crates/scoring/src/tests.rs::every_formula_gives_its_documented_values",
            "crates/core/src/prefix/index/tests.rs::a_gap_ends_a_prefix",
            "crates/core/src/prefix/chain.rs::chain_has_one_hash_per_full_block",
        ],
    ),
    (
        "B15",
        "blocks of 16 tokens, 31,250 per instance",
        &["crates/scoring/src/tests.rs::prefix_defaults_are_those_of_the_contract"],
    ),
    (
        "B16",
        "queue-depth",
        &["crates/scoring/src/tests.rs::every_formula_gives_its_documented_values"],
    ),
    (
        "B17",
        "kv-utilization",
        &["crates/scoring/src/tests.rs::every_formula_gives_its_documented_values"],
    ),
    (
        "B18",
        "load-balance",
        &["crates/scoring/src/tests.rs::every_formula_gives_its_documented_values"],
    ),
    (
        "B19",
        "llm-d is 3, 2, 2; the default is what the simulation found best",
        &[
            "crates/config/src/tests/scorers.rs::default_scorers_are_those_of_the_balanced_preset",
            "crates/scoring/src/tests.rs::prefix_defaults_are_those_of_the_contract",
        ],
    ),
    (
        "B20",
        "flags and files choose the scorers",
        &[
            "weighted_scorers::flags_and_policy_files_choose_the_scorers",
            "crates/config/src/tests/scorers.rs::scorers_are_a_list_or_one_line",
            "weighted_scorers::load_scorer_alone_finds_the_least_loaded",
            "src/cli/routing/tests.rs::policies_are_strategies_or_presets",
        ],
    ),
    (
        "B21",
        "a decision shows every score of every candidate",
        &[
            "weighted_scorers::decision_header_lists_each_scorer",
            "src/observe/decision_log/tests.rs::report_contains_the_inputs_of_a_decision",
        ],
    ),
    (
        "B22",
        "validation runs: multiples, repetition, sweep of the weight",
        &[
            "crates/core/src/routing/tests/sweep.rs::multiples_of_weights_decide_alike_and_rounded_ones_nearly",
            "crates/core/src/routing/tests/sweep.rs::same_seed_gives_the_same_decisions_and_scores",
            "crates/core/src/routing/tests/sweep.rs::requests_concentrate_as_prefixes_count_more",
        ],
    ),
];
