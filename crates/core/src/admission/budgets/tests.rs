use std::sync::atomic::{AtomicU64, Ordering};

use penstock_config::{Config, Environment};

use super::{AtLimit, Balance, Budgets, Money, Spending};
use crate::clients::ClientIdentity;

fn budgets(yaml: &str) -> Budgets {
    let yaml = format!(
        "backends: [http://h:1]\nledger: {{ path: /var/lib/penstock/l.db }}\nbudgets:\n{yaml}"
    );
    let environment = Environment::default();
    let config = Config::parse(&yaml, "test.yaml", std::path::Path::new(""), &environment);
    Budgets::new(&config.unwrap_or_else(|error| panic!("{yaml}\n{error}")))
}

fn client(name: &str, team: Option<&str>) -> ClientIdentity {
    ClientIdentity { team: team.map(Box::from), ..ClientIdentity::new(name, name) }
}

/// 2026-11-27 12:00 UTC.
const NOON: u64 = 1_795_780_800;

fn money(amount: f64) -> Money {
    Money::of(amount)
}

#[test]
fn reserved_and_spent_money_fits_the_amount() {
    let budgets = budgets("  - { name: all, amount: 1.0 }\n");
    let first = budgets.reserve(None, money(0.6), NOON).unwrap();
    let exceeded = budgets.reserve(None, money(0.5), NOON).unwrap_err();
    assert_eq!((exceeded.limit, exceeded.balance.reserved), (money(1.0), money(0.6)));
    assert_eq!(exceeded.at_limit, AtLimit::Refuse);
    assert_eq!(exceeded.room_at, Some(NOON), "the request in flight may cost less");
    let second = budgets.reserve(None, money(0.4), NOON).unwrap();
    first.settle(money(0.1), NOON);
    drop(second);
    let report = &budgets.reports(NOON)[0];
    assert_eq!((report.balance.spent, report.balance.reserved), (money(0.1), Money::ZERO));
    let third = budgets.reserve(None, money(0.9), NOON).unwrap();
    third.settle(money(1.5), NOON);
    assert_eq!(budgets.reports(NOON)[0].balance.spent, money(1.6), "an overrun is shown");
    assert!(budgets.reserve(None, money(1e-9), NOON).is_err());
    assert!(budgets.reserve(None, Money::ZERO, NOON).is_ok(), "what costs nothing passes");
    assert_eq!(budgets.reports(NOON)[0].balance.refused_count, 2);
}

#[test]
fn teams_and_keys_have_separate_amounts() {
    let budgets = budgets(
        "  - { name: team, amount: 1, per: team }\n  - { name: key, amount: 0.5, per: key, keys: ['a*'] }\n",
    );
    let (a1, a2) = (client("a1", Some("a")), client("a2", Some("a")));
    let (b, teamless) = (client("b", Some("b")), client("x", None));
    for (who, amount, refused_by) in [
        (Some(&a1), 0.5, None),
        (Some(&a1), 0.1, Some("key")),
        (Some(&a2), 0.4, None),
        (Some(&a2), 0.2, Some("team")),
        (Some(&b), 1.0, None),
        (Some(&b), 0.1, Some("team")),
        (Some(&teamless), 99.0, None),
        (None, 99.0, None),
    ] {
        let result = budgets.reserve(who, money(amount), NOON);
        let by = result.as_ref().err().map(|exceeded| exceeded.budget.to_string());
        assert_eq!(by.as_deref(), refused_by, "{who:?} {amount}");
        result.into_iter().for_each(|hold| drop(hold.settle(money(amount), NOON)));
    }
    let keys: Vec<_> =
        budgets.reports(NOON).into_iter().map(|one| one.subject.to_string()).collect();
    assert_eq!(keys, ["a1", "a2", "a", "b"]);
    let chosen = ClientIdentity { budget: Some("key".into()), ..client("c", None) };
    assert!(budgets.reserve(Some(&chosen), money(0.6), NOON).is_err(), "its key names the budget");
}

