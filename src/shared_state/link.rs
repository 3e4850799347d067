//! A connection to the server, with the scripts it has loaded.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::tls::ClientTls;
use penstock_config::{RateLimits, Secret, SharedStateConfig};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, cmd, pipe};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::SharedAccount;
use super::permit::Settlement;

const ADMIT: &str = include_str!("admit.lua");
const SETTLE: &str = include_str!("settle.lua");
const LOAD: &str = include_str!("load.lua");
/// The timeout of a connection attempt, and of commands that no request waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The reason for which a command to the server failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// An error of the server or the connection.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// A failure to connect, or to set up TLS.
    #[error("{0}")]
    Connect(#[from] io::Error),
    #[error("the server did not respond within 1 s")]
    Late(#[from] Elapsed),
    /// No address is configured.
    #[error("no server is configured")]
    NoAddress,
    /// A value cannot be serialized.
    #[error("{0}")]
    Report(#[from] serde_json::Error),
}

impl LinkError {
    /// Returns whether the server is reachable but refuses the command, for example because another
    /// program uses keys of the same name.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            // NOSCRIPT comes from a server that has restarted: the next connection loads the
            // scripts again.
            Self::Redis(error) => {
                error.code().is_some_and(|code| code != "NOSCRIPT") && !error.is_io_error()
            }
            Self::Report(_) => true,
            Self::Connect(_) | Self::Late(_) | Self::NoAddress => false,
        }
    }
}

/// The share of a request in the limits of its accounts.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pub(super) tokens: u64,
    /// The name under which the request counts as in flight.
    pub(super) lease: &'a str,
    /// The time after which it no longer counts, unless the lease is renewed.
    pub(super) lease_time: Duration,
}

/// A replica's report of its requests in flight, and the reports it knows of other replicas.
#[derive(Debug)]
pub(super) struct ReportExchange<'a> {
    /// The keys of the reports, of their versions and of their ends.
    pub(super) keys: [String; 3],
    /// The name of this replica.
    pub(super) instance: &'a str,
    /// The time for which its report counts.
    pub(super) lease: Duration,
    /// The version of its report.
    pub(super) version: u64,
    /// The report; empty if unchanged.
    pub(super) report: &'a str,
    /// The other replicas, with the versions of their reports.
    pub(super) known: Vec<(&'a str, &'a str)>,
}

/// The scripts whose arguments and responses are words.
#[derive(Debug, Clone, Copy)]
pub(super) enum RedisScript {
    ReserveMoney,
    ShareMoney,
    CountPenstocks,
    ExchangeRecords,
}

/// The texts of the scripts, in their order.
const SCRIPTS: [&str; 4] = [
    concat!(include_str!("budgets/account.lua"), include_str!("budgets/reserve.lua")),
    concat!(include_str!("budgets/account.lua"), include_str!("budgets/share.lua")),
    include_str!("budgets/penstocks.lua"),
    include_str!("records/exchange.lua"),
];

/// A connection, shared by all requests: commands are pipelined.
pub(super) struct Link {
    connection: MultiplexedConnection,
    name: String,
    /// The hashes of [`SCRIPTS`].
    scripts: Vec<String>,
    /// The hashes of the scripts on the server.
    admit: String,
    settle: String,
    load: String,
}

