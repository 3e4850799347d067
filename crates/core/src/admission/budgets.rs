//! Budgets: the money that requests may spend. What a request may cost is reserved when it is
//! admitted, under the locks of all its budgets, and replaced by what it did cost. So the reserved
//! and the spent money never exceed the amount; only a request that costs more than its estimate
//! does.

mod account;
mod foreign;
mod money;
mod period;
mod report;
mod shared;
#[cfg(test)]
mod shared_tests;
mod terms;
#[cfg(test)]
mod tests;
mod verdicts;

pub use account::Balance;
pub use foreign::{LedgerSpending, SharedBalance};
pub use money::Money;
pub use report::BudgetReport;
pub use shared::{AccountSpending, Proposal, SharedTerms};
pub use terms::{AdmittedTerms, UNKNOWN_COST, highest_cost, is_counted};

use std::sync::Arc;

use ahash::HashMap;
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use penstock_config::{BudgetConfig, BudgetScope, Config, ModelGlob};

use crate::clients::ClientIdentity;
use crate::fleet::Openings;
use crate::routing::audit::BudgetVerdict;
use account::Account;
use period::{Period, PeriodSpan};

/// The maximum number of accounts; further teams and keys share one for each budget.
const MAX_ACCOUNTS: usize = 100_000;
/// The subject of the accounts that are shared because there are too many.
const OTHERS: &str = "(others)";

/// The treatment of a request for which a budget has no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AtLimit {
    Refuse,
    /// It may only reach what costs nothing in these zones.
    Zones(Vec<String>),
    Model(String),
}

/// A budget without room for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Exceeded {
    /// The name of the budget.
    pub budget: Arc<str>,
    /// The team or the key whose amount it is; empty if it is that of all.
    pub subject: Arc<str>,
    pub scope: BudgetScope,
    pub limit: Money,
    pub balance: Balance,
    /// The most that the request may cost.
    pub estimate: Money,
    /// The time at which there may be room for it, in seconds since 1970; `None` if it costs more
    /// than the whole amount, so that no wait helps.
    pub room_at: Option<u64>,
    /// The times at which there is room for such requests; `None` if all of it comes at one time,
    /// or later than two minutes from now.
    pub openings: Option<Box<Openings>>,
    pub at_limit: AtLimit,
}

/// Money that was spent and is not written down yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spending {
    pub budget: Arc<str>,
    pub subject: Arc<str>,
    /// The start of the part of time that it was spent in, in seconds since 1970.
    pub part: u64,
    pub amount: Money,
}

#[derive(Debug)]
struct Rule {
    name: Arc<str>,
    /// The position in the configuration.
    position: usize,
    scope: BudgetScope,
    limit: Money,
    period: Period,
    soft: Option<f64>,
    teams: Vec<ModelGlob>,
    keys: Vec<ModelGlob>,
    at_limit: AtLimit,
}

impl Rule {
    fn new(position: usize, config: &BudgetConfig) -> Self {
        let at_limit = match &config.model {
            Some(model) => AtLimit::Model(model.clone()),
            None if !config.zones.is_empty() => AtLimit::Zones(config.zones.clone()),
            None => AtLimit::Refuse,
        };
        Self {
            name: config.name.as_str().into(),
            position,
            scope: config.per,
            limit: Money::of(config.amount),
            period: Period::new(config),
            soft: config.soft,
            teams: config.teams.clone(),
            keys: config.keys.clone(),
            at_limit,
        }
    }

    /// Returns the subject whose amount a client spends; `None` if the budget is not for it.
    fn subject<'a>(&self, client: Option<&'a ClientIdentity>) -> Option<&'a str> {
        let fits = |globs: &[ModelGlob], name: Option<&str>| {
            name.is_some_and(|name| globs.iter().any(|glob| glob.matches(name)))
        };
        let team = client.and_then(|client| client.team.as_deref());
        let name = client.map(|client| &*client.name);
        let named = client.and_then(|client| client.budget.as_deref());
        let is_for = (self.teams.is_empty() && self.keys.is_empty())
            || fits(&self.teams, team)
            || fits(&self.keys, name)
            || named == Some(&*self.name);
        match self.scope {
            BudgetScope::Everything => Some(""),
            BudgetScope::Team => team,
            BudgetScope::Key => client.map(|client| &*client.id),
        }
        .filter(|_| is_for)
    }
}

type AccountKey = (Arc<str>, Arc<str>);
type AccountMutex = Arc<Mutex<Account>>;

/// One account of a request.
#[derive(Debug)]
struct Held {
    rule: Arc<Rule>,
    subject: Arc<str>,
    account: AccountMutex,
}

/// The money that a request has reserved; given back when it is dropped without being settled.
#[derive(Debug)]
pub struct BudgetHold {
    held: Vec<Held>,
    estimate: Money,
    is_settled: bool,
}

