//! Penstocks with separate ledgers share budgets through a Redis server: together they never spend
//! more than there is, and refuse no request that still fits. Neither a killed
//! penstock nor a killed server brings money back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock::shared_state::{ReservationFailure, SharedBudgets, SharedHold, SharedState};
use penstock_config::{Config, Environment};
use penstock_core::admission::budgets::{Budgets, Money};
use penstock_mock::Pace;
use serde_json::{Value, json};

use crate::support::client::{Response, chat, streaming_chat};
use crate::support::fleet::{
    CHAT, FAULTS_FORGOTTEN, Fleet, SOON, Setup, begin, find_metric, read_until, yaml,
};
use crate::support::penstock::{Penstock, scratch};
use crate::support::redis::Redis;
use crate::support::{eventually, eventually_async};

/// A token of `m` costs 0.001.
const PRICES: &str = "models: { m: { price: { input: 1000, output: 1000 } } }";
const SHARED: &str = "penstock_budgets_shared";
/// A request of the stories reserves at least that, and costs less.
const ESTIMATE: f64 = 0.06;

/// The sections of one of the penstocks, with its own ledger.
fn sections(redis: &Redis, budget: &str, flush: &str, shared: &str) -> String {
    format!(
        "ledger: {{ path: {}, flush_interval: {flush} }}\n{PRICES}\nbudgets: [{budget}]\n{}",
        scratch("ledger.db").display(),
        redis.section(shared)
    )
}

/// Two penstocks before one engine.
struct Two {
    fleet: Fleet,
    other: Penstock,
    /// The configuration of the second one.
    other_yaml: String,
}

impl Two {
    fn start(redis: &Redis, budget: &str, flush: &str, shared: &str, pace: Pace) -> Self {
        let setup = Setup { health: FAULTS_FORGOTTEN, pace, ..Setup::default() };
        let first = sections(redis, budget, flush, shared);
        let fleet = Fleet::start(1, Setup { sections: &first, ..setup });
        let second = sections(redis, budget, flush, shared);
        let other_yaml = yaml(&fleet.engines, &["m"], Setup { sections: &second, ..setup });
        let other = Penstock::start(&other_yaml);
        let two = Self { fleet, other, other_yaml };
        two.both().iter().for_each(|penstock| wait(penstock, SHARED, 1.0));
        two
    }

    fn both(&self) -> [&Penstock; 2] {
        [&self.fleet.penstock, &self.other]
    }

    fn wait_spent(&self, expected: f64) {
        for penstock in self.both() {
            let what = format!("{expected} is spent: {}", state(penstock));
            eventually(&what, SOON, || (amount(penstock, "spent") - expected).abs() < 1e-7);
        }
    }
}

fn wait(penstock: &Penstock, metric: &str, value: f64) {
    let is_there = || find_metric(penstock, metric).is_some_and(|it| (it - value).abs() < 0.1);
    eventually(&format!("{metric} is {value}"), 2 * SOON, is_there);
}

fn state(penstock: &Penstock) -> Value {
    penstock.admin("/budgets").json()["budgets"][0].clone()
}

fn amount(penstock: &Penstock, key: &str) -> f64 {
    state(penstock)[key].as_f64().unwrap_or(0.0)
}

fn short() -> Value {
    let mut body = chat("m", "hello");
    body["max_tokens"] = json!(50);
    body
}

/// The cost of a response, in thousandths.
fn cost(response: &Response) -> u64 {
    response.json()["usage"]["total_tokens"].as_u64().unwrap()
}

fn thousandths(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / 1000.0
}

/// Sends requests until one is refused for good. Returns what they cost.
fn spend_all(penstock: &Penstock) -> u64 {
    let mut sum = 0;
    loop {
        let (own, refused) = spend_until_refused(penstock);
        sum += own;
        // Otherwise only requests in flight are in the way: they may cost less than is reserved.
        if refused.header("retry-after") != Some("1") {
            return sum;
        }
    }
}

/// Sends requests until one is refused. Returns what they cost, and the refusal.
fn spend_until_refused(penstock: &Penstock) -> (u64, Response) {
    let mut sum = 0;
    loop {
        let response = penstock.post(CHAT, &short());
        if response.status != 200 {
            assert_eq!(response.error_code(), "budget_exceeded", "{}", response.text());
            return (sum, response);
        }
        sum += cost(&response);
    }
}

