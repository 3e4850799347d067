//! The reliability contract, row by row, with the tests that hold it: every row has one, and every
//! test named here exists. A row is a fault, an attack or a limit; `SECURITY.md` says what for. Rows of
//! other contracts are listed where a test was written for them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The rows of each part of the contract.
const PARTS: &[(char, usize)] =
    &[('A', 18), ('B', 12), ('C', 5), ('D', 4), ('E', 7), ('F', 4), ('G', 7), ('H', 2)];

/// What each row requires and the tests that hold it: `file::function` below `tests/stories/`, or a
/// path.
const ROWS: &[(&str, &str, &[&str])] = &[
    (
        "A1",
        "a refused connection is retried elsewhere",
        &[
            "failover::refused_connections_fail_over",
            "health_and_circuit_breaker::killed_engine_fails_over_and_is_used_after_restart",
        ],
    ),
    (
        "A2",
        "a connection closed before the request was read is retried",
        &[
            "failover::unread_request_fails_over_byte_for_byte",
            "failover::close_at_accept_never_runs_a_request_twice",
            "failover::request_stuck_in_the_send_buffer_fails_over",
            "failing_backends::fast_failing_engine_draws_no_traffic_of_one_client",
            "failing_backends::fast_failing_engine_draws_no_traffic_of_many_clients",
            "failing_backends::poison_prompts_of_one_client_cost_others_nothing",
        ],
    ),
    (
        "A3",
        "a stale idle connection is replaced and the request sent once",
        &["failover::closed_idle_connection_is_replaced_and_request_runs_once"],
    ),
    (
        "A4",
        "a 429 or 503 puts the backend in cooldown",
        &[
            "failover::retry_after_sets_the_cooldown",
            "failing_backends::cooldown_is_per_model",
            "failing_backends::cooldown_is_per_credential_where_it_is_passed",
            "failing_backends::rate_limit_is_retried_on_one_other_backend",
            "faults_under_load::recoverable_faults_are_hidden_under_load",
        ],
    ),
    (
        "A5",
        "when every backend is busy the last refusal is relayed",
        &[
            "cooldown::last_refusal_is_relayed_unchanged",
            "cooldown::relayed_refusal_counts_as_busy_of_its_backend",
            "cooldown::clients_do_not_retry_what_every_backend_refused",
        ],
    ),
    (
        "A6",
        "a 500 is relayed without a retry",
        &["failover::status_500_is_retried_only_with_retry_5xx"],
    ),
    (
        "A7",
        "a request the backend read is not retried",
        &[
            "failover::read_request_is_retried_only_with_retry_unanswered",
            "failover::ambiguous_end_of_a_reused_connection_is_not_retried",
            "chaos::request_that_was_read_never_runs_again_under_mixed_faults",
        ],
    ),
    (
        "A8",
        "a timeout ends the wait for a response head",
        &["timeouts::silence_before_head_is_504_and_cancels_the_engine"],
    ),
    (
        "A9",
        "a cut response never looks complete",
        &[
            "stream_errors::broken_stream_ends_with_error_in_its_dialect",
            "stream_errors::broken_response_is_visibly_broken",
        ],
    ),
    (
        "A10",
        "a timeout ends silence within a response",
        &[
            "timeouts::between_tokens_timeout_ends_stream_in_its_dialect",
            "timeouts::response_timeout_breaks_response_visibly",
        ],
    ),
    (
        "A11",
        "an invalid response is a 502",
        &[
            "stream_errors::invalid_response_is_502",
            "src/upstream/response_head.rs::contradictory_framing_is_refused",
        ],
    ),
    (
        "A12",
        "an unsolicited second response is discarded",
        &["stream_errors::unsolicited_response_is_discarded"],
    ),
    ("A13", "interim responses are harmless", &["stream_errors::unusual_but_legal_responses_pass"]),
    (
        "A14",
        "large response heads pass within a limit",
        &["stream_errors::unusual_but_legal_responses_pass"],
    ),
    (
        "A15",
        "without a healthy backend the 503 is immediate",
        &["cooldown::all_unhealthy_is_rejected_at_once"],
    ),
    (
        "A16",
        "errors end when the faults end",
        &[
            "health_and_circuit_breaker::killed_engine_fails_over_and_is_used_after_restart",
            "health_and_circuit_breaker::recovered_backend_is_used_within_three_seconds",
            "slow_start::outage_stops_errors_and_load_evens_out",
        ],
    ),
    (
        "A17",
        "every relayed byte is correct under faults",
        &[
            "faults_under_load::responses_are_intact_under_faults",
            "chaos::responses_are_intact_while_engines_fail",
            "chaos::recoverable_faults_stay_hidden_as_they_change",
        ],
    ),
    (
        "A18",
        "no retry once a response has started",
        &["stream_errors::started_response_is_never_retried"],
    ),
    (
        "B1",
        "two body framings are refused",
        &[
            "request_smuggling::ambiguous_heads_are_refused",
            "src/downstream/head_check/tests.rs::checked_heads_read_alike_everywhere",
        ],
    ),
    ("B2", "chunked HTTP/1.0 is refused", &["request_smuggling::ambiguous_heads_are_refused"]),
    (
        "B3",
        "malformed chunks are refused",
        &[
            "request_smuggling::ambiguous_chunks_are_refused",
            "request_validation::malformed_chunks_reach_no_backend",
        ],
    ),
    (
        "B4",
        "forwarded requests are well-formed",
        &[
            "request_smuggling::hop_by_hop_headers_are_not_forwarded",
            "src/upstream/request_writer.rs::hop_by_hop_and_ambiguous_fields_are_withheld",
        ],
    ),
    (
        "B5",
        "malformed heads are refused",
        &[
            "request_smuggling::ambiguous_heads_are_refused",
            "request_smuggling::other_protocols_get_400_immediately",
        ],
    ),
    (
        "B6",
        "legal but unusual heads are served",
        &[
            "request_smuggling::unusual_but_valid_requests_are_served",
            "http10_clients::connection_closes_unless_keep_alive_is_requested",
        ],
    ),
    (
        "B7",
        "a Host header never selects an address",
        &["paths_and_methods::no_request_field_selects_another_backend"],
    ),
    ("B8", "only known paths are forwarded", &["paths_and_methods::unknown_paths_are_404"]),
    ("B9", "protocol upgrades are ignored", &["request_smuggling::upgrades_are_ignored"]),
    (
        "B10",
        "leftover body bytes never become a request",
        &[
            "request_validation::unread_bodies_are_not_parsed_as_requests",
            "stream_errors::early_response_is_relayed_and_its_connection_closed",
        ],
    ),
    (
        "B11",
        "hop-by-hop fields are not forwarded",
        &[
            "request_smuggling::hop_by_hop_headers_are_not_forwarded",
            "src/upstream/request_writer.rs::nominated_fields_are_dropped_but_own_fields_are_not",
        ],
    ),
    (
        "B12",
        "oversized heads are refused",
        &["request_smuggling::oversized_heads_use_bounded_memory"],
    ),
    (
        "C1",
        "invalid JSON is a 400",
        &["request_validation::malformed_json_gets_400_and_reaches_no_backend"],
    ),
    ("C2", "deeply nested JSON is cheap", &["request_validation::depth_bombs_are_cheap"]),
    (
        "C3",
        "an oversized body is a readable 413",
        &["request_validation::oversized_bodies_get_a_readable_413"],
    ),
    (
        "C4",
        "a compressed body, or one of another media type, is a 415",
        &[
            "request_validation::compressed_bodies_get_415",
            "request_validation::other_media_types_get_415",
        ],
    ),
    (
        "C5",
        "bodies are forwarded byte for byte",
        &[
            "chat_completions::bodies_of_every_size_arrive_byte_for_byte",
            "request_validation::byte_order_mark_is_skipped_and_forwarded",
        ],
    ),
    (
        "D1",
        "a client that disconnects frees the engine",
        &["client_disconnects::disconnect_closes_the_upstream_in_every_phase"],
    ),
    (
        "D2",
        "no attempt starts after a disconnect",
        &[
            "client_disconnects::disconnect_while_connecting_starts_no_attempt",
            "client_disconnects::disconnect_between_attempts_starts_no_attempt",
        ],
    ),
    (
        "D3",
        "a disconnect during the upload frees everything",
        &["client_disconnects::disconnect_during_upload_reaches_no_backend"],
    ),
    (
        "D4",
        "a disconnect affects no other client",
        &["client_disconnects::disconnects_do_not_affect_other_clients"],
    ),
    (
        "E1",
        "slow senders time out",
        &[
            "hostile_clients::slow_heads_and_bodies_time_out",
            "request_validation::missing_body_times_out",
        ],
    ),
    (
        "E2",
        "stalled readers hold little memory",
        &[
            "hostile_clients::stalled_readers_use_bounded_memory_and_lose_nothing",
            "hostile_clients::reader_that_never_reads_is_disconnected",
        ],
    ),
    ("E3", "idle connections are cheap", &["hostile_clients::idle_connections_use_little_memory"]),
    (
        "E4",
        "other clients stay fast during an attack",
        &["hostile_clients::attacks_do_not_slow_down_other_clients"],
    ),
    (
        "E5",
        "HTTP/2 floods end with GOAWAY or are bounded",
        &[
            "http2_attacks::rapid_reset_gets_enhance_your_calm",
            "http2_attacks::streams_reset_by_the_server_count_as_resets",
            "http2_attacks::cancelled_requests_count_as_resets",
            "http2_attacks::frame_floods_are_bounded",
            "http2_attacks::header_bomb_is_bounded",
        ],
    ),
    (
        "E6",
        "what HTTP/1.1 would read differently resets its stream",
        &[
            "http2_attacks::heads_ambiguous_in_http1_are_refused",
            "http2_attacks::wrong_content_length_resets_the_stream",
        ],
    ),
    (
        "E7",
        "a request over a limit gets a 503 at once",
        &[
            "hostile_clients::connections_over_the_limit_get_503_immediately",
            "cooldown::buffered_bodies_are_bounded_before_reading",
            "resource_limits::few_descriptors_refuse_clients_and_blame_no_backend",
        ],
    ),
    (
        "F1",
        "a reload drops no request",
        &[
            "hot_reload::reloads_under_load_lose_no_request",
            "graceful_upgrade::upgrade_under_load_loses_no_request",
        ],
    ),
    (
        "F2",
        "an invalid file changes nothing",
        &["hot_reload::invalid_file_keeps_the_old_configuration"],
    ),
    (
        "F3",
        "a graceful shutdown finishes streams",
        &[
            "graceful_shutdown::streams_finish_and_new_requests_are_refused",
            "graceful_shutdown::drain_timeout_cuts_unfinished_requests",
        ],
    ),
    ("F4", "nothing leaks over many requests", &["slow_start::nothing_leaks_after_disconnects"]),
    (
        "G1",
        "keys and prompts appear in no output",
        &[
            "authentication::keys_and_prompts_are_never_shown",
            "access_log::lines_contain_no_secrets",
        ],
    ),
    (
        "G2",
        "log lines cannot be forged",
        &["authentication::log_lines_cannot_be_forged", "access_log::lines_cannot_be_forged"],
    ),
    (
        "G3",
        "unknown names share one metric label",
        &["admin_api::junk_names_collapse_into_one_series"],
    ),
    (
        "G4",
        "the admin port is separate from the data port",
        &[
            "admin_api::web_pages_are_refused",
            "admin_api::admin_port_survives_garbage",
            "credential_leaks::data_port_serves_no_admin_endpoint",
        ],
    ),
    (
        "G5",
        "error texts contain no address, path or panic",
        &["credential_leaks::errors_reveal_no_address_path_or_panic"],
    ),
    (
        "G6",
        "no request selects a backend by name",
        &[
            "paths_and_methods::no_request_field_selects_another_backend",
            "credential_leaks::request_cannot_choose_another_backend",
        ],
    ),
    (
        "G7",
        "no client receives data of another",
        &["credential_leaks::concurrent_clients_get_their_own_responses"],
    ),
    (
        "H1",
        "the SDKs work, with every call type and error class",
        &[
            "tests/e2e/cases/chat.py::case_chat_stream",
            "tests/e2e/cases/errors.py::case_unknown_model",
            "tests/e2e/cases/limits.py::case_rate_limit_error",
            "tests/e2e/cases/limits.py::case_anthropic_rate_limit_error",
            "tests/e2e/cases/limits.py::case_response_timeout",
            "tests/e2e/cases/limits.py::case_client_timeout",
        ],
    ),
    ("H2", "two hundred SDK streams at once work", &["tests/e2e/cases/load.py::case_200_streams"]),
];

