//! Commands of the binary that end by themselves.

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::penstock::{binary, scratch};

/// The time that a command may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A finished command: its output and exit status.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Every line of standard output as a JSON value.
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        self.stdout.lines().map(parse).collect()
    }
}

/// Writes a file of the test's own and returns its path.
pub fn file(name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = scratch(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs the binary to its end.
pub fn run<I: IntoIterator<Item: AsRef<OsStr>>>(arguments: I) -> Ran {
    run_with(arguments, b"", &[])
}

/// The same with standard input and environment variables.
pub fn run_with<I: IntoIterator<Item: AsRef<OsStr>>>(
    arguments: I,
    input: &[u8],
    environment: &[(&str, &str)],
) -> Ran {
    let mut child = binary()
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (input, id) = (input.to_owned(), child.id());
    // A command that does not read its input must not block the test.
    std::thread::spawn(move || stdin.write_all(&input));
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(PATIENCE) {
        Ok(output) => to_ran(&output.unwrap()),
        Err(_) => {
            let killed = std::process::Command::new("kill").args(["-9", &id.to_string()]).status();
            panic!("a command did not end within {PATIENCE:?}: {killed:?}");
        }
    }
}

fn to_ran(output: &Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}
