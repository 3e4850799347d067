//! The acts of the demo, which show the purpose of a load balancer: the session of an agent stays
//! with one of two engines, and no request fails while one of them is killed.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_mock::MockEngine;
use tokio::runtime::Handle;

use super::super::client::HttpClient;
use super::super::error::CliError;
use super::trials::TrialVerdict;

/// The model of the two engines, one of which is killed.
const MODEL: &str = "llama3:8b";
const KILLED: &str = "text";
/// The field in which an agent names its session.
const SESSION: &str = "x-session-id";
/// The number of turns of the agent.
const TURNS: usize = 6;
/// The number of requests during which an engine is killed.
const REQUESTS: usize = 24;
/// The number of requests before the engine is killed.
const BEFORE: usize = 8;
/// The number of clients that send requests at the same time.
const CLIENTS: usize = 4;
/// The start of an agent's prompt: long, and the same in every turn.
const INSTRUCTIONS: &str = "You are a careful engineer. Read the files before you change them. ";

/// The result of a request.
struct Ended {
    status: u16,
    backend: String,
}

impl Ended {
    fn is_good(&self) -> bool {
        self.status == 200
    }
}

/// Shows that the requests of an agent go to one engine, whatever else runs.
pub(super) fn keep_session(data: SocketAddr) -> Result<TrialVerdict, CliError> {
    // Without the header the turns would have no session, only a common prompt.
    let agent = client(data).with_header(SESSION, "agent-7");
    let (turns, others) = std::thread::scope(|scope| {
        // Beside the agent: alone, every request would find the same engine idle.
        let others = scope.spawn(|| (0..TURNS).map(|_| send(&client(data), 1)).collect::<Vec<_>>());
        let turns: Vec<Ended> = (1..=TURNS).map(|turn| send(&agent, turn)).collect();
        (turns, others.join().unwrap_or_default())
    });
    let places = count_by_backend(turns.iter());
    let home = turns.first().map_or("-", |turn| turn.backend.as_str());
    let is_good = places.len() == 1 && turns.iter().chain(&others).all(Ended::is_good);
    let elsewhere = show(&count_by_backend(others.iter()));
    Ok(TrialVerdict::new(
        "session",
        home,
        status_of(turns.iter()),
        format!("{TURNS} turns of an agent: {}; others beside it: {elsewhere}", show(&places)),
        (!is_good).then_some("expected one engine for all turns"),
    ))
}

/// Sends requests while one of the engines is killed; the other one takes over.
pub(super) fn survive_kill(
    data: SocketAddr,
    engines: &[MockEngine],
    runtime: &Handle,
) -> Result<TrialVerdict, CliError> {
    let failed = |error: io::Error| CliError::failure(super::DemoError::Engines(error));
    let killed = engines.iter().find(|engine| engine.spec().name == KILLED);
    let Some(killed) = killed else {
        return Err(failed(io::Error::other("the fleet has no such engine")));
    };
    let next = AtomicUsize::new(0);
    let run_client = || {
        let client = client(data);
        let mut ended = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= REQUESTS {
                return Ok(ended);
            }
            // By the client that drew the number, while the others' requests are on their way.
            if number == BEFORE {
                runtime.block_on(killed.kill())?;
            }
            ended.push((number, send(&client, 1)));
        }
    };
    let ended = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(run_client)).collect();
        let ended = clients.into_iter().map(|client| {
            client
                .join()
                .unwrap_or_else(|_panic| Err(io::Error::other("a client of the demo ended")))
        });
        ended.collect::<io::Result<Vec<_>>>()
    });
    // Before the results are judged: the fleet must be whole again even if the act failed.
    runtime.block_on(killed.resume()).map_err(failed)?;
    let ended: Vec<(usize, Ended)> = ended.map_err(failed)?.into_iter().flatten().collect();
    let bad = ended.iter().filter(|(_, one)| !one.is_good()).count();
    let (before, after): (Vec<_>, Vec<_>) = ended.iter().partition(|(number, _)| *number < BEFORE);
    let [before, after] =
        [before, after].map(|part| count_by_backend(part.iter().map(|(_, one)| one)));
    let heir = after.iter().max_by_key(|(_, count)| **count).map_or("-", |(name, _)| *name);
    let is_good = bad == 0 && heir != KILLED;
    Ok(TrialVerdict::new(
        "failover",
        heir,
        status_of(ended.iter().map(|(_, one)| one)),
        format!(
            "{REQUESTS} requests: {}, then engine '{KILLED}' was killed: {bad} failed, {}",
            show(&before),
            show(&after)
        ),
        (!is_good).then_some("expected no failure, and another engine"),
    ))
}

fn client(data: SocketAddr) -> HttpClient {
    HttpClient::new(&format!("http://{data}"), None)
}

/// Sends a turn of a conversation.
fn send(client: &HttpClient, turn: usize) -> Ended {
    // Long enough that cached blocks matter.
    let system = INSTRUCTIONS.repeat(20);
    let body = serde_json::json!({
        "model": MODEL,
        "max_tokens": 8,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": format!("Step {turn}: go on.")},
        ],
    });
    match client.post("/v1/chat/completions", body.to_string().as_bytes()) {
        Ok(response) => Ended {
            status: response.status,
            backend: response.header("x-penstock-backend").unwrap_or("-").to_owned(),
        },
        // A failed request is what this act looks for: it is counted, and ends nothing.
        Err(_no_response) => Ended { status: 0, backend: "-".to_owned() },
    }
}

fn count_by_backend<'a>(ended: impl Iterator<Item = &'a Ended>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for one in ended {
        *counts.entry(one.backend.as_str()).or_default() += 1;
    }
    counts
}

/// Returns the worst status.
fn status_of<'a>(ended: impl Iterator<Item = &'a Ended>) -> u16 {
    let mut statuses = ended.map(|one| one.status);
    statuses.find(|status| *status != 200).unwrap_or(200)
}

fn show(counts: &BTreeMap<&str, usize>) -> String {
    let shown: Vec<String> =
        counts.iter().map(|(name, count)| format!("{count} on {name}")).collect();
    shown.join(", ")
}
