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

mod end_to_end;
mod openai_chat_answers;

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
    let trials = stories![openai_chat_answers, end_to_end];
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!("{}", end_to_end::summary());
    }
    conclusion.exit();
}
