//! Requests that wait at a balancer.

use super::*;
use crate::workload::Request;

/// A world of two backends that take four requests each, and a queue.
fn queued(queue: &str) -> WorldSpec {
    let mut spec = world("strategy: smart", 2);
    for backend in &mut spec.config.backends {
        backend.max_in_flight = Some(4);
    }
    let yaml = format!(
        "queue: {{ {queue} }}\nrouting: {{ strategy: slo }}\nbackends: [{{ name: a, url: 'http://10.0.0.1:1', models: [m] }}]\n"
    );
    let other = Config::parse(&yaml, "test.yaml", Path::new(""), &Environment::default()).unwrap();
    spec.config.queue = other.queue;
    spec
}

/// Returns the requests of clients, each with a rate per second and a priority.
fn clients(requests: u32, clients: &[(&str, f64, i8)]) -> Workload {
    let streams = clients.iter().map(|(client, rate, priority)| {
        format!(
            "  - {{ client: {client}, model: m, priority: {priority}, arrivals: {{ rate: {rate} }}, input: 800, \
             output: 100 }}\n"
        )
    });
    let yaml = format!("requests: {requests}\nstreams:\n{}", streams.collect::<String>());
    generate(&WorkloadSpec::parse(&yaml).unwrap(), 1)
}

/// Returns the times to the first token of the requests that `which` selects, ascending.
fn waits(result: &RunResult, workload: &Workload, which: impl Fn(&Request) -> bool) -> Vec<u64> {
    let all = result.requests.iter().zip(&workload.requests);
    let done = all.filter(|(one, sent)| one.status == Status::Done && which(sent));
    let mut waits: Vec<u64> = done.map(|(one, _)| one.first_token - one.arrived).collect();
    waits.sort_unstable();
    waits
}

#[test]
fn requests_wait_for_room_and_come_in_turn() {
    let workload = clients(400, &[("a", 6.0, 0)]);
    let without = simulate(&queued("size: 0"), &workload).unwrap();
    assert!(count(&without, Status::Shed(ShedReason::Saturated)) > 50);
    let spec = queued("size: 1000, timeout: 10m");
    let result = simulate(&spec, &workload).unwrap();
    assert_eq!(count(&result, Status::Done), 400);
    let starts: Vec<u64> = result.requests.iter().map(|one| one.first_token).collect();
    let early = starts.windows(2).filter(|two| two[0] > two[1]).count();
    assert!(early < 40, "{early} of 400 came before the one ahead of them");
    assert_eq!(simulate(&spec, &workload), Ok(result), "and again");
}

#[test]
fn queues_are_bounded_in_number_and_time_and_clients_may_leave() {
    let workload = clients(400, &[("a", 12.0, 0)]);
    let full = simulate(&queued("size: 5, timeout: 10m"), &workload).unwrap();
    let shed = count(&full, Status::Shed(ShedReason::QueueFull));
    assert!(shed > 50, "{shed}");
    assert_eq!(count(&full, Status::Done) + shed, 400);
    let late = simulate(&queued("size: 1000, timeout: 2s"), &workload).unwrap();
    let timed_out = count(&late, Status::Shed(ShedReason::QueueTimeout));
    assert!(timed_out > 50, "{timed_out}");
    assert_eq!(count(&late, Status::Done) + timed_out, 400);
    let mut impatient = workload;
    for request in &mut impatient.requests {
        request.patience_ms = 1000;
    }
    let left = simulate(&queued("size: 1000, timeout: 10m"), &impatient).unwrap();
    assert!(count(&left, Status::Left) > 50);
    assert_eq!(count(&left, Status::Done) + count(&left, Status::Left), 400);
}

#[test]
fn the_important_come_first_and_take_the_places_of_others() {
    let workload = clients(600, &[("a", 4.0, 1), ("b", 12.0, -1)]);
    let result = simulate(&queued("size: 20, timeout: 10m"), &workload).unwrap();
    let refused = |priority: i8| {
        let all = result.requests.iter().zip(&workload.requests);
        all.filter(|(one, sent)| {
            sent.priority == priority && one.status == Status::Shed(ShedReason::QueueFull)
        })
        .count()
    };
    assert_eq!(refused(1), 0);
    assert!(refused(-1) > 100, "{}", refused(-1));
    let [important, others] =
        [1, -1].map(|priority| waits(&result, &workload, |one| one.priority == priority));
    let p99 = |waits: &[u64]| waits[waits.len() * 99 / 100];
    assert!(
        p99(&important) < 4_000_000 && p99(&others) > 8_000_000,
        "{:?}",
        (p99(&important), p99(&others))
    );
}

