//! The least a Pingora proxy can do: round robin over the backends, TCP checks once a second, a
//! failed connect repeated up to three times, one thread. Its limits in time are penstock's own, so
//! that it arms as many timers; TCP_NODELAY is set by Pingora on both sides.
//!
//! `floor LISTEN BACKEND[,BACKEND...]`

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::lb::LoadBalancer;
use pingora::lb::health_check::TcpHealthCheck;
use pingora::lb::selection::RoundRobin;
use pingora::prelude::{Error, HTTPStatus, HttpPeer, Result, Server, background_service};
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::configuration::ServerConf;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONNECT: Duration = Duration::from_secs(2);
const TRANSFER: Duration = Duration::from_secs(60);
const IDLE_BACKEND: Duration = Duration::from_secs(4);
const IDLE_CLIENT_SECONDS: u64 = 75;
const MAX_TRIES: u32 = 4;

struct Floor(Arc<LoadBalancer<RoundRobin>>);

#[async_trait]
impl ProxyHttp for Floor {
    type CTX = u32;

    fn new_ctx(&self) -> u32 {
        0
    }

    async fn early_request_filter(&self, session: &mut Session, _tries: &mut u32) -> Result<()> {
        session.set_keepalive(Some(IDLE_CLIENT_SECONDS));
        session.set_write_timeout(Some(TRANSFER));
        Ok(())
    }

    async fn upstream_peer(&self, _: &mut Session, _tries: &mut u32) -> Result<Box<HttpPeer>> {
        let backend = self.0.select(b"", 16);
        let backend = backend.ok_or_else(|| Error::explain(HTTPStatus(503), "no backend"))?;
        let mut peer = HttpPeer::new(backend, false, String::new());
        peer.options.connection_timeout = Some(CONNECT);
        peer.options.total_connection_timeout = Some(CONNECT);
        peer.options.read_timeout = Some(TRANSFER);
        peer.options.write_timeout = Some(TRANSFER);
        peer.options.idle_timeout = Some(IDLE_BACKEND);
        Ok(Box::new(peer))
    }

    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        tries: &mut u32,
        mut error: Box<Error>,
    ) -> Box<Error> {
        *tries += 1;
        error.set_retry(*tries < MAX_TRIES);
        error
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().expect("an address to listen on");
    let backends = arguments.next().expect("the addresses of the backends");
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: 2048,
        // Ends when told to, instead of five minutes later.
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let balancer = LoadBalancer::<RoundRobin>::try_from_iter(backends.split(','));
    let mut balancer = balancer.expect("addresses as in 127.0.0.1:8000");
    balancer.set_health_check(TcpHealthCheck::new());
    balancer.health_check_frequency = Some(Duration::from_secs(1));
    let checks = background_service("checks", balancer);
    let mut proxy = http_proxy_service(&server.configuration, Floor(checks.task()));
    proxy.add_tcp(&listen);
    server.add_service(proxy);
    server.add_service(checks);
    server.run_forever();
}
