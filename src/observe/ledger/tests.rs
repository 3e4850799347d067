use std::path::{Path, PathBuf};

use penstock_api::Operation;
use penstock_api::units::TokenCount;
use penstock_config::{Config, Environment, Price};
use penstock_core::fleet::{BackendId, Outcome};
use penstock_core::routing::{RequestDetails, RequestRecord, ResponseFacts, RoutingFacts};
use penstock_scan::Usage;
use rusqlite::Connection;

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("penstock-ledger-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("ledger.db")
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn config(file: Option<&Path>) -> Generation {
    let path = file.map_or_else(|| "off".to_owned(), |path| path.display().to_string());
    // Only explicit flushes write.
    let yaml = format!(
        "ledger: {{ path: {path}, flush_interval: 1h }}\n\
         models: {{ m: {{ price: {{ input: 1, output: 2 }} }} }}\n\
         backends: [{{ name: a, url: http://h:1, models: [m] }}]"
    );
    let environment = Environment::default();
    Generation::new(Config::parse(&yaml, "test.yaml", Path::new(""), &environment).unwrap())
}

fn record(prompt: u32, completion: u32) -> RequestRecord {
    let usage = Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(completion),
        ..Usage::default()
    };
    RequestRecord {
        routing: RoutingFacts {
            model: Some("m".into()),
            backend: Some((BackendId(0), "a".into())),
            attempts: 1,
            price: Some(std::sync::Arc::new(Price { input: 1.0, output: 2.0, ..Price::default() })),
            ..RoutingFacts::default()
        },
        response: ResponseFacts { status: 200, usage: Some(usage), ..ResponseFacts::default() },
        ..RequestRecord::default()
    }
}

fn outcome(record: &RequestRecord) -> RequestOutcome<'_> {
    RequestOutcome {
        record,
        operation: Some(Operation::Chat),
        outcome: Outcome::Ok,
        first_token: None,
        took: Duration::ZERO,
        details: RequestDetails { account: Some("team"), ..RequestDetails::default() },
    }
}

fn sums(path: &Path, table: &str) -> (i64, i64, i64) {
    let sql = format!("SELECT count(*), sum(input_tokens), sum(output_tokens) FROM {table}");
    let connection = Connection::open(path).unwrap();
    connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
}

fn shown(ledger: &Ledger) -> (u64, u64) {
    let totals = ledger.totals();
    let sum = |part: fn(&TokenSums) -> u64| totals.values().map(part).sum();
    (sum(|tokens| tokens.input), sum(|tokens| tokens.output))
}

#[test]
fn only_what_a_model_computed_for_a_client_is_counted() {
    let counts = |record: &RequestRecord, operation, class| {
        let ended = RequestOutcome { operation, outcome: class, ..outcome(record) };
        LedgerCounts::of(&ended)
            .map(|counts| (counts.input_tokens, counts.output_tokens, counts.estimated_requests))
    };
    let (chat, ok) = (Some(Operation::Chat), Outcome::Ok);
    let whole = record(7, 3);
    assert_eq!(counts(&whole, chat, ok), Some((7, 3, 0)));
    let mut estimated = record(7, 3);
    estimated.response.usage = None;
    estimated.request.prompt_tokens = Some(TokenCount(5));
    assert_eq!(counts(&estimated, chat, ok), Some((5, 0, 1)), "no usage: the estimate");
    estimated.response.token_events = 4;
    assert_eq!(counts(&estimated, chat, ok), Some((5, 4, 1)), "a stream without usage: its events");
    let mut cancelled = record(7, 1);
    cancelled.response.token_events = 9;
    let seen = counts(&cancelled, chat, Outcome::Cancel);
    assert_eq!(seen, Some((7, 9, 1)), "a cancelled stream: what was seen");
    cancelled.response = ResponseFacts::default();
    let unseen = counts(&cancelled, chat, Outcome::Cancel);
    assert_eq!(unseen, None, "cancelled before anything was seen");
    let mut embedded = record(6, 0);
    embedded.response.usage = Some(Usage { prompt_tokens: Some(6), ..Usage::default() });
    let embeddings = counts(&embedded, Some(Operation::Embeddings), ok);
    assert_eq!(embeddings, Some((6, 0, 0)), "embeddings have no output");
    assert_eq!(counts(&whole, Some(Operation::Tokenize), ok), Some((0, 0, 0)));
    for failed in [Outcome::Fault, Outcome::Client, Outcome::Busy { cooldown: LIMIT, status: 429 }]
    {
        assert_eq!(counts(&whole, chat, failed), None, "{failed:?}");
    }
    assert_eq!(counts(&whole, None, ok), None, "no operation");
}