/// Rows on the analysis of requests (N, C) and on scoring (B, INV), in the same way.
const OTHER_ROWS: &[(&str, &str, &[&str])] = &[
    (
        "N16, C32",
        "the token estimate is within 25 % for every kind of text",
        &[
            "src/scan/tests/estimate.rs::auto_is_within_a_quarter_for_every_kind_of_text",
            "src/scan/tests/allocations.rs::a_scan_allocates_nothing",
            "explain::explain_honours_the_token_estimate",
        ],
    ),
    (
        "N45, C29",
        "an incapable fleet is refused with all that some candidate lacks, and what each lacks",
        &[
            "src/routing/tests/errors.rs::capability_mismatch_lists_all_that_some_candidate_lacks",
            "src/routing/tests/errors.rs::capability_mismatch_names_at_most_five_candidates",
            "capability_routing::capability_mismatch_lists_what_is_missing",
        ],
    ),
    (
        "C26",
        "a request goes to engines that serve its operation; where none does, a 400 names it",
        &[
            "client_paths::every_path_of_an_operation_is_served",
            "client_paths::requests_go_to_engines_that_serve_the_operation",
            "client_paths::operations_no_engine_serves_are_named",
        ],
    ),
    (
        "C33",
        "a request without a model gets the default, the only model, or the one that serves it",
        &[
            "default_model::the_only_model_is_the_default",
            "default_model::configured_default_serves_any_operation",
            "default_model::defaults_can_differ_by_operation",
            "default_model::optional_models_go_where_the_operation_is_served",
            "default_model::without_a_default_the_error_names_the_field",
        ],
    ),
    (
        "C34",
        "patterns in aliases: exact names first, the most specific next, never listed",
        &["aliases_and_fallbacks::patterns_cover_names_that_no_backend_serves"],
    ),
    (
        "N15, N50",
        "analysis and decision take at most 2 ms",
        &["src/routing/tests/strategies.rs::analysis_and_decision_take_less_than_two_milliseconds"],
    ),
    (
        "N51",
        "an alias takes 100 bytes, a chain 200",
        &["src/routing/tests/allocations.rs::aliases_and_chains_are_small"],
    ),
    (
        "N13, N52",
        "a decision calls nothing outside and takes no lock but the index's",
        &[
            "tests/architecture.rs::pure_folders_name_no_io_and_no_clock",
            "tests/architecture.rs::decisions_take_no_lock_but_the_index",
        ],
    ),
    (
        "C30, B20",
        "the grammar of scorers is exact",
        &[
            "src/scoring/tests.rs::lists_that_make_no_sense_are_refused_in_words",
            "src/config/tests/scorers.rs::invalid_scorers_are_refused_with_position",
            "src/cli/score/tests.rs::error_names_the_path_of_the_invalid_value",
        ],
    ),
    (
        "INV-3",
        "equal input gives equal decisions, one by one and over a whole run",
        &[
            "src/scoring/tests/properties.rs::decisions_are_the_same_every_time",
            "src/routing/tests/sweep.rs::same_seed_gives_the_same_decisions_and_scores",
        ],
    ),
    (
        "INV-4",
        "a burst sees its own first decision",
        &[
            "src/routing/tests/weighted.rs::burst_sees_its_own_first_decision",
            "weighted_scorers::burst_of_equal_prompts_sees_the_first_decision",
        ],
    ),
    (
        "INV-6",
        "only ratios of weights count",
        &[
            "src/scoring/tests/properties.rs::whole_multiples_of_all_weights_change_nothing",
            "src/scoring/tests/properties.rs::any_multiple_of_all_weights_changes_no_total",
            "src/routing/tests/sweep.rs::multiples_of_weights_decide_alike_and_rounded_ones_nearly",
        ],
    ),
    (
        "INV-7, C31",
        "the models of a backend hold at most its capacity together",
        &[
            "src/prefix/model_index.rs::models_of_a_backend_share_its_capacity",
            "src/fleet/cache_sharing.rs::models_of_one_engine_share_its_cache",
        ],
    ),
    (
        "B15",
        "16 tokens per block, 31,250 blocks per backend",
        &["src/scoring/tests.rs::prefix_defaults_are_those_of_the_contract"],
    ),
    (
        "B22",
        "requests concentrate as prefixes count more, with live samples",
        &["src/routing/tests/sweep.rs::requests_concentrate_as_prefixes_count_more"],
    ),
    (
        "B 2.1",
        "salts, models and tools seed the chain; reported cached tokens correct the index",
        &[
            "src/prefix/prompt/tests.rs::salts_models_and_tools_share_no_blocks",
            "prefix_cache::reported_cached_tokens_correct_the_prediction",
        ],
    ),
];

