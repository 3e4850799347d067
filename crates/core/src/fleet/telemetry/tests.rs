use std::sync::atomic::AtomicBool;

use super::*;

const SECOND: u64 = 1_000_000;
const INTERVAL: Duration = Duration::from_millis(100);

fn sample() -> EngineSample {
    EngineSample {
        waiting: Some(3.0),
        running: Some(5.0),
        kv_utilization: Some(0.5),
        in_flight: 4,
        sent_at: Timestamp(SECOND),
        interval: INTERVAL,
    }
}

fn load(in_flight: u32) -> Load {
    let load = Load::default();
    load.set_in_flight(in_flight);
    load
}

fn after(wait: Duration) -> Timestamp {
    Timestamp(SECOND).after(wait)
}

#[test]
fn backend_never_scraped_is_unknown_not_idle() {
    let telemetry = Telemetry::default();
    let expected = Readings { load: 7.0, ..Readings::default() };
    assert_eq!(telemetry.read(&load(7), Timestamp(9 * SECOND)), expected);
    telemetry.fail();
    let failed = telemetry.read(&load(7), Timestamp(99 * SECOND));
    assert_eq!(failed.standing, Standing::Unknown, "it has never returned metrics");
}

#[test]
fn fresh_load_adds_requests_dispatched_since_the_scrape() {
    let telemetry = Telemetry::default();
    telemetry.publish(sample());
    let read = |in_flight| telemetry.read(&load(in_flight), after(Duration::from_millis(300)));
    let same = read(4);
    assert_eq!((same.waiting, same.running, same.load), (Some(3.0), Some(5.0), 8.0));
    assert_eq!((same.kv_utilization, same.standing), (Some(0.5), Standing::Fresh));
    assert_eq!(same.age, Some(Micros(300_000)));
    assert_eq!(read(6).load, 10.0, "two more since it was sent");
    assert_eq!(read(0).load, 4.0, "four have ended since");
    telemetry.publish(EngineSample { waiting: Some(0.0), running: Some(1.0), ..sample() });
    assert_eq!(read(0).load, 0.0, "never below nothing");
    telemetry.publish(EngineSample { waiting: None, ..sample() });
    assert_eq!(read(6).load, 7.0, "five run, and two more since: it is no less than that");
    assert_eq!(read(0).load, 1.0, "four have ended since");
    telemetry.publish(EngineSample { waiting: None, running: Some(0.0), ..sample() });
    assert_eq!(read(6).load, 6.0, "nor is it less than our own");
    telemetry.publish(EngineSample { waiting: None, running: None, ..sample() });
    assert_eq!(read(6).load, 6.0);
    telemetry.publish(EngineSample { waiting: Some(0.0), running: Some(0.0), ..sample() });
    assert_eq!(read(4).load, 4.0, "a page without any request is not that of the whole engine");
}

#[test]
fn stale_sample_yields_its_age_only() {
    let telemetry = Telemetry::default();
    telemetry.publish(sample());
    let long = Duration::from_secs(60);
    let stale = telemetry.read(&load(2), after(Duration::from_millis(301)));
    let age = Some(Micros(301_000));
    let expected = Readings { load: 2.0, age, standing: Standing::Stale, ..Readings::default() };
    assert_eq!(stale, expected);
    assert_eq!(telemetry.read(&load(2), after(long)).standing, Standing::Stale, "none has failed");
    telemetry.fail();
    let at = |wait| telemetry.read(&load(2), after(wait)).standing;
    assert_eq!(at(Duration::from_millis(300)), Standing::Fresh, "one failure does not age it");
    assert_eq!(at(Duration::from_secs(2)), Standing::Stale, "not given up yet");
    assert_eq!(at(Duration::from_micros(2_000_001)), Standing::Failing);
    telemetry.publish(EngineSample { sent_at: after(long), ..sample() });
    assert_eq!(at(long), Standing::Fresh);
    telemetry.publish(EngineSample { interval: Duration::from_secs(1), ..sample() });
    assert_eq!(at(Duration::from_secs(3)), Standing::Fresh, "an idle one is scraped less often");
    assert_eq!(telemetry.scrapes(), (3, 1));
}

#[test]
fn readings_are_finite_and_in_range() {
    let telemetry = Telemetry::default();
    telemetry.publish(EngineSample {
        waiting: Some(f32::INFINITY),
        running: Some(-2.0),
        kv_utilization: Some(1.7),
        ..sample()
    });
    let read = telemetry.read(&load(4), after(INTERVAL));
    assert_eq!((read.waiting, read.running, read.kv_utilization), (None, Some(0.0), Some(1.0)));
    telemetry.publish(EngineSample { kv_utilization: Some(f32::NAN), ..sample() });
    assert_eq!(telemetry.sample().unwrap().kv_utilization, None);
    let most = Some(f32::MAX);
    telemetry.publish(EngineSample { waiting: most, running: most, ..sample() });
    assert_eq!(telemetry.read(&load(4), after(INTERVAL)).load, f32::MAX);
}

#[test]
fn later_start_time_is_a_restart() {
    let telemetry = Telemetry::default();
    let started = |at| EngineDetails { started_at: at, ..EngineDetails::default() };
    assert!(!telemetry.learn_details(&started(Some(100.5))), "the first one seen");
    assert!(!telemetry.learn_details(&started(Some(100.5))));
    assert!(telemetry.learn_details(&started(Some(200.0))));
    assert!(!telemetry.learn_details(&started(Some(100.5))), "another process, and an older one");
    assert!(!telemetry.learn_details(&started(Some(200.0))));
    assert!(!telemetry.learn_details(&started(None)));
    assert!(!telemetry.learn_details(&started(Some(200.0))));
    assert_eq!(telemetry.epoch(), 1);
    telemetry.restart();
    assert_eq!(telemetry.epoch(), 2);
}

#[test]
fn cache_capacity_comes_from_blocks_or_tokens() {
    let mut details = EngineDetails { cache_tokens: Some(900), ..EngineDetails::default() };
    assert_eq!(details.capacity_tokens(), Some(900));
    details.blocks = Some(100);
    details.block_size = Some(16);
    assert_eq!(details.capacity_tokens(), Some(1600));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn concurrent_readers_never_see_a_torn_sample() {
    let telemetry = Telemetry::default();
    let is_over = AtomicBool::new(false);
    // Every field of a sample says the same number.
    let write = |number: u16| {
        let value = Some(f32::from(number) / f32::from(u16::MAX));
        telemetry.publish(EngineSample {
            waiting: value,
            running: value,
            kv_utilization: value,
            in_flight: number.into(),
            sent_at: Timestamp(number.into()),
            interval: Duration::from_micros(number.into()),
        });
    };
    write(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..4_u16 {
                (0..u16::MAX).for_each(|number| write(number.rotate_left(round.into())));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let read = telemetry.sample().unwrap();
                    let number = u16::try_from(read.in_flight).unwrap();
                    let value = Some(f32::from(number) / f32::from(u16::MAX));
                    assert_eq!((read.waiting, read.running), (value, value));
                    assert_eq!((read.kv_utilization, read.sent_at.0), (value, number.into()));
                    assert_eq!(read.interval, Duration::from_micros(number.into()));
                }
            });
        }
    });
}

#[test]
fn reading_allocates_nothing() {
    let telemetry = Telemetry::default();
    telemetry.publish(sample());
    let load = load(9);
    let counted = allocation_counter::measure(|| {
        for wait in 0..1000 {
            std::hint::black_box(telemetry.read(&load, Timestamp(SECOND + wait * 1000)));
        }
    });
    assert_eq!(counted.count_total, 0);
}