/// A budget whose soft limit was reached.
#[derive(Debug, Clone, PartialEq)]
pub struct SoftLimit {
    pub budget: Arc<str>,
    pub subject: Arc<str>,
    pub limit: Money,
    pub spent: Money,
}

impl BudgetHold {
    /// Ends the request with what it has cost. Returns the budgets whose soft limit that reached.
    pub fn settle(mut self, cost: Money, unix: u64) -> Vec<SoftLimit> {
        self.is_settled = true;
        let mut reached = Vec::new();
        for Held { rule, subject, account } in &self.held {
            let span = rule.period.at(unix);
            let mut account = account.lock();
            account.advance(span);
            account.settle(self.estimate, cost, span);
            if rule.soft.is_some_and(|soft| account.takes_warning(soft, rule.limit, span)) {
                let spent = account.balance(&rule.period, span).spent;
                let (budget, subject, limit) = (rule.name.clone(), subject.clone(), rule.limit);
                reached.push(SoftLimit { budget, subject, limit, spent });
            }
        }
        reached
    }

    /// Returns what was reserved.
    pub fn estimate(&self) -> Money {
        self.estimate
    }

    /// Returns the state of each of its budgets.
    pub fn reports(&self, unix: u64) -> impl Iterator<Item = BudgetReport> {
        self.held.iter().map(move |held| report(&held.rule, &held.subject, &held.account, unix))
    }
}

impl Drop for BudgetHold {
    fn drop(&mut self) {
        if !self.is_settled {
            for Held { account, .. } in &self.held {
                let mut account = account.lock();
                account.settle(self.estimate, Money::ZERO, NO_SPAN);
            }
        }
    }
}

/// The refusal of an account.
fn exceeded(held: &Held, account: &Account, estimate: Money, unix: u64) -> Box<Exceeded> {
    let Rule { name, scope, limit, period, at_limit, .. } = &*held.rule;
    Box::new(Exceeded {
        budget: Arc::clone(name),
        subject: Arc::clone(&held.subject),
        scope: *scope,
        limit: *limit,
        balance: account.balance(period, period.at(unix)),
        estimate,
        room_at: account.room_at(estimate, *limit, period, unix),
        openings: account.openings(estimate, *limit, period, unix).map(Box::new),
        at_limit: at_limit.clone(),
    })
}

/// A span for amounts of zero, which belong to no time.
const NO_SPAN: PeriodSpan = PeriodSpan { part: 0, since: 0, until: 0 };

fn report(rule: &Rule, subject: &Arc<str>, account: &AccountMutex, unix: u64) -> BudgetReport {
    let span = rule.period.at(unix);
    let mut account = account.lock();
    account.advance(span);
    BudgetReport {
        budget: Arc::clone(&rule.name),
        scope: rule.scope,
        subject: Arc::clone(subject),
        limit: rule.limit,
        soft: rule.soft,
        balance: account.balance(&rule.period, span),
    }
}

/// The budgets of a configuration, with what was spent of them. A reload changes the rules and
/// keeps what was spent.
#[derive(Debug, Default)]
pub struct Budgets {
    rules: ArcSwap<Vec<Arc<Rule>>>,
    accounts: RwLock<HashMap<AccountKey, AccountMutex>>,
}

impl Budgets {
    /// Returns the budgets of a configuration, of which nothing was spent.
    pub fn new(config: &Config) -> Self {
        let budgets = Self::default();
        budgets.adopt(config);
        budgets
    }

    pub fn adopt(&self, config: &Config) {
        let rules = config.budgets.iter().enumerate();
        let rules = rules.map(|(position, budget)| Arc::new(Rule::new(position, budget)));
        let mut rules: Vec<_> = rules.collect();
        // Requests lock accounts in this order. It is the same before and after a reload, so that
        // two requests never wait for each other.
        rules.sort_by(|one, other| one.name.cmp(&other.name));
        self.rules.store(Arc::new(rules));
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.load().is_empty()
    }

    /// Reserves what a request may cost from every budget of its client, or from none.
    ///
    /// # Errors
    /// The first budget without room for it.
    pub fn reserve(
        &self,
        client: Option<&ClientIdentity>,
        estimate: Money,
        unix: u64,
    ) -> Result<BudgetHold, Box<Exceeded>> {
        let held = self.held_by(client);
        Self::reserve_where(held, estimate, unix, |account, limit| {
            estimate == Money::ZERO || account.has_room(estimate, limit)
        })
    }

    /// The accounts of a client, in the order in which they are locked.
    fn held_by(&self, client: Option<&ClientIdentity>) -> Vec<Held> {
        let rules = self.rules.load();
        let subjects = rules.iter().filter_map(|rule| Some((rule, rule.subject(client)?)));
        let held = subjects.map(|(rule, subject)| {
            let (subject, account) = self.account(&rule.name, subject);
            Held { rule: Arc::clone(rule), subject, account }
        });
        held.collect()
    }