#[test]
fn two_penstocks_never_spend_more_than_there_is() {
    let Some(redis) = Redis::start("shared_budgets") else { return };
    // A generous timeout: on a busy machine a request must not go on without the server.
    let budget = "{ name: all, amount: 6, every: day }, { name: more, amount: 7 }";
    let two = Two::start(&redis, budget, "1h", "timeout: 5s", Pace::at_once(8));
    let spent = AtomicU64::new(0);
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..64 {
            let (penstock, spent, most) = (two.both()[number % 2], &spent, &most);
            scope.spawn(move || {
                let own = spend_all(penstock);
                spent.fetch_add(own, Ordering::Relaxed);
                most.fetch_max(own, Ordering::Relaxed);
            });
        }
    });
    let sum = thousandths(spent.load(Ordering::Relaxed));
    assert!(sum <= 6.0, "{sum}");
    assert!(sum > 6.0 - ESTIMATE, "somebody was refused with {} left", 6.0 - sum);
    assert!(thousandths(most.load(Ordering::Relaxed)) < 2.0, "one client got nearly all");
    two.wait_spent(sum);
    for penstock in two.both() {
        eventually("nothing is reserved", SOON, || amount(penstock, "reserved").abs() < 1e-9);
        assert_eq!(find_metric(penstock, "penstock_budget_alone_total"), Some(0.0));
        assert_eq!(find_metric(penstock, "penstock_shared_state_errors_total"), Some(0.0));
    }
}

#[test]
fn killed_server_leaves_each_an_even_share() {
    let Some(redis) = Redis::start("shared_budgets") else { return };
    let two = Two::start(&redis, "{ name: all, amount: 2 }", "1h", "timeout: 1s", Pace::at_once(8));
    // Each spends: once the other knows it, that one has also counted how many share.
    let spend = |number: usize| cost(&two.both()[number % 2].post(CHAT, &short()));
    let mut sum: u64 = (0..10).map(spend).sum();
    two.wait_spent(thousandths(sum));
    let address = redis.address;
    redis.signal("-KILL");
    two.both().iter().for_each(|penstock| wait(penstock, SHARED, 0.0));
    let left = 2.0 - thousandths(sum);
    for penstock in two.both() {
        let (own, refused) = spend_until_refused(penstock);
        assert_eq!(refused.header("retry-after"), Some("1"), "the server may be back then");
        let share = left / 2.0 - thousandths(own);
        assert!((0.0..ESTIMATE).contains(&share), "{share} of its share is left");
        assert!(find_metric(penstock, "penstock_budget_alone_total").unwrap() > 0.0);
        let log = penstock.log();
        assert_eq!(log.matches("shared state unreachable").count(), 1, "{log}");
        sum += own;
    }
    drop(redis);
    // It is empty: they tell it all that they know.
    let _again = Redis::start_at(address).unwrap();
    two.both().iter().for_each(|penstock| wait(penstock, SHARED, 1.0));
    two.wait_spent(thousandths(sum));
    sum += spend_all(&two.other);
    assert!(sum <= 2000, "{sum}");
    assert!(2.0 - thousandths(sum) < ESTIMATE, "{sum}");
}

#[test]
fn refusing_without_the_server_is_a_503() {
    let Some(redis) = Redis::start("shared_budgets") else { return };
    let setup = Setup { health: FAULTS_FORGOTTEN, ..Setup::default() };
    let first = sections(&redis, "{ name: all, amount: 2 }", "1h", "budgets_alone: refuse");
    let free = "{ id: m2, price: { input: 0, output: 0 } }";
    let fleet = Fleet::of(&["m", free], Setup { sections: &first, ..setup });
    fleet.wait_metric(SHARED, 1.0);
    assert_eq!(fleet.penstock.post(CHAT, &short()).status, 200);
    redis.signal("-KILL");
    fleet.wait_metric(SHARED, 0.0);
    let refused = fleet.penstock.post(CHAT, &short());
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "budgets_unreached"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(fleet.penstock.chat("m2").status, 200, "it costs nothing");
}

