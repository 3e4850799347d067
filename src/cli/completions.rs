//! `penstock completions`: completion scripts for shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::error::CliError;
use super::output::Output;

const AFTER_HELP: &str = "\
Examples:
  penstock completions bash > /etc/bash_completion.d/penstock
  penstock completions zsh > ~/.zfunc/_penstock
  penstock completions fish > ~/.config/fish/completions/penstock.fish";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, output: &mut Output) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "penstock", &mut script);
    output.text(String::from_utf8_lossy(&script))
}
