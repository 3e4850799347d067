//! Part O, Ollama fleets: the rows that are built, with the tests that hold them.

use super::{Part, Row};

pub(super) const PART: Part =
    Part { name: "O", rows: &[("O", 1..=44), ("O", 47..=47), ("O", 50..=50)], held: ROWS };

const ROWS: &[Row] = &[
    (
        "O1",
        "a model's names with and without :latest, in any case, are one model on every engine",
        &[
            "deployment::names_with_and_without_latest_are_one_model",
            "crates/core/src/routing/tests/deployment.rs::names_of_one_model_share_its_backends_and_its_count",
            "crates/api/src/model_name.rs::default_tag_and_case_make_no_other_model",
        ],
    ),
    (
        "O2",
        "a backend with the model in memory and a free slot is preferred, the least used first",
        &[
            "deployment::requests_go_where_their_model_is_in_memory",
            "deployment::model_swaps_are_fewer_than_in_turn",
            "deployment::sleeping_and_unloaded_models_differ",
            "crates/core/src/routing/strategies/deployment.rs::resident_with_a_free_slot_wins_least_used_first",
        ],
    ),
    (
        "O3",
        "equals share requests evenly at any level",
        &[
            "deployment::equals_share_requests_evenly",
            "crates/core/src/routing/strategies/deployment.rs::ties_rotate_at_any_level",
        ],
    ),
    (
        "O4",
        "where no backend has it in memory, the one with the least in flight over all models loads it",
        &[
            "crates/core/src/routing/strategies/deployment.rs::else_the_backend_with_the_least_in_flight_loads_it",
            "crates/core/src/routing/tests/deployment.rs::unused_backend_loads_the_model_before_one_whose_model_is_in_use",
        ],
    ),
    (
        "O5",
        "where all are saturated, requests are refused or spill to the least used, as configured",
        &[
            "deployment::saturated_backends_are_exceeded_only_where_requests_spill",
            "crates/core/src/routing/tests/deployment.rs::saturated_model_is_refused_unless_it_may_spill",
            "crates/core/src/routing/strategies/deployment.rs::least_used_is_picked_where_all_are_saturated",
        ],
    ),
    (
        "O6",
        "a model that no backend lists is a 404 that names it, one on down backends a 503",
        &["model_routing::unserved_model_is_a_404", "model_routing::no_healthy_backend_is_a_503"],
    ),
    (
        "O7",
        "parallel picks never exceed a limit while there is room elsewhere",
        &[
            "crates/core/src/routing/tests/deployment.rs::parallel_picks_use_every_slot_before_any_limit_is_exceeded",
            "deployment::limits_per_model_hold_under_parallel_requests",
        ],
    ),
    (
        "O8",
        "requests count per backend and model, with limits for both and defaults from the engine",
        &[
            "crates/core/src/routing/tests/deployment.rs::configured_limits_of_models_hold_for_every_strategy",
            "crates/core/src/routing/tests/deployment.rs::slots_that_an_engine_reports_bound_its_models",
            "deployment::sleeping_and_unloaded_models_differ",
        ],
    ),
    (
        "O9",
        "a request stops counting exactly once however it ends, and empty counts vanish",
        &[
            "deployment::limits_per_model_hold_under_parallel_requests",
            "deployment::client_that_leaves_frees_its_slot",
        ],
    ),
    (
        "O10",
        "lists are read on three schedules, used while they are, and again at once when outdated",
        &[
            "deployment::forwarded_404_refreshes_the_list",
            "ollama_management::pull_reports_the_progress_of_every_backend",
            "ollama_management::copy_and_delete_go_to_those_that_have_the_model",
            "ollama_management::dead_backend_fails_no_list",
            "deployment::failing_query_changes_nothing_else",
            "crates/core/src/fleet/catalogue_request.rs::requests_before_a_probe_are_one",
        ],
    ),
    (
        "O11",
        "a failing query of one kind changes nothing about the others",
        &["deployment::failing_query_changes_nothing_else"],
    ),
    (
        "O12",
        "a dead backend is tested again by a check, not by requests",
        &["deployment::dead_backend_is_retested_by_checks_alone"],
    ),
    (
        "O15",
        "a bounded queue per model: by priority, then arrival; woken by capacity, recovery and reload; full 503, late 504",
        &[
            "queue_order::important_requests_come_first_and_others_in_order",
            "queue::full_queue_and_long_waits_end_in_every_dialect",
            "queue::client_that_leaves_takes_its_request_along",
            "queue::recovered_backend_serves_what_waits",
            "queue::reload_lets_waiting_requests_through",
            "queue::waiting_requests_are_all_served_within_the_limit",
            "queue_refusals::refused_request_waits_and_is_served",
            "queue_reserve::key_below_its_share_finds_room_and_a_place",
            "queue_keep_alive::stream_that_waits_is_kept_alive_and_served",
        ],
    ),
    (
        "O16",
        "before the first byte another backend is tried at once, within a number, a budget and a total time; commands never",
        &[
            "failover::refused_connections_fail_over",
            "failover::status_500_is_retried_only_with_retry_5xx",
            "failover::max_retries_bounds_attempts",
            "failover::retry_budget_runs_out_and_refills",
            "ollama_api::busy_ollama_is_saturation",
            "stream_errors::started_response_is_never_retried",
            "ollama_management::push_goes_to_one_holder",
            "ollama_management::failure_everywhere_has_a_status",
        ],
    ),
    (
        "O17",
        "connection failures and 5xx open a backend's circuit breaker, each time for twice as long",
        &[
            "health_and_circuit_breaker::connect_failures_open_the_breaker",
            "health_and_circuit_breaker::half_open_breaker_admits_one_probe",
            "failing_backends::fast_failing_engine_draws_no_traffic_of_many_clients",
        ],
    ),
    (
        "O18",
        "Ollama's and OpenAI's APIs are served, and converted where client and backend differ",
        &[
            "ollama_api::ollama_requests_pass_untouched_both_ways",
            "conversion::every_client_api_works_on_every_backend_api",
            "tests/e2e/cases/ollama.py::case_ollama_chat",
            "tests/e2e/cases/ollama.py::case_ollama_generate",
        ],
    ),
    (
        "O19",
        "chat and generate without `stream` are streams",
        &[
            "ollama_api::streams_are_the_default_and_unbuffered",
            "crates/scan/src/tests/ollama.rs::chat_and_generate_stream_unless_the_client_says_no",
        ],
    ),
    (
        "O20",
        "the reason why a response ends reaches the client",
        &[
            "tests/e2e/cases/ollama.py::case_openai_converted",
            "tests/e2e/cases/ollama.py::case_ollama_chat_stream",
            "ollama_api::ollama_requests_pass_untouched_both_ways",
        ],
    ),
    (
        "O21",
        "fields that penstock does not know survive",
        &[
            "ollama_api::ollama_requests_pass_untouched_both_ways",
            "model_routing::every_operation_reaches_the_engine_unchanged",
        ],
    ),
    ("O22", "text survives beside images", &["conversion::images_are_converted"]),
    (
        "O23",
        "a list of inputs has a vector each",
        &["conversion::embeddings_are_converted", "tests/e2e/cases/ollama.py::case_ollama_embed"],
    ),
    (
        "O24",
        "a format constrains the response of an engine with another API",
        &["tests/e2e/cases/ollama.py::case_ollama_format"],
    ),
    (
        "O25",
        "refused tools and images are taken out where that is allowed, and an SVG is refused up front",
        &[
            "unsupported_requests::refused_tools_are_taken_out",
            "unsupported_requests::refused_images_are_taken_out_in_every_dialect",
            "unsupported_requests::what_is_not_allowed_is_never_taken_out",
            "unsupported_requests::other_errors_are_passed_on",
            "unsupported_requests::svg_is_refused_up_front",
        ],
    ),
    (
        "O26",
        "a name with the prefix is an ensemble in every dialect, on every engine; only the first prefix counts",
        &[
            "crates/core/src/routing/ensemble.rs::a_prefix_makes_an_ensemble_where_that_is_enabled",
            "ensembles::final_response_streams_in_every_dialect",
            "ensembles::ensembles_are_off_by_default",
        ],
    ),
    (
        "O27",
        "three drafts, three critiques and one final call, each with its own slot",
        &[
            "ensembles::calls_go_to_distinct_backends_and_become_one_response",
            "ensembles::one_backend_makes_all_calls_even_one_at_a_time",
            "ensembles::calls_are_spans_of_one_trace_with_a_decision_each",
            "crates/core/src/routing/ensemble.rs::members_take_turns_and_criticize_each_other",
        ],
    ),
    (
        "O28",
        "prompts hold the query and texts of drafts, come from files, and need a message of the user",
        &[
            "ensembles::calls_go_to_distinct_backends_and_become_one_response",
            "ensembles::prompts_come_from_files",
            "ensembles::bad_prompts_are_errors_of_the_configuration",
            "ensembles::requests_that_cannot_be_ensembles_are_refused",
            "crates/dialect/src/ensemble/tests.rs::the_query_is_the_last_text_of_the_user",
        ],
    ),
    (
        "O29",
        "as many backends as there are, streamed; one failure fails nothing, all tokens count, cancel stops all",
        &[
            "crates/dialect/src/ensemble/tests.rs::responses_of_every_api_are_read_as_text",
            "ensembles::final_response_streams_in_every_dialect",
            "ensembles::failed_calls_are_left_out",
            "ensembles::slow_draft_is_left_out",
            "ensembles::error_of_the_last_draft_reaches_the_client",
            "ensembles::tokens_of_all_calls_are_counted",
            "ensembles::client_that_leaves_frees_every_engine",
            "tests/e2e/cases/ensembles.py::case_ensemble",
        ],
    ),
    (
        "O30",
        "the engine is configured or detected; a trailing /v1 says nothing",
        &[
            "discovery::models_of_each_engine_are_discovered",
            "deployment::sleeping_and_unloaded_models_differ",
        ],
    ),
    (
        "O31",
        "a backend of any kind gets its key, in the form that it takes",
        &[
            "conversion::keys_and_content_types_fit_the_backend",
            "tests/e2e/cases/auth.py::case_engine_key_replaces_the_clients",
        ],
    ),
    (
        "O42",
        "errors have the form that Ollama's clients read, and an empty prompt loads or unloads a model",
        &[
            "ollama_api::unknown_models_and_bad_bodies_get_ollama_errors",
            "ollama_management::show_is_passed_on_or_made",
            "ollama_management::failure_everywhere_has_a_status",
            "ollama_management::routes_take_their_methods_only",
            "ollama_api::models_are_loaded_and_unloaded_by_empty_requests",
            "conversion::models_are_loaded_and_unloaded_without_a_call",
        ],
    ),
    (
        "O13",
        "every successful request is counted once, a cancelled stream by what was seen",
        &[
            "token_ledger::thousand_mixed_requests_are_counted_exactly",
            "token_ledger::cancelled_stream_counts_what_was_seen",
            "src/observe/ledger/tests.rs::only_what_a_model_computed_for_a_client_is_counted",
            "crates/scan/src/usage.rs::each_dialect_names_its_counts",
        ],
    ),
    (
        "O14",
        "counts are in SQLite, one row per minute; a crash loses 10 s at most, a shutdown nothing",
        &[
            "token_ledger::tables_hold_counts_names_and_times_only",
            "token_ledger::crash_loses_at_most_one_interval",
            "token_ledger::upgrade_loses_nothing",
            "src/observe/ledger/tests.rs::file_has_one_row_per_minute_and_totals_survive",
            "src/observe/ledger/books.rs::counts_belong_to_the_minute_they_were_made_in",
        ],
    ),
    (
        "O32",
        "the router's key as Bearer, x-api-key or ?api_key=, never logged; 401 and 403; health is exempt",
        &["usage_stream::key_in_the_query_reaches_neither_log_nor_backend"],
    ),
    (
        "O39",
        "the usage stream has a snapshot, a heartbeat, bounded subscribers, and slow readers delay no request",
        &[
            "usage_stream::stream_shows_the_state_at_once_and_each_change",
            "usage_stream::slow_reader_delays_no_request_and_sees_the_newest_state_last",
            "usage_stream::thousand_streams_are_served_and_end_at_shutdown",
            "src/observe/usage/tests.rs::stream_starts_with_the_state_and_beats_every_15_seconds",
        ],
    ),
    (
        "O40",
        "health is that of the latest checks, for every kind of backend",
        &[
            "usage_stream::pages_have_the_documented_shapes",
            "src/observe/usage/tests.rs::backends_are_listed_by_their_kind",
        ],
    ),
    (
        "O41",
        "usage, token counts, stats, config and days have the documented shapes; an unknown model is a 404",
        &[
            "usage_stream::pages_have_the_documented_shapes",
            "src/observe/ledger/tests.rs::time_series_is_newest_first_and_counts_what_is_pending",
        ],
    ),
    (
        "O43",
        "no key or prompt in logs, the database holds counts, names and times only",
        &[
            "token_ledger::tables_hold_counts_names_and_times_only",
            "usage_stream::key_in_the_query_reaches_neither_log_nor_backend",
        ],
    ),
    (
        "O33",
        "refusals of every engine are read, as fields or in prose, and trigger a shift in every dialect",
        &[
            "crates/dialect/src/context_shift/tests.rs::refusals_of_engines_are_read",
            "context_shift::refused_conversation_is_shortened_in_every_dialect",
            "tests/e2e/cases/context.py::case_context_shift",
        ],
    ),
    (
        "O34",
        "the target is three quarters of the context, by what the engine counted",
        &[
            "crates/dialect/src/context_shift/tests.rs::room_leaves_a_quarter_or_what_the_response_needs",
            "context_shift::refused_conversation_is_shortened_in_every_dialect",
            "context_shift::declared_context_shortens_before_an_engine_refuses",
        ],
    ),
    (
        "O35",
        "the oldest messages go, systems and the last message of the user stay where they are",
        &[
            "crates/dialect/src/context_shift/tests.rs::shifted_conversations_hold_together",
            "crates/dialect/src/context_shift/tests.rs::no_more_is_dropped_than_the_target_needs",
            "crates/dialect/src/context_shift/tests.rs::long_agent_loops_lose_their_oldest_rounds",
        ],
    ),
    (
        "O36",
        "tools go after the second refusal, where configured; the third is passed on",
        &["context_shift::second_refusal_drops_the_tools_and_a_third_is_passed_on"],
    ),
    (
        "O37",
        "a learned or declared context shortens a request before it is sent; long ones are not remembered",
        &[
            "context_shift::refused_conversation_is_shortened_in_every_dialect",
            "context_shift::declared_context_shortens_before_an_engine_refuses",
            "context_shift::context_is_learned_from_a_response_that_fills_it",
            "crates/core/src/fleet/learned_context.rs::short_contexts_are_known_until_the_engine_restarts",
        ],
    ),
    (
        "O38",
        "a shift is scaled by ratio, keeps calls with results, is deterministic, marked, and off by default",
        &[
            "crates/dialect/src/context_shift/tests.rs::shifted_conversations_hold_together",
            "context_shift::refusals_pass_where_nothing_allows_a_shift",
            "context_shift::key_and_request_decide_before_the_model",
            "context_shift::backend_with_room_comes_first",
        ],
    ),
    (
        "O44",
        "at debug, decisions, token counts and failed connections with their addresses are logged",
        &["unsupported_requests::debug_log_has_decisions_counts_and_failed_connections"],
    ),
    (
        "O47",
        "several penstocks share limits and requests in flight through Redis; while it is gone each counts alone, and no request fails",
        &[
            "several_penstocks::decisions_count_the_requests_of_the_other_penstock",
            "several_penstocks::limit_of_a_backend_is_that_of_all_penstocks",
            "several_penstocks::without_the_server_each_penstock_counts_alone",
            "shared_state::two_penstocks_pass_one_limit_together",
            "shared_state::killed_server_fails_no_request_and_is_shared_again",
            "shared_state::server_that_hangs_delays_no_request",
            "shared_state::slots_are_shared_and_those_of_a_killed_penstock_expire",
        ],
    ),
    (
        "O50",
        "limits per key and per client address: 429 with Retry-After in the client's dialect",
        &[
            "rate_limits::requests_over_the_limit_get_429_in_every_dialect",
            "rate_limits::addresses_are_limited_each",
            "rate_limits::concurrent_clients_never_pass_more_than_the_limit",
            "crates/core/src/admission/rate_limits/tests.rs::threads_never_get_more_than_the_limit",
        ],
    ),
];