#[test]
fn file_has_one_row_per_minute_and_totals_survive() {
    let folder = Folder::new("rows");
    let path = folder.file();
    let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    for _ in 0..3 {
        for _ in 0..100 {
            ledger.finished(&outcome(&record(7, 3)));
        }
        assert!(ledger.flush(LIMIT));
    }
    let (rows, input, output) = sums(&path, "time_series");
    assert!((1..=2).contains(&rows), "one row per minute: {rows}");
    assert_eq!((input, output), (2100, 900));
    assert_eq!(sums(&path, "token_counts"), (1, 2100, 900));
    let query =
        ReportQuery { by: vec![Dimension::Key, Dimension::Model], ..ReportQuery::default() };
    let rows = report(&path, &query).unwrap();
    let (names, counts) = (["team", "m"].map(str::to_owned).to_vec(), rows[0].counts);
    assert_eq!((rows.len(), &rows[0].group), (1, &names));
    assert_eq!((counts.requests, counts.estimated_requests), (300, 0));
    assert!((rows[0].cost.unwrap() - (2100.0 + 2.0 * 900.0) / 1e6).abs() < 1e-12);
    drop(ledger);
    let next = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    next.finished(&outcome(&record(1, 1)));
    assert_eq!(shown(&next), (2101, 901), "what is not yet written is shown, too");
}

#[test]
fn two_processes_add_to_one_file() {
    let folder = Folder::new("two");
    let path = folder.file();
    let (old, new) = (
        Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap(),
        Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap(),
    );
    for _ in 0..10 {
        old.finished(&outcome(&record(1, 0)));
        new.finished(&outcome(&record(10, 0)));
        assert!(old.flush(LIMIT) && new.flush(LIMIT));
    }
    assert_eq!(sums(&path, "token_counts").1, 110);
    assert!(old.flush(LIMIT));
    assert_eq!((shown(&old).0, shown(&new).0), (110, 110), "each shows what the other wrote");
}

#[test]
fn locked_file_is_written_later() {
    let folder = Folder::new("locked");
    let path = folder.file();
    let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    ledger.finished(&outcome(&record(7, 3)));
    assert!(!ledger.flush(Duration::from_millis(1500)));
    assert_eq!(shown(&ledger), (7, 3), "kept in memory");
    let figures = ledger.figures();
    assert!(figures.failed.contains(&("locked", 1)) && figures.pending == 2, "{figures:?}");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(ledger.flush(LIMIT));
    assert_eq!(sums(&path, "token_counts"), (1, 7, 3));
}

#[test]
fn damaged_file_is_moved_aside() {
    let folder = Folder::new("corrupt");
    let path = folder.file();
    std::fs::write(&path, "this is no database, whatever its name says").unwrap();
    let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    ledger.finished(&outcome(&record(7, 3)));
    assert!(ledger.flush(LIMIT));
    assert_eq!(sums(&path, "token_counts"), (1, 7, 3));
    assert_eq!(ledger.figures().quarantined, 1);
    let is_kept = |name: &String| name.starts_with("ledger.db.corrupt-");
    assert!(folder.names().iter().any(is_kept), "{:?}", folder.names());
}

