//! `penstock explain`: the backend that a request would go to, and why. Offline it decides by a
//! configuration and a described fleet; with `--admin` it queries a running penstock; with
//! `--decision` it replays captured decisions.

mod decision;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, show_names};
use penstock_clock::{now, unix_seconds};
use penstock_config::Config;
use penstock_core::admission::budgets::Budgets;
use penstock_core::clients::KeyTable;
use penstock_core::fleet::{Topology, dump};
use penstock_core::routing::audit::{
    BudgetVerdict, DEFAULT_PATH, DryRun, DryRunError, DryRunReport, DryRunRequest, sorted_json,
};
use penstock_core::routing::{Generation, Live};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::Value;

use super::admin::AdminPort;
use super::error::CliError;
use super::lines::{Lines, without_mark};
use super::output::Output;
use super::source::ConfigArgs;
use crate::key_store::{KeyStore, StoreLimits};

const AFTER_HELP: &str = "\
Without --fleet every backend counts as healthy, idle and without latency; one whose models are not
declared has none yet. A saved fleet comes from the admin port: curl localhost:9090/fleet. Client
keys are not required.

--requests takes one JSON object per line:
  {\"path\": \"/v1/chat/completions\", \"body\": \"{\\\"model\\\": ...}\", \"headers\": {...}}
with the body as a string, or in base64 as \"body_b64\". It prints one JSON object per line, in
order; rotation advances from line to line. Blank lines are skipped.

--decision replays decisions by everything they read, as the admin port captured it:
curl 'localhost:9090/decisions?capture=true' before and after the traffic. It needs no
configuration; with --config or routing flags it shows where requests would have gone by those.

Examples:
  penstock explain request.json --config penstock.yaml
  penstock explain - --path /v1/embeddings --json < request.json
  penstock explain --requests all.jsonl --fleet fleet.json --seed 7
  penstock explain request.json --admin http://127.0.0.1:9090
  penstock explain --decision captured.json
  penstock explain --decision captured.json --routing-scorers prefix-affinity:1,queue-depth:4

Exit codes: 0 explained (also when the request is refused), 1 the running penstock is unreachable or
a replayed decision differs, 2 the configuration, the fleet or a file is invalid.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ExplainArgs {
    /// The body of one request, byte for byte as a client would send it; - is standard input
    #[arg(value_name = "REQUEST.json")]
    request: Option<PathBuf>,

    /// Explain many requests, one JSON object per line; - is standard input
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["request", "path", "headers"])]
    requests: Option<PathBuf>,

    /// Replay captured decisions: the response of /decisions?capture=true or lines of it, with a
    /// decision each; - is standard input
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "request", "requests", "path", "headers", "fleet", "seed", "admin",
            "listen", "admin_listen", "max_retries", "log_level",
        ]
    )]
    decision: Option<PathBuf>,

    /// The state of the fleet: a saved /fleet, or one written by hand
    #[arg(long, value_name = "DUMP.json")]
    fleet: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// Make random choices the same in every run
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// The path of the request
    #[arg(long, default_value = DEFAULT_PATH)]
    path: String,

    /// A header of the request: of its content, session, key or objectives
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Query a running penstock, which decides by its own configuration: the address of its admin
    /// port
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = [
            "fleet", "seed", "strategy", "routing_policy", "routing_scorers", "policy_config",
            "listen", "admin_listen", "max_retries", "log_level",
        ]
    )]
    admin: Option<String>,

    /// The file with the admin port's token
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_token_file: Option<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &ExplainArgs, output: &mut Output) -> Result<(), CliError> {
    if let Some(path) = &args.decision {
        return decision::run(path, &args.config, args.json, output);
    }
    // Checked here: clap would name only the first of the two arguments.
    if args.request.is_none() && args.requests.is_none() {
        return Err(CliError::NothingToExplain);
    }
    // Checked here: clap does not distinguish a flag from an environment variable.
    if args.admin.is_some() && args.config.is_explicit() {
        return Err(CliError::ConfigForAdmin);
    }
    let mut source = match &args.admin {
        Some(url) => {
            ExplanationSource::Remote(AdminPort::new(url, args.admin_token_file.as_deref())?)
        }
        None => ExplanationSource::Local(Box::new(Local::new(args, output)?)),
    };
    if let Some(path) = &args.requests {
        return explain_lines(path, &mut source, output);
    }
    let path = args.request.as_deref().unwrap_or(Path::new("-"));
    let mut body = Vec::new();
    let read = open(path).and_then(|mut file| file.read_to_end(&mut body));
    read.map_err(unreadable(path))?;
    let headers = args.headers.iter().map(|header| parse_header(header));
    let sample = DryRunRequest {
        path: args.path.clone(),
        body,
        headers: headers.collect::<Result<_, _>>()?,
    };
    let report = source.explain(&sample)?;
    if args.json { output.line(format!("{:#}", sorted_json(&report))) } else { output.line(report) }
}

fn explain_lines(
    path: &Path,
    source: &mut ExplanationSource,
    output: &mut Output,
) -> Result<(), CliError> {
    let input = BufReader::new(open(path).map_err(unreadable(path))?);
    // The operator's own file: its bodies may be as large as those of requests.
    let mut lines = Lines::new(input, u64::MAX);
    while let Some(line) = lines.read().map_err(unreadable(path))? {
        let report = match DryRunRequest::from_line(line) {
            Ok(sample) => source.explain(&sample)?,
            // In the place of a report, so that every line has one result.
            Err(error) => DryRunError::new(ErrorCode::InvalidRequest, error).into(),
        };
        output.line(sorted_json(&report))?;
    }
    Ok(())
}

