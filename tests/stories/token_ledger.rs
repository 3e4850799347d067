//! An operator bills by the token ledger: every successful request is counted once, the counts
//! survive restarts, crashes and upgrades, and nothing that happens to the file fails a request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_mock::{Fault, Pace};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::client::{self, Response, chat, streaming_chat};
use crate::support::command::run;
use crate::support::eventually;
use crate::support::fleet::{CHAT, Fleet, Setup, metric, read_until};
use crate::support::load::Load;
use crate::support::penstock::{Penstock, Successor, scratch};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Input, output and their sum.
type Sums = (i64, i64, i64);

fn ledger(path: &Path, interval: &str) -> String {
    format!("ledger: {{ path: {}, flush_interval: {interval} }}", path.display())
}

fn sums(path: &Path, table: &str) -> Sums {
    let connection = Connection::open(path).unwrap();
    let sql = format!(
        "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), \
         coalesce(sum(total_tokens), 0) FROM {table}"
    );
    connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
}

fn count(path: &Path, sql: &str) -> i64 {
    Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Waits until the ledger shows `total` tokens: a request is counted just after its response.
fn wait_total(penstock: &Penstock, total: i64) {
    let shown = || penstock.admin("/api/token_counts").json()["total_tokens"].clone();
    eventually(&format!("{total} tokens are shown"), TIMEOUT, || shown() == total);
}

/// Returns the engine's count: the last `usage` of a response, also of a stream.
fn usage_of(response: &Response) -> (i64, i64) {
    let text = response.text();
    let documents = text.lines().filter_map(|line| {
        serde_json::from_str::<Value>(line.strip_prefix("data: ").unwrap_or(line)).ok()
    });
    let mut counts = (0, 0);
    for document in documents.chain(serde_json::from_str(&text)) {
        for at in ["/usage", "/response/usage", "/message/usage"] {
            let usage = document.pointer(at).cloned().unwrap_or_default();
            let count = |names: [&str; 2]| names.iter().find_map(|name| usage[*name].as_i64());
            counts.0 = count(["prompt_tokens", "input_tokens"]).unwrap_or(counts.0);
            counts.1 = count(["completion_tokens", "output_tokens"]).unwrap_or(counts.1);
        }
    }
    counts
}

/// One of many kinds of requests: path, body, whether it succeeds.
fn request(number: usize) -> (&'static str, Value, bool) {
    let text = "word ".repeat(1 + number % 7);
    let mut stream = streaming_chat("m", &text);
    stream["stream_options"] = json!({"include_usage": true});
    match number % 8 {
        0 => (CHAT, chat("m", &text), true),
        1 => (CHAT, stream, true),
        2 => ("/v1/completions", json!({"model": "m2", "prompt": text}), true),
        3 => ("/v1/embeddings", json!({"model": "m", "input": [text, "x"]}), true),
        4 => {
            let messages = json!([{"role": "user", "content": text}]);
            ("/v1/messages", json!({"model": "m", "max_tokens": 9, "messages": messages}), true)
        }
        5 => ("/v1/responses", json!({"model": "m2", "input": text}), true),
        6 => ("/v1/rerank", json!({"model": "m", "query": text, "documents": ["a", "b"]}), true),
        _ => (CHAT, chat("unknown", &text), false),
    }
}

/// Checks the output of `penstock usage` for the file, by key and by model.
fn check_exports(path: &Path, keys: [(&str, (i64, i64)); 2]) {
    let file = path.to_str().unwrap();
    let ran = run(["usage", "--file", file, "--by", "key", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
    for (row, (name, (input, output))) in keys.iter().enumerate() {
        assert_eq!(rows[row]["key"], *name);
        assert_eq!(rows[row]["requests"], 2 * 250 - 2 * 31, "a 404 is no request");
        assert_eq!(
            (&rows[row]["input_tokens"], &rows[row]["output_tokens"]),
            (&json!(input), &json!(output))
        );
        assert_eq!(rows[row]["estimated"], 0, "every engine reported its counts");
    }
    let ran = run(["usage", "--file", file, "--by", "model", "--format", "csv", "--since", "1d"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.stdout);
    assert!(lines[1].starts_with("m,") && !lines[1].ends_with(','), "m has a price: {}", lines[1]);
    assert!(lines[2].starts_with("m2,") && lines[2].ends_with(','), "m2 has none: {}", lines[2]);
    let none = run(["usage", "--file", file, "--until", "2020-01-01"]);
    assert_eq!(none.stdout, "nothing was counted in this time\n");
}

/// Sends 250 requests with one of two keys; returns the tokens that the engines reported, by key.
fn send_mixed(penstock: &Penstock, thread: usize) -> BTreeMap<bool, (i64, i64)> {
    let mut expected: BTreeMap<bool, (i64, i64)> = BTreeMap::new();
    let key = if thread.is_multiple_of(2) { "key-one" } else { "key-two" };
    let headers = [("content-type", "application/json"), ("x-api-key", key)];
    for number in 0..250 {
        let (path, body, succeeds) = request(number);
        let body = body.to_string();
        let response = client::request(penstock.data, "POST", path, &headers, body.as_bytes());
        let what = format!("{path}: {}", response.text());
        assert_eq!(response.status == 200, succeeds, "{what}");
        if succeeds {
            let (input, output) = usage_of(&response);
            assert!(input > 0, "{what}");
            let sums = expected.entry(thread.is_multiple_of(2)).or_default();
            *sums = (sums.0 + input, sums.1 + output);
        }
    }
    expected
}

#[test]
fn thousand_mixed_requests_are_counted_exactly() {
    let path = scratch("ledger.db");
    let sections = format!(
        r"
{}
auth: {{ keys: [{{ name: one, key: key-one }}, {{ name: two, key: key-two }}] }}
models: {{ m: {{ price: {{ input: 1000, output: 2000 }} }} }}
",
        ledger(&path, "1h")
    );
    let setup = Setup { sections: &sections, strategy: "round_robin", ..Setup::default() };
    let mut fleet = Fleet::of(&["m, m2", "m, m2"], setup);
    let penstock = &fleet.penstock;
    let expected: Vec<BTreeMap<bool, (i64, i64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|thread| scope.spawn(move || send_mixed(penstock, thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |is_first: bool| {
        let all = expected.iter().filter_map(|sums| sums.get(&is_first));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let (one, two) = (sum(true), sum(false));
    let (input, output) = (one.0 + two.0, one.1 + two.1);

    // What is not yet written counts, too.
    wait_total(penstock, input + output);
    let page = penstock.admin("/api/token_counts").json();
    assert_eq!(page["breakdown"].as_array().unwrap().len(), 4, "two models on two backends");
    assert_eq!(count(&path, "SELECT count(*) FROM token_counts"), 0, "nothing is written yet");

    penstock.signal("TERM");
    assert_eq!(fleet.penstock.wait_end(TIMEOUT).code(), Some(0));
    for table in ["token_counts", "time_series"] {
        assert_eq!(sums(&path, table), (input, output, input + output), "{table}");
    }
    let minutes = count(&path, "SELECT count(DISTINCT timestamp) FROM time_series");
    let rows = count(&path, "SELECT count(*) FROM time_series");
    assert!(rows <= 4 * minutes, "{rows} rows of {minutes} minutes");
    assert_eq!(count(&path, "SELECT count(*) FROM time_series WHERE timestamp % 60 <> 0"), 0);

    check_exports(&path, [("one", one), ("two", two)]);
}

#[test]
fn tables_hold_counts_names_and_times_only() {
    let path = scratch("ledger.db");
    let sections = ledger(&path, "50ms");
    let fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    fleet.penstock.post(CHAT, &chat("m", "a very secret prompt"));
    eventually("the request is written", TIMEOUT, || sums(&path, "token_counts").2 > 0);
    let columns = |table: &str| -> Vec<(String, String, i64, i64)> {
        let connection = Connection::open(&path).unwrap();
        let mut select = connection
            .prepare("SELECT name, type, \"notnull\", pk FROM pragma_table_info(?1)")
            .unwrap();
        let rows = select
            .query_map([table], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
        rows.unwrap().map(Result::unwrap).collect()
    };
    let column = |name: &str, kind: &str, key| (name.to_owned(), kind.to_owned(), 1, key);
    let counts = [
        column("endpoint", "TEXT", 1),
        column("model", "TEXT", 2),
        column("input_tokens", "INTEGER", 0),
        column("output_tokens", "INTEGER", 0),
        column("total_tokens", "INTEGER", 0),
    ];
    assert_eq!(columns("token_counts"), counts);
    let series = [&counts[..], &[column("timestamp", "INTEGER", 3)]].concat();
    assert_eq!(columns("time_series"), series);
    let url = "SELECT count(*) FROM time_series WHERE endpoint = 'URL' AND model = 'm'";
    assert_eq!(count(&path, &url.replace("URL", &fleet.a().url())), 1, "named by its URL");
    drop(fleet);
    let bytes = std::fs::read(&path).unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains("very secret"));
}

#[test]
fn cancelled_stream_counts_what_was_seen() {
    let path = scratch("ledger.db");
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(50), tokens: 400 };
    let sections = ledger(&path, "50ms");
    let fleet = Fleet::start(1, Setup { sections: &sections, pace, ..Setup::default() });
    let mut client = fleet.begin(&streaming_chat("m", "one two three four five six"));
    let mut seen = String::new();
    while seen.matches("\"content\":").count() < 4 {
        seen += &read_until(&mut client, "data: ");
    }
    drop(client);
    let written = || sums(&path, "token_counts").2 > 0;
    eventually("the cancelled stream is counted", TIMEOUT, written);
    let (input, output, _) = sums(&path, "token_counts");
    assert!((3..400).contains(&output), "tokens that passed: {output}");
    assert!((1..100).contains(&input), "the estimate of the prompt: {input}");
    let estimated = "SELECT sum(estimated_requests) FROM usage_by_day";
    assert_eq!(count(&path, estimated), 1);
    fleet.wait_idle();

    // What fails counts for nothing: rows are written in the order in which requests end.
    let before = sums(&path, "token_counts");
    fleet.a().script([Fault::status_with_retry(503, "1")]);
    assert_eq!(fleet.chat().status, 503);
    let mut used = (0, 0);
    eventually("the cooldown ends", TIMEOUT, || {
        let response = fleet.chat();
        used = usage_of(&response);
        response.status == 200
    });
    let after = (before.0 + used.0, before.1 + used.1, before.2 + used.0 + used.1);
    let written = || sums(&path, "token_counts").2 > before.2;
    eventually("the request after it is counted", TIMEOUT, written);
    assert_eq!(sums(&path, "token_counts"), after);
}

#[test]
fn crash_loses_at_most_one_interval() {
    let path = scratch("ledger.db");
    let sections = ledger(&path, "200ms");
    let mut fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    let each = usage_of(&fleet.chat());
    let total = each.0 + each.1;
    for _ in 1..50 {
        fleet.chat();
    }
    eventually("50 requests are written", TIMEOUT, || sums(&path, "token_counts").2 == 50 * total);
    for _ in 0..50 {
        fleet.chat();
    }
    fleet.penstock.signal("KILL");
    fleet.penstock.wait_end(TIMEOUT);
    let (.., left) = sums(&path, "token_counts");
    assert!(left >= 50 * total && left <= 100 * total, "{left} of {}", 100 * total);
    assert_eq!(left % total, 0, "a request is counted whole or not at all");
    let check: String = Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");

    let config = std::fs::read_to_string(&fleet.penstock.config).unwrap();
    let rest = config.splitn(3, '\n').nth(2).unwrap();
    let again = Penstock::start(rest);
    let page = again.admin("/api/token_counts").json();
    assert_eq!(page["total_tokens"], left, "the totals are read at start");
}

#[test]
fn upgrade_loses_nothing() {
    let path = scratch("ledger.db");
    let sections = ledger(&path, "100ms");
    let mut fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    let each = usage_of(&fleet.chat());
    let penstock = &fleet.penstock;
    let mut successor = None;
    let (sent, failed) = Load::during(penstock, |load| {
        load.wait_for(50);
        let response = client::request(penstock.admin, "POST", "/upgrade", &[], b"");
        successor = Some(Successor::of(&response));
        load.wait_for(100);
    });
    assert_eq!(failed, 0, "of {sent}");
    assert_eq!(fleet.penstock.wait_end(TIMEOUT).code(), Some(0));
    let successor = successor.unwrap();
    let requests = i64::try_from(sent).unwrap() + 1;
    // The new process shows both.
    wait_total(&fleet.penstock, requests * (each.0 + each.1));
    successor.signal("TERM");
    eventually("the new process ends", TIMEOUT, || !successor.is_alive());
    let expected = (requests * each.0, requests * each.1, requests * (each.0 + each.1));
    assert_eq!(sums(&path, "token_counts"), expected, "{sent} requests in two processes");
    assert_eq!(sums(&path, "time_series"), expected);
}

#[test]
fn locked_file_is_written_later_and_fails_no_request() {
    let path = scratch("ledger.db");
    let sections = ledger(&path, "50ms");
    let fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let each = usage_of(&fleet.chat());
    let failed = "penstock_ledger_writes_total{result=\"locked\"}";
    eventually("a write meets the lock", TIMEOUT, || fleet.metric(failed) >= 1.0);
    for _ in 0..20 {
        assert_eq!(fleet.chat().status, 200);
    }
    assert!(fleet.metric("penstock_ledger_pending_rows") >= 1.0);
    wait_total(&fleet.penstock, 21 * (each.0 + each.1));
    other.execute_batch("ROLLBACK").unwrap();
    let expected = (21 * each.0, 21 * each.1, 21 * (each.0 + each.1));
    eventually("the counts are written", TIMEOUT, || sums(&path, "token_counts") == expected);
    fleet.wait_metric("penstock_ledger_pending_rows", 0.0);
    let log = fleet.penstock.log();
    assert_eq!(log.matches("token ledger: cannot write").count(), 1, "said once: {log}");
    assert!(log.contains("token ledger: writing resumed"), "{log}");
}

#[test]
fn damaged_file_is_replaced_while_requests_go_on() {
    let path = scratch("ledger.db");
    std::fs::write(&path, "no database at all: ".repeat(300)).unwrap();
    let sections = ledger(&path, "50ms");
    let fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    let each = usage_of(&fleet.chat());
    eventually("a new file is written", TIMEOUT, || {
        fleet.metric("penstock_ledger_quarantined_files_total") > 0.5
            && sums(&path, "token_counts") == (each.0, each.1, each.0 + each.1)
    });
    let kept = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_string_lossy().contains(".corrupt-")).collect()
    };
    let kept = kept(path.parent().unwrap());
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(std::fs::read_to_string(&kept[0]).unwrap().starts_with("no database at all"));
    let log = fleet.penstock.log();
    assert_eq!(log.matches("the file is damaged").count(), 1, "{log}");
}

/// Without a folder, and where no file may grow: as on a full disk.
#[test]
fn unusable_file_fails_no_request() {
    let missing = scratch("x").with_file_name("missing").join("ledger.db");
    let checked = scratch("check.yaml");
    let text = format!("{}\nbackends: [http://127.0.0.1:1]", ledger(&missing, "1s"));
    std::fs::write(&checked, text).unwrap();
    let ran = run(["check", "--config", checked.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "no reason not to start: {}", ran.stderr);
    assert!(
        ran.stderr.contains("warning: ledger.path: its folder does not exist"),
        "{}",
        ran.stderr
    );

    let sections = ledger(&missing, "50ms");
    let fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    let each = usage_of(&fleet.chat());
    let failed = "penstock_ledger_writes_total{result=\"unavailable\"}";
    eventually("a write fails", TIMEOUT, || fleet.metric(failed) >= 1.0);
    wait_total(&fleet.penstock, each.0 + each.1);
    std::fs::create_dir(missing.parent().unwrap()).unwrap();
    let expected = (each.0, each.1, each.0 + each.1);
    eventually("the counts are written", TIMEOUT, || {
        missing.exists() && fleet.metric("penstock_ledger_pending_rows") < 0.5
    });
    assert_eq!(sums(&missing, "token_counts"), expected);

    let engine = fleet.a();
    let small = scratch("ledger.db");
    let yaml =
        format!("{}\nbackends: [{{ url: {}, models: [m] }}]", ledger(&small, "50ms"), engine.url());
    // No file may be larger than 8 KiB, and the signal of that is ignored.
    let penstock = Penstock::start_by_shell("ulimit -f 16; trap '' XFSZ", &yaml);
    for _ in 0..5 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    let failures = || metric(&penstock, "penstock_ledger_writes_total{result=\"unavailable\"}");
    eventually("a write fails", TIMEOUT, || failures() >= 1.0);
    assert_eq!(penstock.chat("m").status, 200);
    wait_total(&penstock, 6 * (each.0 + each.1));
}

#[test]
fn reload_changes_prices() {
    let path = scratch("ledger.db");
    let fleet = Fleet::start(1, Setup::default());
    let yaml = |price: f64| {
        format!(
            r"
{}
models: {{ m: {{ price: {{ input: {price}, output: 0 }} }} }}
backends: [{{ name: a, url: {}, models: [m] }}]
",
            ledger(&path, "1h"),
            fleet.a().url()
        )
    };
    let mut penstock = Penstock::start(&yaml(1e6));
    let (input, _) = usage_of(&penstock.chat("m"));
    penstock.rewrite(&yaml(2e6));
    assert_eq!(penstock.reload().status, 200);
    penstock.chat("m");
    penstock.signal("TERM");
    penstock.wait_end(TIMEOUT);
    let cost: f64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT cost FROM usage_by_day", [], |row| row.get(0))
        .unwrap();
    assert!((cost - 3.0 * input as f64).abs() < 1e-6, "{cost}: each request by its own price");
}
