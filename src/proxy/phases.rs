//! The data plane as Pingora sees it: `ProxyHttp`, with every request answered in `request_filter`.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::HeaderValue;
use pingora::apps::ServerApp;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use pingora_proxy::{FailToProxy, HttpProxy, ProxyHttp, Session};

use super::Proxy;
use super::context::{Ending, RequestContext};
use crate::api::Dialect;
use crate::clock::now;
use crate::downstream::acceptor::Acceptor;
use crate::downstream::body::BodyLength;
use crate::downstream::counted::Counted;

/// The data plane as a Pingora service, sharing one [`Proxy`].
#[derive(Clone)]
pub struct DataPlane(pub Arc<Proxy>);

impl DataPlane {
    /// The application behind the data port's listeners.
    pub fn into_app(self, conf: &Arc<ServerConf>) -> impl ServerApp + Send + Sync + 'static {
        let (current, observed) = (Arc::clone(&self.0), Arc::clone(&self.0));
        let clients = Arc::clone(&self.0.clients);
        let mut app = HttpProxy::new(self, Arc::clone(conf));
        app.handle_init_modules();
        Acceptor::new(
            app,
            clients,
            Box::new(move || current.generation()),
            Box::new(move |code, client| observed.tell_refused(code, client)),
        )
    }
}

#[async_trait]
impl ProxyHttp for DataPlane {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext {
            generation: self.0.generation(),
            arrived_at: now(),
            request_id: HeaderValue::from_static("-"),
            trace: None,
            dialect: Dialect::OpenAi,
            operation: None,
            key: None,
            client: None,
            client_address: None,
            body_length: BodyLength::None,
            body_is_read: false,
            client_hash: 0,
            cors_origin: None,
            ending: Ending::default(),
            _counted: Counted::new(&self.0.clients.in_flight),
        }
    }

    // No modules: answers are never compressed, buffered or otherwise touched.
    fn init_downstream_modules(&self, _modules: &mut pingora::modules::http::HttpModules) {}

    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> pingora::Result<bool> {
        let handled = self.0.handle(session, ctx).await;
        self.0.finish(session, ctx);
        handled.map(|()| true)
    }

    // Every request is answered in `request_filter`; nothing may slip past it to an address.
    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut RequestContext,
    ) -> pingora::Result<Box<HttpPeer>> {
        let reason = "requests are forwarded by the request filter";
        pingora::Error::e_explain(pingora::ErrorType::HTTPStatus(404), reason)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        _error: &pingora::Error,
        _ctx: &mut RequestContext,
    ) -> FailToProxy {
        let is_answered = session.response_written().is_some();
        tracing::debug!(is_answered, "a request ended without a whole answer");
        FailToProxy { error_code: 0, can_reuse_downstream: false }
    }

    fn suppress_error_log(
        &self,
        _session: &Session,
        _ctx: &RequestContext,
        _error: &pingora::Error,
    ) -> bool {
        true
    }
}
