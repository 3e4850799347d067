//! `penstock demo`: mock engines in this process, with the load balancer in front of them.

mod acts;
mod requests;
mod traffic;
mod trials;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use penstock_clock::now;
use penstock_config::{Config, Environment};
use penstock_mock::{EXAMPLES, EngineModel, MockEngine, MockSpec, replicated_fleet, traffic_fleet};
use tokio::runtime::{Builder, Handle, Runtime};

use super::client::HttpClient;
use super::error::{CliError, FAILED, OK};
use super::logging;
use super::output::Output;
use crate::server::{self, ServeOptions};
use requests::KEYS;
use traffic::Traffic;
use trials::trials;

const READY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const SEED: u64 = 1;

const AFTER_HELP: &str = "\
Starts four mock engines: two with the same small text model, one with a vision model, one with a
model that has tools and JSON mode. Shows what happens to requests for the text model: those of an
agent's session stay with one engine, and none fails while an engine is killed. Then prints curl
commands that show how requests are routed. Nothing is downloaded and all traffic stays on this host.
Press Ctrl-C to stop.

--traffic adds a load of a few requests per second: three APIs, streams, tools, images, embeddings,
three client keys, some invalid requests, and engines that fail now and then. Watch it on the
dashboard or with `penstock top`. Its token ledger is a temporary file, removed at the end.

Exit codes: 0 stopped (with --once: every request was routed as expected), 1 failure.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct DemoArgs {
    /// The address to listen on; a free port replaces one that is in use
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// The address of the admin port; a free port replaces one that is in use
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:9090",
        env = "PENSTOCK_ADMIN_LISTEN",
        hide_env_values = true
    )]
    admin_listen: SocketAddr,

    /// Show it once, print where each request went, and exit
    #[arg(long)]
    once: bool,

    /// Send a mixed load all the time, with faults, to watch
    #[arg(long, conflicts_with = "once")]
    traffic: bool,
}

/// The reason why the demo failed.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("cannot start the mock engines: {0}")]
    Engines(std::io::Error),
    #[error("cannot make a folder for the token ledger: {0}")]
    Ledger(std::io::Error),
    #[error("the demo was not ready after {0} s")]
    NotReady(u64),
}

fn engines_failed(source: std::io::Error) -> CliError {
    CliError::failure(DemoError::Engines(source))
}

/// The addresses of a demo.
#[derive(Debug, Clone, Copy)]
struct DemoAddresses {
    data: SocketAddr,
    admin: SocketAddr,
}

pub(super) fn run(args: &DemoArgs, _output: &mut Output) -> Result<(), CliError> {
    // One thread, so that the engines do not compete with what they demonstrate.
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(engines_failed)?;
    let specs = if args.traffic { traffic_fleet() } else { replicated_fleet() };
    let engines = runtime.block_on(start_engines(specs)).map_err(engines_failed)?;
    let addresses = DemoAddresses {
        data: free_address(args.listen).map_err(engines_failed)?,
        admin: free_address(args.admin_listen).map_err(engines_failed)?,
    };
    let traffic = args.traffic.then(Traffic::prepare).transpose();
    let traffic = traffic.map_err(|error| CliError::failure(DemoError::Ledger(error)))?;
    let demo = RunningDemo { addresses, engines: engines.into(), traffic: traffic.map(Arc::new) };
    let yaml = demo.to_yaml();
    let config = Config::parse(&yaml, "demo", "".as_ref(), &Environment::default())?;
    let apply_log = logging::start(&config.log)?;
    visit(&runtime, demo.clone(), args.once);
    let options = ServeOptions {
        seed: SEED,
        source: None,
        apply_log: Some(apply_log),
        successor: None,
        inherited: None,
        hooks: demo.traffic.clone().map(Traffic::into_hook).into_iter().collect(),
    };
    let served = server::serve(config, options);
    drop(demo);
    // Clients of the load may wait for a response that never comes.
    runtime.shutdown_background();
    Ok(served?)
}

async fn start_engines(specs: Vec<MockSpec>) -> std::io::Result<Vec<MockEngine>> {
    let mut engines = Vec::new();
    for spec in specs {
        engines.push(MockEngine::start_local(spec).await?);
    }
    Ok(engines)
}

/// Returns `wanted`, or a free port of the same address if that one is in use.
fn free_address(wanted: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(wanted)
        .or_else(|_taken| TcpListener::bind(SocketAddr::new(wanted.ip(), 0)))?;
    listener.local_addr()
}

/// The running parts of a demo.
#[derive(Debug, Clone)]
struct RunningDemo {
    addresses: DemoAddresses,
    engines: Arc<[MockEngine]>,
    traffic: Option<Arc<Traffic>>,
}

