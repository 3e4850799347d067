//! Every user story in one binary, because each binary links Pingora again. A line that begins with
//! `e2e:` says how many end-to-end cases ran on real engines and SDKs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::missing_errors_doc,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "tests fail by panicking, read the clock and print"
)]

#[path = "../support/support.rs"]
mod support;

mod access_log;
mod access_log_failures;
mod admin_api;
mod admin_limits;
mod agent_requests;
mod aliases_and_fallbacks;
mod ambiguous_fields;
mod authentication;
mod budget_attacks;
mod budgets;
mod capability_routing;
mod certificate_names;
mod chaos;
mod chat_completions;
mod circuit_breaker;
mod client_disconnects;
mod client_keys;
mod client_paths;
mod client_transports;
mod config_and_cli;
mod context_shift;
mod conversion;
mod cooldown;
mod credential_leaks;
mod decision_replay;
mod default_model;
mod deployment;
mod discovery;
mod dns_addresses;
mod doctor;
mod documentation;
mod encoded_bodies;
mod end_to_end;
mod engine_metrics;
mod ensembles;
mod explain;
mod failing_backends;
mod failover;
mod faults_under_load;
mod fuzz_corpora;
mod graceful_shutdown;
mod graceful_upgrade;
mod health_checks;
mod held_responses;
mod hostile_clients;
mod hot_reload;
mod http10_clients;
mod http2_attacks;
mod http2_clients;
mod key_attributes;
mod key_store;
mod listener_tls;
mod migration;
mod model_routing;
mod monitoring_files;
mod moves;
mod objectives;
mod ollama_api;
mod ollama_management;
mod ollama_pages;
mod passthrough;
mod paths_and_methods;
mod pipeline;
mod policies;
mod policy_choices;
mod policy_paths;
mod policy_reports;
mod prefix_cache;
mod queue;
mod queue_keep_alive;
mod queue_order;
mod queue_refusals;
mod queue_reserve;
mod rate_limits;
mod reload_gate;
mod request_bodies;
mod request_smuggling;
mod request_validation;
mod resource_limits;
mod response_ends;
mod response_outcomes;
mod several_penstocks;
mod shadow_routing;
mod shared_budgets;
mod shared_keys;
mod shared_state;
mod shared_tokens;
mod slow_backends;
mod slow_start;
mod stored_responses;
mod strategies;
mod stream_errors;
mod systemd_notify;
mod timeouts;
mod token_attacks;
mod token_counts;
mod token_ledger;
mod tokens;
mod top_and_demo;
mod tracing;
mod tutorial;
mod unsupported_requests;
mod upstream_tls;
mod usage_stream;
mod weighted_scorers;
mod zlib_shim;
