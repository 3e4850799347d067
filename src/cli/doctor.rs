//! `penstock doctor`: finds problems before they cause failures. Examines this host, the
//! configuration, every backend and, with --admin, the running penstock.

mod backends;
mod configuration;
mod finding;
mod machine;
mod running;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use penstock_api::escape;
use penstock_api::units::{UnitError, parse_duration};
use penstock_core::routing::Generation;
use serde_json::json;

use super::admin::AdminPort;
use super::error::CliError;
use super::output::Output;
use super::source::ConfigArgs;
use crate::discovery::DiscoveryClient;
use crate::lifecycle::look_up_at_start;
use backends::DoctorSettings;
use finding::{Finding, Severity, count};

const AFTER_HELP: &str = "\
Each finding is ok, warn (works, but may fail later) or fail (does not work), followed by a remedy.

To measure how long backends keep idle connections, doctor holds one open to each for --watch;
--watch 0s skips this.

Examples:
  penstock doctor --config penstock.yaml
  penstock doctor --config penstock.yaml --admin http://127.0.0.1:9090 --json

Exit codes: 0 no failures, 1 failures found, 2 invalid arguments or configuration.";

/// The longest message of a finding, in bytes.
const MAX_MESSAGE: usize = 4096;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct DoctorArgs {
    /// Examine a running penstock, too: the URL of its admin port
    #[arg(long, value_name = "URL")]
    admin: Option<String>,

    /// The file with the admin port's token
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_token_file: Option<PathBuf>,

    /// Time to hold idle connections open [default: limits.idle_timeout plus 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_watch)]
    watch: Option<Duration>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

/// The reason why doctor fails.
#[derive(Debug, thiserror::Error)]
enum DoctorError {
    #[error("cannot examine the backends: {0}")]
    Runtime(std::io::Error),
    #[error("{0} of the findings above are failures")]
    Failures(usize),
}

fn parse_watch(given: &str) -> Result<Duration, UnitError> {
    Ok(parse_duration(given)?.min(Duration::from_secs(120)))
}

pub(super) fn run(args: &DoctorArgs, output: &mut Output) -> Result<(), CliError> {
    let path = args.config.path()?.to_owned();
    let config = args.config.load()?;
    let runtime = |error| CliError::failure(DoctorError::Runtime(error));
    // The backends behind a name are in no configuration.
    let groups = look_up_at_start(&config).map_err(runtime)?;
    let generation = Generation::with_groups(config, groups);
    let config = &generation.config;
    let admin = args.admin.as_deref();
    let admin = admin.map(|url| AdminPort::new(url, args.admin_token_file.as_deref()));
    let admin = admin.transpose()?;
    let mut findings = configuration::look(config, &path);
    findings.extend(machine::look(config, admin.is_some()));
    if let Some(admin) = &admin {
        findings.extend(running::look(admin));
    }
    findings.extend(generation.fleet.groups().iter().map(backends::judge_group));
    findings.extend(examine_backends(&generation, args.watch)?);
    if args.json {
        print_json(&findings, output)?;
    } else {
        print_text(&findings, output)?;
    }
    match count(&findings, Severity::Fail) {
        0 => Ok(()),
        failures => Err(CliError::failure(DoctorError::Failures(failures))),
    }
}

/// Examines all backends concurrently: most of the time is spent waiting.
fn examine_backends(
    generation: &Generation,
    watch: Option<Duration>,
) -> Result<Vec<Finding>, CliError> {
    let config = &generation.config;
    let terms = DoctorSettings {
        idle: config.limits.idle_timeout,
        wants_telemetry: config.wants_telemetry(),
    };
    // A backend that still holds the connection then outlasts penstock's reuse of it.
    let watch = watch.unwrap_or(terms.idle + Duration::from_secs(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let fleet = generation.fleet.topology();
    runtime.map_err(|error| CliError::failure(DoctorError::Runtime(error)))?.block_on(async {
        let client = std::sync::Arc::new(DiscoveryClient::default());
        let examined = fleet.backends.iter().map(|backend| {
            let (client, backend) = (std::sync::Arc::clone(&client), backend.clone());
            let discovery = config.discovery.clone();
            tokio::spawn(async move {
                let found = client.examine(&backend, &discovery, watch).await;
                backends::judge(&backend, &found, terms)
            })
        });
        let mut findings = Vec::new();
        for task in examined.collect::<Vec<_>>() {
            let found = task.await;
            debug_assert!(found.is_ok(), "an examination does not panic");
            findings.extend(found.into_iter().flatten());
        }
        Ok(findings)
    })
}

fn print_text(findings: &[Finding], output: &mut Output) -> Result<(), CliError> {
    let widest = findings.iter().map(|finding| finding.about.chars().count()).max().unwrap_or(0);
    for finding in findings {
        let (level, about) = (finding.level.name(), &finding.about);
        let message = escape(&finding.message, MAX_MESSAGE);
        output.line(format!("{level:<4}  {about:<widest$}  {message}"))?;
        if let Some(remedy) = &finding.remedy {
            output.line(format!("{:<4}  {:<widest$}  -> {remedy}", "", ""))?;
        }
    }
    let [ok, warn, fail] = Severity::ALL.map(|level| count(findings, level));
    output.line(format!("\n{ok} ok, {warn} warnings, {fail} failures"))
}

fn print_json(findings: &[Finding], output: &mut Output) -> Result<(), CliError> {
    let value = json!({
        "ok": count(findings, Severity::Ok),
        "warn": count(findings, Severity::Warn),
        "fail": count(findings, Severity::Fail),
        "findings": findings,
    });
    output.line(format!("{value:#}"))
}
