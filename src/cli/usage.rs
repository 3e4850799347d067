//! `penstock usage`: prints and exports the counts of the token ledger. Reads the database, not a
//! running process, so it works while penstock runs, after it has ended, and on a copy of the file.

mod budgets;
mod export;

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use penstock_clock::unix_seconds;

use super::error::{CliError, FAILED, USAGE};
use super::output::Output;
use super::source::ConfigArgs;
use crate::observe::ledger::{DatabaseError, Dimension, ReportQuery, parse_day, report};
use export::{to_csv, to_json, to_table};

const AFTER_HELP: &str = "\
Days are those of UTC. ESTIMATED counts the requests whose tokens penstock estimated, because the engine
reported none or the client left. COST needs models.<id>.price in the configuration; it is computed when
the tokens are counted. A running penstock writes every ledger.flush_interval, so its latest requests
appear with that delay.

Examples:
  penstock usage                                    by day and model, of ledger.path
  penstock usage --by key,model --since 2026-11-01  since a day
  penstock usage --by backend --since 7d --format csv > usage.csv
  penstock usage --file ledger.db --format json
  penstock usage --budgets                          what was spent of each budget, and what is left

Exit codes: 0 success, 1 the file cannot be read, 2 the arguments or the configuration are wrong.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct UsageArgs {
    /// The database of the ledger [default: ledger.path of the configuration]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// The columns that rows are grouped by, separated by commas
    #[arg(
        long,
        value_name = "COLUMNS",
        value_delimiter = ',',
        default_value = "day,model",
        value_parser = dimension()
    )]
    by: Vec<Dimension>,

    /// The first day: 2026-11-23, or 7d for seven days ago
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<String>,

    /// The last day, in the same form
    #[arg(long, value_name = "DAY", value_parser = day)]
    until: Option<String>,

    /// The money spent of each budget of the configuration in its period, in place of tokens
    #[arg(long, conflicts_with_all = ["by", "since", "until"])]
    budgets: bool,

    /// The output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: UsageFormat,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UsageFormat {
    Table,
    Csv,
    Json,
}

/// The reason why there is nothing to print.
#[derive(Debug, thiserror::Error)]
enum UsageFileError {
    #[error("the ledger has no file: set ledger.path, or pass --file FILE")]
    NoFile,
    #[error("there is no file {}: penstock writes it once it has started with ledger.path", path.display())]
    Missing { path: PathBuf },
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: DatabaseError },
}

pub(super) fn run(args: &UsageArgs, output: &mut Output) -> Result<(), CliError> {
    let fail = |code, error: UsageFileError| CliError::Command { code, error: Box::new(error) };
    let path = match &args.file {
        Some(path) => path.clone(),
        None => {
            args.config.load()?.ledger.path.ok_or_else(|| fail(USAGE, UsageFileError::NoFile))?
        }
    };
    if !path.exists() {
        return Err(fail(FAILED, UsageFileError::Missing { path }));
    }
    if args.budgets {
        let states = budgets::states(&args.config.load()?, &path, unix_seconds());
        let states =
            states.map_err(|source| fail(FAILED, UsageFileError::Unreadable { path, source }))?;
        return output.text(match args.format {
            UsageFormat::Table => budgets::to_table(&states),
            UsageFormat::Csv => budgets::to_csv(&states),
            UsageFormat::Json => budgets::to_json(&states),
        });
    }
    let mut by: Vec<Dimension> = Vec::new();
    for dimension in args.by.iter().copied() {
        // A second column with the same values would separate nothing.
        if !by.contains(&dimension) {
            by.push(dimension);
        }
    }
    let query =
        ReportQuery { by, since: args.since.clone(), until: args.until.clone(), limit: None };
    let rows = report(&path, &query)
        .map_err(|source| fail(FAILED, UsageFileError::Unreadable { path, source }))?;
    output.text(match args.format {
        UsageFormat::Table => to_table(&query.by, &rows),
        UsageFormat::Csv => to_csv(&query.by, &rows),
        UsageFormat::Json => to_json(&query.by, &rows),
    })
}

fn dimension() -> impl TypedValueParser<Value = Dimension> {
    PossibleValuesParser::new(Dimension::ALL.map(Dimension::name))
        .try_map(|name| Dimension::from_name(&name).ok_or("no such column"))
}

fn day(given: &str) -> Result<String, String> {
    parse_day(given)
        .ok_or_else(|| "write a day as 2026-11-23, or a number of days ago as 7d".to_owned())
}