/// Jain's index of the service that clients got while all of them waited.
#[test]
fn one_client_that_sends_twenty_times_as_much_gets_no_more() {
    let ones = ["a", "b", "c", "d"].map(|name| (name, 1.6, 0));
    let mut all = vec![("z", 32.0, 0)];
    all.extend(ones);
    let workload = clients(1500, &all);
    let spec = queued("size: 2000, timeout: 10m");
    let result = simulate(&spec, &workload).unwrap();
    let last = workload.requests.last().map_or(0, |one| one.arrives_at) + START;
    let mut served = [0.0_f64; 5];
    for (one, sent) in result.requests.iter().zip(&workload.requests) {
        if one.first_token <= last {
            served[sent.client as usize] += f64::from(sent.input_tokens + 2 * sent.output_tokens);
        }
    }
    let sum: f64 = served.iter().sum();
    let squares: f64 = served.iter().map(|one| one * one).sum();
    let jain = sum * sum / (5.0 * squares);
    assert!(jain > 0.95, "{jain}: {served:?}");
}

/// Engines that accept everything queue it themselves, in the order of arrival.
#[test]
fn work_limits_keep_the_queue_where_the_important_can_overtake() {
    let workload = clients(1500, &[("a", 10.0, 1), ("b", 60.0, 0)]);
    let [without, with] =
        ["size: 0", "size: 5000, timeout: 10m, max_backlog: 300ms"].map(|queue| {
            let mut spec = queued(queue);
            spec.config.backends.iter_mut().for_each(|backend| backend.max_in_flight = None);
            spec.config.routing = config("strategy: slo", 1).routing;
            let result = simulate(&spec, &workload).unwrap();
            assert_eq!(count(&result, Status::Done), 1500);
            let waits = waits(&result, &workload, |one| one.priority == 1);
            waits[waits.len() * 99 / 100]
        });
    assert!(with < 5_000_000 && without > 3 * with, "{with} and {without} us");
}

/// At 1.5 and 2 times the capacity, sheddable requests are refused so that the others meet their
/// objectives, and goodput hardly falls.
#[test]
fn overload_is_refused_to_those_that_may_be_refused() {
    let lengths = "input: { distribution: lognormal, mean: 900, deviation: 1400, min: 20, max: 12000 }, output: { \
                   distribution: lognormal, mean: 220, deviation: 250, min: 2, max: 2000 }";
    let good = [26.0, 52.0].map(|rate| {
        let stream = |client: &str, priority: i8, share: f64| {
            let rate = rate * share;
            format!(
                "  - {{ client: {client}, model: m, priority: {priority}, arrivals: {{ rate: {rate} }}, {lengths} }}\n"
            )
        };
        let yaml = format!("duration: 150s\nstreams:\n{}{}", stream("a", 0, 0.3), stream("b", -1, 0.7));
        let workload = generate(&WorkloadSpec::parse(&yaml).unwrap(), 1);
        let mut spec = queued("size: 5000, timeout: 10s, max_backlog: 300ms");
        spec.config.backends.iter_mut().for_each(|backend| backend.max_in_flight = None);
        spec.config.routing = config("strategy: slo", 1).routing;
        let (ttft_ms, tpot_ms) = (Some(2000.0), Some(100.0));
        spec.objectives = Objectives { ttft_ms, tpot_ms, ..Objectives::default() };
        let result = simulate(&spec, &workload).unwrap();
        let important = waits(&result, &workload, |one| one.priority == 0);
        let sent = workload.requests.iter().filter(|one| one.priority == 0).count();
        assert_eq!(important.len(), sent, "none of them is refused");
        assert!(important[sent * 99 / 100] < 2_000_000, "{} us", important[sent * 99 / 100]);
        let objective = Objective { first_token: 2.0, per_token: 0.1 };
        let summary = Summary::new(&result, &workload, &objective);
        assert!(summary.priorities[0].goodput > 0.85, "{:?}", summary.priorities);
        summary.goodput * rate
    });
    assert!(good[1] > 0.9 * good[0], "{good:?} good requests a second");
}

