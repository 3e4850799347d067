//! Looks up names: with the system's resolver, or at the DNS servers of `discovery.dns_servers`.
//! SRV records are always looked up at a DNS server: one of those, or of `/etc/resolv.conf`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use penstock_config::DiscoveryConfig;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::message::{DnsResponse, Question, RecordData, RecordType, UDP_SIZE};
use super::resolv_conf::ResolvConf;

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The number of queries to each server: a UDP packet may be lost.
const ROUNDS: u32 = 2;
const UNKNOWN_NAME: u16 = 3;

/// The reason why a name was not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("{0}")]
    System(#[source] io::Error),
    #[error("the name has no addresses")]
    NoAddresses,
    #[error("DNS server {server} cannot be reached: {source}")]
    Unreachable { server: SocketAddr, source: io::Error },
    #[error("DNS server {server} responded with code {status}")]
    Refused { server: SocketAddr, status: u16 },
    #[error("timed out")]
    TimedOut,
    #[error("'{name}' is not a DNS name")]
    NotAName { name: String },
}

/// An SRV record, with an address of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) address: SocketAddr,
    pub(super) priority: u16,
    pub(super) weight: u16,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Resolver {
    /// `discovery.dns_servers`; empty for the system's resolver.
    servers: Vec<SocketAddr>,
    timeout: Duration,
}

impl Resolver {
    pub(crate) fn new(config: &DiscoveryConfig) -> Self {
        Self { servers: config.dns_servers.clone(), timeout: config.timeout }
    }

    /// Returns all addresses of a host, at least one.
    pub(super) async fn host(&self, host: &str) -> Result<Vec<IpAddr>, LookupError> {
        // No DNS server may receive a query for localhost (RFC 6761, 6.3).
        let found = if self.servers.is_empty() || host.eq_ignore_ascii_case("localhost") {
            let looking = tokio::net::lookup_host((host, 0));
            let found = tokio::time::timeout(self.timeout, looking).await;
            let found = found.map_err(|_elapsed| LookupError::TimedOut)?;
            found.map_err(LookupError::System)?.map(|address| address.ip()).collect()
        } else {
            self.query_host(&self.servers, host).await?
        };
        if found.is_empty() { Err(LookupError::NoAddresses) } else { Ok(found) }
    }

    /// Returns the services that the SRV records of `name` list, at least one, each with one
    /// address.
    pub(super) async fn services(&self, name: &str) -> Result<Vec<Service>, LookupError> {
        if !self.servers.is_empty() {
            return self.services_of(&self.servers, name).await;
        }
        // Read each time: it changes when the network does.
        let text = std::fs::read_to_string(RESOLV_CONF).map_err(LookupError::System)?;
        let conf = ResolvConf::parse(&text);
        for candidate in conf.candidates(name) {
            match self.services_of(&conf.servers, &candidate).await {
                Err(LookupError::NoAddresses) => {}
                // A server that fails does not show that the name is unknown: no other suffix is
                // tried.
                ended => return ended,
            }
        }
        Err(LookupError::NoAddresses)
    }

    async fn services_of(
        &self,
        servers: &[SocketAddr],
        name: &str,
    ) -> Result<Vec<Service>, LookupError> {
        let response = self.query(servers, name, RecordType::Srv).await?;
        let mut found = Vec::new();
        for record in response.of(name) {
            // The root as target means that there is no such service.
            let RecordData::Service { priority, weight, port, target } = record else { continue };
            if target.is_empty() {
                continue;
            }
            let known: Vec<IpAddr> = addresses(&response, target).collect();
            let known = match preferred(known).first() {
                Some(address) => Some(*address),
                None => preferred(self.query_host(servers, target).await?).first().copied(),
            };
            found.extend(known.map(|address| Service {
                address: SocketAddr::new(address, *port),
                priority: *priority,
                weight: *weight,
            }));
        }
        if found.is_empty() { Err(LookupError::NoAddresses) } else { Ok(found) }
    }

