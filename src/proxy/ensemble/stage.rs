//! One stage of an ensemble: its calls at the same time, on as many backends as there are.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use pingora_proxy::Session;

use super::call::{Call, CallEnd, CallReport};
use crate::fleet::BackendSet;
use crate::proxy::Proxy;
use crate::proxy::decision::Undecided;
use crate::routing::RouteError;

/// How a stage ended.
pub(super) enum StageEnd {
    Done(Vec<CallReport>),
    ClientGone,
}

/// Makes all calls of a stage. Each gets a backend that no other call of the stage has, while there is one.
/// Where their own calls fill the backends, the rest follows when these are done.
pub(super) async fn run_stage(proxy: &Proxy, session: &Session, calls: Vec<Call>) -> StageEnd {
    let mut reports = Vec::with_capacity(calls.len());
    let mut waiting = calls;
    while !waiting.is_empty() {
        let mut used = BackendSet::default();
        let (mut placed, mut saturated) = (Vec::new(), Vec::new());
        let mut is_client_gone = false;
        for mut call in std::mem::take(&mut waiting) {
            match call.place(proxy, &session.req_header().headers, &used) {
                Ok(decided) => {
                    used.insert(decided.decision.backend);
                    placed.push((call, decided));
                }
                Err(Undecided::NoRoute(error @ RouteError::Saturated { .. })) => {
                    saturated.push((call, error));
                }
                Err(Undecided::NoRoute(error)) => {
                    reports.push(call.end_without_route(proxy, session, &error));
                }
                Err(Undecided::ClientGone) => is_client_gone = true,
            }
        }
        if is_client_gone {
            return StageEnd::ClientGone;
        }
        if placed.is_empty() {
            // Other requests fill the backends: there is nothing to wait for here.
            let ends = saturated.into_iter();
            reports
                .extend(ends.map(|(call, error)| call.end_without_route(proxy, session, &error)));
            break;
        }
        let running = placed
            .into_iter()
            .map(|(call, decided)| -> Running<'_> { Box::pin(call.run(proxy, session, decided)) });
        for end in join(running.collect()).await {
            match end {
                CallEnd::Done(report) => reports.push(report),
                CallEnd::ClientGone => is_client_gone = true,
            }
        }
        if is_client_gone {
            return StageEnd::ClientGone;
        }
        waiting = saturated.into_iter().map(|(call, _)| call).collect();
    }
    StageEnd::Done(reports)
}

type Running<'a> = Pin<Box<dyn Future<Output = CallEnd> + Send + 'a>>;

/// Runs futures in this task until all are done.
async fn join(mut running: Vec<Running<'_>>) -> Vec<CallEnd> {
    let mut ends: Vec<Option<CallEnd>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, end) in running.iter_mut().zip(&mut ends) {
            if end.is_none()
                && let Poll::Ready(ended) = future.as_mut().poll(cx)
            {
                *end = Some(ended);
            }
        }
        if ends.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ends.into_iter().flatten().collect()
}