#[test]
fn amount_returns_with_the_next_period() {
    let budgets = budgets("  - { name: d, amount: 1, every: day }\n");
    budgets.reserve(None, money(1.0), NOON).unwrap().settle(money(1.0), NOON);
    let exceeded = budgets.reserve(None, money(0.1), NOON + 60).unwrap_err();
    assert_eq!(exceeded.balance.until, NOON + 12 * 3600, "midnight");
    assert_eq!(exceeded.room_at, Some(NOON + 12 * 3600));
    assert!(budgets.reserve(None, money(0.1), NOON + 12 * 3600 - 1).is_err());
    assert!(budgets.reserve(None, money(1.0), NOON + 12 * 3600).is_ok());
    // The clock is set back: what was spent on that day counts again, and the later day, too.
    let back = budgets.reserve(None, money(1.0), NOON);
    assert!(back.is_ok(), "what was forgotten stays forgotten");
}

#[test]
fn money_of_a_later_part_counts_if_the_clock_is_set_back() {
    let budgets = budgets("  - { name: d, amount: 1, every: day }\n");
    budgets.reserve(None, money(0.8), NOON + 86_400).unwrap().settle(money(0.8), NOON + 86_400);
    assert!(budgets.reserve(None, money(0.5), NOON).is_err());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn reload_that_reorders_budgets_locks_in_one_order() {
    let yaml = |first: &str, second: &str| {
        let text = format!(
            "backends: [http://h:1]\nledger: {{ path: /var/lib/penstock/l.db }}\nbudgets:\n  \
             - {{ name: {first}, amount: 1000 }}\n  - {{ name: {second}, amount: 1000 }}\n"
        );
        let environment = Environment::default();
        Config::parse(&text, "test.yaml", std::path::Path::new(""), &environment).unwrap()
    };
    let (one, other) = (yaml("a", "b"), yaml("b", "a"));
    let budgets = Budgets::new(&one);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    drop(budgets.reserve(None, money(0.1), NOON));
                }
            });
        }
        for _ in 0..1000 {
            budgets.adopt(&other);
            budgets.adopt(&one);
        }
    });
    assert!(budgets.reports(NOON).iter().all(|one| one.balance.reserved == Money::ZERO));
}

#[test]
fn rolling_period_forgets_by_parts() {
    let budgets = budgets("  - { name: r, amount: 60, every: 1h }\n");
    for minute in 0..60 {
        let at = NOON + minute * 60;
        budgets.reserve(None, money(1.0), at).unwrap().settle(money(1.0), at);
    }
    let balance = budgets.reports(NOON + 59 * 60)[0].balance;
    assert_eq!(balance.until, NOON + 3600, "the first minute is forgotten then");
    assert!(budgets.reserve(None, money(0.5), NOON + 59 * 60 + 59).is_err());
    let late = NOON + 59 * 60 + 59;
    let room_at = |amount| budgets.reserve(None, money(amount), late).unwrap_err().room_at;
    assert_eq!(room_at(0.5), Some(NOON + 60 * 60));
    assert_eq!(room_at(3.5), Some(NOON + 63 * 60), "four minutes have to be forgotten");
    assert_eq!(room_at(61.0), None);
    let openings = |amount| {
        let openings = budgets.reserve(None, money(amount), late).unwrap_err().openings?;
        let count = |second| openings.after_seconds().find(|(one, _)| *one == second).unwrap().1;
        Some([1, 60, 61, 120].map(count))
    };
    assert_eq!(openings(0.5), Some([2, 2, 4, 4]), "each minute is room for two");
    assert_eq!(openings(1.5), Some([0, 0, 1, 1]));
    assert_eq!(openings(61.0), None);
    assert!(budgets.reserve(None, money(1.0), NOON + 60 * 60).is_ok(), "the first minute is over");
    assert_eq!(budgets.reports(NOON + 2 * 3600)[0].balance.spent, Money::ZERO);
}

#[test]
fn soft_limit_warns_once_in_a_period() {
    let budgets = budgets("  - { name: s, amount: 1, every: day, soft: 75% }\n");
    let spend =
        |amount, at| budgets.reserve(None, money(amount), at).unwrap().settle(money(amount), at);
    assert!(spend(0.7, NOON).is_empty());
    let reached = spend(0.1, NOON);
    assert_eq!((&*reached[0].budget, reached[0].spent), ("s", money(0.8)));
    assert!(spend(0.1, NOON).is_empty(), "once");
    assert_eq!(spend(0.8, NOON + 86_400).len(), 1, "and again the next day");
}

