//! The command line as a whole: arguments, output and exit codes.

use std::path::PathBuf;

use clap::CommandFactory;

use super::output::testing::{Broken, Written};
use super::*;

/// The exit code and output of a command.
pub(super) struct Done {
    pub(super) code: u8,
    pub(super) results: String,
    pub(super) complaints: String,
}

pub(super) fn call(arguments: &[&str]) -> Done {
    let (results, complaints) = (Written::default(), Written::default());
    let mut output = Output::to(results.clone(), complaints.clone());
    let code = match Cli::try_parse_from([&["penstock"], arguments].concat()) {
        Ok(cli) => run_command(&cli.command, &mut output),
        Err(error) => {
            output.complain("usage", error);
            error::USAGE
        }
    };
    Done { code, results: results.text(), complaints: complaints.text() }
}

/// A file that is removed on drop.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn arguments_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_help() {
    for command in ["serve", "check", "explain", "demo", "config", "completions"] {
        let help = Cli::try_parse_from(["penstock", command, "--help"]).unwrap_err().to_string();
        assert!(help.contains("Usage: penstock"), "{help}");
        let has_more = ["Exit codes:", "Examples:", "Commands:"];
        assert!(has_more.iter().any(|heading| help.contains(heading)), "{help}");
    }
}

#[test]
fn invalid_arguments_and_files_exit_with_2() {
    let good =
        TempFile::new("good.yaml", "backends: [{ name: gpu-a, url: http://a, models: [m] }]");
    let bad = TempFile::new("bad.yaml", "backends: [http://a]\nroutign: {}");
    let fleet = TempFile::new("fleet.json", r#"{"backends": [{"name": "gpu_a"}]}"#);
    let explain = |more: &[&'static str]| {
        let owned: Vec<String> = ["explain", good.path(), "--config", good.path()]
            .iter()
            .chain(more)
            .map(|word| (*word).to_owned())
            .collect();
        owned
    };
    let words = |text: &[&str]| text.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for (arguments, reason) in [
        (words(&["launch"]), "unrecognized subcommand"),
        (words(&["explain"]), "nothing to explain: pass a request"),
        (words(&["serve", "--config"]), "a value is required"),
        (words(&["serve", "--routing-cache-weight", "0.5"]), "'--routing-cache-weight' found"),
        (words(&["serve", "--routing-load-weight", "0.5"]), "'--routing-load-weight' found"),
        (words(&["check", "--config", "/nonexistent/p.yaml"]), "cannot read /nonexistent/p.yaml"),
        (words(&["check", "--config", bad.path()]), "bad.yaml:2:1: unknown key 'routign'"),
        (words(&["serve", "--config", bad.path()]), "did you mean 'routing'?"),
        (words(&["config", "dump", "--config", bad.path()]), "bad.yaml:2:1"),
        (
            words(&["check", "--config", good.path(), "--max-retries", "many"]),
            "'routing.max_retries' is 'many'",
        ),
        (explain(&["--header", "none"]), "'none' is not a header"),
        (words(&["explain", "-", "--admin", "127.0.0.1:1"]), "must start with http://"),
        (explain(&["--admin", "http://127.0.0.1:1"]), "--config cannot be used with --admin"),
        (explain(&["--requests", "-"]), "cannot be used with"),
        (
            explain(&["--admin", "http://127.0.0.1:1", "--strategy", "random"]),
            "cannot be used with",
        ),
        ([explain(&["--fleet"]), words(&[fleet.path()])].concat(), "did you mean 'gpu-a'?"),
        ([explain(&["--fleet"]), words(&[good.path()])].concat(), "is not JSON"),
        (
            words(&["explain", "/nonexistent/r.json", "--config", good.path()]),
            "cannot read /nonexistent/r.json",
        ),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let done = call(&arguments);
        assert_eq!(done.code, 2, "{arguments:?}");
        assert!(done.complaints.contains(reason), "{arguments:?}: {}", done.complaints);
        assert_eq!(done.results, "", "{arguments:?}: an error prints no results");
    }
}

#[test]
fn unreachable_admin_port_exits_with_1() {
    let body = TempFile::new("body.json", "{}");
    // Port 1 of loopback: nothing listens there.
    let done = call(&["explain", body.path(), "--admin", "http://127.0.0.1:1"]);
    assert_eq!(done.code, 1);
    assert!(done.complaints.starts_with("error: admin port: cannot connect to http://127.0.0.1:1"));
}

#[test]
fn closed_pipe_is_no_failure() {
    let cli = Cli::try_parse_from(["penstock", "config", "schema"]).unwrap();
    let complaints = Written::default();
    let code = run_command(&cli.command, &mut Output::to(Broken, complaints.clone()));
    assert_eq!((code, complaints.text()), (0, String::new()));
}

const FLEET: &str = r#"
routing: { strategy: round_robin, aliases: { gpt-4: m } }
backends:
  - { name: a, url: "http://a", models: [m] }
  - { name: b, url: "http://b", api_key: sekret, models: [m] }
"#;

#[test]
fn request_lines_are_decided_in_order_by_one_router() {
    let config = TempFile::new("lines.yaml", FLEET);
    let request =
        r#"{"path": "/v1/completions", "body": "{\"model\": \"gpt-4\", \"prompt\": \"x\"}"}"#;
    let text =
        [request, "no line", request, "", request.replace("gpt-4", "gpt-5").as_str(), request]
            .join("\n");
    let lines = TempFile::new("lines.jsonl", &format!("\u{feff}{text}"));
    let done = call(&["explain", "--requests", lines.path(), "--config", config.path()]);
    assert_eq!((done.code, done.complaints.as_str()), (0, ""));
    let explanations: Vec<serde_json::Value> =
        done.results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let outcomes = explanations.iter().map(|explanation| {
        let [backend, code] =
            ["/decision/backend", "/error/code"].map(|at| explanation.pointer(at));
        backend.or(code).unwrap().as_str().unwrap()
    });
    assert_eq!(outcomes.collect::<Vec<_>>(), ["a", "invalid_request", "b", "model_not_found", "a"]);
}

#[test]
fn saved_fleet_changes_the_decision() {
    let config = TempFile::new("fleet.yaml", FLEET);
    let body = TempFile::new("request.json", r#"{"model": "gpt-4", "messages": []}"#);
    let fleet =
        TempFile::new("down.json", r#"{"backends": [{"name": "a", "health": "unhealthy"}]}"#);
    let arguments = ["explain", body.path(), "--config", config.path(), "--fleet", fleet.path()];
    let done = call(&arguments);
    assert_eq!((done.code, done.complaints.as_str()), (0, ""));
    assert!(done.results.contains("a  m  rejected (unhealthy): is unhealthy"), "{}", done.results);
    assert!(done.results.ends_with("decision    b with 'm', by round_robin\n"), "{}", done.results);
    let done = call(&[&arguments[..], &["--json", "--strategy", "random", "--seed", "1"]].concat());
    let explanation: serde_json::Value = serde_json::from_str(&done.results).unwrap();
    assert_eq!(explanation["decision"]["backend"], "b");
    assert_eq!(explanation["decision"]["strategy"], "random");
}

#[test]
fn seed_makes_random_choices_repeatable() {
    let config = TempFile::new("seed.yaml", FLEET);
    let line = "{\"body\": \"{\\\"model\\\": \\\"m\\\", \\\"messages\\\": []}\"}\n";
    let lines = TempFile::new("seed.jsonl", &line.repeat(64));
    let arguments =
        ["explain", "--requests", lines.path(), "-c", config.path(), "--strategy", "random"];
    let run = |seed| call(&[&arguments[..], &["--seed", seed]].concat()).results;
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn check_prints_summary_and_warnings() {
    let yaml = FLEET.replace("round_robin", "fastest");
    let config = TempFile::new("check.yaml", &yaml);
    let done = call(&["check", "--config", config.path()]);
    assert_eq!(done.code, 0);
    assert!(done.complaints.starts_with("warning: "), "{}", done.complaints);
    assert!(done.complaints.contains("'fastest'"), "{}", done.complaints);
    for line in ["strategy    smart (", "backends    2", "  gpt-4 -> m", "warnings    1"] {
        assert!(done.results.contains(line), "{line}: {}", done.results);
    }
}

#[test]
fn dump_shows_overrides_and_masks_secrets() {
    let config = TempFile::new("dump.yaml", FLEET);
    let done = call(&["config", "dump", "-c", config.path(), "--listen", "127.0.0.1:1,[::1]:2"]);
    assert_eq!((done.code, done.complaints.as_str()), (0, ""));
    assert!(done.results.contains("127.0.0.1:1") && done.results.contains("[::1]:2"));
    assert!(!done.results.contains("sekret"));
    let schema: serde_json::Value =
        serde_json::from_str(&call(&["config", "schema"]).results).unwrap();
    assert_eq!(schema["title"], "penstock configuration");
    assert!(call(&["completions", "bash"]).results.contains("_penstock"));
}

mod one_more {
    //! A subcommand takes its own module and one row.

    use clap::{Args, Parser, Subcommand};

    use super::super::error::CliError;
    use super::super::output::Output;
    use super::super::output::testing::Written;

    mod hello {
        use super::{Args, CliError, Output};

        #[derive(Debug, thiserror::Error)]
        #[error("no name to greet")]
        struct NoName;

        #[derive(Debug, Args)]
        pub(super) struct HelloArgs {
            name: Option<String>,
        }

        pub(super) fn run(args: &HelloArgs, output: &mut Output) -> Result<(), CliError> {
            let name = args.name.as_deref().ok_or_else(|| CliError::failure(NoName))?;
            output.line(format!("hello {name}"))
        }
    }

    commands! {
        /// Greet somebody
        Hello(hello::HelloArgs),
    }

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn command_takes_its_module_and_one_row() {
        let written = Written::default();
        let mut output = Output::to(written.clone(), Written::default());
        let run = |arguments: &[&str], output: &mut Output| {
            Line::try_parse_from([&["x"], arguments].concat()).unwrap().command.run(output)
        };
        run(&["hello", "world"], &mut output).unwrap();
        assert_eq!(written.text(), "hello world\n");
        let error = run(&["hello"], &mut output).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("no name to greet", 1));
    }
}
