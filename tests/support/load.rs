//! Requests sent one after the other on a few connections, while something else goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::client::{Client, chat};
use super::eventually;
use super::fleet::CHAT;
use super::pace::pause_between_requests;
use super::penstock::Penstock;

/// Long enough for some hundred requests on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The outcomes of the requests.
#[derive(Default)]
pub struct Load {
    is_over: AtomicBool,
    sent: AtomicUsize,
    failed: AtomicUsize,
}

/// Ends a load when it is dropped.
pub struct EndsWith<'a>(pub &'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Load {
    /// Runs `work` while requests for `m` are sent; returns how many were, and how many failed.
    pub fn during(penstock: &Penstock, work: impl FnOnce(&Self)) -> (usize, usize) {
        let load = Self::default();
        std::thread::scope(|scope| {
            for number in 0..4 {
                let load = &load;
                scope.spawn(move || load.send_all(penstock, number % 2 == 0));
            }
            // Also when the work fails: the scope waits for its threads.
            let _over = EndsWith(&load.is_over);
            work(&load);
        });
        (load.sent.into_inner(), load.failed.into_inner())
    }

    /// Waits until `requests` more requests are over.
    pub fn wait_for(&self, requests: usize) {
        let sent = || self.sent.load(Ordering::Relaxed);
        let before = sent();
        let what = format!("{requests} more requests are over");
        eventually(&what, PATIENCE, || sent() >= before + requests);
    }

    fn send_all(&self, penstock: &Penstock, keeps_alive: bool) {
        let mut client = Client::connect(penstock.data);
        while !self.is_over.load(Ordering::Acquire) {
            client.send("POST", CHAT, &[], chat("m", "hello").to_string().as_bytes());
            let response = client.read_response();
            let is_good =
                response.as_ref().is_ok_and(|response| response.status == 200 && response.is_whole);
            if !is_good {
                println!("a request failed: {response:?}");
            }
            let is_last =
                response.is_ok_and(|response| response.header("connection") == Some("close"));
            self.sent.fetch_add(1, Ordering::Relaxed);
            self.failed.fetch_add(usize::from(!is_good), Ordering::Relaxed);
            if !keeps_alive || !is_good || is_last {
                client = Client::connect(penstock.data);
            }
            pause_between_requests(Duration::from_millis(2));
        }
    }
}
