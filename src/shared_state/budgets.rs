//! Budgets over several penstocks: a script reserves what a request may cost from all of its
//! budgets in one round trip, so that no two penstocks spend the same money and none refuses a
//! request while money is left. A background task reports what was spent.
//!
//! The server holds nothing that penstocks do not know. Each of them sends the sums of its ledger
//! by part of time; a sum only grows, so it may be sent again, late or by anybody. A connection
//! serves requests only once everything that is known was sent over it.

mod exchange;
mod lease;

pub use lease::BudgetLease;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ahash::HashMap;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use penstock_clock::unix_seconds;
use penstock_config::BudgetsAlone;
use penstock_core::admission::budgets::{BudgetHold, Budgets, Exceeded, Proposal, SharedTerms};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::SharedState;
use super::link::{Link, LinkError, RedisScript};
use exchange::{AccountCall, AccountCalls, ServerAccounts, argument_list, names_of};

/// The most changes that wait for the server; further ones are dropped, and their leases expire.
const MAX_QUEUE: usize = 8192;
/// The most changes that are sent together.
const MAX_BATCH: usize = 256;
/// The interval at which a new connection is noticed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The interval at which accounts learn what others spend that no request here asks for.
const LEARN_INTERVAL: Duration = Duration::from_secs(1);
/// The most accounts that learn at one time.
const MAX_LEARNING: usize = 256;
/// The most accounts of one pipeline.
const MAX_PIPELINE: usize = 64;
/// The number of penstocks that share until the server has counted them.
const UNKNOWN_PENSTOCKS: usize = 2;

/// The money that a request has reserved; the second part frees it in the server.
pub type SharedHold = (BudgetHold, BudgetLease);

/// The reason why a request has not reserved what it may cost.
#[derive(Debug)]
pub enum ReservationFailure {
    /// A budget has no room.
    Exceeded(Box<Exceeded>),
    /// The server is unreachable, and requests that cost money are refused then.
    Unreached,
}

/// A reservation of a request, as the server knows it.
#[derive(Debug, Clone)]
struct SharedReservation {
    member: String,
    terms: Arc<[SharedTerms]>,
}

/// A change of a request that the server has to know.
#[derive(Debug)]
enum ReservationChange {
    /// The request was admitted without it.
    Began(SharedReservation),
    /// The request, or its attempt to reserve, has ended.
    Ended(SharedReservation),
}

/// Budgets that other penstocks share.
#[derive(Debug)]
pub struct SharedBudgets {
    shared: Arc<SharedState>,
    budgets: Arc<Budgets>,
    /// The identity of the ledger that knows what this process spends.
    ledger: String,
    /// The connection over which everything that is known was sent.
    ready: ArcSwapOption<Link>,
    next_lease: AtomicU64,
    leases: Mutex<HashMap<u64, SharedReservation>>,
    penstocks: AtomicUsize,
    alone: AtomicU64,
    changes: Sender<ReservationChange>,
    receiver: Mutex<Option<Receiver<ReservationChange>>>,
    /// The number of changes that are not sent yet.
    unsent: AtomicUsize,
    /// The place at which the next accounts learn.
    learning_at: AtomicUsize,
}

impl SharedBudgets {
    /// Returns budgets that are shared through a server. `ledger`: the identity of the ledger;
    /// without one what was spent is remembered for as long as the process runs.
    pub fn new(shared: Arc<SharedState>, budgets: Arc<Budgets>, ledger: Option<&str>) -> Arc<Self> {
        let (changes, receiver) = channel(MAX_QUEUE);
        let ledger = ledger.unwrap_or(&shared.instance).to_owned();
        Arc::new(Self {
            shared,
            budgets,
            ledger,
            ready: ArcSwapOption::empty(),
            next_lease: AtomicU64::new(0),
            leases: Mutex::default(),
            penstocks: AtomicUsize::new(UNKNOWN_PENSTOCKS),
            alone: AtomicU64::new(0),
            changes,
            receiver: Mutex::new(Some(receiver)),
            unsent: AtomicUsize::new(0),
            learning_at: AtomicUsize::new(0),
        })
    }

    /// Returns whether the server decides.
    pub fn is_ready(&self) -> bool {
        self.link().is_some()
    }

    /// The number of requests that cost money and were admitted or refused without the server.
    pub fn decided_alone(&self) -> u64 {
        self.alone.load(Ordering::Relaxed)
    }

    fn link(&self) -> Option<Arc<Link>> {
        let ready = self.ready.load_full()?;
        let current = self.shared.link.load_full()?;
        Arc::ptr_eq(&ready, &current).then_some(ready)
    }

