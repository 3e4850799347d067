//! A real Redis or Valkey server, and two penstocks that share it.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use super::certificates::Authority;
use super::fleet::{Fleet, SOON, Setup, find_metric, yaml};
use super::penstock::{Penstock, scratch};
use super::{eventually, skip};

pub const UP: &str = "penstock_shared_state_up";

/// A real server, killed at the end.
pub struct Redis {
    child: Child,
    pub address: SocketAddr,
}

impl Redis {
    /// A server on a free port; `None`, with a skipped story, where none is installed.
    pub fn start(story: &str) -> Option<Self> {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let started = Self::start_at(free);
        if started.is_none() {
            skip(story, "neither redis-server nor valkey-server is installed");
        }
        started
    }

    pub fn start_at(address: SocketAddr) -> Option<Self> {
        let folder = scratch("redis");
        std::fs::create_dir_all(&folder).unwrap();
        let child = ["redis-server", "valkey-server"].iter().find_map(|program| {
            let mut command = Command::new(program);
            command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
            command.args(["--save", "", "--appendonly", "no", "--requirepass", "a-password"]);
            command.arg("--dir").arg(&folder).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().ok()
        })?;
        let redis = Self { child, address };
        eventually("redis listens", SOON, || TcpStream::connect(address).is_ok());
        Some(redis)
    }

    /// The same with TLS only. `authority` issues its certificate; `None` if redis has no TLS.
    pub fn start_secured(story: &str, authority: &Authority) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let files = authority.issue("127.0.0.1");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--tls-port", &address.port().to_string()]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--requirepass", "a-password"]);
        command.arg("--tls-cert-file").arg(&files.cert).arg("--tls-key-file").arg(&files.key);
        command.arg("--tls-ca-cert-file").arg(&authority.file).args(["--tls-auth-clients", "no"]);
        let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let redis = started.ok().map(|child| Self { child, address });
        let Some(mut redis) = redis else {
            skip(story, "redis-server is not installed");
            return None;
        };
        eventually("redis listens, or has ended", SOON, || {
            TcpStream::connect(address).is_ok() || redis.child.try_wait().unwrap().is_some()
        });
        if redis.child.try_wait().unwrap().is_some() {
            let mut output = String::new();
            redis.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
            // It does not know the options then.
            assert!(output.contains("CONFIG FILE ERROR"), "{output}");
            skip(story, "redis-server is built without TLS");
            return None;
        }
        Some(redis)
    }

    /// The section `shared_state` with further keys.
    pub fn section(&self, keys: &str) -> String {
        format!(
            r#"shared_state: {{ redis: "redis://{}", password: a-password, {keys} }}"#,
            self.address
        )
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Two penstocks before the same engines.
pub struct Pair {
    pub fleet: Fleet,
    pub other: Penstock,
}

impl Pair {
    /// Before `engines` engines; `shared`: further keys of `shared_state`.
    pub fn start(redis: &Redis, engines: usize, setup: Setup<'_>, shared: &str) -> Self {
        let sections = format!("{}\n{}", setup.sections, redis.section(shared));
        let setup = Setup { sections: &sections, ..setup };
        let fleet = Fleet::start(engines, setup);
        let other = Penstock::start(&yaml(&fleet.engines, &vec!["m"; engines], setup));
        let pair = Self { fleet, other };
        pair.wait_up(1.0);
        pair
    }

    pub fn both(&self) -> [&Penstock; 2] {
        [&self.fleet.penstock, &self.other]
    }

    pub fn wait_up(&self, value: f64) {
        for penstock in self.both() {
            self.wait(penstock, UP, value);
        }
    }

    pub fn wait(&self, penstock: &Penstock, metric: &str, value: f64) {
        let is_there = || find_metric(penstock, metric).is_some_and(|it| (it - value).abs() < 0.1);
        eventually(&format!("{metric} is {value}"), 2 * SOON, is_there);
    }
}
