//! A small DNS server on loopback, over UDP and TCP, whose records a story changes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// The largest UDP response; a longer one is truncated.
const MAX_UDP_SIZE: usize = 512;

/// An SRV record.
#[derive(Debug, Clone)]
pub struct Service {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub target: String,
}

#[derive(Default)]
struct Records {
    hosts: BTreeMap<String, Vec<Ipv4Addr>>,
    services: BTreeMap<String, Vec<Service>>,
}

#[derive(Default)]
struct Shared {
    records: Mutex<Records>,
    fails: AtomicBool,
    over_tcp: AtomicUsize,
}

/// A server; its threads end with the process.
pub struct DnsServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl DnsServer {
    pub fn start() -> Self {
        let shared: Arc<Shared> = Arc::default();
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
                break (tcp, udp);
            }
        };
        let address = udp.local_addr().unwrap();
        let for_udp = Arc::clone(&shared);
        thread::spawn(move || serve_udp(&udp, &for_udp));
        let for_tcp = Arc::clone(&shared);
        thread::spawn(move || serve_tcp(&tcp, &for_tcp));
        Self { address, shared }
    }

    /// The keys of `discovery` with which penstock asks this server, ten times a second.
    pub fn discovery(&self) -> String {
        format!("discovery: {{ dns_servers: [\"{}\"], dns_interval: 100ms }}\n", self.address)
    }

    /// From now on `name` has these addresses, `127.0.0.x` each.
    pub fn set_host(&self, name: &str, last: &[u8]) {
        let addresses = last.iter().map(|last| Ipv4Addr::new(127, 0, 0, *last)).collect();
        self.shared.records.lock().unwrap().hosts.insert(name.to_owned(), addresses);
    }

    /// From now on `name` has these SRV records.
    pub fn set_services(&self, name: &str, services: &[Service]) {
        let services = services.to_vec();
        self.shared.records.lock().unwrap().services.insert(name.to_owned(), services);
    }

    /// From now on every query fails (SERVFAIL), or none.
    pub fn set_failing(&self, fails: bool) {
        self.shared.fails.store(fails, Ordering::SeqCst);
    }

    /// Queries over TCP so far.
    pub fn queries_over_tcp(&self) -> usize {
        self.shared.over_tcp.load(Ordering::SeqCst)
    }
}

fn serve_udp(socket: &UdpSocket, shared: &Shared) {
    let mut packet = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut packet) {
        let mut response = shared.respond(&packet[..length]);
        if response.len() > MAX_UDP_SIZE {
            // The question without records, marked as truncated.
            response.truncate(question_end(&packet));
            response[2] |= 0x02;
            response[6..12].fill(0);
        }
        socket.send_to(&response, from).unwrap();
    }
}

fn serve_tcp(listener: &TcpListener, shared: &Shared) {
    for mut stream in listener.incoming().flatten() {
        shared.over_tcp.fetch_add(1, Ordering::SeqCst);
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut query).unwrap();
        let response = shared.respond(&query);
        let length = u16::try_from(response.len()).unwrap();
        stream.write_all(&length.to_be_bytes()).unwrap();
        stream.write_all(&response).unwrap();
    }
}

/// Returns the end of the question that begins after the header.
fn question_end(message: &[u8]) -> usize {
    let mut at = 12;
    while message[at] != 0 {
        at += 1 + usize::from(message[at]);
    }
    at + 5
}

fn encode(name: &str) -> Vec<u8> {
    let labels = name.split('.');
    let mut bytes: Vec<u8> = labels
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat())
        .collect();
    bytes.push(0);
    bytes
}

fn record(name: &[u8], record_type: u16, data: &[u8]) -> Vec<u8> {
    let fields = [record_type, 1, 0, 5, u16::try_from(data.len()).unwrap()];
    [name, &fields.map(u16::to_be_bytes).concat(), data].concat()
}

impl Shared {
    fn respond(&self, query: &[u8]) -> Vec<u8> {
        let end = question_end(query);
        let (mut name, mut at) = (String::new(), 12);
        while query[at] != 0 {
            let label = at + 1..at + 1 + usize::from(query[at]);
            name += std::str::from_utf8(&query[label.clone()]).unwrap();
            name.push('.');
            at = label.end;
        }
        let name = name.trim_end_matches('.').to_owned();
        let record_type = u16::from_be_bytes([query[end - 4], query[end - 3]]);
        let records = self.records.lock().unwrap();
        let pointer = [0xc0, 12];
        let hosts = records.hosts.get(&name);
        let services = records.services.get(&name);
        let found: Vec<Vec<u8>> = match record_type {
            1 => hosts.into_iter().flatten().map(|ip| record(&pointer, 1, &ip.octets())).collect(),
            33 => services
                .into_iter()
                .flatten()
                .map(|one| {
                    let fields = [one.priority, one.weight, one.port].map(u16::to_be_bytes);
                    record(&pointer, 33, &[&fields.concat()[..], &encode(&one.target)].concat())
                })
                .collect(),
            _ => Vec::new(),
        };
        let status = match (hosts, services) {
            _ if self.fails.load(Ordering::SeqCst) => 2,
            (None, None) => 3,
            _ => 0,
        };
        let count = if status == 2 { 0 } else { u16::try_from(found.len()).unwrap() };
        let mut response = query[..2].to_vec();
        for field in [0x8180 | status, 1, count, 0, 0] {
            response.extend(u16::to_be_bytes(field));
        }
        response.extend(&query[12..end]);
        response.extend(found.into_iter().take(usize::from(count)).flatten());
        response
    }
}

/// An address on loopback that ends in `last`.
pub fn loopback(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), port)
}