#[test]
fn file_that_is_cut_or_overwritten_is_moved_aside() {
    for (name, content) in [("cut", ""), ("overwritten", "what another program wrote here")] {
        let folder = Folder::new(name);
        let path = folder.file();
        let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
        ledger.finished(&outcome(&record(7, 3)));
        assert!(ledger.flush(LIMIT));
        std::fs::write(&path, content).unwrap();
        ledger.finished(&outcome(&record(1, 1)));
        assert!(ledger.flush(LIMIT), "{name}");
        assert_eq!(sums(&path, "token_counts"), (1, 1, 1), "{name}: counts arrive in a new file");
        assert_eq!(ledger.figures().quarantined, 1, "{name}");
    }
}

#[test]
fn file_that_is_removed_is_made_again() {
    let folder = Folder::new("removed");
    let path = folder.file();
    let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    ledger.finished(&outcome(&record(7, 3)));
    assert!(ledger.flush(LIMIT));
    for name in folder.names() {
        std::fs::remove_file(folder.0.join(name)).unwrap();
    }
    ledger.finished(&outcome(&record(1, 1)));
    assert!(ledger.flush(LIMIT));
    assert_eq!(sums(&path, "token_counts"), (1, 1, 1));
}

#[test]
fn database_of_another_program_is_left_alone() {
    let folder = Folder::new("foreign");
    let path = folder.file();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE token_counts (x)").unwrap();
    let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    ledger.finished(&outcome(&record(7, 3)));
    assert!(!ledger.flush(Duration::from_millis(100)));
    assert_eq!(shown(&ledger), (7, 3));
    assert!(matches!(
        Ledger::check(&config(Some(&path)).config.ledger),
        Err(DatabaseError::Foreign)
    ));
    let tables = "SELECT count(*) FROM sqlite_schema";
    let tables: i64 = other.query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1, "nothing was added");
}

#[test]
fn file_of_a_newer_version_is_left_alone() {
    let folder = Folder::new("newer");
    let path = folder.file();
    drop(Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap());
    let other = Connection::open(&path).unwrap();
    other.pragma_update(None, "user_version", 99).unwrap();
    let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    assert!(!ledger.flush(Duration::from_millis(100)));
    let checked = Ledger::check(&config(Some(&path)).config.ledger);
    assert!(matches!(checked, Err(DatabaseError::Newer { version: 99 })), "{checked:?}");
}

#[test]
fn missing_folder_is_reported_and_survived() {
    let folder = Folder::new("missing");
    let path = folder.0.join("no/such/ledger.db");
    assert!(Ledger::check(&config(Some(&path)).config.ledger).is_err());
    let ledger = Ledger::start(&config(Some(&path)), std::sync::Arc::default()).unwrap();
    ledger.finished(&outcome(&record(7, 3)));
    assert!(!ledger.flush(Duration::from_millis(100)));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(ledger.flush(LIMIT));
    assert_eq!(sums(&path, "token_counts"), (1, 7, 3));
}

#[tokio::test]
async fn time_series_is_newest_first_and_counts_what_is_pending() {
    for folder in [None, Some(Folder::new("series"))] {
        let path = folder.as_ref().map(Folder::file);
        let ledger = Ledger::start(&config(path.as_deref()), std::sync::Arc::default()).unwrap();
        ledger.finished(&outcome(&record(7, 3)));
        let series = ledger.time_series("m".to_owned()).await.unwrap();
        let sum: u64 = series.iter().map(|point| point.tokens.total()).sum();
        assert_eq!((sum, series[0].endpoint.as_str()), (10, "http://h:1"));
        assert_eq!(series[0].timestamp % 60, 0);
        assert_eq!(ledger.time_series("n".to_owned()).await.unwrap(), []);
        let tomorrow = unix_seconds() + 24 * 3600;
        let twice = [
            ledger.daily_groups(tomorrow, false).await.unwrap(),
            ledger.daily_groups(tomorrow, true).await.unwrap(),
        ];
        assert_eq!(twice.map(|found| found.groups), [1, 1], "nothing is counted twice");
        assert_eq!(ledger.time_series("m".to_owned()).await.unwrap(), [], "deleted");
        assert_eq!(shown(&ledger), (7, 3), "the totals stay");
    }
}
