//! The least a Pingora proxy can do: round robin over the backends, TCP checks once a second, a
//! failed connect retried up to three times, one thread. Its limits in time are penstock's own, so
//! that it arms as many timers; TCP_NODELAY is set by Pingora on both sides.
//!
//! `floor LISTEN LISTEN_HTTP2 LISTEN_TLS CERT KEY BACKEND[,BACKEND...]`: the second port also takes
//! HTTP/2 by prior knowledge, the third HTTP/1.1 and HTTP/2 over TLS.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::HttpServerOptions;
use pingora::lb::LoadBalancer;
use pingora::lb::health_check::TcpHealthCheck;
use pingora::lb::selection::RoundRobin;
use pingora::listeners::tls::TlsSettings;
use pingora::prelude::{Error, HTTPStatus, HttpPeer, Result, Server, background_service};
use pingora::proxy::{ProxyHttp, ProxyServiceBuilder, Session, http_proxy_service};
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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, listen_http2, listen_tls, cert, key, backends] = &arguments[..] else {
        panic!("six arguments: three addresses to listen on, certificate, key, backends");
    };
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: 2048,
        // Ends at SIGTERM, instead of five minutes later.
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
    proxy.add_tcp(listen);
    server.add_service(proxy);
    // A separate service: detecting HTTP/2 must not cost the plain port.
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    let other = ProxyServiceBuilder::new(&server.configuration, Floor(checks.task()));
    let mut other = other.server_options(options).build();
    other.add_tcp(listen_http2);
    let mut tls = TlsSettings::intermediate(cert, key).expect("a certificate and its key");
    tls.enable_h2();
    other.add_tls_with_settings(listen_tls, None, tls);
    server.add_service(other);
    server.add_service(checks);
    server.run_forever();
}