#[test]
fn spent_money_is_written_down_once_and_restored() {
    let yaml = "  - { name: m, amount: 5 }\n";
    let before = budgets(yaml);
    before.reserve(None, money(2.0), NOON).unwrap().settle(money(1.5), NOON);
    before.reserve(None, money(2.0), NOON).unwrap().settle(money(0.5), NOON);
    let written = before.take_unwritten();
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].amount, money(2.0));
    assert!(before.take_unwritten().is_empty());
    let after = budgets(yaml);
    assert!(written[0].part >= after.oldest(NOON));
    written.iter().for_each(|one| after.restore(one, Money::ZERO));
    assert_eq!(after.reports(NOON)[0].balance.spent, money(2.0));
    assert!(after.take_unwritten().is_empty(), "it is written already");
    let old = Spending { part: after.oldest(NOON) - 86_400, ..written[0].clone() };
    after.restore(&old, Money::ZERO);
    assert_eq!(after.reports(NOON)[0].balance.spent, money(2.0), "of another period");
}

#[test]
fn money_of_another_process_is_added_once() {
    let budgets = budgets("  - { name: m, amount: 5 }\n");
    let spend = |amount| {
        budgets.reserve(None, money(amount), NOON).unwrap().settle(money(amount), NOON);
    };
    let spent = || budgets.reports(NOON)[0].balance.spent;
    spend(1.0);
    let own = budgets.take_unwritten();
    let stored = |amount| Spending { amount: money(amount), ..own[0].clone() };
    budgets.restore(&stored(0.5), money(1.0));
    assert_eq!(spent(), money(1.5), "the other's; the own is still to be written");
    spend(0.25);
    for _ in 0..2 {
        budgets.restore(&stored(1.5), Money::ZERO);
        assert_eq!(spent(), money(1.75), "both are written");
    }
    budgets.restore(&stored(2.0), Money::ZERO);
    assert_eq!(spent(), money(2.25));
    assert_eq!(budgets.take_unwritten()[0].amount, money(0.25), "only the own is written");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn no_interleaving_of_64_threads_spends_more_than_the_amount() {
    let budgets =
        budgets("  - { name: all, amount: 1 }\n  - { name: key, amount: 0.3, per: key }\n");
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..64_u64 {
            let (budgets, admitted) = (&budgets, &admitted);
            scope.spawn(move || {
                let own = client(&format!("k{}", thread % 8), None);
                for number in 0..200_u64 {
                    let estimate = Money((thread * 31 + number * 17) * 7_919 % 900_000 + 1);
                    let Ok(hold) = budgets.reserve(Some(&own), estimate, NOON) else { continue };
                    for report in hold.reports(NOON) {
                        let Balance { spent, reserved, .. } = report.balance;
                        assert!(spent.plus(reserved) <= report.limit, "{report:?}");
                    }
                    if number % 3 == 0 {
                        drop(hold);
                    } else {
                        let cost = Money(estimate.0 - estimate.0 / 4);
                        admitted.fetch_add(cost.0, Ordering::Relaxed);
                        hold.settle(cost, NOON);
                    }
                }
            });
        }
    });
    let reports = budgets.reports(NOON);
    let all = reports.iter().find(|one| &*one.budget == "all").unwrap();
    assert_eq!(all.balance.spent.0, admitted.load(Ordering::Relaxed), "nothing is lost");
    assert_eq!(all.balance.reserved, Money::ZERO);
    let of_keys: u64 =
        reports.iter().filter(|one| &*one.budget == "key").map(|one| one.balance.spent.0).sum();
    assert_eq!(of_keys, all.balance.spent.0);
    assert!(all.balance.spent > money(0.5), "threads had to compete");
}

#[test]
fn small_costs_are_never_free() {
    assert_eq!(Money::of(1e-12), Money::ZERO, "less than a thousandth of the smallest amount");
    assert_eq!(Money::of(5e-8), Money(50));
    assert_eq!(Money::of(1.4e-9), Money(2));
    assert_eq!(Money::of(0.1).plus(Money::of(0.2)), Money::of(0.3));
}
