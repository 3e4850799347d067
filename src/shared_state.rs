//! State that several replicas share through a Redis or Valkey server: limits per client, money
//! spent of [`budgets`], [`records`], and the requests in flight on backends ([`load`]). One script
//! admits a request in one round trip; a background task reports its end. If the server fails, no
//! request waits longer than the timeout, and only the limits of this process then hold.
//!
//! Slots in flight are leases that expire, renewed while requests run, so that the slots of a
//! killed replica become free again. The server's clock counts for all.

mod budgets;
mod link;
mod load;
mod permit;
mod records;

pub use budgets::{BudgetLease, ReservationFailure, SharedBudgets, SharedHold};
pub use permit::SharedPermit;
pub use records::{RecordExchange, SharedRecord};

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ahash::HashMap;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use penstock_config::{RateLimits, SharedStateConfig};
use penstock_core::admission::rate_limits::{LimitKind, Quota, RateStatus};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use link::{Link, LinkError, Reservation};
use permit::Settlement;

/// The most ends of requests that wait for the server; further ones are dropped, and their leases
/// expire.
const MAX_QUEUE: usize = 8192;
/// The most ends of requests that are sent together.
const MAX_BATCH: usize = 64;
/// The number of timeouts in a row after which the server counts as gone.
const MAX_TIMEOUTS: u32 = 3;
/// The first wait between two attempts to reach the server.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest such wait.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The least time between two log lines with the same state of the server. A server that accepts
/// connections but refuses writes would otherwise change its state several times per second.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// One client with shared limits.
#[derive(Debug, Clone)]
pub struct SharedAccount {
    /// The client's name, the same in every replica.
    pub name: String,
    pub limits: RateLimits,
}

/// The result of a request's admission by the server.
#[derive(Debug)]
pub enum SharedEnd {
    /// It may go on.
    Admitted(SharedPermit, RateStatus),
    /// A limit is used up.
    Refused {
        /// The position of the refusing account.
        account: usize,
        kind: LimitKind,
        /// The time until the request would fit.
        wait: Duration,
        status: RateStatus,
    },
    /// No result: the server is unreachable.
    Unknown,
}

/// The state of the server that was logged last.
#[derive(Debug, Default)]
struct Logged {
    is_up: Option<bool>,
    /// The times of the last line that the server is unreachable, and that it is connected.
    said_at: [Option<Instant>; 2],
}

impl Logged {
    /// Returns whether a line is due: its state is new, and was not logged a moment ago. A
    /// suppressed line is logged later if it still holds.
    fn is_due(&mut self, is_up: bool, now: Instant) -> bool {
        let [down_at, up_at] = &mut self.said_at;
        let said_at = if is_up { up_at } else { down_at };
        let is_recent = said_at.is_some_and(|at| now - at < MIN_LOG_INTERVAL);
        if self.is_up == Some(is_up) || is_recent {
            return false;
        }
        self.is_up = Some(is_up);
        *said_at = Some(now);
        true
    }
}

/// The state shared with other replicas.
#[derive(Debug)]
pub struct SharedState {
    config: SharedStateConfig,
    /// Distinguishes the leases of this process.
    instance: String,
    next_lease: AtomicU64,
    link: ArcSwapOption<Link>,
    timeouts: AtomicU32,
    errors: AtomicU64,
    /// The number of other replicas whose requests in flight count.
    penstocks: AtomicUsize,
    logged: Mutex<Logged>,
    lost: Notify,
    leases: Mutex<HashMap<u64, Vec<String>>>,
    settlements: Sender<Settlement>,
    receiver: Mutex<Option<Receiver<Settlement>>>,
}

impl SharedState {
    /// Returns the state for a configuration; `None` if nothing is shared. `seed` distinguishes
    /// processes.
    pub fn new(config: &SharedStateConfig, seed: u64) -> Option<Arc<Self>> {
        config.redis.as_ref()?;
        let (settlements, receiver) = channel(MAX_QUEUE);
        Some(Arc::new(Self {
            config: config.clone(),
            instance: format!("{seed:016x}{:08x}", std::process::id()),
            next_lease: AtomicU64::new(0),
            link: ArcSwapOption::empty(),
            timeouts: AtomicU32::new(0),
            errors: AtomicU64::new(0),
            penstocks: AtomicUsize::new(0),
            logged: Mutex::default(),
            lost: Notify::new(),
            leases: Mutex::default(),
            settlements,
            receiver: Mutex::new(Some(receiver)),
        }))
    }

