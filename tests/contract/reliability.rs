//! Part R, reliability: a row is a fault, an attack or a limit; `SECURITY.md` says what for.

use super::{Part, Row};

pub(super) const PART: Part = Part {
    name: "R",
    rows: &[
        ("A", 1..=18),
        ("B", 1..=12),
        ("C", 1..=5),
        ("D", 1..=4),
        ("E", 1..=7),
        ("F", 1..=4),
        ("G", 1..=7),
        ("H", 1..=2),
    ],
    held: ROWS,
};

const ROWS: &[Row] = &[
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
            "failover::lost_connection_is_retried_once",
            "failover::ambiguous_end_of_a_reused_connection_is_not_retried",
            "chaos::request_that_was_read_runs_again_once_at_most",
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
            "request_bodies::malformed_chunks_reach_no_backend",
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
            "request_bodies::unread_bodies_are_not_parsed_as_requests",
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
    ("C2", "deeply nested JSON is cheap", &["request_bodies::depth_bombs_are_cheap"]),
    (
        "C3",
        "an oversized body is a readable 413",
        &["request_bodies::oversized_bodies_get_a_readable_413"],
    ),
    (
        "C4",
        "a compressed body is decoded within bounds; of an unknown coding, or another media type, it is a 415",
        &[
            "encoded_bodies::every_coding_is_decoded_before_it_is_forwarded",
            "encoded_bodies::expanding_bodies_are_refused_and_leave_no_memory",
            "encoded_bodies::unknown_codings_get_415_in_the_clients_dialect",
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
            "request_bodies::missing_body_times_out",
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
