//! Independent runs on several threads; results are in the order of the jobs, whichever run ends
//! first.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::error::SimulateError;
use crate::cli::output::Output;

/// Runs every job. On a terminal, shows the number of finished ones.
pub(super) fn run_all<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    output: &mut Output,
    run: impl Fn(&J) -> Result<R, SimulateError> + Sync,
) -> Result<Vec<R>, SimulateError> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    let shows = io::stderr().is_terminal() && jobs.len() > 1;
    std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        for _ in 0..threads.min(jobs.len()) {
            let (next, run, done) = (&next, &run, done.clone());
            scope.spawn(move || {
                while let Some((index, job)) = take(next, jobs) {
                    if done.send((index, run(job))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (count, (index, result)) in ended.iter().enumerate() {
            if let Some(place) = results.get_mut(index) {
                *place = Some(result?);
            }
            if shows {
                output.progress(count + 1, jobs.len());
            }
        }
        Ok::<(), SimulateError>(())
    })?;
    results.into_iter().collect::<Option<Vec<R>>>().ok_or(SimulateError::Thread)
}

fn take<'a, J>(next: &AtomicUsize, jobs: &'a [J]) -> Option<(usize, &'a J)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, jobs.get(index)?))
}
