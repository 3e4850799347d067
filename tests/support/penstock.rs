//! The real binary, started on a configuration of the test's own.

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::client::{self, Response};
use super::{eventually, free_address};

static RUNS: AtomicUsize = AtomicUsize::new(0);

/// A running penstock; dropping it ends the process.
pub struct Penstock {
    child: Child,
    pub data: SocketAddr,
    pub admin: SocketAddr,
    log: PathBuf,
    /// The file it was started with.
    pub config: PathBuf,
}

/// Returns the path of a file of this test run.
pub fn scratch(name: &str) -> PathBuf {
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// The binary under test: the one built along with the tests, unless `PENSTOCK_BINARY` names
/// another.
pub fn binary() -> Command {
    let other = std::env::var_os("PENSTOCK_BINARY");
    let mut command = Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_penstock").into()));
    remove_own_variables(&mut command);
    command
}

/// Removes the tests' own variables, such as `PENSTOCK_BINARY`: the binary refuses unknown ones
/// with its prefix.
pub fn remove_own_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PENSTOCK_") {
            command.env_remove(name);
        }
    }
}

/// A configuration with the sections every penstock here has.
fn whole(data: SocketAddr, admin: SocketAddr, yaml: &str) -> String {
    whole_with((data, admin), ("", ""), yaml)
}

/// The same with further listeners and keys of `server`.
fn whole_with(
    (data, admin): (SocketAddr, SocketAddr),
    (listeners, server): (&str, &str),
    yaml: &str,
) -> String {
    format!(
        "server: {{ listen: [\"{data}\"{listeners}], threads: 2, drain_timeout: 5s, {server} }}\n\
         admin: {{ listen: \"{admin}\" }}\n{yaml}"
    )
}

impl Penstock {
    /// Starts penstock on `yaml` (everything but `server.listen` and `admin`) and waits until it is
    /// ready.
    pub fn start(yaml: &str) -> Self {
        let penstock = Self::start_unready(yaml);
        penstock.wait_ready();
        penstock
    }

    /// The same with environment variables, as in `PENSTOCK_SERVER_CORS`.
    pub fn start_with(yaml: &str, environment: &[(&str, &str)]) -> Self {
        let penstock = Self::spawn(yaml, environment);
        penstock.wait_ready();
        penstock
    }

    /// The same with a limit of open files.
    pub fn start_with_files(limit: u32, yaml: &str) -> Self {
        Self::start_by_shell(&format!("ulimit -n {limit}"), yaml)
    }

    /// The same after some commands of a shell.
    pub fn start_by_shell(commands: &str, yaml: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{commands}; exec \"$0\" \"$@\"")]);
        command.arg(binary().get_program());
        let penstock = Self::spawn_by(command, ("", ""), yaml, &[]);
        penstock.wait_ready();
        penstock
    }

    /// The same, without waiting.
    pub fn start_unready(yaml: &str) -> Self {
        Self::spawn(yaml, &[])
    }

    /// Starts penstock with further listeners (items of `server.listen`) and keys of `server`.
    pub fn start_listening(listeners: &[String], server: &str, yaml: &str) -> Self {
        let listeners: String = listeners.iter().map(|item| format!(", {item}")).collect();
        let penstock = Self::spawn_listening((&listeners, server), yaml, &[]);
        penstock.wait_ready();
        penstock
    }

    fn spawn(yaml: &str, environment: &[(&str, &str)]) -> Self {
        Self::spawn_listening(("", ""), yaml, environment)
    }

    fn spawn_listening(listening: (&str, &str), yaml: &str, environment: &[(&str, &str)]) -> Self {
        Self::spawn_by(binary(), listening, yaml, environment)
    }

    fn spawn_by(
        mut command: Command,
        (listeners, server): (&str, &str),
        yaml: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        let (data, admin) = (free_address(), free_address());
        let config = scratch("penstock.yaml");
        let log = config.with_extension("log");
        let text = whole_with((data, admin), (listeners, server), yaml);
        std::fs::write(&config, text).unwrap();
        let child = command
            .args(["serve", "--config"])
            .arg(&config)
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, data, admin, log, config }
    }

    pub fn wait_ready(&self) {
        eventually("penstock is ready", Duration::from_secs(15), || {
            client::is_ok(self.admin, "/health/ready")
                && std::net::TcpStream::connect(self.data).is_ok()
        });
    }

    /// Puts another configuration into its file, for the next reload.
    pub fn rewrite(&self, yaml: &str) {
        std::fs::write(&self.config, whole(self.data, self.admin, yaml)).unwrap();
    }

    pub fn reload(&self) -> Response {
        client::request(self.admin, "POST", "/reload", &[], b"")
    }

    /// Its standard error so far.
    pub fn log(&self) -> String {
        let mut text = String::new();
        std::fs::File::open(&self.log).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        client::post(self.data, path, body)
    }

    pub fn chat(&self, model: &str) -> Response {
        self.post("/v1/chat/completions", &client::chat(model, "hello"))
    }

    pub fn get(&self, path: &str) -> Response {
        client::get(self.data, path)
    }

    pub fn admin(&self, path: &str) -> Response {
        client::get(self.admin, path)
    }

    /// One backend's entry of `/fleet`.
    pub fn backend(&self, name: &str) -> Value {
        let fleet = self.admin("/fleet").json();
        let mut backends = fleet["backends"].as_array().unwrap().iter();
        backends.find(|backend| backend["name"] == name).unwrap().clone()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process that this one started as still runs.
    pub fn is_running(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        // A zombie has ended.
        status.is_ok_and(|status| !status.contains(") Z "))
    }

    /// Its resident memory in bytes.
    pub fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }

    /// Sends it a signal by its own process id.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end.
    pub fn wait_end(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        eventually("penstock ends", limit, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Penstock {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("-- log of penstock --\n{}", self.log());
        }
        let killed = self.child.kill();
        let ended = self.child.wait();
        drop((killed, ended));
    }
}

/// A process that took over from another one; dropping it ends the process.
pub struct Successor {
    pub pid: u32,
}

impl Successor {
    /// The process named in the response to `POST /upgrade`.
    pub fn of(response: &Response) -> Self {
        assert_eq!(response.status, 200, "{}", response.text());
        Self { pid: response.json()["pid"].as_u64().unwrap().try_into().unwrap() }
    }

    /// Returns whether it runs; one that has ended and was not waited for does not.
    pub fn is_alive(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|text| !text.contains("State:\tZ"))
    }

    /// Returns the id of its parent process.
    pub fn parent(&self) -> u32 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        parent.trim().parse().unwrap()
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.pid.to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if self.is_alive() {
            self.signal("KILL");
        }
    }
}
