//! A running mock engine: its listener, its connections, and the controls that tests use.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

use super::connection;
use super::connection::Shared;
use super::fault::Fault;
use super::library::Library;
use super::memory::Memory;
use super::received::{Cancelled, Malformed, Received, TrafficCounters};
use super::records::Records;
use super::script::FaultScript;
use super::spec::MockSpec;

// A burst of connections must not find it full: that would look like a slow engine.
const BACKLOG: u32 = 1024;

/// A running engine. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct MockEngine {
    shared: Arc<Shared>,
    addr: SocketAddr,
    listening: Mutex<Listening>,
}

#[derive(Debug)]
enum Listening {
    /// Accepting.
    On(JoinHandle<()>),
    /// Refusing, with the port held so that no other process can take it.
    Off(TcpSocket),
    /// Between the two states, or the change failed.
    Neither,
}

impl MockEngine {
    /// Starts an engine on `addr`; port 0 picks a free one.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(spec: MockSpec, addr: SocketAddr) -> io::Result<Self> {
        let listener = bind(addr)?.listen(BACKLOG)?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: FaultScript::new(),
            records: Records::new(spec.keep_bodies),
            memory: spec.memory.map(Memory::new),
            library: Library::of(&spec),
            spec,
            connections: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(Arc::clone(&shared), listener));
        Ok(Self { shared, addr, listening: Mutex::new(Listening::On(accepting)) })
    }

    /// Starts an engine on a free port of loopback.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start_local(spec: MockSpec) -> io::Result<Self> {
        Self::start(spec, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Returns the address of its listener.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the URL of its listener, as `http://address:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the specification of the engine that it imitates.
    pub fn spec(&self) -> &MockSpec {
        &self.shared.spec
    }

    /// Returns the last 256 requests for work, oldest first, including those still arriving.
    pub fn received(&self) -> Vec<Received> {
        self.shared.records.received()
    }

    /// Returns the last 256 requests for information: GET, HEAD and `/api/show`.
    pub fn probes(&self) -> Vec<Received> {
        self.shared.records.probes()
    }

    /// Returns the last 256 clients that left before their response was complete.
    pub fn cancelled(&self) -> Vec<Cancelled> {
        self.shared.records.cancelled()
    }

    /// Returns the last 256 inputs that are not a strictly well-formed request.
    pub fn malformed(&self) -> Vec<Malformed> {
        self.shared.records.malformed()
    }

    /// Returns the counters since the start or the last [`Self::clear`].
    pub fn counters(&self) -> TrafficCounters {
        self.shared.records.counters()
    }

    /// Returns the number of requests for work whose head arrived and which have not ended.
    pub fn open_requests(&self) -> usize {
        self.counters().open_requests
    }

    /// Returns the number of connections accepted since the start or the last [`Self::clear`].
    pub fn connections_accepted(&self) -> usize {
        self.counters().connections
    }

    /// Clears records and counters; open requests stay counted and the script stays.
    pub fn clear(&self) {
        self.shared.records.clear();
    }

    /// Returns as soon as the counters satisfy `predicate`. A response is counted when its last
    /// byte was passed to the kernel; a client may see it before that.
    ///
    /// # Errors
    /// `TimedOut`, with the current counters, after ten seconds.
    pub async fn wait_for(
        &self,
        predicate: impl FnMut(&TrafficCounters) -> bool,
    ) -> io::Result<TrafficCounters> {
        self.shared.records.wait_for(predicate).await
    }

    /// Queues faults: each following request for work takes one. Faults at accept are taken by each
    /// following connection instead. With an empty queue nothing fails.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.script.queue(faults);
    }

    /// Returns the number of queued faults that were not taken yet.
    pub fn faults_left(&self) -> usize {
        self.shared.script.left()
    }

    /// Sets the fault of every request for work that finds the queue empty.
    pub fn always(&self, fault: Option<Fault>) {
        self.shared.script.set_always(fault);
    }

    /// Sets the fault of every request whose body contains `text`, unless a queued fault applies to
    /// it.
    pub fn fail_on(&self, text: &str, fault: Fault) {
        self.shared.script.fail_on(text, fault);
    }

    /// Sets the fault of every request for information. Faults at accept and `CloseUnread` do not
    /// apply.
    pub fn always_probes(&self, fault: Option<Fault>) {
        self.shared.script.set_probes(fault);
    }

    /// Sets the status of every information page (health, models); 200 is healthy.
    pub fn set_health(&self, status: u16) {
        self.shared.script.set_health(status);
    }

    /// Serves `text` at a path such as `/metrics`; `None` removes it.
    pub fn set_page(&self, path: &str, text: Option<&str>) {
        self.shared.script.set_page(path, text);
    }

    /// Refuses new connections; open ones go on. The port stays reserved.
    ///
    /// # Errors
    /// When the port cannot be held.
    pub async fn stop_listening(&self) -> io::Result<()> {
        let before = std::mem::replace(&mut *self.listening(), Listening::Neither);
        let held = match before {
            Listening::On(accepting) => {
                // Bind again before the old listener closes, or another process might take the
                // port.
                let held = bind(self.addr)?;
                accepting.abort();
                // The listener closes only when the task has ended; its error is the expected
                // abort.
                _ = accepting.await;
                held
            }
            Listening::Off(held) => held,
            Listening::Neither => bind(self.addr)?,
        };
        *self.listening() = Listening::Off(held);
        Ok(())
    }

    pub async fn close_connections(&self) {
        let mut open = std::mem::take(&mut self.shared.connections().open);
        open.shutdown().await;
    }

    /// Stops as a killed process does: refuses new connections and closes the open ones.
    ///
    /// # Errors
    /// When the port cannot be held.
    pub async fn kill(&self) -> io::Result<()> {
        self.stop_listening().await?;
        self.close_connections().await;
        Ok(())
    }

    /// Listens again, on the same port.
    ///
    /// # Errors
    /// When the port cannot be listened on.
    pub async fn resume(&self) -> io::Result<()> {
        let mut listening = self.listening();
        let held = match std::mem::replace(&mut *listening, Listening::Neither) {
            Listening::On(accepting) => {
                *listening = Listening::On(accepting);
                return Ok(());
            }
            Listening::Off(held) => held,
            Listening::Neither => bind(self.addr)?,
        };
        let accepting = accept(Arc::clone(&self.shared), held.listen(BACKLOG)?);
        *listening = Listening::On(tokio::spawn(accepting));
        Ok(())
    }

    fn listening(&self) -> MutexGuard<'_, Listening> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MockEngine {
    fn drop(&mut self) {
        if let Listening::On(accepting) = &*self.listening() {
            accepting.abort();
        }
        let mut connections = self.shared.connections();
        connections.is_over = true;
        connections.open.abort_all();
    }
}

fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Old connections of the engine may linger on the port.
    socket.set_reuseaddr(true)?;
    // The port can be held while its listener still exists.
    socket.set_reuseport(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let mut number = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, or the client left while queued: both pass.
            tokio::task::yield_now().await;
            continue;
        };
        number += 1;
        let mut connections = shared.connections();
        if connections.is_over {
            return;
        }
        while connections.open.try_join_next().is_some() {}
        connections.open.spawn(connection::serve(Arc::clone(&shared), stream, number));
    }
}