/// Clients leave, engines are lost, refuse and slow down: the checks at the end of a run find
/// leftover counts.
#[test]
fn nothing_is_counted_after_cancels_errors_and_restarts() {
    let mut workload = clients(3000, &[("a", 20.0, 1), ("b", 60.0, -1)]);
    for (index, request) in workload.requests.iter_mut().enumerate() {
        request.patience_ms = if index % 3 == 0 { 900 } else { 0 };
        request.is_streamed = index % 7 != 0;
    }
    let mut spec = queued("size: 200, timeout: 5s, max_backlog: 300ms");
    spec.config.backends.iter_mut().for_each(|backend| backend.max_in_flight = None);
    spec.config.routing = config("strategy: slo", 1).routing;
    let (ttft_ms, tpot_ms) = (Some(1500.0), Some(80.0));
    spec.objectives = Objectives { ttft_ms, tpot_ms, ..Objectives::default() };
    let faults =
        ["at 3s backend b0 429 2s", "at 8s backend b1 restart 5s", "at 15s backend b0 slow x3 5s"];
    spec.faults = faults.map(|fault| fault.parse().unwrap()).into();
    let result = simulate(&spec, &workload).unwrap();
    let failed = result.requests.iter().filter(|one| one.status.fail_reason().is_some()).count();
    let shed = result.requests.iter().filter(|one| one.status.shed_reason().is_some()).count();
    let [left, done] = [Status::Left, Status::Done].map(|status| count(&result, status));
    assert!(left > 50 && failed > 5 && shed > 50 && done > 300, "{left} {failed} {shed} {done}");
    assert_eq!(left + failed + shed + done, 3000);
}

/// Returns the 99th percentile of the queue waits of four clients, in microseconds, next to a
/// client that sends sixty times as much; and the number of requests done in time.
fn waits_beside_a_large_client(reserve: f64) -> (u64, usize) {
    let mut all: Vec<_> = ["a", "b", "c", "d"].map(|name| (name, 0.4, 0)).into();
    all.push(("z", 24.0, 0));
    let workload = clients(6000, &all);
    let mut spec = queued(&format!("size: 5000, timeout: 10m, reserve: {reserve}"));
    spec.config.backends.iter_mut().for_each(|backend| backend.max_in_flight = Some(16));
    let result = simulate(&spec, &workload).unwrap();
    let last = workload.requests.last().map_or(0, |one| one.arrives_at) + START;
    // The first requests find all slots taken by the only client so far.
    let is_small = |sent: &Request| sent.client < 4 && sent.arrives_at > 20_000_000;
    let all = result.requests.iter().zip(&workload.requests);
    let mut waits: Vec<u64> =
        all.filter(|(_, sent)| is_small(sent)).map(|(one, _)| one.decided - one.arrived).collect();
    waits.sort_unstable();
    let done = result.requests.iter().filter(|one| one.status == Status::Done && one.ended <= last);
    (waits[waits.len() * 99 / 100], done.count())
}

/// One slot in eight is reserved for clients that hold less than their share.
#[test]
fn clients_below_their_share_wait_for_no_slot_beside_a_large_one() {
    let (without, all) = waits_beside_a_large_client(0.0);
    let (with, done) = waits_beside_a_large_client(0.125);
    assert!(with * 4 < without && without > 100_000, "{without} {with} us");
    assert!(done * 8 >= all * 7, "{done} and {all} responses in time");
}

#[test]
fn client_that_is_alone_loses_nothing_to_a_reserve() {
    let workload = clients(600, &[("a", 16.0, 0)]);
    let [none, half] = ["reserve: 0", "reserve: 0.5"].map(|reserve| {
        simulate(&queued(&format!("size: 1000, timeout: 10m, {reserve}")), &workload)
    });
    assert_eq!(none, half);
}
