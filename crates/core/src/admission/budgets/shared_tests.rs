//! Tests of accounts that several penstocks share.

use std::sync::Arc;

use penstock_config::{Config, Environment};

use super::{BudgetHold, Budgets, Exceeded, LedgerSpending, Money, SharedBalance};

/// 2026-11-27 12:00 UTC.
const NOON: u64 = 1_795_780_800;
const OWN: &str = "own";

fn budgets(budget: &str) -> Budgets {
    let yaml = format!("backends: [http://h:1]\nledger: {{ path: /l.db }}\nbudgets: [{budget}]");
    let environment = Environment::default();
    let config = Config::parse(&yaml, "test.yaml", std::path::Path::new(""), &environment);
    Budgets::new(&config.unwrap_or_else(|error| panic!("{yaml}\n{error}")))
}

fn row(part: u64, ledger: &str, amount: f64) -> LedgerSpending {
    LedgerSpending { part, ledger: ledger.into(), amount: Money::of(amount) }
}

fn known(reserved: f64, rows: &[LedgerSpending]) -> SharedBalance {
    SharedBalance { reserved: Money::of(reserved), rows: rows.to_vec() }
}

fn day(at: u64) -> u64 {
    at / 86_400 * 86_400
}

fn admit(budgets: &Budgets, amount: f64, balance: &SharedBalance) -> BudgetHold {
    let proposal = budgets.propose(None, Money::of(amount), NOON).unwrap();
    proposal.admit(std::slice::from_ref(balance), OWN)
}

fn alone(budgets: &Budgets, amount: f64, penstocks: u64) -> Result<BudgetHold, Box<Exceeded>> {
    budgets.propose(None, Money::of(amount), NOON)?.admit_alone(penstocks)
}

#[test]
fn money_of_other_penstocks_counts() {
    let budgets = budgets("{ name: d, amount: 1, every: day }");
    let others = known(0.3, &[row(day(NOON), "b", 0.2), row(day(NOON), "c", 0.1)]);
    let hold = admit(&budgets, 0.1, &others);
    let balance = budgets.reports(NOON)[0].balance;
    assert_eq!((balance.spent, balance.reserved), (Money::of(0.3), Money::of(0.3)), "0.1 is own");
    hold.settle(Money::of(0.1), NOON);
    // An older response arrives late.
    budgets.propose(None, Money::of(0.1), NOON).unwrap().admit(&[known(0.0, &[])], OWN);
    assert_eq!(budgets.reports(NOON)[0].balance.spent, Money::of(0.4), "a sum only grows");
    let spent = budgets.propose(None, Money::of(0.7), NOON).unwrap_err();
    assert_eq!(spent.room_at, Some(day(NOON) + 86_400), "known without the server");
    let later = budgets.propose(None, Money::of(1.0), NOON + 86_400);
    assert!(later.is_ok(), "the next day: {later:?}");
    assert_eq!(budgets.take_unwritten().len(), 1, "only the own is written down");
}

#[test]
fn server_knows_what_a_crash_has_lost() {
    let budgets = budgets("{ name: d, amount: 10, every: day }");
    let part = day(NOON);
    let stored =
        super::Spending { budget: "d".into(), subject: "".into(), part, amount: Money::of(1.0) };
    budgets.restore(&stored, Money::ZERO);
    let hold = admit(&budgets, 0.5, &known(0.0, &[row(part, OWN, 1.5), row(part, "b", 2.0)]));
    hold.settle(Money::of(0.5), NOON);
    let shared = budgets.take_unshared(&mine_terms(&budgets));
    assert_eq!(shared, [(part, Money::of(2.0))], "1 of the ledger, 0.5 lost, 0.5 now");
    assert!(budgets.take_unshared(&mine_terms(&budgets)).is_empty());
    assert_eq!(budgets.reports(NOON)[0].balance.spent, Money::of(4.0));
    let all = &budgets.spending(0, 10, NOON)[0];
    assert_eq!((all.own.len(), &all.foreign[..]), (1, &[row(part, "b", 2.0)][..]));
    assert_eq!(all.terms.ends_at, part + 86_400);
}

#[test]
fn shares_of_what_was_left_hold_without_the_server() {
    let [one, other] = [(); 2].map(|()| budgets("{ name: d, amount: 1, every: day }"));
    let part = day(NOON);
    // The first has spent 0.1 and reserved 0.2, the second has spent 0.3: 0.4 is left.
    let mine = admit(&one, 0.2, &known(0.2, &[row(part, "b", 0.3)]));
    admit(&one, 0.1, &known(0.3, &[row(part, "b", 0.3)])).settle(Money::of(0.1), NOON);
    one.learn(&mine_terms(&one), &known(0.2, &[row(part, OWN, 0.1), row(part, "b", 0.3)]), OWN);
    admit(&other, 0.3, &known(0.3, &[])).settle(Money::of(0.3), NOON);
    other.learn(&mine_terms(&other), &known(0.2, &[row(part, "a", 0.1)]), OWN);
    let mut sum: f64 = 0.1 + 0.2 + 0.3;
    let mut held = Vec::new();
    for budgets in [&one, &other] {
        while let Ok(hold) = alone(budgets, 0.05, 2) {
            sum += 0.05;
            held.push(hold);
        }
    }
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    drop((held, mine));
    assert!(alone(&one, 0.3, 1).is_ok(), "what is given back may be spent again");
    let fresh = budgets("{ name: d, amount: 1, every: day }");
    assert!(alone(&fresh, 0.5, 2).is_ok() && alone(&fresh, 0.6, 2).is_err());
}

fn mine_terms(budgets: &Budgets) -> super::SharedTerms {
    budgets.propose(None, Money::ZERO, NOON).unwrap().terms()[0].clone()
}

#[test]
fn clocks_apart_by_seconds_never_exceed_a_period() {
    // The first clock is three seconds ahead, at the end of the day.
    let midnight = day(NOON) + 86_400;
    let (ahead, behind) = (midnight + 1, midnight - 2);
    let [one, other] = [(); 2].map(|()| budgets("{ name: d, amount: 1, every: day }"));
    let rows = [row(day(NOON), "b", 0.9), row(midnight, "a", 0.3)];
    let late = other.propose(None, Money::of(0.1), behind).unwrap();
    let late = late.admit(&[known(0.1, &rows)], "b");
    assert_eq!(late.estimate(), Money::of(0.1));
    let more = other.propose(None, Money::of(0.2), behind);
    assert!(more.is_err(), "the old day has 0.9, and the new one counts, too");
    let early = one.propose(None, Money::of(0.6), ahead).unwrap();
    assert_eq!(early.terms()[0].since, midnight, "the old day no longer counts");
    let _held = early.admit(&[known(0.1, &rows)], "a");
    assert_eq!(Arc::clone(&one.reports(ahead)[0].budget), "d".into());
    assert_eq!(one.reports(ahead)[0].balance.spent, Money::of(0.3));
}
