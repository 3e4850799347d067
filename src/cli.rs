//! The command line: one file per command. Reads arguments, calls what the rest of the crate
//! offers, prints, and turns every error into an exit code. Top layer.

mod admin;
mod check;
mod client;
mod completions;
mod config;
mod demo;
mod detached_launcher;
mod doctor;
mod error;
mod explain;
mod lines;
mod logging;
mod man;
mod output;
mod routing;
mod score;
mod serve;
mod source;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use output::Output;

const AFTER_HELP: &str = "\
Examples:
  penstock demo                                 try it without an engine
  penstock serve --config penstock.yaml         run it
  penstock check --config penstock.yaml         is this file right?
  penstock explain request.json --config penstock.yaml
                                                who would get this request, and why?
  penstock top                                  how is the one that runs here?

Every setting can also come from the environment: PENSTOCK_ROUTING_STRATEGY=random sets
routing.strategy. Flags beat the environment, which beats the file.

Exit codes: 0 all went well, 1 it failed, 2 the arguments or the configuration are wrong.";

/// A load balancer for LLM servers: sends each request to a backend that can serve it.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the load balancer until SIGTERM or SIGINT
    Serve(serve::ServeArgs),
    /// Check a configuration without starting anything
    Check(check::CheckArgs),
    /// Show where a request would go, and why
    Explain(explain::ExplainArgs),
    /// Score backends by readings given line by line, as JSON
    Score(score::ScoreArgs),
    /// Look for trouble: this machine, the configuration, every backend
    Doctor(doctor::DoctorArgs),
    /// Watch a running penstock: its fleet, rates, latencies and errors
    Top(top::TopArgs),
    /// Try it: three stand-in engines with the load balancer in front
    Demo(demo::DemoArgs),
    /// Print the configuration in effect, or its schema
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Print the manual page
    Man(man::ManArgs),
}

/// Runs the command the process was called with.
pub fn run() -> ExitCode {
    if let Some(code) = detached_launcher::run(std::env::args_os().skip(1)) {
        return code.into();
    }
    match Cli::try_parse() {
        Ok(cli) => run_command(cli.command, &mut Output::of_process()).into(),
        // Also `--help` and `--version`: clap knows which go to standard output.
        Err(error) => match error.print() {
            Ok(()) if error.use_stderr() => error::USAGE.into(),
            Ok(()) | Err(_) => ExitCode::SUCCESS,
        },
    }
}

fn run_command(command: Command, output: &mut Output) -> u8 {
    let done = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args, output),
        Command::Explain(args) => explain::run(&args, output),
        Command::Score(args) => score::run(&args, output),
        Command::Doctor(args) => doctor::run(&args, output),
        Command::Top(args) => top::run(&args, output),
        Command::Demo(args) => demo::run(&args),
        Command::Config(command) => config::run(&command, output),
        Command::Completions(args) => completions::run(&args, output),
        Command::Man(args) => man::run(&args, output),
    };
    match done {
        Ok(()) => error::OK,
        // Whoever read our output has enough of it, as in `penstock … | head`.
        Err(error) if error.is_broken_pipe() => error::OK,
        Err(error) => {
            output.complain("error", &error);
            error.exit_code()
        }
    }
}

#[cfg(test)]
mod tests;
