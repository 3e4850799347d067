use super::*;
use crate::fleet::BackendId;

fn at(millis: u64) -> Timestamp {
    Timestamp(millis * 1000)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn waits(times: &ReturnTimes, openings: &Openings, now: u64, count: usize) -> Vec<u64> {
    (0..count).map(|_| times.after("m", None, openings, at(now)).as_secs()).collect()
}

#[test]
fn burst_is_spread_over_the_slots_and_the_time_that_each_is_taken() {
    let mut two = Openings::default();
    two.add(seconds(5), 2, Duration::from_millis(8400));
    assert_eq!(waits(&ReturnTimes::default(), &two, 10_000, 6), [5, 5, 14, 14, 23, 23]);
    let mut uneven = Openings::default();
    uneven.add(seconds(1), 1, seconds(8));
    uneven.add(seconds(6), 1, seconds(8));
    assert_eq!(waits(&ReturnTimes::default(), &uneven, 0, 5), [1, 6, 9, 14, 17]);
}

#[test]
fn lines_that_have_backends_in_common_share_their_openings() {
    let set = |ids: &[u16]| {
        let mut set = BackendSet::default();
        ids.iter().for_each(|id| set.insert(BackendId(*id)));
        set
    };
    let wait = |times: &ReturnTimes, ids: &[u16]| {
        let mut openings = Openings::default();
        openings.add(seconds(4), 2 * u32::try_from(ids.len()).unwrap(), seconds(4));
        times.after_backends(set(ids), None, &openings, at(0)).as_secs()
    };
    let times = ReturnTimes::default();
    // Two slots on each of three backends: six at a time, and not four for each of two lines.
    let waits: Vec<u64> = (0..12).map(|turn| wait(&times, [&[1, 2], &[2, 3]][turn % 2])).collect();
    let until = |limit| waits.iter().filter(|wait| **wait <= limit).count();
    assert_eq!((until(4), until(8)), (6, 12), "{waits:?}");
    assert_eq!(wait(&times, &[4]), 4, "none of them");
    let times = ReturnTimes::default();
    let of_all: Vec<u64> = (0..6).map(|_| wait(&times, &[1, 2, 3])).collect();
    assert_eq!(of_all, [4; 6]);
    assert_eq!(wait(&times, &[2]), 8, "its part of them has no room");
}

#[test]
fn burst_is_spread_by_a_fractional_rate() {
    let spread = |interval_ms| {
        let interval = Duration::from_millis(interval_ms);
        let openings = Openings::at_rate(interval, interval);
        waits(&ReturnTimes::default(), &openings, 0, 8)
    };
    assert_eq!(spread(2000), [2, 4, 6, 8, 10, 12, 14, 16]);
    assert_eq!(spread(1500), [2, 3, 5, 6, 8, 9, 12, 13]);
    assert_eq!(spread(300), [1, 1, 1, 2, 2, 2, 3, 3]);
    assert_eq!(spread(60_000)[..3], [60, 120, 120], "none is sent away for longer");
}

#[test]
fn later_refusals_take_what_is_left() {
    let times = ReturnTimes::default();
    let openings = |wait_ms| {
        let mut openings = Openings::default();
        openings.add(Duration::from_millis(wait_ms), 1, seconds(3));
        openings
    };
    assert_eq!(waits(&times, &openings(1700), 0, 2), [2, 5]);
    assert_eq!(waits(&times, &openings(700), 1000, 1), [7], "2 and 5 are taken");
    assert_eq!(waits(&times, &openings(700), 60_000, 1), [1]);
    let other = times.after("other", None, &openings(700), at(1000));
    assert_eq!(other.as_secs(), 1, "another line");
}

#[test]
fn client_that_returns_gives_its_opening_back() {
    let times = ReturnTimes::default();
    let openings = |wait| Openings::at_rate(seconds(wait), seconds(24));
    assert_eq!(waits(&times, &openings(2), 0, 1), [2]);
    assert_eq!(waits(&times, &openings(3), 2100, 1), [3], "the first one is back");
}

#[test]
fn client_that_polls_has_a_few_openings() {
    let times = ReturnTimes::default();
    let refuse = |client, now| {
        let mut openings = Openings::default();
        openings.add(seconds(9).saturating_sub(Duration::from_millis(now)), 1, seconds(9));
        let request = Some(Fingerprint::of(client, b"{}"));
        times.after("m", request, &openings, at(now)).as_secs()
    };
    let polled: Vec<u64> = (0..9).map(|poll| refuse(1, poll * 1000)).collect();
    assert_eq!(polled, [9, 17, 25, 33, 5, 13, 21, 29, 1], "four openings in turn");
    assert_eq!(refuse(2, 8000), 37, "another client finds the fifth free");
}

#[test]
fn client_that_polls_quickly_has_a_bounded_number_of_openings() {
    let times = ReturnTimes::default();
    let mut one_a_second = Openings::default();
    one_a_second.add(seconds(1), 1, seconds(1));
    let request = Some(Fingerprint::of(1, b"{}"));
    let refuse = |request, now| times.after("m", request, &one_a_second, at(now)).as_secs();
    let polled = (0..200).map(|poll| refuse(request, poll)).max();
    assert_eq!(polled, Some(64));
    assert_eq!(refuse(None, 200), 65, "another client");
}

#[test]
fn equal_requests_of_a_burst_are_not_one() {
    let times = ReturnTimes::default();
    let mut one = Openings::default();
    one.add(seconds(3), 1, seconds(3));
    let request = Some(Fingerprint::of(1, b"{}"));
    let waits = [0, 1000, 2000].map(|now| times.after("m", request, &one, at(now)).as_secs());
    assert_eq!(waits, [3, 5, 7]);
}

#[test]
fn fingerprint_is_of_the_client_and_the_whole_of_a_short_body() {
    let of = |client, body: &[u8]| Fingerprint::of(client, body);
    let long = |last: u8| [vec![b'a'; 40_000], vec![last]].concat();
    assert_eq!(of(1, &long(b'a')), of(1, &long(b'a')));
    assert_ne!(of(1, &long(b'a')), of(1, &long(b'b')));
    assert_ne!(of(1, b""), of(2, b""));
    assert_ne!(of(1, &[b'a'; 40_000]), of(1, &[b'a'; 40_001]));
}

#[test]
fn time_may_go_back_between_two_threads() {
    let times = ReturnTimes::default();
    let mut one = Openings::default();
    one.add(seconds(1), 1, seconds(1));
    assert_eq!(waits(&times, &one, 60_000, 2), [1, 2]);
    assert_eq!(waits(&times, &one, 1000, 1), [3]);
    assert!(times.lines.lock().values().all(|one| one.counts.len() < LENGTH));
}

#[test]
fn unlimited_room_takes_all_at_once() {
    let mut openings = Openings::default();
    openings.add(seconds(2), 1, seconds(9));
    openings.add_unlimited(Duration::from_millis(3200));
    assert_eq!(waits(&ReturnTimes::default(), &openings, 0, 4), [2, 4, 4, 4]);
    assert_eq!(waits(&ReturnTimes::default(), &Openings::default(), 0, 1), [120]);
}

#[test]
fn returns_and_lines_are_bounded() {
    let times = ReturnTimes::default();
    let openings = Openings::at_rate(Duration::ZERO, seconds(1));
    assert_eq!(waits(&times, &openings, 0, 500).last(), Some(&120));
    for line in 0..3000 {
        times.after(line, None, &openings, at(0));
    }
    assert!(times.lines.lock().len() <= MAX_LINES);
    let longest = times.lines.lock().values().map(|one| one.counts.len()).max();
    assert!(longest.is_some_and(|length| length <= LENGTH), "{longest:?}");
}
