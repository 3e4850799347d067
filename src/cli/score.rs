//! `penstock score`: drives the scorers with readings one makes up. One JSON object per line in,
//! one out: for research, for tests, and to see what a weight does.

mod answer;
mod book;
mod choice;
mod line;
mod object;
mod placed;

use std::io;

use clap::Args;

use super::error::CliError;
use super::lines::Lines;
use super::output::Output;
use super::routing::RoutingArgs;
use book::Book;

const AFTER_HELP: &str = "\
Reads one JSON object per line from standard input and prints one per line, in order:

  {\"scorers\": \"prefix-affinity:3,queue-depth:2\", \"backends\": [
     {\"name\": \"a\", \"waiting\": 0, \"running\": 2, \"kv_utilization\": 0.4},
     {\"name\": \"b\", \"waiting\": 5, \"running\": 8, \"kv_utilization\": 0.9}]}

gives {\"weights\", \"scores\", \"totals\", \"winner\"}, and more where it applies: \"probabilities\" with a
picker that draws, \"prefix\" with a \"request\". A reading that is missing or null is not known. Wrong
lines give {\"error\": {\"message\"}}. All lines with a \"request\" share one prefix index, which notes
every winner. --schema prints what a line may hold, and what becomes of a reading that is not known.

Exit codes: 0 all lines were answered, 1 standard input or output failed, 2 the flags are wrong.";

/// What a line may hold and what it gives.
const SCHEMA: &str = include_str!("score/schema.json");

/// The longest line that is read.
const LINE_LIMIT: u64 = 64 << 20;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ScoreArgs {
    /// Print the JSON Schema of a line and of its answer
    #[arg(long)]
    schema: bool,

    #[command(flatten)]
    routing: RoutingArgs,
}

pub(super) fn run(args: &ScoreArgs, output: &mut Output) -> Result<(), CliError> {
    if args.schema {
        return output.line(SCHEMA.trim_end());
    }
    let mut book = Book::new(args.routing.scorers()?);
    let mut lines = Lines::new(io::stdin().lock(), LINE_LIMIT);
    while let Some(line) = lines.read().map_err(CliError::Input)? {
        output.line(book.answer(line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