impl RunningDemo {
    /// The configuration, as a user would write it.
    fn to_yaml(&self) -> String {
        let DemoAddresses { data, admin } = self.addresses;
        // Faults are part of the demo, so their log messages stay out of this terminal.
        let mut yaml = format!(
            "server: {{ listen: \"{data}\", drain_timeout: 2s }}\n\
             admin: {{ listen: \"{admin}\" }}\n\
             log: {{ level: error }}\n\
             limits: {{ connections: 256 }}\n\
             routing:\n  expose_decision: true\n  aliases: {{ gpt-4: \"qwen2.5:14b\" }}\n"
        );
        if let Some(traffic) = &self.traffic {
            yaml.push_str("  strategy: weighted\n  shadow: { strategy: round_robin }\n");
            yaml.push_str(&traffic.yaml());
        } else {
            // Requests of a session prefer its last backend; all others go to the engine with the
            // fewest requests.
            yaml.push_str(
                "  strategy: weighted\n  retry_unanswered: true\n  scorers:\n\
                 \x20   - { name: session-affinity, weight: 2 }\n\
                 \x20   - { name: active-requests, weight: 1 }\n",
            );
        }
        yaml.push_str("backends:\n");
        for engine in self.engines.iter() {
            let spec = engine.spec();
            let (name, url) = (&spec.name, engine.url());
            yaml.push_str(&format!("  - name: {name}\n    url: {url}\n    models:\n"));
            for EngineModel { id, capabilities, .. } in &spec.models {
                let model = format!("      - {{ id: \"{id}\", capabilities: {capabilities} }}\n");
                yaml.push_str(&model);
            }
        }
        yaml
    }
}

/// Waits on another thread until the server is ready, then runs the demo. The server has the main
/// thread.
fn visit(runtime: &Runtime, demo: RunningDemo, once: bool) {
    runtime.spawn_blocking(move || {
        let addresses = demo.addresses;
        let done = wait_until_ready(addresses.admin).and_then(|()| {
            if let Some(traffic) = &demo.traffic {
                traffic.start(&Handle::current(), addresses.data, Arc::clone(&demo.engines));
            }
            if once { show_all(&demo) } else { introduce(&demo).map(|()| true) }
        });
        match done {
            Ok(is_good) if once => std::process::exit(if is_good { OK } else { FAILED }.into()),
            Ok(_) => {}
            Err(error) if error.is_broken_pipe() => {
                if once {
                    std::process::exit(FAILED.into());
                }
            }
            Err(error) => {
                Output::of_process().complain("error", &error);
                std::process::exit(error.exit_code().into());
            }
        }
    });
}

fn wait_until_ready(admin: SocketAddr) -> Result<(), CliError> {
    let until = now().after(READY_WITHIN);
    let client = HttpClient::new(&format!("http://{admin}"), None);
    while now() < until {
        if client.get("/health/ready").is_ok_and(|response| response.status == 200) {
            return Ok(());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(CliError::failure(DemoError::NotReady(READY_WITHIN.as_secs())))
}

/// Runs everything once. Returns whether all went as it should.
fn show_all(demo: &RunningDemo) -> Result<bool, CliError> {
    let mut output = Output::of_process();
    let mut is_good = true;
    for trial in trials() {
        let verdict = trial.run(&demo.addresses.data.to_string())?;
        is_good &= verdict.is_good;
        output.line(verdict.line)?;
    }
    Ok(play_acts(demo, &mut output)? && is_good)
}

/// Sends requests to the two engines with the same model, and kills one of them.
fn play_acts(demo: &RunningDemo, output: &mut Output) -> Result<bool, CliError> {
    let data = demo.addresses.data;
    let session = acts::keep_session(data)?;
    output.line(&session.line)?;
    let failover = acts::survive_kill(data, &demo.engines, &Handle::current())?;
    output.line(&failover.line)?;
    Ok(session.is_good && failover.is_good)
}

fn introduce(demo: &RunningDemo) -> Result<(), CliError> {
    let DemoAddresses { data, admin } = demo.addresses;
    let mut output = Output::of_process();
    let count = demo.engines.len();
    output.line(format!("penstock listens on http://{data} with {count} mock engines:"))?;
    for spec in demo.engines.iter().map(|engine| engine.spec()) {
        for model in &spec.models {
            let (name, id, context) = (&spec.name, &model.id, model.context_length);
            let can: Vec<&str> = model.capabilities.names().collect();
            let can = if can.is_empty() { "text only".to_owned() } else { can.join(", ") };
            output.line(format!("  {name:<7} {id:<16} {context:>6} tokens of context, {can}"))?;
        }
    }
    output.line(format!("Dashboard: http://{admin}/dashboard"))?;
    output
        .line(format!("Metrics, fleet and decisions: http://{admin}/metrics /fleet /decisions"))?;
    let mut header = String::new();
    if let Some(traffic) = &demo.traffic {
        let file = traffic.ledger();
        output.line(format!("In another terminal: penstock top --admin http://{admin}"))?;
        output.line(format!("Tokens: penstock usage --by key,model --file {}", file.display()))?;
        output
            .line("A mixed load runs; every minute an engine dies, one is busy and one is slow.")?;
        let key = KEYS.first().map_or("", |key| key.key);
        header = format!(" -H 'authorization: Bearer {key}'");
    } else {
        output.line(
            "\nTwo engines have llama3:8b. An agent works with one of them; then one is killed:",
        )?;
        play_acts(demo, &mut output)?;
        output.line("")?;
    }
    output.line("Try these, and look for x-penstock-backend in the responses:")?;
    let [_, stream, ..] = EXAMPLES;
    let trials = trials().map(|trial| (trial.shows, trial.body));
    for (shows, body) in trials.into_iter().chain([("a stream, token by token", stream.body)]) {
        let url = format!("http://{data}/v1/chat/completions");
        let kind = "-H 'content-type: application/json'";
        output.line(format!("\n# {shows}"))?;
        output.line(format!("curl -iN {url} {kind}{header} -d '{body}'"))?;
    }
    output.line("\nPress Ctrl-C to stop.")
}
