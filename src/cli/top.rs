//! `penstock top`: a live view of the fleet and its traffic in a terminal. Polls `/metrics` and
//! `/fleet` of the admin port; rates are computed between two polls.

mod figures;
mod frame;
mod page;
mod terminal;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use penstock_api::units::{Timestamp, UnitError, parse_duration};
use penstock_clock::{now, unix_time};
use serde_json::Value;

use super::admin::AdminPort;
use super::error::CliError;
use super::output::Output;
use figures::TopFigures;
use frame::{Scene, Style, draw};
use page::TopPage;
use terminal::{Terminal, size};

const INTERVAL: Duration = Duration::from_secs(2);

const AFTER_HELP: &str = "\
q quits. Without a terminal one frame is printed; with --interval, one after the other.

Columns (cut off at the width of the terminal):
  STATE      ready, down, frozen, draining, probing, breaker open, cooldown or unchecked
  IN FLIGHT  requests dispatched to the backend that have not ended, and max_in_flight
  LOAD       share of max_in_flight in use; only with such a limit
  WAIT, RUN  requests queued and running in the engine, from all clients
  KV         share of its KV cache in use; these three only with fresh telemetry
  VRAM       what the models in memory occupy, in gigabytes; of Ollama
  REQ/S      finished attempts per second; like all further columns of the last interval
  FAIL/S     failed attempts per second, including those hidden from clients by failover
  TTFT P50   median time to first token of streams, then the 95th percentile
  TOK/S      tokens streamed per second
  MODELS     *name: in memory, where the engine loads models on demand; (2): requests in flight

Where latencies are predicted, a second table, each row a model on a backend:
  TRUSTED    whether enough was right for a request to be refused by it
  ERROR      mean error of the predicted time to first token
  BELOW P90  share of first tokens within their predicted 90th percentile; 90% is right
  BACKLOG    prompts that are not computed yet
  STEP       how long the next token of all its streams takes
  1K PROMPT  how long a thousand prompt tokens take
  FRONT END  time to first token beside that: network and HTTP server
  SLOTS      how many requests it computes at a time, where that is known

Examples:
  penstock top
  penstock top --admin http://10.0.0.5:9090 --admin-token-file token --interval 5s
  penstock top --once

Exit codes: 0 quit, 1 the admin port could not be queried, 2 the arguments are wrong.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct TopArgs {
    /// The address of the admin port
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    admin: String,

    /// The file with the admin port's token
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,

    /// Polling interval [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    interval: Option<Duration>,

    /// Print one frame as plain text, after one interval
    #[arg(long)]
    once: bool,
}

fn parse_interval(given: &str) -> Result<Duration, UnitError> {
    // Faster updates are unreadable, and each poll costs the server work.
    Ok(parse_duration(given)?.max(Duration::from_millis(100)))
}

pub(super) fn run(args: &TopArgs, output: &mut Output) -> Result<(), CliError> {
    let admin = AdminPort::new(&args.admin, args.admin_token_file.as_deref())?;
    let mut view = View { last: PollResult::take(&admin)?, admin };
    let interval = args.interval.unwrap_or(INTERVAL);
    if args.once || !io::stdout().is_terminal() {
        // A program that reads frames sets the interval if it wants several; others get one.
        let is_once = args.once || args.interval.is_none();
        return print_frames(interval, is_once, &mut view, output);
    }
    let terminal = Terminal::enter().map_err(CliError::Output)?;
    let mut lines = vec![format!("reading {} …", view.admin.authority())];
    loop {
        terminal.show(&lines).map_err(CliError::Output)?;
        if terminal.wait(interval) {
            return Ok(());
        }
        let style = Style { width: size().0, has_colors: true };
        // The server may be restarting: keep polling.
        match view.next(style) {
            Ok(frame) => lines = frame,
            Err(error) => {
                // One line for the error, below the last frame that could be read.
                lines.truncate(
                    lines.iter().rposition(|line| !line.starts_with("!")).map_or(0, |at| at + 1),
                );
                lines.push(format!("! {error}"));
            }
        }
    }
}

fn print_frames(
    interval: Duration,
    is_once: bool,
    view: &mut View,
    output: &mut Output,
) -> Result<(), CliError> {
    let style = Style { width: size().0, has_colors: false };
    loop {
        std::thread::sleep(interval);
        for line in view.next(style)? {
            output.line(line)?;
        }
        if is_once {
            return Ok(());
        }
        output.line("")?;
    }
}

/// The result of one poll.
struct PollResult {
    at: Timestamp,
    page: TopPage,
    fleet: Value,
}

impl PollResult {
    fn take(admin: &AdminPort) -> Result<Self, CliError> {
        let page = admin.page("/metrics")?;
        // With the counters: the time between two of these pages is what rates are divided by.
        let at = now();
        let fleet = admin.json("/fleet")?;
        Ok(Self { at, page: TopPage::parse(&String::from_utf8_lossy(&page)), fleet })
    }
}

struct View {
    admin: AdminPort,
    last: PollResult,
}

impl View {
    fn next(&mut self, style: Style) -> Result<Vec<String>, CliError> {
        let next = PollResult::take(&self.admin)?;
        let figures = TopFigures::new(&self.last.page, &next.page, next.at.since(self.last.at));
        let versions = next.page.by_label("penstock_build_info", "version");
        let scene = Scene {
            authority: self.admin.authority(),
            version: versions.keys().next().map_or("?", String::as_str),
            fleet: &next.fleet,
            up: unix_time().as_secs_f64() - figures.now("penstock_process_start_time_seconds"),
        };
        let lines = draw(&scene, &figures, style);
        self.last = next;
        Ok(lines)
    }
}
