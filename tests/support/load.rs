//! Requests sent one after the other on a few connections, while something else goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::client::{Client, chat};
use super::fleet::CHAT;
use super::penstock::Penstock;

/// How they went.
#[derive(Default)]
pub struct Load {
    is_over: AtomicBool,
    sent: AtomicUsize,
    failed: AtomicUsize,
}

impl Load {
    /// Runs `work` while requests for `m` are sent; returns how many were, and how many failed.
    pub fn during(penstock: &Penstock, work: impl FnOnce()) -> (usize, usize) {
        let load = Self::default();
        std::thread::scope(|scope| {
            for number in 0..4 {
                let load = &load;
                scope.spawn(move || load.send_all(penstock, number % 2 == 0));
            }
            work();
            load.is_over.store(true, Ordering::Release);
        });
        (load.sent.into_inner(), load.failed.into_inner())
    }

    fn send_all(&self, penstock: &Penstock, keeps_alive: bool) {
        let mut client = Client::connect(penstock.data);
        while !self.is_over.load(Ordering::Acquire) {
            client.send("POST", CHAT, &[], chat("m", "hello").to_string().as_bytes());
            let answer = client.read_answer();
            let is_good =
                answer.as_ref().is_ok_and(|answer| answer.status == 200 && answer.is_whole);
            if !is_good {
                println!("a request failed: {answer:?}");
            }
            let is_last = answer.is_ok_and(|answer| answer.header("connection") == Some("close"));
            self.sent.fetch_add(1, Ordering::Relaxed);
            self.failed.fetch_add(usize::from(!is_good), Ordering::Relaxed);
            if !keeps_alive || !is_good || is_last {
                client = Client::connect(penstock.data);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