    /// Returns the addresses of a host; empty if it has none.
    async fn query_host(
        &self,
        servers: &[SocketAddr],
        host: &str,
    ) -> Result<Vec<IpAddr>, LookupError> {
        let host = host.trim_end_matches('.');
        let (v4, v6) = tokio::join!(
            self.query(servers, host, RecordType::A),
            self.query(servers, host, RecordType::Aaaa),
        );
        let mut found: Vec<IpAddr> = addresses(&v4?, host).collect();
        // Some servers know nothing of IPv6 addresses.
        match v6 {
            Ok(response) => found.extend(addresses(&response, host)),
            Err(error) if found.is_empty() => return Err(error),
            Err(_) => {}
        }
        Ok(found)
    }

    /// Returns the first response that is a success or says that the name is unknown.
    async fn query(
        &self,
        servers: &[SocketAddr],
        name: &str,
        record_type: RecordType,
    ) -> Result<DnsResponse, LookupError> {
        // All attempts share the timeout: a dead first server must not use it up.
        let part = self.timeout / (ROUNDS * u32::try_from(servers.len().max(1)).unwrap_or(1));
        let mut failed = LookupError::TimedOut;
        for _ in 0..ROUNDS {
            for server in servers {
                // A random id, and the port that the system picks, make forged responses hard (RFC
                // 5452).
                let id = SmallRng::from_os_rng().random();
                let question = Question { id, name, record_type };
                let asked = tokio::time::timeout(part, exchange(*server, question)).await;
                failed = match asked.unwrap_or(Err(LookupError::TimedOut)) {
                    Ok(response) if matches!(response.status, 0 | UNKNOWN_NAME) => {
                        return Ok(response);
                    }
                    Ok(response) => {
                        LookupError::Refused { server: *server, status: response.status }
                    }
                    Err(error) => error,
                };
            }
        }
        Err(failed)
    }
}

fn addresses<'a>(response: &'a DnsResponse, name: &'a str) -> impl Iterator<Item = IpAddr> {
    response.of(name).filter_map(|data| match data {
        RecordData::Address(address) => Some(*address),
        RecordData::Alias(_) | RecordData::Service { .. } => None,
    })
}

/// Keeps the addresses of one family, IPv4 if there are any: with both, an engine would count
/// twice.
pub(super) fn preferred(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    if addresses.iter().any(IpAddr::is_ipv4) {
        addresses.retain(IpAddr::is_ipv4);
    }
    addresses
}

/// Queries one server: over UDP, and again over TCP if the response does not fit a packet.
async fn exchange(server: SocketAddr, question: Question<'_>) -> Result<DnsResponse, LookupError> {
    let not_a_name = || LookupError::NotAName { name: question.name.to_owned() };
    let query = question.to_query().ok_or_else(not_a_name)?;
    let unreachable = |source| LookupError::Unreachable { server, source };
    let response = over_udp(server, question, &query).await.map_err(unreachable)?;
    if response.is_truncated {
        return over_tcp(server, question, &query).await.map_err(unreachable);
    }
    Ok(response)
}

async fn over_udp(
    server: SocketAddr,
    question: Question<'_>,
    query: &[u8],
) -> io::Result<DnsResponse> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // A connected socket receives packets of this server only.
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut packet = vec![0; usize::from(UDP_SIZE)];
    loop {
        let length = socket.recv(&mut packet).await?;
        let packet = packet.get(..length).unwrap_or_default();
        // Anything else may be forged, or a late response to an earlier query.
        if let Some(response) = question.read(packet) {
            return Ok(response);
        }
    }
}

async fn over_tcp(
    server: SocketAddr,
    question: Question<'_>,
    query: &[u8],
) -> io::Result<DnsResponse> {
    let mut stream = TcpStream::connect(server).await?;
    // Over TCP the length precedes each message (RFC 1035, 4.2.2).
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], query].concat()).await?;
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the response is malformed");
    question.read(&message).ok_or_else(malformed)
}
