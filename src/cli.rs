//! The command line: one file per command. Parses arguments, calls the rest of the crate, prints,
//! and maps every error to an exit code. Top layer.

mod admin;
mod check;
mod client;
mod completions;
mod config;
mod demo;
mod doctor;
mod engines;
mod error;
mod explain;
mod fit;
mod keys;
mod lines;
mod logging;
mod man;
mod mock;
mod output;
mod routing;
mod score;
mod serve;
mod simulate;
mod source;
mod top;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::lifecycle::detached_launcher;
use error::{CliError, USAGE};
use output::Output;

const AFTER_HELP: &str = "\
Examples:
  penstock demo                                 try it with mock engines
  penstock serve --config penstock.yaml         run the load balancer
  penstock check --config penstock.yaml         validate a configuration
  penstock explain request.json --config penstock.yaml
                                                show which backend gets a request, and why
  penstock top                                  watch the penstock that runs on this host

Environment variables override the file, and flags override both:
PENSTOCK_ROUTING_STRATEGY=random sets routing.strategy.

Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration.";

/// A load balancer for LLM servers: sends each request to a backend that can serve it.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Declares the subcommands: a row per command, whose module has `run(&arguments, output)`.
macro_rules! commands {
    ($( $(#[$attribute:meta])* $name:ident($module:ident::$arguments:ident), )+) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $( $(#[$attribute])* $name($module::$arguments), )+
        }

        impl Command {
            fn run(&self, output: &mut Output) -> Result<(), CliError> {
                match self {
                    $( Self::$name(arguments) => $module::run(arguments, output), )+
                }
            }
        }
    };
}

commands! {
    /// Run the load balancer until SIGTERM or SIGINT
    Serve(serve::ServeArgs),
    /// Validate a configuration
    Check(check::CheckArgs),
    /// Show which backend gets a request, and why
    Explain(explain::ExplainArgs),
    /// Learn the step time of an engine from a recorded run
    Fit(fit::FitArgs),
    /// Simulate a fleet: compare and tune configurations before they are deployed
    Simulate(simulate::SimulateArgs),
    /// Score backends from JSON lines with their metrics
    Score(score::ScoreArgs),
    /// Diagnose this host, the configuration and every backend
    Doctor(doctor::DoctorArgs),
    /// Show backends, rates, latencies and errors of a running penstock
    Top(top::TopArgs),
    /// Print or export the tokens that the ledger counted
    Usage(usage::UsageArgs),
    /// Make, list, rotate and revoke client keys
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Run the load balancer with four mock engines
    Demo(demo::DemoArgs),
    /// Run a mock engine, to try a configuration
    Mock(mock::MockArgs),
    /// Print the effective configuration, or its schema
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Print the manual page
    Man(man::ManArgs),
}

/// Parses the arguments of this process and runs the command.
pub fn run() -> ExitCode {
    if let Some(code) = run_launcher(std::env::args_os().skip(1)) {
        return code.into();
    }
    match Cli::try_parse() {
        Ok(cli) => run_command(&cli.command, &mut Output::of_process()).into(),
        // Includes `--help` and `--version`: clap knows which messages go to standard output.
        Err(error) => match error.print() {
            Ok(()) if error.use_stderr() => USAGE.into(),
            Ok(()) | Err(_) => ExitCode::SUCCESS,
        },
    }
}

fn run_command(command: &Command, output: &mut Output) -> u8 {
    match command.run(output) {
        Ok(()) => error::OK,
        // The reader closed the pipe, as in `penstock … | head`.
        Err(error) if error.is_broken_pipe() => error::OK,
        Err(error) => {
            output.complain("error", &error);
            error.exit_code()
        }
    }
}

/// Runs the hidden command that a graceful upgrade starts the new process with, if the arguments
/// name it, and returns the exit code of that process. No help, manual or completion lists it.
fn run_launcher(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    if arguments.next()? != detached_launcher::COMMAND {
        return None;
    }
    let program = arguments.next()?;
    let started = detached_launcher::start(&program, arguments);
    Some(started.unwrap_or_else(|error| {
        Output::of_process().complain("error", CliError::NothingToTakeOver(error));
        USAGE
    }))
}

#[cfg(test)]
mod tests;