    /// Returns whether the server is connected.
    pub fn is_up(&self) -> bool {
        self.link.load().is_some()
    }

    /// The number of commands that failed or took too long.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Reserves a request's share of the limits of all its accounts, over all replicas.
    pub async fn admit(self: &Arc<Self>, accounts: &[SharedAccount], tokens: u64) -> SharedEnd {
        let Some(link) = self.link.load_full() else { return SharedEnd::Unknown };
        let lease = self.next_lease.fetch_add(1, Ordering::Relaxed);
        let keys = self.keys(accounts);
        let member = self.member(lease);
        let reservation = Reservation { tokens, lease: &member, lease_time: self.config.lease };
        let call = link.admit(&keys, accounts, &reservation);
        let numbers = match timeout(self.config.timeout, call).await {
            Ok(Ok(numbers)) => numbers,
            // Tokens that the server reserved nevertheless drain over time, and the lease expires.
            Err(_too_slow) => {
                self.note_timeout(&link);
                return SharedEnd::Unknown;
            }
            Ok(Err(error)) => {
                self.note_error(&link, &error);
                return SharedEnd::Unknown;
            }
        };
        self.timeouts.store(0, Ordering::Relaxed);
        let Some((head, rest)) = numbers.split_first_chunk::<4>() else {
            debug_assert!(false, "the script returns four numbers and those of each account");
            return SharedEnd::Unknown;
        };
        let [refused, kind, wait, day] = *head;
        let status = status_of(accounts, rest);
        if let Some(account) = usize::try_from(refused).ok().and_then(|place| place.checked_sub(1))
        {
            let kind = usize::try_from(kind).ok().and_then(|kind| LimitKind::ALL.get(kind));
            let kind = kind.copied().unwrap_or(LimitKind::RequestsPerMinute);
            let wait = Duration::from_micros(u64::try_from(wait).unwrap_or(0));
            return SharedEnd::Refused { account, kind, wait, status };
        }
        if accounts.iter().any(|account| account.limits.in_flight.is_some()) {
            let limited = accounts.iter().zip(keys.chunks(2));
            let leased = limited.filter(|(account, _)| account.limits.in_flight.is_some());
            let names = leased.filter_map(|(_, keys)| keys.last().cloned()).collect();
            self.leases.lock().insert(lease, names);
        }
        let limits = accounts.iter().map(|account| account.limits.clone()).collect();
        let reserved = Settlement { keys, limits, lease, day, reserved: tokens, change: 0 };
        SharedEnd::Admitted(SharedPermit::new(Arc::clone(self), reserved), status)
    }

    /// The key names of each account's use and leases.
    fn keys(&self, accounts: &[SharedAccount]) -> Vec<String> {
        let prefix = &self.config.prefix;
        let names = accounts.iter().map(|account| format!("{prefix}:limits:{}", account.name));
        names.flat_map(|name| [format!("{name}:use"), format!("{name}:leases")]).collect()
    }

    fn member(&self, lease: u64) -> String {
        format!("{}:{lease:x}", self.instance)
    }

    fn settle(&self, settlement: Settlement) {
        self.leases.lock().remove(&settlement.lease);
        // Without a connection nothing is queued: the lease expires by itself.
        if self.link.load().is_some() && self.settlements.try_send(settlement).is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_timeout(&self, link: &Arc<Link>) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        // One slow response does not mean that the server is gone.
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_TIMEOUTS {
            self.lose(link, &format!("no response within {:?}", self.config.timeout));
        }
    }