/// Connects to the first address of a name that accepts a connection, because some may be
/// unreachable.
async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut dialing: JoinSet<_> =
        lookup_host((host, port)).await?.map(TcpStream::connect).collect();
    let mut reason = io::Error::other("the name has no address");
    while let Some(dialed) = dialing.join_next().await {
        match dialed.map_err(io::Error::other).flatten() {
            Ok(socket) => return Ok(socket),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

/// Turns a connection in plain text into one with TLS.
async fn secure(
    socket: TcpStream,
    tls: &ClientTls,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let mut config = ClientConfig::clone(&tls.config());
    // The configured protocols are those of HTTP, and some servers refuse unknown ones.
    config.alpn_protocols.clear();
    let name = ServerName::try_from(tls.server_name().to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}

/// Greets the server and logs in.
async fn open(
    login: &RedisConnectionInfo,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<MultiplexedConnection, LinkError> {
    let patience = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let opening = MultiplexedConnection::new_with_config(login, stream, patience);
    let (connection, driver) = timeout(PATIENCE, opening).await??;
    // The task ends with the last clone of the connection.
    tokio::spawn(driver);
    Ok(connection)
}

impl std::fmt::Debug for Link {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Link {
    /// Connects and loads the scripts.
    pub(super) async fn connect(config: &SharedStateConfig) -> Result<Self, LinkError> {
        let address = config.redis.as_ref().ok_or(LinkError::NoAddress)?;
        let mut login = RedisConnectionInfo::default().set_db(address.database.into());
        if !config.username.is_empty() {
            login = login.set_username(&config.username);
        }
        if let Some(password) = config.password.as_ref().map(Secret::reveal) {
            login = login.set_password(password);
        }
        let socket = timeout(PATIENCE, dial(&address.host, address.port)).await??;
        // Requests wait for these short commands; Nagle's algorithm would hold them back.
        socket.set_nodelay(true)?;
        let mut connection = match &config.client_tls.0 {
            None => open(&login, socket).await?,
            Some(tls) => open(&login, timeout(PATIENCE, secure(socket, tls)).await??).await?,
        };
        // Loaded once per connection: each call then sends a hash of 40 bytes and not the script.
        let admit = cmd("SCRIPT").arg("LOAD").arg(ADMIT).query_async(&mut connection).await?;
        let settle = cmd("SCRIPT").arg("LOAD").arg(SETTLE).query_async(&mut connection).await?;
        let load = cmd("SCRIPT").arg("LOAD").arg(LOAD).query_async(&mut connection).await?;
        let mut all = pipe();
        for script in SCRIPTS {
            all.cmd("SCRIPT").arg("LOAD").arg(script);
        }
        let scripts = all.query_async(&mut connection).await?;
        Ok(Self { connection, name: address.to_string(), scripts, admit, settle, load })
    }

    /// The server, for logs.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs the script that reserves a request's share of all accounts, or nothing.
    pub(super) async fn admit(
        &self,
        keys: &[String],
        accounts: &[SharedAccount],
        reservation: &Reservation<'_>,
    ) -> Result<Vec<i64>, LinkError> {
        let Reservation { tokens, lease, lease_time } = *reservation;
        let mut script = call(&self.admit, keys);
        script.arg(tokens).arg(lease).arg(millis(lease_time));
        for SharedAccount { limits, .. } in accounts {
            let RateLimits { requests_per_minute, tokens_per_minute, tokens_per_day, in_flight } =
                limits;
            script.arg(requests_per_minute.unwrap_or(0)).arg(tokens_per_minute.unwrap_or(0));
            script.arg(tokens_per_day.unwrap_or(0)).arg(in_flight.unwrap_or(0));
        }
        Ok(script.query_async(&mut self.connection.clone()).await?)
    }

    /// Reports the ends of requests, each with its lease.
    pub(super) async fn settle(
        &self,
        ended: impl Iterator<Item = (&Settlement, String)>,
    ) -> Result<(), LinkError> {
        let mut all = pipe();
        for (Settlement { keys, limits, day, change, .. }, lease) in ended {
            let mut script = call(&self.settle, keys);
            script.arg(*change).arg(lease).arg(*day);
            for limits in limits {
                script.arg(limits.tokens_per_minute.unwrap_or(0));
                script.arg(limits.tokens_per_day.unwrap_or(0));
            }
            all.add_command(script).ignore();
        }
        self.send(all).await
    }

    /// Reports this replica's load, and returns the load of the others: see `load.lua`.
    pub(super) async fn exchange(
        &self,
        exchange: &ReportExchange<'_>,
    ) -> Result<Vec<Vec<u8>>, LinkError> {
        let ReportExchange { keys, instance, lease, version, report, known } = exchange;
        let mut script = call(&self.load, keys);
        script.arg(*instance).arg(millis(*lease)).arg(*version).arg(*report);
        for (penstock, version) in known {
            script.arg(*penstock).arg(*version);
        }
        Ok(script.query_async(&mut self.connection.clone()).await?)
    }

    pub(super) async fn run(
        &self,
        script: RedisScript,
        keys: &[String],
        arguments: &[String],
    ) -> Result<Vec<String>, LinkError> {
        let mut call = call(self.hash(script), keys);
        call.arg(arguments);
        Ok(call.query_async(&mut self.connection.clone()).await?)
    }

    /// Runs a script several times, each with its keys and arguments.
    pub(super) async fn run_all(
        &self,
        script: RedisScript,
        calls: &[(Vec<String>, Vec<String>)],
    ) -> Result<Vec<Vec<String>>, LinkError> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut all = pipe();
        for (keys, arguments) in calls {
            let mut one = call(self.hash(script), keys);
            one.arg(arguments);
            all.add_command(one);
        }
        Ok(all.query_async(&mut self.connection.clone()).await?)
    }

    fn hash(&self, script: RedisScript) -> &str {
        self.scripts.get(script as usize).map_or("", String::as_str)
    }

    /// Extends leases by the server's clock. Without leases it only checks that the server
    /// responds.
    pub(super) async fn renew(
        &self,
        leases: &[(String, String)],
        lease_time: Duration,
    ) -> Result<(), LinkError> {
        let mut connection = self.connection.clone();
        let (seconds, _micros): (u64, u64) = cmd("TIME").query_async(&mut connection).await?;
        let until = seconds.saturating_mul(1000).saturating_add(millis(lease_time));
        for leases in leases.chunks(256) {
            let mut all = pipe();
            for (key, lease) in leases {
                all.cmd("ZADD").arg(key).arg(until).arg(lease).ignore();
                all.cmd("PEXPIRE").arg(key).arg(millis(lease_time) * 2).ignore();
            }
            self.send(all).await?;
        }
        Ok(())
    }

    pub(super) async fn release(&self, leases: &[(String, String)]) -> Result<(), LinkError> {
        let mut all = pipe();
        for (key, lease) in leases {
            all.cmd("ZREM").arg(key).arg(lease).ignore();
        }
        self.send(all).await
    }

    async fn send(&self, commands: Pipeline) -> Result<(), LinkError> {
        if commands.is_empty() {
            return Ok(());
        }
        Ok(commands.query_async(&mut self.connection.clone()).await?)
    }
}

fn call(script: &str, keys: &[String]) -> Cmd {
    let mut call = cmd("EVALSHA");
    call.arg(script).arg(keys.len()).arg(keys);
    call
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
