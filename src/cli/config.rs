//! `penstock config`: the effective configuration, and its schema.

use clap::{Args, Subcommand};
use penstock_config::json_schema;

use super::error::CliError;
use super::output::Output;
use super::source::ConfigArgs;

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one value of it")]
pub(super) enum ConfigCommand {
    /// Print the effective configuration as YAML, with secrets masked
    ///
    /// Includes defaults, environment variables and flags. GET /config on the admin port returns
    /// the same for a running penstock.
    Dump(DumpArgs),
    /// Print the JSON Schema of the configuration file, for editors
    ///
    /// For VS Code's YAML extension: `penstock config schema > penstock.schema.json`, and
    /// add the first line `# yaml-language-server: $schema=penstock.schema.json`.
    Schema,
}

#[derive(Debug, Args)]
pub(super) struct DumpArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(command: &ConfigCommand, output: &mut Output) -> Result<(), CliError> {
    match command {
        ConfigCommand::Dump(args) => {
            let config = args.config.load_and_warn(output)?;
            output.text(config.to_masked_yaml())
        }
        ConfigCommand::Schema => output.line(format!("{:#}", json_schema())),
    }
}