    /// Reserves what a request may cost, over all penstocks. One that costs nothing does not wait
    /// for the server.
    ///
    /// # Errors
    /// When a budget has no room, or that is unknown.
    pub async fn reserve(
        self: &Arc<Self>,
        proposal: Proposal,
    ) -> Result<SharedHold, ReservationFailure> {
        let terms: Arc<[SharedTerms]> = proposal.terms().into();
        let number = self.next_lease.fetch_add(1, Ordering::Relaxed);
        let member = format!("{}:{number:x}:{}", self.shared.instance, proposal.estimate().0);
        // Also while the response is awaited: the client may leave.
        let lease = BudgetLease::new(Arc::clone(self), number, SharedReservation { member, terms });
        if proposal.is_free() {
            lease.forget();
            return Ok((proposal.admit(&[], &self.ledger), BudgetLease::default()));
        }
        match self.ask(&lease, &proposal).await {
            Some(ServerAccounts { refused: Some(place), known }) => {
                lease.forget();
                match proposal.refuse(place, &known, &self.ledger) {
                    Some(exceeded) => Err(ReservationFailure::Exceeded(exceeded)),
                    None => Err(ReservationFailure::Unreached),
                }
            }
            Some(ServerAccounts { refused: None, known }) => {
                lease.register();
                Ok((proposal.admit(&known, &self.ledger), lease))
            }
            None => self.reserve_alone(proposal, lease),
        }
    }

    fn reserve_alone(
        &self,
        proposal: Proposal,
        lease: BudgetLease,
    ) -> Result<SharedHold, ReservationFailure> {
        self.alone.fetch_add(1, Ordering::Relaxed);
        if self.shared.config.budgets_alone == BudgetsAlone::Refuse {
            return Err(ReservationFailure::Unreached);
        }
        let penstocks = self.penstocks.load(Ordering::Relaxed);
        let hold = proposal.admit_alone(u64::try_from(penstocks).unwrap_or(1));
        let hold = hold.map_err(ReservationFailure::Exceeded)?;
        lease.register();
        // The server may be slow and not gone: others must not spend the same money.
        if let Some(reserved) = lease.reserved() {
            self.report_later(ReservationChange::Began(reserved.clone()));
        }
        Ok((hold, lease))
    }

    async fn ask(&self, lease: &BudgetLease, proposal: &Proposal) -> Option<ServerAccounts> {
        let link = self.link()?;
        let SharedReservation { member, terms } = lease.reserved()?;
        let keys: Vec<String> = terms.iter().flat_map(|terms| self.names(terms)).collect();
        let arguments = argument_list(member, self.shared.config.lease, proposal, terms);
        let call = link.run(RedisScript::ReserveMoney, &keys, &arguments);
        match timeout(self.shared.config.timeout, call).await {
            Ok(Ok(words)) => {
                self.shared.timeouts.store(0, Ordering::Relaxed);
                ServerAccounts::read(&words, terms.len())
            }
            Ok(Err(error)) => {
                self.shared.note_error(&link, &error);
                None
            }
            // What the server reserved nevertheless is freed at the end of the request.
            Err(_too_slow) => {
                self.shared.note_timeout(&link);
                None
            }
        }
    }

    fn names(&self, terms: &SharedTerms) -> [String; 2] {
        names_of(&self.shared.config.prefix, &terms.budget, &terms.subject)
    }

    fn end(&self, number: u64, reserved: SharedReservation) {
        self.leases.lock().remove(&number);
        self.report_later(ReservationChange::Ended(reserved));
    }