    fn note_error(&self, link: &Arc<Link>, error: &LinkError) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.lose(link, &error.to_string());
    }

    fn lose(&self, link: &Arc<Link>, reason: &str) {
        let lost = Some(link);
        let is_current = |current: &Option<Arc<Link>>| {
            current.as_ref().zip(lost).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
        };
        // A request that was sent over an earlier connection may fail late.
        if is_current(&self.link.load()) {
            self.link.store(None);
            self.lost.notify_one();
            self.report_down(reason);
        }
    }

    fn report_down(&self, reason: &str) {
        if self.logged.lock().is_due(false, Instant::now()) {
            tracing::warn!(reason, "shared state unreachable, limits apply per process");
        }
    }

    /// Keeps the connection, renews leases and reports the ends of requests; never returns.
    pub async fn run(self: Arc<Self>) {
        let Some(mut receiver) = self.receiver.lock().take() else { return };
        let mut wait = FIRST_WAIT;
        loop {
            match Link::connect(&self.config).await {
                Ok(link) => {
                    let reached_at = Instant::now();
                    self.timeouts.store(0, Ordering::Relaxed);
                    let link = Arc::new(link);
                    self.link.store(Some(Arc::clone(&link)));
                    self.serve(&link, &mut receiver).await;
                    // Only a connection that lasted resets the wait: a useless one is not made
                    // again at once.
                    if reached_at.elapsed() >= MAX_WAIT {
                        wait = FIRST_WAIT;
                    }
                }
                Err(error) => {
                    self.errors.fetch_add(1, Ordering::Relaxed);
                    self.report_down(&error.to_string());
                }
            }
            // The leases of these requests expire, or the server has lost them.
            while receiver.try_recv().is_ok() {}
            sleep(wait).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
    }

    /// Uses one connection until it is lost.
    async fn serve(&self, link: &Arc<Link>, receiver: &mut Receiver<Settlement>) {
        // The first tick is immediate: a restarted server has no leases.
        // Three renewals per lease: a late one frees no slot of a running request.
        let mut renewal = interval(self.config.lease / 3);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let sent = tokio::select! {
                () = self.lost.notified() => {
                    // The permit may be left from an earlier connection.
                    if self.link.load().is_some() {
                        continue;
                    }
                    return;
                }
                _instant = renewal.tick() => {
                    let renewed = self.renew(link).await;
                    if renewed.is_ok() && self.logged.lock().is_due(true, Instant::now()) {
                        tracing::info!(server = link.name(), "shared state connected");
                    }
                    renewed
                }
                first = receiver.recv() => {
                    let Some(first) = first else { return };
                    let mut batch = vec![first];
                    while batch.len() < MAX_BATCH && let Ok(next) = receiver.try_recv() {
                        batch.push(next);
                    }
                    let named = batch.iter().map(|one| (one, self.member(one.lease)));
                    link.settle(named).await
                }
            };
            if let Err(error) = sent {
                self.note_error(link, &error);
                return;
            }
        }
    }

    async fn renew(&self, link: &Link) -> Result<(), LinkError> {
        let started = Instant::now();
        let held: Vec<(String, String)> = {
            let leases = self.leases.lock();
            let each = leases.iter().flat_map(|(lease, keys)| {
                keys.iter().map(|key| (key.clone(), self.member(*lease)))
            });
            each.collect()
        };
        link.renew(&held, self.config.lease).await?;
        // A request may have ended meanwhile, and its lease must not stay renewed.
        let ended: Vec<(String, String)> = {
            let leases = self.leases.lock();
            let running: ahash::HashSet<String> =
                leases.keys().map(|lease| self.member(*lease)).collect();
            held.into_iter().filter(|(_, member)| !running.contains(member)).collect()
        };
        tracing::trace!(took = ?started.elapsed(), "leases renewed");
        link.release(&ended).await
    }
}

/// The remaining limits, each of the account with the least.
fn status_of(accounts: &[SharedAccount], numbers: &[i64]) -> RateStatus {
    let mut status = RateStatus::default();
    let quota = |limit: Option<u32>, remaining: i64, reset: i64| {
        Some(Quota {
            limit: limit?.into(),
            remaining: u64::try_from(remaining).unwrap_or(0),
            reset: Duration::from_micros(u64::try_from(reset).unwrap_or(0)),
        })
    };
    for (account, numbers) in accounts.iter().zip(numbers.chunks_exact(4)) {
        let [requests, requests_reset, tokens, tokens_reset] = *numbers else { continue };
        status.narrow(&RateStatus {
            requests: quota(account.limits.requests_per_minute, requests, requests_reset),
            tokens: quota(account.limits.tokens_per_minute, tokens, tokens_reset),
        });
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flapping_server_is_logged_once_per_state_and_interval() {
        let mut logged = Logged::default();
        let start = Instant::now();
        let mut lines = 0;
        for step in 0..40 {
            let now = start + MIN_LOG_INTERVAL / 20 * step;
            lines += usize::from(logged.is_due(false, now)) + usize::from(logged.is_due(true, now));
        }
        assert_eq!(lines, 4, "two lines in each of two intervals");
        let later = start + MIN_LOG_INTERVAL * 4;
        assert!(logged.is_due(false, later), "an outage is logged at once");
        assert!(!logged.is_due(false, later), "and once");
    }
}
