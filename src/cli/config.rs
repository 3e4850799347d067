//! `penstock config`: the configuration in effect, and its schema.

use clap::{Args, Subcommand};

use super::error::CliError;
use super::output::Output;
use super::source::ConfigArgs;
use crate::config::json_schema;

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, once")]
pub(super) enum ConfigCommand {
    /// Print the configuration in effect as YAML: every setting shown, secrets masked
    ///
    /// What the file leaves out is there with its default; the environment and the flags are
    /// applied. The admin port's /config shows the same of a running penstock.
    Dump(DumpArgs),
    /// Print the JSON Schema of the configuration file, for editors
    ///
    /// With VS Code's YAML extension, for one: `penstock config schema > penstock.schema.json`, and
    /// in the file's first line `# yaml-language-server: $schema=penstock.schema.json`.
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
