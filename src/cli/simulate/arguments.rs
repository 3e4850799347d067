//! The flags of `penstock simulate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use penstock_api::units::parse_duration;
use penstock_sim::workload::ArrivalProcess;
use penstock_sim::world::PlannedFault;

use crate::cli::engines::EngineFlags;

const AFTER_HELP: &str = "\
WORKLOAD is a workload file (YAML), a trace (Mooncake, Bailian, Azure, BurstGPT, ServeGen or an access log of
penstock; .gz too), or the name of a preset (--list). The router, the prefix index, queues, cooldowns, breakers, health
checks and retries are those of `penstock serve`; engines are simulated. Two runs with the same seed print the
same bytes.

Examples:
  penstock simulate conversation --backends 4
  penstock simulate conf/traces/mooncake-conversation.jsonl.gz --backends 8 --seeds 10
  penstock simulate bursty --backends 8 --sweep routing.strategy=round_robin,smart,weighted
  penstock simulate conversation --sweep routing.scorers.prefix-affinity=0..5/1
  penstock simulate overload --config conf/simulations/slo.yaml --oracle --load 1.1
  penstock simulate conversation --fault 'at 60s backend b1 down 30s'
  penstock simulate --yesterday access.jsonl --config penstock.yaml
  penstock simulate bursty --config conf/simulations/slo.yaml --config conf/simulations/balanced.yaml --assert \
    'ttft_p99 < 1.1 * baseline'

Exit codes: 0 simulated, 1 an assertion failed, 2 the workload, a configuration or a flag is wrong.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(in crate::cli) struct SimulateArgs {
    /// The workload: a file, a trace, or the name of a preset
    pub(super) workload: Option<String>,

    /// An access log instead of a workload: learn the engines from it, show how well the simulation
    /// agrees with it, and then compare and advise
    #[arg(long, value_name = "ACCESS.jsonl", conflicts_with_all = ["workload", "speed", "load"])]
    pub(super) yesterday: Option<PathBuf>,

    /// A configuration; the first one is what the others are compared with. Without one, a fleet of
    /// --backends with the strategy weighted
    #[arg(long = "config", short, value_name = "FILE")]
    pub(super) configs: Vec<PathBuf>,

    /// The engines: a row of `penstock fit --list` or a file of `penstock fit --json`, for all
    /// backends or, as NAME=ROW, for one
    #[arg(long = "engine", value_name = "[NAME=]ROW", default_value = "h100/qwen3-32b/tp2")]
    pub(super) engines: Vec<String>,

    #[command(flatten)]
    pub(super) limits: EngineFlags,

    /// Copies of the configured backends, in turn
    #[arg(long, value_name = "N")]
    pub(super) backends: Option<usize>,

    /// Balancers that share the clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) balancers: u32,

    /// The model that every request names
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,

    /// The speed of time between arrivals: 2 doubles the rate
    #[arg(long, value_name = "FACTOR", conflicts_with = "load")]
    pub(super) speed: Option<f64>,

    /// The rate in relation to the capacity of the backends, those of the first configuration,
    /// whatever its strategy and limits; instead of --speed
    #[arg(long, value_name = "SHARE")]
    pub(super) load: Option<f64>,

    /// Other arrivals at the same rate: poisson, constant, or bursts with a variation of the gaps,
    /// as in gamma:3
    #[arg(long, value_name = "PROCESS", conflicts_with = "yesterday")]
    pub(super) arrivals: Option<ArrivalProcess>,

    /// The share of the workload to run, from its start
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(super) part: f64,

    /// Seeds, each with its own arrivals and chances; differences need several
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(super) seeds: usize,

    /// The first seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,

    /// Time to the first token that a good request has at most
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub(super) ttft: Duration,

    /// Time per further token that a good request has at most
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    pub(super) tpot: Duration,

    /// A fault of an engine: 'at 60s backend b1 down 30s', also restart, slow x2 30s, 429 5s,
    /// scrape-lost 10s
    #[arg(long = "fault", value_name = "FAULT")]
    pub(super) faults: Vec<PlannedFault>,

    /// Engines do not report how many tokens of a prompt they had cached
    #[arg(long)]
    pub(super) no_cached_tokens: bool,

    /// Try values of a setting: KEY=FROM..TO/STEP or KEY=A,B,C; several make a grid.
    /// routing.scorers.NAME is the weight of a scorer, 0 without it
    #[arg(long, value_name = "KEY=VALUES")]
    pub(super) sweep: Vec<String>,

    /// Instead of the whole grid, search it by successive halving
    #[arg(long, value_name = "METHOD", requires = "sweep", value_parser = ["halving"])]
    pub(super) search: Option<String>,

    /// The maximum number of runs of a search
    #[arg(long, value_name = "RUNS", default_value_t = 200)]
    pub(super) budget: usize,

    /// The figure to improve in a sweep, such as goodput, ttft_p99 or e2e_mean
    #[arg(long, value_name = "FIGURE", default_value = "goodput")]
    pub(super) objective: String,

    /// Fail unless it holds for the first configuration: 'FIGURE < VALUE' or 'FIGURE < FACTOR *
    /// baseline', where the baseline is the second one
    #[arg(long = "assert", value_name = "EXPRESSION")]
    pub(super) assertions: Vec<String>,

    /// The number of decisions of the first configuration to examine: what each cost its request
    /// against the best backend, by running on with every other one
    #[arg(long, value_name = "DECISIONS")]
    pub(super) regret: Option<usize>,

    /// Simulate an oracle, too, which sees the engines and knows how long outputs get; and the same
    /// one where it may refuse every request
    #[arg(long, conflicts_with_all = ["sweep", "yesterday"])]
    pub(super) oracle: bool,

    /// Write a line of JSON per request of the first configuration and seed
    #[arg(long, value_name = "FILE")]
    pub(super) requests: Option<PathBuf>,

    /// Draw percentiles over the load and the backends over time
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,

    /// Threads for the runs; each run has one [default: the processors]
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,

    /// List the presets
    #[arg(long)]
    pub(super) list: bool,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl SimulateArgs {
    pub(super) fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(processors).max(1)
    }
}