#[test]
fn killed_penstock_neither_loses_money_nor_keeps_it() {
    let Some(redis) = Redis::start("shared_budgets") else { return };
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(20), tokens: 400 };
    let shared = "timeout: 5s, lease: 2s";
    // Never written to the ledger before the kill.
    let two = Two::start(&redis, "{ name: all, amount: 10 }", "1h", shared, pace);
    let mut body = chat("m", "hello");
    body["max_tokens"] = json!(10);
    let spent = thousandths(cost(&two.other.post(CHAT, &body)));
    let mut stream = streaming_chat("m", "hello");
    stream["max_tokens"] = json!(300);
    let mut client = begin(two.other.data, CHAT, &stream);
    read_until(&mut client, "data: ");
    eventually("the reservation is known", SOON, || amount(&two.fleet.penstock, "reserved") > 0.29);
    let Two { fleet, other, other_yaml } = two;
    other.signal("KILL");
    drop((client, other));
    let reserved = || amount(&fleet.penstock, "reserved");
    assert!(reserved() > 0.29, "until the lease is over: {}", state(&fleet.penstock));
    eventually("the lease is over", SOON, || reserved().abs() < 1e-9);
    assert!((amount(&fleet.penstock, "spent") - spent).abs() < 1e-9, "it is not lost");
    // It starts again with its ledger, in which nothing is written.
    let other = Penstock::start(&other_yaml);
    let two = Two { fleet, other, other_yaml };
    two.both().iter().for_each(|penstock| wait(penstock, SHARED, 1.0));
    let mut sum = spent + thousandths(cost(&two.other.post(CHAT, &body)));
    two.wait_spent(sum);
    sum += thousandths(cost(&two.fleet.penstock.post(CHAT, &body)));
    two.wait_spent(sum);
}

/// A penstock's budgets in this process, with a clock of the story's own.
struct Clocked {
    budgets: Arc<Budgets>,
    shared: Arc<SharedBudgets>,
}

impl Clocked {
    fn start(redis: &Redis, name: &str, seed: u64) -> Self {
        let yaml = format!(
            "backends: [http://h:1]\nledger: {{ path: l.db }}\n\
             budgets: [{{ name: d, amount: 1, every: day }}]\n{}",
            redis.section("timeout: 5s")
        );
        let environment = Environment::default();
        let config = Config::parse(&yaml, "test.yaml", std::path::Path::new(""), &environment);
        let config = config.unwrap();
        let budgets = Arc::new(Budgets::new(&config));
        let state = SharedState::new(&config.shared_state, seed).unwrap();
        let shared = SharedBudgets::new(Arc::clone(&state), Arc::clone(&budgets), Some(name));
        tokio::spawn(state.run());
        tokio::spawn(Arc::clone(&shared).run());
        Self { budgets, shared }
    }

    async fn reserve(&self, amount: f64, unix: u64) -> Option<SharedHold> {
        eventually_async("the server is reached", SOON, async || self.shared.is_ready()).await;
        let proposal = self.budgets.propose(None, Money::of(amount), unix).ok()?;
        match self.shared.reserve(proposal).await {
            Ok(hold) => Some(hold),
            Err(ReservationFailure::Exceeded(_)) => None,
            Err(ReservationFailure::Unreached) => panic!("the server is reached"),
        }
    }

    async fn spend(&self, amount: f64, unix: u64) -> bool {
        let Some((hold, lease)) = self.reserve(amount, unix).await else { return false };
        hold.settle(Money::of(amount), unix);
        drop(lease);
        let flushed = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || flushed.flush(SOON)).await.unwrap();
        true
    }
}

#[test]
fn clocks_apart_by_seconds_share_a_midnight() {
    let Some(redis) = Redis::start("shared_budgets") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let [ahead, behind] =
            [("a", 1), ("b", 2)].map(|(name, seed)| Clocked::start(&redis, name, seed));
        // The next midnight, so that nothing of this day is forgotten meanwhile.
        let midnight = (penstock_clock::unix_seconds() / 86_400 + 1) * 86_400;
        assert!(behind.spend(0.6, midnight - 20).await && ahead.spend(0.3, midnight - 10).await);
        assert!(!behind.spend(0.2, midnight - 10).await && !ahead.spend(0.2, midnight - 5).await);
        assert!(ahead.spend(0.5, midnight + 1).await, "it is the next day");
        assert!(!behind.spend(0.2, midnight - 2).await, "the old day is spent, here and there");
        assert!(!behind.spend(0.6, midnight + 1).await, "0.5 of the new day is spent");
        assert!(behind.spend(0.5, midnight + 2).await);
        assert!(!ahead.spend(0.1, midnight + 5).await);
        let held = ahead.reserve(0.9, midnight + 86_400).await;
        assert!(held.is_some() && behind.reserve(0.2, midnight + 86_401).await.is_none());
        drop(held);
        let is_free = async || behind.reserve(0.2, midnight + 86_401).await.is_some();
        eventually_async("it is free", SOON, is_free).await;
    });
}