fn source(test: &str) -> (String, String) {
    let (place, name) = test.rsplit_once("::").unwrap();
    let is_in_stories = !place.contains('/');
    let file = if is_in_stories { format!("tests/stories/{place}.rs") } else { place.to_owned() };
    (file, name.to_owned())
}

fn assert_tests_exist(row: &str, what: &str, tests: &[&str]) {
    assert!(!tests.is_empty(), "{row} ({what}) has no test");
    for test in tests {
        let (file, name) = source(test);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        let text = fs::read_to_string(path).unwrap_or_else(|error| {
            panic!("{row} ({what}): {file}: {error}");
        });
        let exists = [format!("fn {name}("), format!("def {name}(")]
            .iter()
            .any(|definition| text.contains(definition.as_str()));
        assert!(exists, "{row} ({what}): {test} does not exist");
    }
}

#[test]
fn every_contract_row_names_existing_tests() {
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for (row, what, tests) in ROWS {
        *rows.entry(row).or_default() += 1;
        assert_tests_exist(row, what, tests);
    }
    let expected =
        PARTS.iter().flat_map(|(part, count)| (1..=*count).map(move |row| format!("{part}{row}")));
    for row in expected {
        let count = rows.remove(row.as_str()).unwrap_or_default();
        assert_eq!(count, 1, "rows called R.{row}");
    }
    assert!(rows.is_empty(), "rows the contract does not have: {rows:?}");
    for (row, what, tests) in OTHER_ROWS {
        assert_tests_exist(row, what, tests);
    }
}

#[test]
fn threat_model_names_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let missing: Vec<&str> = links.clone().filter(|link| !root.join(link).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(links.count() > 20);
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip_while(|line| !line.starts_with("| attack |"));
    for row in rows.skip(1) {
        assert!(row.contains("](tests/") || row.contains("](src/"), "no test: {row}");
    }
}