    fn report_later(&self, change: ReservationChange) {
        // Without a connection nothing is queued: the lease expires by itself.
        if self.link().is_none() {
            return;
        }
        self.unsent.fetch_add(1, Ordering::AcqRel);
        if self.changes.try_send(change).is_err() {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
            self.shared.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all changes were sent, for at most `limit`.
    pub fn flush(&self, limit: Duration) {
        const PAUSE: Duration = Duration::from_millis(5);
        let started = penstock_clock::now();
        while self.is_ready()
            && self.unsent.load(Ordering::Acquire) > 0
            && penstock_clock::now().since(started) < limit
        {
            std::thread::sleep(PAUSE);
        }
    }

    /// Reports what was spent, renews what is reserved, and learns what others spend; never
    /// returns.
    pub async fn run(self: Arc<Self>) {
        let Some(mut receiver) = self.receiver.lock().take() else { return };
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut learned_at, mut renewed_at) = (Instant::now(), Instant::now());
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                _instant = ticks.tick() => {}
                count = receiver.recv_many(&mut batch, MAX_BATCH) => if count == 0 { return },
            }
            if batch.is_empty() && self.budgets.is_empty() {
                continue;
            }
            let count = batch.len();
            let result = match self.introduce().await {
                Ok(None) => Ok(()),
                Ok(Some((link, is_new))) => {
                    let renews = is_new || renewed_at.elapsed() >= self.shared.config.lease / 3;
                    renewed_at = if renews { Instant::now() } else { renewed_at };
                    let learns = learned_at.elapsed() >= LEARN_INTERVAL;
                    learned_at = if learns { Instant::now() } else { learned_at };
                    let sent = self.report(&link, batch, renews, learns).await;
                    sent.map_err(|error| (link, error))
                }
                Err(failed) => Err(failed),
            };
            self.unsent.fetch_sub(count, Ordering::AcqRel);
            if let Err((link, error)) = result {
                self.shared.note_error(&link, &error);
            }
        }
    }

    async fn report(
        &self,
        link: &Link,
        changes: Vec<ReservationChange>,
        renews: bool,
        learns: bool,
    ) -> Result<(), LinkError> {
        if renews || learns {
            self.count_penstocks(link).await?;
        }
        self.send(link, self.calls(changes, renews, learns)).await
    }

    /// Sends everything that is known over a new connection, and then lets requests use it.
    async fn introduce(&self) -> Result<Option<(Arc<Link>, bool)>, (Arc<Link>, LinkError)> {
        let Some(link) = self.shared.link.load_full() else { return Ok(None) };
        if self.ready.load().as_ref().is_some_and(|ready| Arc::ptr_eq(ready, &link)) {
            return Ok(Some((link, false)));
        }
        let mut place = 0;
        while place < self.budgets.accounts() {
            let calls = self.spending(place);
            self.send(&link, calls).await.map_err(|error| (Arc::clone(&link), error))?;
            place += MAX_LEARNING;
        }
        let mut leases = AccountCalls::default();
        self.add_leases(&mut leases);
        self.send(&link, leases).await.map_err(|error| (Arc::clone(&link), error))?;
        self.ready.store(Some(Arc::clone(&link)));
        Ok(Some((link, true)))
    }

    /// Returns what is known of some accounts, for the server.
    fn spending(&self, place: usize) -> AccountCalls {
        let some = self.budgets.spending(place, MAX_LEARNING, unix_seconds());
        let calls = some.into_iter().map(|account| AccountCall::all(account, &self.ledger));
        calls.map(|call| (AccountCall::key(&call.terms), call)).collect()
    }

    /// Returns the calls that report changes.
    fn calls(&self, changes: Vec<ReservationChange>, renews: bool, learns: bool) -> AccountCalls {
        let mut calls = AccountCalls::default();
        if learns {
            let place = self.learning_at.fetch_add(MAX_LEARNING, Ordering::Relaxed);
            if place + MAX_LEARNING >= self.budgets.accounts() {
                self.learning_at.store(0, Ordering::Relaxed);
            }
            calls = self.spending(place);
        }
        if renews {
            self.add_leases(&mut calls);
        }
        for change in changes {
            let (ReservationChange::Began(reserved) | ReservationChange::Ended(reserved)) = &change;
            for terms in reserved.terms.iter() {
                let call = AccountCall::of(&mut calls, terms);
                if matches!(change, ReservationChange::Began(_)) {
                    call.renewed.push(reserved.member.clone());
                    continue;
                }
                // In the same call: what was spent counts before what was reserved is freed.
                call.add_sums(self.budgets.take_unshared(terms), &self.ledger);
                call.renewed.retain(|renewed| *renewed != reserved.member);
                call.released.push(reserved.member.clone());
            }
        }
        calls
    }

    fn add_leases(&self, calls: &mut AccountCalls) {
        for SharedReservation { member, terms } in self.leases.lock().values() {
            for terms in terms.iter() {
                AccountCall::of(calls, terms).renewed.push(member.clone());
            }
        }
    }

    async fn send(&self, link: &Link, calls: AccountCalls) -> Result<(), LinkError> {
        let calls: Vec<AccountCall> = calls.into_values().collect();
        for calls in calls.chunks(MAX_PIPELINE) {
            let (mut of, mut all) = (Vec::new(), Vec::new());
            for call in calls {
                for arguments in call.arguments(self.shared.config.lease) {
                    of.push(&call.terms);
                    all.push((self.names(&call.terms).to_vec(), arguments));
                }
            }
            let responses = link.run_all(RedisScript::ShareMoney, &all).await?;
            for (terms, words) in of.into_iter().zip(&responses) {
                let response = ServerAccounts::read(words, 1);
                if let Some(known) = response.and_then(|one| one.known.into_iter().next()) {
                    self.budgets.learn(terms, &known, &self.ledger);
                }
            }
        }
        Ok(())
    }

    /// Reports that this penstock runs, and learns how many do.
    async fn count_penstocks(&self, link: &Link) -> Result<(), LinkError> {
        let key = format!("{}:budgets:penstocks", self.shared.config.prefix);
        let lease = self.shared.config.lease.as_millis().to_string();
        let arguments = [self.shared.instance.clone(), lease];
        let count = link.run(RedisScript::CountPenstocks, &[key], &arguments).await?;
        let count = count.first().and_then(|count| count.parse().ok()).unwrap_or(1);
        self.penstocks.store(count, Ordering::Relaxed);
        Ok(())
    }
}
