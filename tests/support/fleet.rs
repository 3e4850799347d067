//! A penstock in front of mock engines that can be made to fail, tried in the order of their names.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use penstock::observe::metrics::metric_rows;
use penstock_mock::{EngineModel, MockEngine, MockSpec, Pace};
use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

use super::client::{self, Client, Response};
use super::penstock::Penstock;
use super::{block_on, eventually};

/// The path most tests use.
pub const CHAT: &str = "/v1/chat/completions";

/// Long enough for whatever happens soon, also on a busy machine.
pub const SOON: Duration = Duration::from_secs(15);

/// Keys of `health` with which a fault keeps no later request away from its backend.
pub const FAULTS_FORGOTTEN: &str = "interval: 60s, unhealthy_interval: 60s, fast_interval: 60s, \
     slow_start: 0s, breaker: { open: 1us, max_open: 1us }";

/// The differences from a plain fleet; each is a piece of YAML.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// By default the engines are tried in the order of their names.
    pub strategy: &'a str,
    /// Further keys of `routing`.
    pub routing: &'a str,
    /// The keys of `health`; no check disturbs the story unless this says so.
    pub health: &'a str,
    pub sections: &'a str,
    /// Further keys of every backend.
    pub backend: &'a str,
    /// The speed of the engines.
    pub pace: Pace,
    /// Further listeners: items of `server.listen`.
    pub listeners: &'a [String],
    /// Further keys of `server`.
    pub server: &'a str,
    /// The engines' `/metrics`, from before penstock starts.
    pub metrics: Option<&'a str>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        let health = "interval: 60s, unhealthy_interval: 60s, fast_interval: 60s, slow_start: 0s";
        Self {
            strategy: "priority_only",
            routing: "",
            health,
            sections: "",
            backend: "",
            pace: Pace::at_once(8),
            listeners: &[],
            server: "",
            metrics: None,
        }
    }
}

/// Engines `a`, `b`, `c` … and penstock before them.
pub struct Fleet {
    pub penstock: Penstock,
    pub engines: Vec<MockEngine>,
}

impl Fleet {
    /// `count` engines that serve `m`.
    pub fn start(count: usize, setup: Setup<'_>) -> Self {
        Self::of(&vec!["m"; count], setup)
    }

    /// An engine per entry of `models`; the entry is its list of models in the configuration.
    pub fn of(models: &[&str], setup: Setup<'_>) -> Self {
        let engines: Vec<MockEngine> =
            (0..models.len()).map(|index| engine(&name(index), setup.pace)).collect();
        engines.iter().for_each(|engine| engine.set_page("/metrics", setup.metrics));
        let yaml = yaml(&engines, models, setup);
        let penstock = Penstock::start_listening(setup.listeners, setup.server, &yaml);
        Self { penstock, engines }
    }

    pub fn a(&self) -> &MockEngine {
        &self.engines[0]
    }

    pub fn b(&self) -> &MockEngine {
        &self.engines[1]
    }

    pub fn c(&self) -> &MockEngine {
        &self.engines[2]
    }

    pub fn chat(&self) -> Response {
        self.penstock.chat("m")
    }

    pub fn stream(&self) -> Response {
        self.penstock.post(CHAT, &client::streaming_chat("m", "hello"))
    }

    /// A connection with a request on it, its response not read.
    pub fn begin(&self, body: &Value) -> Client {
        begin(self.penstock.data, CHAT, body)
    }

    /// Requests the engines were given, all together.
    pub fn requests(&self) -> usize {
        self.engines.iter().map(|engine| engine.counters().requests).sum()
    }

    /// Returns the value of `key` of a backend in `/fleet`.
    pub fn fact(&self, backend: &str, key: &str) -> Value {
        self.penstock.backend(backend)[key].clone()
    }

    /// Waits until `/fleet` shows `value` in `key` of a backend.
    pub fn wait_fact(&self, backend: &str, key: &str, value: &Value) {
        let what = format!("{key} of {backend} is {value}");
        eventually(&what, SOON, || self.fact(backend, key) == *value);
    }

    /// Waits until no request is in flight.
    pub fn wait_idle(&self) {
        for index in 0..self.engines.len() {
            self.wait_fact(&name(index), "in_flight", &json!(0));
        }
        self.wait_metric("penstock_in_flight", 0.0);
    }

    /// The sum of the samples that begin with `start`, of which there must be one.
    pub fn metric(&self, start: &str) -> f64 {
        metric(&self.penstock, start)
    }

    /// Waits until there are such samples and their sum is `value`.
    pub fn wait_metric(&self, start: &str, value: f64) {
        let what = format!("{start} is {value}");
        let sum = || find_metric(&self.penstock, start);
        eventually(&what, SOON, || sum().is_some_and(|sum| (sum - value).abs() < 0.1));
    }

