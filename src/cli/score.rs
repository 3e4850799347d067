//! `penstock score`: runs the scorers on given readings. One JSON object per line in, one per line
//! out: for research, for tests, and to see the effect of a weight.

mod book;
mod choice;
mod line;
mod placed;
mod result;

use std::io;

use clap::Args;
use penstock_scoring::READINGS;

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
picker that draws, \"prefix\" with a \"request\". A reading that is missing or null is unknown.
Malformed lines give {\"error\": {\"message\"}}. All lines with a \"request\" share one prefix index, which
stores every winner. --schema prints the keys of a line, and how an unknown reading is scored.

Exit codes: 0 every line has a result, 1 standard input or output failed, 2 the flags are wrong.";

/// The JSON Schema of a line and its result; the readings are filled in from their table.
const SCHEMA: &str = include_str!("score/schema.json");
/// The text in [`SCHEMA`] that the readings replace.
const READINGS_MARK: &str = "\"readings\": {}";

/// The maximum length of a line, in bytes.
const MAX_LINE_BYTES: u64 = 64 << 20;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ScoreArgs {
    /// Print the JSON Schema of a line and of its result
    #[arg(long)]
    schema: bool,

    #[command(flatten)]
    routing: RoutingArgs,
}

pub(super) fn run(args: &ScoreArgs, output: &mut Output) -> Result<(), CliError> {
    if args.schema {
        return output.line(schema());
    }
    let mut book = Book::new(args.routing.scorers()?);
    let mut lines = Lines::new(io::stdin().lock(), MAX_LINE_BYTES);
    while let Some(line) = lines.read().map_err(CliError::Input)? {
        output.line(book.score(line))?;
    }
    Ok(())
}

fn schema() -> String {
    let readings = READINGS.iter().filter_map(|row| row.score);
    let readings: Vec<String> = readings.map(|one| one.to_schema()).collect();
    SCHEMA.trim_end().replace(READINGS_MARK, &readings.join(",\n              "))
}

#[cfg(test)]
mod tests;
