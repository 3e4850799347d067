//! The load of replicas in flight, shared with each other. Five times a second each replica reports
//! changes and reads the reports of its peers, by one script in one round trip. No request waits
//! for it. If the server is gone, the last numbers hold for the time of a lease, and then count as
//! zero.
//!
//! The server may hold anything, so reports are bounded here and by [`Fleet::apply_peer_loads`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ahash::{HashMap, HashSet};
use penstock_core::fleet::{Fleet, LoadReport, SHARE_INTERVAL};
use penstock_core::routing::Generation;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::SharedState;
use super::link::{Link, LinkError, ReportExchange};

/// The time for which the report of a replica counts that is about to exit.
const LAST_LEASE: Duration = Duration::from_secs(1);
/// The longest report that is read, in bytes.
const MAX_REPORT: usize = 1 << 20;
/// The most other replicas whose reports count.
const MAX_PENSTOCKS: usize = 64;

/// The reports that were sent and read.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// The version of this replica's report, and its text, as far as the server has it.
    version: u64,
    sent: String,
    /// The reports of other replicas, with their versions.
    peers: HashMap<String, (String, LoadReport)>,
}

/// The result of reading a response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// True if anything changed.
    pub(super) is_new: bool,
    /// The number of unreadable reports, which count as empty.
    pub(super) unreadable: u64,
}

impl Board {
    /// Takes over the reports of a response; reports that it no longer contains are dropped.
    pub(super) fn merge(&mut self, response: &[Vec<u8>]) -> Merged {
        let mut merged = Merged::default();
        let Some((is_held, peers)) = response.split_first() else { return merged };
        // The server has lost this report, for example by a restart: the next one is sent in full.
        if is_held != b"1" {
            self.sent.clear();
        }
        let mut present = HashSet::default();
        for one in peers.chunks_exact(3).take(MAX_PENSTOCKS) {
            let [name, version, text] = one else { continue };
            let name = String::from_utf8_lossy(name).into_owned();
            let version = String::from_utf8_lossy(version).into_owned();
            let is_known = self.peers.get(&name).is_some_and(|(known, _)| *known == version);
            if !is_known || !text.is_empty() {
                let report = read(text);
                merged.unreadable += u64::from(report.is_none());
                self.peers.insert(name.clone(), (version, report.unwrap_or_default()));
                merged.is_new = true;
            }
            present.insert(name);
        }
        let before = self.peers.len();
        self.peers.retain(|name, _| present.contains(name));
        merged.is_new |= self.peers.len() != before;
        merged
    }

    /// Forgets all that depends on the server. Returns whether other replicas counted.
    fn forget(&mut self) -> bool {
        self.sent.clear();
        !std::mem::take(&mut self.peers).is_empty()
    }

    fn reports(&self) -> Vec<LoadReport> {
        self.peers.values().map(|(_, report)| report.clone()).collect()
    }
}

fn read(text: &[u8]) -> Option<LoadReport> {
    if text.len() > MAX_REPORT {
        return None;
    }
    serde_json::from_slice(text).ok()
}

impl SharedState {
    /// Shares the load in flight of the current generation's fleet; never returns. While the
    /// process drains, each report holds only for a moment, so that its end is noticed.
    pub async fn share_load(
        self: Arc<Self>,
        generation: impl Fn() -> Arc<Generation>,
        is_stopping: impl Fn() -> bool,
    ) {
        if !self.config.in_flight {
            return;
        }
        let mut board = Board::default();
        let mut reached_at = Instant::now();
        let mut ticks = interval(SHARE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let generation = generation();
            let fleet = &generation.fleet;
            if let Some(link) = self.link.load_full() {
                let most = if is_stopping() { LAST_LEASE } else { Duration::MAX };
                let lease = self.config.lease.min(most);
                match self.exchange(&link, &mut board, fleet, lease).await {
                    Ok(()) => reached_at = Instant::now(),
                    Err(error) => self.note_exchange_error(&link, &error),
                }
            }
            if reached_at.elapsed() >= self.config.lease && board.forget() {
                fleet.apply_peer_loads(&[]);
            }
            self.penstocks.store(board.peers.len(), Ordering::Relaxed);
        }
    }