    /// Reserves from all accounts, if `fits` says so of each.
    fn reserve_where(
        held: Vec<Held>,
        estimate: Money,
        unix: u64,
        fits: impl Fn(&Account, Money) -> bool,
    ) -> Result<BudgetHold, Box<Exceeded>> {
        let mut locked: Vec<_> = held.iter().map(|held| (held, held.account.lock())).collect();
        locked.iter_mut().for_each(|(held, account)| account.advance(held.rule.period.at(unix)));
        let lacking = locked.iter_mut().filter(|(held, account)| !fits(account, held.rule.limit));
        if let Some((held, account)) = lacking.min_by_key(|(held, _)| held.rule.position) {
            account.count_refused();
            return Err(exceeded(held, account, estimate, unix));
        }
        locked.iter_mut().for_each(|(_, account)| account.reserve(estimate));
        drop(locked);
        Ok(BudgetHold { held, estimate, is_settled: false })
    }

    /// Returns the state of every budget of a client, and whether it has room for what a request
    /// may cost. Reserves nothing.
    pub fn examine(
        &self,
        client: Option<&ClientIdentity>,
        estimate: Money,
        unix: u64,
    ) -> Vec<BudgetVerdict> {
        let accounts = self.accounts.read();
        let mut all = Vec::new();
        for rule in self.rules.load().iter() {
            let Some(subject) = rule.subject(client) else { continue };
            let subject: Arc<str> = subject.into();
            let known = accounts.get(&(Arc::clone(&rule.name), Arc::clone(&subject)));
            let account = known.map(Arc::clone).unwrap_or_default();
            let report = report(rule, &subject, &account, unix);
            let fits = estimate == Money::ZERO || account.lock().has_room(estimate, rule.limit);
            all.push(report.verdict(estimate, fits, &rule.at_limit));
        }
        all
    }

    fn account(&self, budget: &Arc<str>, subject: &str) -> (Arc<str>, AccountMutex) {
        let subject: Arc<str> = subject.into();
        let key = (Arc::clone(budget), Arc::clone(&subject));
        if let Some(account) = self.accounts.read().get(&key) {
            return (subject, Arc::clone(account));
        }
        let mut accounts = self.accounts.write();
        if accounts.len() >= MAX_ACCOUNTS {
            // One that a request holds is about to be used.
            accounts
                .retain(|_, account| Arc::strong_count(account) > 1 || !account.lock().is_empty());
        }
        let subject = if accounts.len() < MAX_ACCOUNTS { subject } else { OTHERS.into() };
        let key = (Arc::clone(budget), Arc::clone(&subject));
        (subject, Arc::clone(accounts.entry(key).or_default()))
    }

    /// Returns the state of every account, by budget and subject. Budgets of everything are there
    /// before anything was spent.
    pub fn reports(&self, unix: u64) -> Vec<BudgetReport> {
        let rules = self.rules.load();
        for rule in rules.iter().filter(|rule| rule.scope == BudgetScope::Everything) {
            self.account(&rule.name, "");
        }
        let accounts = self.accounts.read();
        let mut all: Vec<BudgetReport> = Vec::new();
        for rule in rules.iter() {
            let own = accounts.iter().filter(|((budget, _), _)| *budget == rule.name);
            all.extend(own.map(|((_, subject), account)| report(rule, subject, account, unix)));
        }
        all.sort_by(|one, other| (&one.budget, &one.subject).cmp(&(&other.budget, &other.subject)));
        all
    }

    /// Takes what was spent since the last call, to be written down.
    pub fn take_unwritten(&self) -> Vec<Spending> {
        let accounts = self.accounts.read();
        let mut all = Vec::new();
        for ((budget, subject), account) in accounts.iter() {
            all.extend(account.lock().take_unwritten().into_iter().map(|(part, amount)| {
                Spending { budget: Arc::clone(budget), subject: Arc::clone(subject), part, amount }
            }));
        }
        all
    }

    /// Adds what the ledger knows and this process does not: what was spent before it started, and
    /// what others spend that write to the same ledger. `pending`: what was taken to be written
    /// down and is not part of `stored`.
    pub fn restore(&self, stored: &Spending, pending: Money) {
        let (_, account) = self.account(&stored.budget, &stored.subject);
        account.lock().restore(stored.part, stored.amount, pending);
    }

    /// Returns the time since which spent money may still count, in seconds since 1970.
    pub fn oldest(&self, unix: u64) -> u64 {
        let rules = self.rules.load();
        rules.iter().map(|rule| rule.period.at(unix).since).min().unwrap_or(unix)
    }
}
