use std::net::IpAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const SECOND: u64 = 1_000_000;

fn limits(requests: u32, tokens: u32, day: usize, in_flight: u32) -> RateLimits {
    RateLimits {
        requests_per_minute: Some(requests).filter(|it| *it > 0),
        tokens_per_minute: Some(tokens).filter(|it| *it > 0),
        tokens_per_day: Some(day).filter(|it| *it > 0),
        in_flight: Some(in_flight).filter(|it| *it > 0),
    }
}

fn limiter() -> RateLimiter {
    RateLimiter::new(&Config::default())
}

fn at(micros: u64) -> LimitTime {
    LimitTime { at: Timestamp(micros), unix: 1_000 * 86_400 + micros / SECOND }
}

fn key(limits: &RateLimits) -> Caller<'_> {
    Caller { key: Some(("k", limits)), address: None }
}

fn kind(refused: Result<RatePermit, Refusal>) -> LimitKind {
    refused.unwrap_err().kind
}

#[test]
fn requests_are_limited_to_a_burst_and_then_to_the_rate() {
    let (limiter, limits) = (limiter(), limits(60, 0, 0, 0));
    for _ in 0..60 {
        limiter.admit(&key(&limits), 0, at(0)).unwrap();
    }
    let refusal = limiter.admit(&key(&limits), 0, at(0)).unwrap_err();
    assert_eq!((refusal.kind, refusal.limit), (LimitKind::RequestsPerMinute, 60));
    assert_eq!(refusal.wait, Some(Duration::from_secs(1)));
    assert_eq!(refusal.status.requests.unwrap().remaining, 0);
    let mut admitted = 0;
    for step in 0..=600 {
        admitted += u32::from(limiter.admit(&key(&limits), 0, at(step * SECOND / 10)).is_ok());
    }
    assert_eq!(admitted, 60, "one a second for a minute");
    assert!(limiter.admit(&key(&limits), 0, at(61 * SECOND - 1)).is_err());
    assert!(limiter.admit(&key(&limits), 0, at(61 * SECOND)).is_ok());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn threads_never_get_more_than_the_limit() {
    for round in 0..20 {
        let limits = limits(500, 100_000, 0, 0);
        let (limiter, admitted, barrier) = (limiter(), AtomicUsize::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..500 {
                        if let Ok(permit) = limiter.admit(&key(&limits), 7, at(round)) {
                            admitted.fetch_add(1, Ordering::Relaxed);
                            permit.settle(Some(3), at(round));
                        }
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 500);
        assert_eq!(limiter.keys(at(round))[0].in_flight, 0);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn threads_never_hold_more_slots_than_the_limit() {
    let limits = limits(0, 0, 0, 3);
    let (limiter, held, most) = (limiter(), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (limiter, limits, held, most) = (&limiter, &limits, &held, &most);
            scope.spawn(move || {
                for turn in 0..5_000 {
                    let Ok(permit) = limiter.admit(&key(limits), 0, at(0)) else { continue };
                    most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    held.fetch_sub(1, Ordering::SeqCst);
                    if (turn + thread) % 2 == 0 {
                        permit.settle(None, at(0));
                    }
                }
            });
        }
    });
    assert!((1..=3).contains(&most.into_inner()));
    assert_eq!(limiter.keys(at(0))[0].in_flight, 0);
}

#[test]
fn tokens_are_reserved_and_settled() {
    let (limiter, limits) = (limiter(), limits(0, 1000, 0, 0));
    let first = limiter.admit(&key(&limits), 800, at(0)).unwrap();
    assert_eq!(first.status().tokens.unwrap().remaining, 200);
    let refusal = limiter.admit(&key(&limits), 300, at(0)).unwrap_err();
    assert_eq!(refusal.wait, Some(Duration::from_secs(6)), "100 tokens at 1000 a minute");
    first.settle(Some(100), at(0));
    first.settle(Some(0), at(0));
    let second = limiter.admit(&key(&limits), 900, at(0)).unwrap();
    assert_eq!(second.status().tokens.unwrap().remaining, 0, "only the first settlement counts");
    second.settle(Some(1900), at(0));
    let refusal = limiter.admit(&key(&limits), 0, at(0)).unwrap_err();
    assert_eq!(refusal.wait, Some(Duration::from_secs(60)), "more than estimated is charged, too");
}

#[test]
fn request_larger_than_a_limit_never_fits() {
    let refused = |limits: &RateLimits| limiter().admit(&key(limits), 1001, at(0)).unwrap_err();
    let minute = refused(&limits(1, 1000, 0, 0));
    assert_eq!((minute.kind, minute.wait), (LimitKind::TokensPerMinute, None));
    let day = refused(&limits(1, 0, 1000, 0));
    assert_eq!((day.kind, day.wait), (LimitKind::TokensPerDay, None));
}

#[test]
fn day_ends_at_midnight_utc() {
    let (limiter, limits) = (limiter(), limits(0, 0, 1000, 0));
    let late = LimitTime { at: Timestamp(0), unix: 1_000 * 86_400 + 86_390 };
    let open = limiter.admit(&key(&limits), 900, late).unwrap();
    let refusal = limiter.admit(&key(&limits), 200, late).unwrap_err();
    assert_eq!(refusal.kind, LimitKind::TokensPerDay);
    assert_eq!(refusal.wait, Some(Duration::from_secs(10)));
    let midnight = LimitTime { at: Timestamp(10 * SECOND), unix: 1_001 * 86_400 };
    limiter.admit(&key(&limits), 200, midnight).unwrap();
    open.settle(Some(100), midnight);
    assert_eq!(limiter.keys(midnight)[0].day_tokens, 200, "a refund of yesterday is not today's");
    limiter.restore_day("k", 700, midnight);
    assert_eq!(kind(limiter.admit(&key(&limits), 200, midnight)), LimitKind::TokensPerDay);
}

#[test]
fn slot_is_freed_by_a_drop() {
    let (limiter, limits) = (limiter(), limits(0, 1000, 0, 1));
    let permit = limiter.admit(&key(&limits), 500, at(0)).unwrap();
    assert_eq!(kind(limiter.admit(&key(&limits), 0, at(0))), LimitKind::InFlight);
    drop(permit);
    let next = limiter.admit(&key(&limits), 0, at(0)).unwrap();
    assert_eq!(next.status().tokens.unwrap().remaining, 500, "its tokens stay reserved");
}

#[test]
fn refused_request_takes_nothing_from_either_client() {
    let (limiter, of_key, of_address) = (limiter(), limits(10, 0, 0, 0), limits(1, 0, 0, 0));
    let address = AddressKey::from("192.0.2.1".parse::<IpAddr>().unwrap());
    let both = Caller { key: Some(("k", &of_key)), address: Some((address, &of_address)) };
    let first = limiter.admit(&both, 0, at(0)).unwrap();
    assert_eq!(first.status().requests.unwrap().limit, 1, "the one with less left is shown");
    for _ in 0..20 {
        let refusal = limiter.admit(&both, 0, at(0)).unwrap_err();
        assert!(refusal.is_address);
    }
    for _ in 0..9 {
        limiter.admit(&key(&of_key), 0, at(0)).unwrap();
    }
    assert!(limiter.admit(&key(&of_key), 0, at(0)).is_err());
    assert_eq!(limiter.refused_addresses(), [20, 0, 0, 0]);
    assert_eq!(limiter.keys(at(0))[0].refused, [1, 0, 0, 0]);
}

#[test]
fn undone_request_leaves_no_trace() {
    let (limiter, limits) = (limiter(), limits(1, 1000, 1000, 1));
    limiter.admit(&key(&limits), 1000, at(0)).unwrap().undo(at(0));
    let again = limiter.admit(&key(&limits), 1000, at(0)).unwrap();
    assert_eq!(again.status().tokens.unwrap().remaining, 0);
}

#[test]
fn changed_limits_forget_nothing() {
    let limiter = limiter();
    let (wide, narrow) = (limits(100, 0, 0, 0), limits(10, 0, 0, 0));
    for _ in 0..50 {
        limiter.admit(&key(&wide), 0, at(0)).unwrap();
    }
    let refusal = limiter.admit(&key(&narrow), 0, at(0)).unwrap_err();
    assert_eq!(refusal.wait, Some(Duration::from_secs(41 * 6)), "50 used, room at 9");
    for _ in 0..50 {
        limiter.admit(&key(&wide), 0, at(0)).unwrap();
    }
    assert!(limiter.admit(&key(&wide), 0, at(0)).is_err());
}

#[test]
fn keys_that_are_gone_are_forgotten() {
    let yaml = |names: &[&str]| {
        let mut config = Config::default();
        config.auth.keys = names
            .iter()
            .map(|name| penstock_config::ClientKey {
                name: (*name).to_owned(),
                ..Default::default()
            })
            .collect();
        config
    };
    let limiter = RateLimiter::new(&yaml(&["a", "b", "a"]));
    let names = |limiter: &RateLimiter| {
        limiter.keys(at(0)).iter().map(|key| key.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&limiter), ["a", "b"], "a name is one client, however many keys have it");
    let limits = limits(1, 0, 0, 0);
    let caller = |name| Caller { key: Some((name, &limits)), address: None };
    limiter.admit(&caller("a"), 0, at(0)).unwrap();
    limiter.adopt(&yaml(&["a"]), std::iter::empty());
    assert_eq!(names(&limiter), ["a"]);
    assert!(limiter.admit(&caller("a"), 0, at(0)).is_err(), "what is used stays used");
}

#[test]
fn clocks_that_disagree_a_little_grant_nothing() {
    let (limiter, limits) = (limiter(), limits(1, 0, 0, 0));
    limiter.admit(&key(&limits), 0, at(90 * SECOND)).unwrap();
    for step in 0..60 {
        let now = at((60 + step) * SECOND);
        assert!(limiter.admit(&key(&limits), 0, now).is_err(), "{step}");
    }
    assert!(limiter.admit(&key(&limits), 0, at(150 * SECOND)).is_ok());
}

#[test]
fn next_process_continues_with_what_is_used() {
    let mut config = Config::default();
    let limits = limits(10, 600, 5000, 0);
    config.auth.keys = vec![penstock_config::ClientKey {
        name: "k".to_owned(),
        limits: Some(limits.clone()),
        ..Default::default()
    }];
    let (old, new) = (RateLimiter::new(&config), RateLimiter::new(&config));
    let caller = Caller { key: Some(("k", &limits)), address: None };
    for _ in 0..10 {
        drop(old.admit(&caller, 50, at(100 * SECOND)).unwrap());
    }
    let used = old.used([("k", &limits)].into_iter(), at(106 * SECOND));
    let text = serde_json::to_string(&used).unwrap();
    let used: Vec<KeyUse> = serde_json::from_str(&text).unwrap();
    let other = KeyUse { name: "gone".to_owned(), ..KeyUse::default() };
    // The new process is a second old.
    let start = LimitTime { at: Timestamp(SECOND), unix: at(106 * SECOND).unix };
    assert_eq!(new.restore_used(&[used[0].clone(), other], &|_| false, start), 1);
    assert_eq!(new.keys(start)[0].day_tokens, old.keys(at(106 * SECOND))[0].day_tokens);
    let permit = new.admit(&caller, 60, start).unwrap();
    assert_eq!(permit.status().requests.unwrap().remaining, 0, "nine of ten were used");
    assert!(new.admit(&caller, 60, start).is_err());
}

#[test]
fn openings_follow_the_limit_that_refused() {
    let opened = |limits: &RateLimits, tokens: u64, seconds: u64| {
        let limiter = limiter();
        let mut held = Vec::new();
        let refusal = loop {
            match limiter.admit(&key(limits), tokens, at(0)) {
                Ok(permit) => held.push(permit),
                Err(refusal) => break refusal,
            }
        };
        let now = Timestamp(seconds * SECOND);
        let openings = limiter.openings(&key(limits), &refusal, None, now)?;
        Some(openings.after_seconds().map(|(_, count)| count).take(10).collect::<Vec<_>>())
    };
    let rate = Some(vec![0, 1, 1, 2, 2, 3, 3, 4, 4, 5]);
    assert_eq!(opened(&limits(30, 0, 0, 0), 0, 0), rate);
    assert_eq!(opened(&limits(0, 3000, 0, 0), 100, 0), rate, "100 of 3000 tokens in two seconds");
    assert_eq!(opened(&limits(0, 0, 1000, 0), 300, 0), None, "all of a day's is free at midnight");
    let in_flight = opened(&limits(0, 0, 0, 2), 0, 4).unwrap();
    assert_eq!(in_flight, [0, 0, 0, 0, 0, 2, 2, 2, 2, 2], "nothing is known of their duration");
}

#[test]
fn slots_are_expected_after_the_duration_of_requests_that_were_served() {
    let (limiter, limits) = (limiter(), limits(0, 0, 0, 1));
    let serve = |from: u64, to: u64, used| {
        limiter.admit(&key(&limits), 0, at(from)).unwrap().settle(used, at(to));
    };
    (0..20).for_each(|round| serve(round * 10 * SECOND, (round * 10 + 3) * SECOND, None));
    (0..20).for_each(|_| serve(300 * SECOND, 300 * SECOND, Some(0)));
    let _held = limiter.admit(&key(&limits), 0, at(400 * SECOND)).unwrap();
    let refusal = limiter.admit(&key(&limits), 0, at(401 * SECOND)).unwrap_err();
    let now = Timestamp(401 * SECOND);
    let openings = limiter.openings(&key(&limits), &refusal, None, now).unwrap();
    let first = openings.after_seconds().find(|(_, count)| *count > 0);
    assert_eq!(first, Some((3, 1)), "2.2 seconds are left");
}