    async fn exchange(
        &self,
        link: &Link,
        board: &mut Board,
        fleet: &Fleet,
        lease: Duration,
    ) -> Result<(), LinkError> {
        let text = serde_json::to_string(&fleet.own_load())?;
        let is_changed = text != board.sent;
        board.version += u64::from(is_changed);
        let versions = board.peers.iter().map(|(name, (version, _))| (&**name, &**version));
        let names = ["reports", "versions", "ends"];
        let exchange = ReportExchange {
            keys: names.map(|name| format!("{}:load:{name}", self.config.prefix)),
            instance: &self.instance,
            lease,
            version: board.version,
            report: if is_changed { &text } else { "" },
            known: versions.collect(),
        };
        // A report may have arrived although its response did not: the next one is sent again.
        board.sent.clear();
        let response = link.exchange(&exchange).await?;
        // Before the merge, which clears it again if the server has lost the report.
        board.sent = text;
        let merged = board.merge(&response);
        self.errors.fetch_add(merged.unreadable, Ordering::Relaxed);
        // Each time, because a reload may have added backends on which peers have had requests for
        // long.
        fleet.apply_peer_loads(&board.reports());
        Ok(())
    }

    /// Counts a failed exchange. If the server refuses this command, the connection stays in use
    /// for the others.
    fn note_exchange_error(&self, link: &Arc<Link>, error: &LinkError) {
        if error.is_refusal() {
            self.errors.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, "shared state: requests in flight are not shared");
        } else {
            self.note_error(link, error);
        }
    }

    /// The number of other replicas whose requests in flight count.
    pub fn penstocks(&self) -> usize {
        self.penstocks.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(parts: &[&str]) -> Vec<Vec<u8>> {
        parts.iter().map(|part| part.as_bytes().to_vec()).collect()
    }

    fn in_flight(board: &Board) -> u64 {
        let reports = board.reports();
        reports.iter().flat_map(|one| &one.backends).map(|one| one.in_flight).sum()
    }

    const THREE: &str = r#"{"backends":[{"name":"a","url":7,"in_flight":3,"models":[]}]}"#;

    #[test]
    fn reports_are_kept_until_they_change_or_end() {
        let mut board = Board { sent: "own".to_owned(), ..Board::default() };
        assert!(board.merge(&response(&["1", "x", "1", THREE, "y", "9", THREE])).is_new);
        assert_eq!((in_flight(&board), &*board.sent), (6, "own"));
        assert!(!board.merge(&response(&["1", "x", "1", "", "y", "9", ""])).is_new);
        assert_eq!(in_flight(&board), 6);
        assert!(board.merge(&response(&["1", "y", "9", ""])).is_new, "x is gone");
        assert_eq!(in_flight(&board), 3);
        let less = THREE.replace('3', "1");
        assert!(board.merge(&response(&["1", "y", "10", &less])).is_new);
        assert_eq!(in_flight(&board), 1);
        assert!(board.merge(&response(&["0"])).is_new);
        assert_eq!((in_flight(&board), &*board.sent), (0, ""), "sent again");
    }

    #[test]
    fn garbage_counts_as_nothing() {
        for text in [
            "",
            "no report",
            "[]",
            "{}",
            r#"{"backends":[{"name":"a","in_flight":-1}]}"#,
            r#"{"backends":[{"name":"a","in_flight":1e400}]}"#,
            r#"{"backends":[{"name":"a","in_flight":0.5}]}"#,
            &"[".repeat(100_000),
            &format!("{THREE}{}", " ".repeat(MAX_REPORT)),
        ] {
            let mut board = Board::default();
            assert_eq!(board.merge(&response(&["1", "x", "1", text])).unreadable, 1, "{text:.40}");
            assert_eq!((in_flight(&board), board.peers.len()), (0, 1));
        }
        let mut board = Board::default();
        assert_eq!(board.merge(&[]), Merged::default());
        assert_eq!(board.merge(&response(&["", "x", "1"])), Merged::default());
        let many: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let mut parts = vec!["1"];
        parts.extend(many.iter().flat_map(|name| [&**name, "1", THREE]));
        board.merge(&response(&parts));
        assert_eq!(board.peers.len(), MAX_PENSTOCKS);
    }
}
