//! Every user story in one binary, because each binary links Pingora again. The last line says how
//! many end-to-end cases ran on real engines and SDKs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::missing_errors_doc,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    reason = "tests fail by panicking, read the clock and print"
)]

#[path = "../support/mod.rs"]
mod support;

mod admin_port_is_bounded;
mod admin_port_tells;
mod aliases_and_fallbacks;
mod backend_failure_retries;
mod backends_over_tls;
mod bad_requests_are_refused;
mod caches_are_believed;
mod capabilities_decide;
mod chaos_corrupts_nothing;
mod clients_that_leave;
mod clocks_end_what_hangs;
mod config_and_cli;
mod decisions_are_replayed;
mod discovery_learns;
mod end_to_end;
mod engines_tell_their_load;
mod explain_tells_why;
mod faults_under_load;
mod fuzz_corpora_replay;
mod handover_refuses_nobody;
mod health_and_breaker;
mod hostile_clients_are_survived;
mod http2_attacks_are_bounded;
mod http2_clients_are_served;
mod keys_open_the_door;
mod listeners_speak_tls;
mod models_are_routed;
mod monitoring_files_are_true;
mod nothing_leaks_or_strays;
mod openai_chat_answers;
mod operators_watch;
mod overload_rests;
mod paths_and_methods;
mod readme_is_true;
mod recovery_is_gentle;
mod reload_drops_nothing;
mod requests_are_logged;
mod scores_decide;
mod smuggling_is_refused;
mod stopping_finishes_streams;
mod strategies_are_tried_out;
mod strategies_spread;
mod streams_break_honestly;
mod systemd_is_told;
mod the_doctor_is_asked;
mod traces_are_followed;
mod zlib_stands_in;

use libtest_mimic::{Arguments, Trial};

/// Turns test functions into trials named after their module.
macro_rules! stories {
    ($($module:ident),* $(,)?) => {
        [$($module::trials(stringify!($module))),*].concat_trials()
    };
}

trait Concat {
    fn concat_trials(self) -> Vec<Trial>;
}

impl<const N: usize> Concat for [Vec<Trial>; N] {
    fn concat_trials(self) -> Vec<Trial> {
        self.into_iter().flatten().collect()
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let trials = stories![
        admin_port_is_bounded,
        admin_port_tells,
        aliases_and_fallbacks,
        backend_failure_retries,
        backends_over_tls,
        bad_requests_are_refused,
        caches_are_believed,
        capabilities_decide,
        chaos_corrupts_nothing,
        clients_that_leave,
        clocks_end_what_hangs,
        config_and_cli,
        decisions_are_replayed,
        discovery_learns,
        engines_tell_their_load,
        explain_tells_why,
        faults_under_load,
        handover_refuses_nobody,
        fuzz_corpora_replay,
        health_and_breaker,
        hostile_clients_are_survived,
        http2_attacks_are_bounded,
        http2_clients_are_served,
        keys_open_the_door,
        listeners_speak_tls,
        models_are_routed,
        monitoring_files_are_true,
        nothing_leaks_or_strays,
        openai_chat_answers,
        operators_watch,
        overload_rests,
        paths_and_methods,
        readme_is_true,
        recovery_is_gentle,
        reload_drops_nothing,
        requests_are_logged,
        smuggling_is_refused,
        stopping_finishes_streams,
        scores_decide,
        strategies_are_tried_out,
        strategies_spread,
        streams_break_honestly,
        systemd_is_told,
        the_doctor_is_asked,
        traces_are_followed,
        zlib_stands_in,
        end_to_end,
    ];
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!("{}", end_to_end::summary());
    }
    conclusion.exit();
}
