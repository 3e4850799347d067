//! One stage of an ensemble: its calls run at the same time, spread over the backends.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use penstock_core::fleet::BackendSet;
use penstock_core::routing::RouteError;

use crate::ensemble::call::{CallEnd, CallReport, RunningCall};
use crate::proxy::Proxy;
use crate::proxy::decision::DecisionFailure;
use crate::proxy::flow::Flow;
use crate::proxy::queue::has_queue;

pub(crate) enum StageEnd {
    Done(Vec<CallReport>),
    ClientGone,
}

/// Makes all calls of a stage. Each gets a backend that no other call of the stage has, while there
/// is one. If the stage's own calls fill the backends, the remaining calls follow when these are
/// done. If other requests fill them, the calls wait in the queue, if there is one.
pub(crate) async fn run_stage(flow: &Flow<'_>, calls: Vec<RunningCall>) -> StageEnd {
    let mut reports = Vec::with_capacity(calls.len());
    let mut waiting = calls;
    while !waiting.is_empty() {
        let mut used = BackendSet::default();
        let (mut placed, mut saturated) = (Vec::new(), Vec::new());
        let mut is_client_gone = false;
        for mut call in std::mem::take(&mut waiting) {
            match call.place(flow, &used) {
                Ok(decided) => {
                    used.insert(decided.decision.backend);
                    placed.push((call, decided));
                }
                Err(DecisionFailure::NoRoute(error)) if may_wait(flow.proxy, &error) => {
                    saturated.push((call, error));
                }
                Err(DecisionFailure::NoRoute(error)) => {
                    reports.push(call.end_without_route(flow, &error));
                }
                Err(DecisionFailure::ClientGone) => is_client_gone = true,
            }
        }
        if is_client_gone {
            return StageEnd::ClientGone;
        }
        if placed.is_empty() && has_queue(flow.proxy) {
            // Other requests fill the backends: the calls wait among them.
            let calls = std::mem::take(&mut saturated).into_iter();
            let running =
                calls.map(|(call, _)| -> CallFuture<'_> { Box::pin(call.run_in_turn(flow)) });
            if !end_all(running.collect(), &mut reports).await {
                return StageEnd::ClientGone;
            }
        } else if placed.is_empty() {
            // Without a queue there is nothing to wait for.
            let ends = saturated.into_iter();
            reports.extend(ends.map(|(call, error)| call.end_without_route(flow, &error)));
            break;
        }
        let running = placed
            .into_iter()
            .map(|(call, decided)| -> CallFuture<'_> { Box::pin(call.run(flow, decided)) });
        if !end_all(running.collect(), &mut reports).await {
            return StageEnd::ClientGone;
        }
        waiting = saturated.into_iter().map(|(call, _)| call).collect();
    }
    StageEnd::Done(reports)
}

/// Returns whether a call that no backend can take now may wait: for the other calls, or in the
/// queue.
fn may_wait(proxy: &Proxy, error: &RouteError) -> bool {
    matches!(error, RouteError::Saturated { .. }) || (error.may_pass() && has_queue(proxy))
}

/// Runs calls until all are done. Returns `false` if their client has left.
async fn end_all(running: Vec<CallFuture<'_>>, reports: &mut Vec<CallReport>) -> bool {
    let mut is_client_there = true;
    for end in join(running).await {
        match end {
            CallEnd::Done(report) => reports.push(report),
            CallEnd::ClientGone => is_client_there = false,
        }
    }
    is_client_there
}

type CallFuture<'a> = Pin<Box<dyn Future<Output = CallEnd> + Send + 'a>>;

/// Runs futures in this task until all are done.
async fn join(mut running: Vec<CallFuture<'_>>) -> Vec<CallEnd> {
    // No tasks: the calls end with the task of their client.
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