/// The source of explanations: a router in this process, or a running penstock.
enum ExplanationSource {
    Local(Box<Local>),
    Remote(AdminPort),
}

impl ExplanationSource {
    fn explain(&mut self, sample: &DryRunRequest) -> Result<DryRunReport, CliError> {
        match self {
            Self::Local(local) => Ok(local.explain(sample)),
            Self::Remote(admin) => admin.post("/explain", sample.to_line().as_bytes()),
        }
    }
}

/// The maximum number of backends that a note names.
const MAX_NAMED: usize = 5;
/// The maximum age of an event in a dump.
const MAX_PAST: Duration = Duration::from_secs(24 * 3600);

/// A router in this process, over the described fleet.
struct Local {
    generation: Generation,
    fleet: Arc<Topology>,
    rng: SmallRng,
    /// The time is constant, so that a cooldown in a saved fleet does not end between lines.
    now: Timestamp,
    /// The keys of `auth.store`.
    stored: Option<Arc<KeyTable>>,
}

impl Local {
    fn new(args: &ExplainArgs, output: &mut Output) -> Result<Self, CliError> {
        let config = args.config.load_and_warn(output)?;
        let read = |path| read_dump(path).map(|dump| (path, dump));
        let saved = args.fleet.as_deref().map(read).transpose()?;
        if saved.is_none() && config.backends.iter().all(|backend| backend.models.is_none()) {
            note_unknown_models(&config, output);
        }
        let groups = saved.as_ref().map(|(_, dump)| dump::groups_of(dump, &config));
        let generation = Generation::with_groups(config, groups.unwrap_or_default());
        // A dump describes the past, and the clock of this process starts at zero.
        let now = now().after(MAX_PAST);
        dump::assume_healthy(&generation.fleet);
        if let Some((path, dump)) = &saved {
            dump::overlay(&generation.fleet, dump, now)
                .map_err(|source| CliError::Fleet { path: path.to_path_buf(), source })?;
        }
        let rng = args.seed.map_or_else(SmallRng::from_os_rng, SmallRng::seed_from_u64);
        let stored = stored_keys(&generation.config, output);
        Ok(Self { fleet: generation.fleet.topology(), generation, rng, now, stored })
    }

    fn explain(&mut self, sample: &DryRunRequest) -> DryRunReport {
        let mut random = Live { topology: &self.fleet, rng: &mut self.rng };
        let dry_run = DryRun {
            config: &self.generation.config,
            router: &self.generation.router,
            topology: &self.fleet,
            now: self.now,
            records_prompts: true,
            homes: None,
            stored: self.stored.as_deref(),
            client: None,
        };
        // Fresh ones: no ledger is read here, so that nothing is known to be spent.
        let budgets = Budgets::new(dry_run.config);
        let budgets = budgets
            .verdicts(&dry_run, sample, unix_seconds())
            .into_iter()
            .map(BudgetVerdict::without_spending)
            .collect();
        DryRunReport { budgets, ..dry_run.explain_with_shift(sample, &mut random) }
    }
}

/// Reads the keys of `auth.store`. Makes no file.
fn stored_keys(config: &Config, output: &mut Output) -> Option<Arc<KeyTable>> {
    let path = config.auth.store.as_deref().filter(|path| path.exists())?;
    match KeyStore::open(path, StoreLimits::of(&config.auth)) {
        Ok(store) => Some(Arc::clone(&store.table())),
        Err(error) => {
            output.complain("note", format_args!("the keys of auth.store are unknown: {error}"));
            None
        }
    }
}

/// Notes how to get the models of backends that list none: nothing is discovered here.
fn note_unknown_models(config: &Config, output: &mut Output) {
    let unknown = config.backends.iter().filter(|backend| backend.models.is_none());
    let names: Vec<&str> = unknown.map(|backend| backend.name.as_str()).collect();
    if !names.is_empty() {
        let names = show_names(names.into_iter(), MAX_NAMED);
        output.complain(
            "note",
            format_args!(
                "the models of {names} are unknown: this command discovers none. Ask a running penstock \
                 (--admin http://127.0.0.1:9090), pass what it knows (curl http://127.0.0.1:9090/fleet > \
                 fleet.json; --fleet fleet.json), or list `models` in the file"
            ),
        );
    }
}

/// Reads a saved fleet.
fn read_dump(path: &Path) -> Result<Value, CliError> {
    let mut text = Vec::new();
    let read = open(path).and_then(|mut file| file.read_to_end(&mut text));
    read.map_err(unreadable(path))?;
    serde_json::from_slice(without_mark(&text))
        .map_err(|source| CliError::NotJson { path: path.to_owned(), source })
}

fn parse_header(given: &str) -> Result<(String, String), CliError> {
    let (name, value) =
        given.split_once(':').ok_or_else(|| CliError::Header { given: given.to_owned() })?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(File::open(path)?))
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> CliError {
    move |source| CliError::Unreadable { path: path.to_owned(), source }
}
