//! A user runs the official SDKs against real engines through penstock: the cases live in
//! `tests/e2e` and need Python; their packages are fetched into `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::certificates::Authority;
use crate::support::penstock::remove_own_variables;
use crate::support::{report, requires_all};

#[test]
fn real_engines_and_sdks() {
    let is_required = requires_all();
    let python = match prepare() {
        Ok(python) => python,
        Err(reason) => {
            let line = format!("e2e: 0 run, 1 skipped: {reason}");
            assert!(!is_required, "{line}");
            report(&line);
            return;
        }
    };
    let work = crate::support::penstock::scratch("e2e");
    std::fs::create_dir_all(&work).unwrap();
    let authority = Authority::new("end to end");
    let issued = authority.issue("127.0.0.1");
    let mut command = Command::new(python);
    remove_own_variables(&mut command);
    let output = command
        .arg(cases().join("run.py"))
        .args(["--penstock", env!("CARGO_BIN_EXE_penstock"), "--work"])
        .arg(&work)
        .arg("--tls")
        .args([&authority.file, &issued.cert, &issued.key])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().unwrap_or_default().to_owned();
    report(&last);
    let errors = String::from_utf8_lossy(&output.stderr);
    // The failures stand last, so that a log that keeps its tail names them.
    let failures: Vec<&str> = text.lines().filter(|line| line.starts_with("FAIL ")).collect();
    let failures = failures.join("\n");
    assert!(output.status.success(), "{text}\n{errors}\n{failures}");
    assert!(!is_required || is_complete(&last), "not every case ran: {last}");
}

/// Returns whether the last line of a run says that cases ran and none was skipped.
fn is_complete(line: &str) -> bool {
    let count = |text: Option<&str>, unit: &str| -> Option<usize> {
        text?.trim().strip_suffix(unit)?.trim().parse().ok()
    };
    let counts = line.strip_prefix("e2e: ").unwrap_or_default();
    let mut parts = counts.split([',', ':']);
    let (run, skipped) = (count(parts.next(), "run"), count(parts.next(), "skipped"));
    run.is_some_and(|run| run > 0) && skipped == Some(0)
}

#[test]
fn required_run_must_be_complete() {
    assert!(is_complete("e2e: 71 run, 0 skipped: none"));
    for line in [
        "",
        "e2e: 0 run, 0 skipped: none",
        "e2e: 0 run, 71 skipped: the engines did not start",
        "e2e: 0 run, 1 skipped: not installed: xllamacpp",
        "e2e: 70 run, 1 skipped: no browser",
        "Traceback: 71 run, 0 skipped",
    ] {
        assert!(!is_complete(line), "{line}");
    }
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e")
}

/// A Python with the packages of `requirements.txt`, made on first use.
fn prepare() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("e2e-venv");
    let python = home.join("bin/python");
    let wanted = std::fs::read_to_string(cases().join("requirements.txt")).unwrap();
    let mark = home.join("requirements.installed");
    if std::fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&home), "no python3 with venv")?;
    let install = || {
        run(
            Command::new(&python)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
                .arg(cases().join("requirements.txt")),
            "the Python packages cannot be installed",
        )
    };
    // pip tries a connection again, but not a package that came incomplete.
    install().or_else(|_| install()).or_else(|_| install())?;
    std::fs::write(&mark, wanted).unwrap();
    Ok(python)
}

fn run(command: &mut Command, failure: &str) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            // pip ends its output with an empty line.
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            Err(format!("{failure} ({}): {}", output.status, text.trim()))
        }
        Err(error) => Err(format!("{failure}: {error}")),
    }
}