    /// Replaces an engine by a listener that accepts no connection.
    pub fn turn_into_black_hole(&mut self, index: usize) -> BlackHole {
        let engine = self.engines.remove(index);
        block_on(engine.kill()).unwrap();
        // While the engine holds the port, so that no other test gets it.
        BlackHole::listen(engine.addr())
    }
}

/// A port whose queue of connections is full: who connects waits.
pub struct BlackHole {
    _listener: Socket,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    fn listen(address: SocketAddr) -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.set_reuse_address(true).unwrap();
        listener.set_reuse_port(true).unwrap();
        listener.bind(&address.into()).unwrap();
        listener.listen(0).unwrap();
        let patience = Duration::from_millis(100);
        let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, patience).ok());
        let queued: Vec<TcpStream> = queued.take(16).collect();
        assert!(queued.len() < 16, "the queue does not fill");
        Self { _listener: listener, _queued: queued }
    }
}

/// `a` for 0, `b` for 1 …
pub fn name(index: usize) -> String {
    char::from(b'a' + u8::try_from(index).unwrap()).to_string()
}

/// An engine that serves `m`, `m2` and `m3`.
pub fn engine(name: &str, pace: Pace) -> MockEngine {
    let models = ["m", "m2", "m3"].map(EngineModel::new);
    let spec = MockSpec { pace, ..MockSpec::new(name, models) };
    block_on(MockEngine::start_local(spec)).unwrap()
}

/// The configuration of a fleet.
pub fn yaml(engines: &[MockEngine], models: &[&str], setup: Setup<'_>) -> String {
    let Setup { strategy, routing, health, sections, backend, .. } = setup;
    let mut text = format!(
        "routing: {{ strategy: {strategy}, {routing} }}\nhealth: {{ {health} }}\n{sections}\n\
         backends:\n"
    );
    for (index, (engine, model)) in engines.iter().zip(models).enumerate() {
        text += &format!(
            "  - {{ name: {}, url: {}, priority: {index}, models: [{model}], {backend} }}\n",
            engine.spec().name,
            engine.url()
        );
    }
    text
}

/// The engine's response without a fault.
pub fn reference(name: &str, path: &str, body: &Value) -> Response {
    let engine = engine(name, Pace::at_once(8));
    let response = client::post(engine.addr(), path, body);
    assert_eq!(response.status, 200, "{}", response.text());
    response
}

/// A connection with a JSON request on it, its response not read.
pub fn begin(address: SocketAddr, path: &str, body: &Value) -> Client {
    let mut client = Client::connect(address);
    let json = [("content-type", "application/json")];
    client.send("POST", path, &json, body.to_string().as_bytes());
    client
}

/// Reads off a stream until `text` has come.
pub fn read_until(client: &mut Client, text: &str) -> String {
    let mut read = String::new();
    while !read.contains(text) {
        let bytes = client.read_raw().unwrap_or_else(|error| panic!("{error}: {text:?}: {read}"));
        assert!(!bytes.is_empty(), "the stream ended before {text:?}: {read}");
        read += &String::from_utf8_lossy(&bytes);
    }
    read
}

/// The sum of the samples that begin with `start`: a whole name, or a name and its first labels.
/// There must be one: a label that is written differently would read as 0.
pub fn metric(penstock: &Penstock, start: &str) -> f64 {
    find_metric(penstock, start).unwrap_or_else(|| panic!("no sample begins with {start}"))
}

/// The same for samples that may not be there yet.
pub fn find_metric(penstock: &Penstock, start: &str) -> Option<f64> {
    let page = penstock.admin("/metrics").text();
    let name = start.split('{').next().unwrap();
    let is_known = metric_rows().any(|row| name.starts_with(row.name));
    assert!(is_known, "there is no metric called {name}");
    let is_whole_name =
        |line: &str| start.contains('{') || line[name.len()..].starts_with(['{', ' ']);
    let samples: Vec<f64> = page
        .lines()
        .filter(|line| line.starts_with(start) && is_whole_name(line))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    (!samples.is_empty()).then(|| samples.iter().sum())
}

/// The way in which a client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    Fin,
    Reset,
}

impl Leave {
    pub const BOTH: [Self; 2] = [Self::Fin, Self::Reset];

    /// Disconnects. Keep the returned value: unread bytes would turn the FIN into a reset.
    pub fn now(self, client: Client) -> Option<Client> {
        match self {
            Self::Fin => {
                client.stream.shutdown(Shutdown::Write).unwrap();
                Some(client)
            }
            Self::Reset => {
                SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
                None
            }
        }
    }
}
